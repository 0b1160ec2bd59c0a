"""The solvers in plain PyTorch, differentiated by autograd: the reference for the hand-written gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def plain_loop(
    x: Tensor,
    W: Tensor,
    start: Tensor,
    *,
    L: Tensor,
    steps: int,
    momentum: bool = True,
    floor: float = 0.0,
    cap: bool = False,
    l1: float = 0.0,
    l2: float = 0.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Runs the steps of the paper's Appendix B one operation at a time; L is that of the whole objective."""
    L = L.reshape(*L.shape, 1, 1)
    if mask is not None:
        x = x.where(mask, 0.0)
    limit = x.detach().abs().amax(-1, keepdim=True)
    h = y = start
    t = 1.0
    for _ in range(steps):
        error = y @ W.mT - x
        if mask is not None:
            error = error.where(mask, 0.0)
        new = (y - (error @ W + l1 + l2 * y) / L).clamp(min=floor)
        if cap:
            largest = new.detach().amax(-1, keepdim=True)
            new = new * torch.where(largest > limit, limit / largest, 1.0)
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = new + ((t - 1) / t_new if momentum else 0.0) * (new - h)
        h, t = new, t_new
    return h


def spectral_norm_squared(W: Tensor) -> Tensor:
    """The largest eigenvalue of W^T W, from a singular value decomposition."""
    return torch.linalg.matrix_norm(W.detach(), 2).square()
