"""What something was computed on: versions and hardware."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchpfc._version import __version__

CPU_INFO = Path("/proc/cpuinfo")  # Linux only


def cpu_name() -> str:
    """The processor, by its name where the system tells it, else by its kind."""
    return _name_in(CPU_INFO) or platform.processor() or platform.machine()


@cache
def _name_in(path: Path) -> str:
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def describe_versions() -> dict[str, str]:
    """What numbers depend on, by version."""
    return {"torchpfc": __version__, "torch": torch.__version__, "python": platform.python_version()}


def describe_hardware(device: torch.device) -> dict[str, Any]:
    """What numbers are computed on.

    Args:
        device: Where; a GPU is named where it is one.
    """
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": gpu}


def describe_bits(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What the bits of a result depend on, beside data, settings and seeds.

    Args:
        device: Where it was computed.
        dtype: In what type.
    """
    hardware = describe_hardware(device)
    place = {"device": device.type, "dtype": str(dtype).removeprefix("torch.")}
    return describe_versions() | {"numpy": np.__version__} | {k: hardware[k] for k in ("cpu", "threads", "gpu")} | place
