"""Devices, precisions and processes, through Lightning Fabric."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = ("tf32", "32", "64", "bf16")
"""Of the arithmetic. The published experiments ran at tf32, which differs from 32 on GPUs alone."""


def open_fabric(device: str = "auto", precision: str = "tf32", processes: int = 1) -> Fabric:
    """Starts processes on devices; each goes on from here.

    Args:
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        precision: One of `PRECISIONS`.
        processes: Number of processes, each on a device of its own, between which every batch is divided.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {device!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    available = torch.cuda.device_count()
    if device == "cuda" and not available:
        raise ValueError("device must be cpu or auto, got 'cuda', but PyTorch finds no GPU here")
    if device == "auto":
        device = "cuda" if available else "cpu"
    if processes < 1 or (device == "cuda" and processes > available):
        most = f" and at most {available}, the number of GPUs" if device == "cuda" else ""
        raise ValueError(f"devices must be at least 1{most}, got {processes}")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    fabric = _fabric_class()(
        accelerator=device,
        devices=processes,
        strategy="auto" if processes == 1 else "ddp",
        # Runs choose other types themselves: Fabric would halve all of them, and hand predictions of 64 back in 32.
        precision="32-true",
    )
    fabric.launch()
    return fabric


def stop_processes(fabric: Fabric) -> None:
    """Ends the processes that were started from this one, which would wait for it in vain."""
    for process in getattr(fabric.strategy.launcher, "procs", ()):
        process.kill()


def dtype_of(precision: str) -> torch.dtype:
    """The type of weights and data at a precision."""
    return torch.float64 if precision == "64" else torch.float32


def _fabric_class() -> type[Fabric]:
    # Fabric comes in a package of its own, and inside the larger `lightning`.
    package = "lightning_fabric" if importlib.util.find_spec("lightning_fabric") else "lightning.fabric"
    found: type[Fabric] = importlib.import_module(package).Fabric
    return found
