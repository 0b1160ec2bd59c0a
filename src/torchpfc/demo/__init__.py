"""The first five minutes: what a PFC block learns from handwritten digits, on one page."""

from __future__ import annotations

import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from torchpfc.checkpoint import write_atomically
from torchpfc.demo.measure import SMOKE, TRAININGS, find_out
from torchpfc.demo.page import draw, summarise
from torchpfc.locks import held
from torchpfc.machine import describe_hardware, describe_versions
from torchpfc.progress import Progress

__all__ = ["run_demo"]

MAX_SEED = 2**32 - 1  # scikit-learn takes no larger one

NEXT_STEPS = """
What to do next
  Look inside a model, draw a digit, try what it forgets:
    {run}pip install "torchpfc[explorer]"
    {run}torchpfc explore
  Go through the library step by step: docs/quickstart.md
  Use a table of your own, X with a row of numbers for each example and y with their classes:
    from torchpfc.sklearn import PFCClassifier
    model = PFCClassifier().fit(X, y)
    print(model.explain(X[:1]))"""


def run_demo(out: Path, *, seed: int = 0, smoke: bool = False) -> Path:
    """Trains on handwritten digits, writes a page that shows what was learned, and says what to do next.

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
    with held(out.with_name(f".{out.name}.lock"), str(out)):  # which also finds out whether one can write there
        _write(out, seed=seed, smoke=smoke)
    return out


def _write(out: Path, *, seed: int, smoke: bool) -> None:
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # matrices as small as here gain nothing from more, and lose where cores are busy
    try:
        with Progress(sum(training.seconds for training in TRAININGS.values()), lines=True) as progress:
            found = find_out(SMOKE if smoke else TRAININGS, seed=seed, progress=progress)
    finally:
        torch.set_num_threads(threads)
    hardware = describe_hardware(torch.device("cpu"))
    made = {
        **describe_versions(),
        "sklearn": version("scikit-learn"),
        "seconds": f"{time.perf_counter() - start:.0f}",
        "machine": f"{hardware['cpu']} ({hardware['cores']} cores)",
    }
    write_atomically(out, draw(found, made))
    run = "" if shutil.which("torchpfc") else f"{sys.executable} -m "  # make demo activates no environment
    print(summarise(found), f"Wrote {out}", NEXT_STEPS.format(run=run), sep="\n")
