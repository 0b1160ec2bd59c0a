"""What every benchmark writes beside its numbers."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

import torchpfc


def describe() -> dict[str, Any]:
    """Versions and hardware."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": {
            "torchpfc": torchpfc.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": gpu},
    }


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Writes a result file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(result, indent=2) + "\n")
    scratch.replace(path)
    print(f"wrote {path}")


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()
