"""FISTA: projected gradient with momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from torchpfc.solvers.base import Momentum, Outcome, Trace
from torchpfc.solvers.cuda import choice
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.gradient import GradientSolver, GradientState
from torchpfc.solvers.scaling import Bounds

PAPER_FLOOR = 1e-5
"""The smallest value of an entry of h, and of W, in the published experiments."""


@dataclass(frozen=True)
class FISTA(GradientSolver):
    r"""Projected gradient with momentum, for $\min_{h \ge 0} \|x - W h\|^2$.

    Each step is $h_{k+1} = \mathrm{relu}(y_k - \tfrac1L W^\top (W y_k - x))$, taken from a point $y_k$ ahead of $h_k$
    along the last move (Appendix B). Reaches a given residual in fewer steps than `ProjectedGradient`.

    Args:
        max_iter: Steps to take at most; the published experiments unroll 100.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero.
            None takes every step and never waits for the device.
        floor: Smallest value of an entry of h.
        cap: Scale a row down after each step so that its largest entry does not exceed the largest of x in magnitude.
        start: Where to start without a warm start: zeros, the floor, or small random numbers.
        check_every: Steps between two tests of the tolerance.
        restart: Drop the momentum of a row that moves against its gradient. Much faster to a tight tolerance.

    Example:
        >>> from torchpfc import NonnegativeLeastSquares, solve
        >>> problem = NonnegativeLeastSquares(torch.tensor([[2.0, -3.0]]), torch.eye(2))
        >>> solve(problem, FISTA(max_iter=50)).h
        tensor([[2., 0.]])
    """

    restart: bool = False

    @classmethod
    def paper(cls, max_iter: int = 100) -> Self:
        """The published settings: floor 1e-5, start at the floor, cap on, every step taken."""
        return cls(max_iter=max_iter, floor=PAPER_FLOOR, cap=True, start="floor")

    @property
    def momentum_is_fixed(self) -> bool:
        """Whether the momentum depends on the number of the step alone."""
        return not self.restart

    def all_steps(self, descent: Descent, bounds: Bounds, start: Tensor, trace: Trace | None) -> Outcome | None:
        """Takes all steps at once, where there is a way to; None where they have to be taken one by one."""
        if self.restart or self.tol is not None or not self.max_iter:
            return None
        return choice.take_steps(self.max_iter, descent, bounds, start, trace)

    def momentum(self, state: GradientState, h: Tensor) -> tuple[Momentum, Momentum]:
        r"""$b = (t - 1) / t'$ with $t' = (1 + \sqrt{1 + 4 t^2}) / 2$."""
        if not self.restart:
            t = state.clock
            assert not isinstance(t, Tensor)
            later = (1 + math.sqrt(1 + 4 * t * t)) / 2
            return (t - 1) / later, later
        backwards = ((state.ahead - h) * (h - state.h)).sum(-1, keepdim=True) > 0
        clock = torch.where(backwards, torch.ones_like(h[..., :1]), state.clock)
        later_clock = (1 + (1 + 4 * clock * clock).sqrt()) / 2
        return (clock - 1) / later_clock, later_clock
