"""The first five minutes: what a PFC block learns from handwritten digits, on one page."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch

from torchpfc._version import __version__
from torchpfc.checkpoint import write_atomically
from torchpfc.demo.measure import STAGES, find_out
from torchpfc.demo.page import Made, draw, summarise
from torchpfc.demo.progress import Progress
from torchpfc.demo.settings import CHOSEN, SMOKE

__all__ = ["run_demo"]

MAX_SEED = 2**32 - 1  # scikit-learn takes no larger one
CPU_INFO = Path("/proc/cpuinfo")  # Linux only


def run_demo(out: Path, *, seed: int = 0, smoke: bool = False) -> Path:
    """Trains on handwritten digits, prints the accuracies and writes a page that shows what was learned.

    Args:
        out: The page to write, an HTML file; one that is there already is replaced.
        seed: Decides the validation digits, the first weights and the order of the digits.
        smoke: Do everything in seconds, and learn little: for tests.

    Returns:
        The path of the page.
    """
    out = Path(out)
    if not out.parent.is_dir():
        raise ValueError(f"out must lie in an existing folder, got {str(out)!r}")
    if out.is_dir():
        raise ValueError(f"out must name a file, got the folder {str(out)!r}")
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be from 0 to {MAX_SEED}, got {seed}")
    start = time.perf_counter()
    with _one_thread(), Progress(STAGES) as progress:
        found = find_out(SMOKE if smoke else CHOSEN, seed=seed, progress=progress)
    versions = {"torchpfc": __version__, "torch": torch.__version__, "scikit-learn": version("scikit-learn")}
    versions["Python"] = platform.python_version()
    write_atomically(out, draw(found, Made(time.perf_counter() - start, versions, _machine())))
    print(summarise(found))
    return out


@contextmanager
def _one_thread() -> Iterator[None]:
    """Uses one thread meanwhile: matrices as small as here gain nothing from more, and lose where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _machine() -> str:
    """The processor, by its name where the system tells it, and the number of its cores."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{[*names, platform.processor() or platform.machine()][0]} ({os.cpu_count()} cores)"
