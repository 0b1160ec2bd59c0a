"""Where kernels take over from plain PyTorch: the one place that chooses.

What has more than one kernel is started here, and gives None where none applies and PyTorch has to do it.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from torchpfc.solvers.base import Outcome, Pullback, Trace
from torchpfc.solvers.cuda import fused
from torchpfc.solvers.cuda.halves import FEW_PARTS, Halves
from torchpfc.solvers.descent import Descent, Gram
from torchpfc.solvers.scaling import Bounds

LONGEST_ROW = 8192
"""Parts that a program can hold at once."""

_CAPABILITY = (8, 0)  # the first devices with matrix units for TF32 and with copies that run in the background


def applies(descent: Descent) -> bool:
    """Whether all steps are ones that a kernel can take at once."""
    return isinstance(descent, Gram) and descent.offset.shape[-1] <= FEW_PARTS and applies_to_rows(descent)


def applies_to_rows(descent: Descent) -> bool:
    """Whether kernels can do what a step has to do beside the product."""
    return can_take(descent.offset)


def can_take(rows: Tensor) -> bool:
    """Whether a kernel can take rows of this size and type, where they are."""
    return (
        rows.is_cuda
        and rows.dtype == torch.float32
        and rows.numel() > 0
        and rows.shape[-1] <= LONGEST_ROW
        and not torch.compiler.is_compiling()
        and _can_run_kernels(rows.device)
    )


def applies_to_trace(descent: Descent, trace: Trace) -> bool:
    """Whether a kernel took the steps of a trace: then the momentum is a tensor, with one number a step."""
    return isinstance(trace.momentum, Tensor) and trace.momentum.shape == (trace.steps, 1, 1) and applies(descent)


def take_steps(steps: int, descent: Descent, bounds: Bounds, start: Tensor, trace: Trace | None) -> Outcome | None:
    """All steps of FISTA without restarts; see `fused.take_steps`."""
    return fused.take_steps(steps, descent, bounds, start, trace) if applies(descent) else None


def halves_of(descent: Descent, rows: Tensor) -> Halves | None:
    """What products with these rows are made of in half precision, where they may be."""
    return fused.halves_of(descent, rows) if applies_to_rows(descent) else None


def pull_back(
    descent: Descent, bounds: Bounds, trace: Trace, iterations: Tensor | None, gradient: Tensor
) -> Pullback | None:
    """The way back through all steps, by the kernel that took them or with one for each; see `fused.pull_back`."""
    if applies_to_trace(descent, trace):  # gpu-only: a kernel took the steps
        return fused.pull_back(descent, bounds, trace, gradient)
    if iterations is None and isinstance(trace.momentum, list) and applies_to_rows(descent):  # gpu-only: a kernel each
        return fused.pull_back_by_rows(descent, bounds, trace, gradient)
    return None


def solve_on_support(
    steps: int, damping: float, descent: Descent, bounds: Bounds, outcome: Outcome, gradient: Tensor
) -> Tensor | None:
    """A fixed number of steps on the linear system of `Implicit`; see `fused.solve_on_support`."""
    if applies(descent):  # gpu-only: a kernel takes the steps
        return fused.solve_on_support(steps, damping, descent, bounds, outcome, gradient)
    if applies_to_rows(descent):  # gpu-only: a kernel does all but the product
        return fused.solve_on_support_by_rows(steps, damping, descent, bounds, outcome, gradient)
    return None


@cache
def _can_run_kernels(device: torch.device) -> bool:
    if find_spec("triton") is None or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= _CAPABILITY  # gpu-only: asks the driver
