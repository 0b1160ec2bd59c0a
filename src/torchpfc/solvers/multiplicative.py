"""Multiplicative updates: the right update of Lee and Seung."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchpfc.solvers.base import Pullback, Solver, State, Trace
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.scaling import Bounds


@dataclass(frozen=True)
class Multiplicative(Solver):
    r"""The update of Lee and Seung, $h_{k+1} = h_k \cdot \frac{W^\top x}{W^\top W h_k + l_1 + l_2 h_k}$.

    Needs non-negative x and W. The objective never rises, but steps get short near zero, so ask for loose tolerances
    only. An entry that is exactly zero would stay so: in the start, a gradient step from zero takes its place.

    Args:
        max_iter: Steps to take at most.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero.
        floor: Smallest value of an entry of h.
        start: Where to start without a warm start: zeros, the floor, or small random numbers.
        check_every: Steps between two tests of the tolerance.
    """

    unrolls: ClassVar[bool] = True
    minimizes: ClassVar[bool] = True
    takes_cap: ClassVar[bool] = False

    def init(self, descent: Descent, h: Tensor) -> State:
        """The state before the first step from h."""
        return State(h.where(h > 0, descent.offset.clamp(min=torch.finfo(h.dtype).eps)), None)

    def step(self, descent: Descent, bounds: Bounds, state: State, out: Tensor | None = None) -> State:
        """One step; writes the new iterate to `out` where given."""
        numerator, denominator = _quotient(descent, state.h)
        h = torch.mul(state.h, numerator / denominator, out=out)
        bounds.project_(h)
        return State(h, None)

    def pull_back(
        self, descent: Descent, bounds: Bounds, trace: Trace, iterations: Tensor | None, gradient: Tensor
    ) -> Pullback:
        """Sends a gradient with respect to the result back through every step."""
        steps = trace.steps
        v = gradient.new_empty((*gradient.shape[:-2], steps, *gradient.shape[-2:]))
        total = torch.zeros_like(gradient)
        arriving = gradient if iterations is None else gradient * (iterations == steps).unsqueeze(-1)
        for k in reversed(range(steps)):
            h = trace.slot(k) if k else self.init(descent, trace.slot(0)).h
            numerator, denominator = _quotient(descent, h)
            u = bounds.pull_back(arriving, trace.slot(k + 1), None) / denominator
            total.addcmul_(u, h)
            to_product = torch.mul(u * h, numerator / denominator, out=v[..., k, :, :])
            arriving = descent.subtract_product_(u * numerator, to_product)
            if iterations is not None:
                arriving += gradient * (iterations == k).unsqueeze(-1)
        return Pullback(v, total, arriving)


def _quotient(descent: Descent, h: Tensor) -> tuple[Tensor, Tensor]:
    """Numerator and denominator, both in units of L."""
    shift = descent.l1 / descent.L
    tiny = torch.finfo(h.dtype).tiny
    return descent.offset + shift, (descent.product(h) + shift).clamp_(min=tiny)
