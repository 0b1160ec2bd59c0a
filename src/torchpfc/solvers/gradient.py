"""What the solvers that follow the gradient share: the step, and the gradient of a chain of steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchpfc.solvers.base import Momentum, Solver, State, Trace
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.scaling import Bounds


@dataclass(frozen=True)
class GradientSolver(Solver):
    r"""A projected gradient step from a point $y_k$ ahead of $h_k$ along the last move.

    $$y_k = h_k + b_{k-1} (h_k - h_{k-1}), \qquad h_{k+1} = s_k \max(y_k - \nabla(y_k) / L, f)$$
    """

    adjoints: ClassVar[frozenset[str]] = frozenset({"Unrolled", "Truncated", "Implicit"})

    @abstractmethod
    def momentum(self, state: State, h: Tensor) -> tuple[Momentum, Momentum]:
        """The momentum after a step from `state` to h, and the schedule's next time."""

    def step(self, descent: Descent, bounds: Bounds, state: State, out: Tensor | None = None) -> State:
        """One step; writes the new iterate to `out` where given."""
        h = descent.step(state.ahead, out=out)
        scale = bounds.project_(h)
        momentum, clock = self.momentum(state, h)
        moving = isinstance(momentum, Tensor) or momentum > 0
        ahead = torch.lerp(state.h, h, 1 + momentum) if moving else h
        return State(h, ahead, state.ahead, scale, momentum, clock)


def pull_back(
    descent: Descent, bounds: Bounds, trace: Trace, iterations: Tensor | None, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Sends a gradient with respect to the last iterate back through every step.

    With $g_k$ the gradient with respect to $h_k$:

    $$u_k = s_k g_{k+1} [z_k > f], \qquad v_k = (1 + b_{k-1}) u_k - b_k u_{k+1}, \qquad g_k = v_k - C v_k$$

    Args:
        descent: The step.
        bounds: The projection.
        trace: The iterates.
        iterations: Steps that each row took; None where every row took all of them.
        gradient: The gradient with respect to the result.

    Returns:
        All $v_k$, and the gradient with respect to the start.

    Shape:
        - iterations: $(*, n)$
        - gradient: $(*, n, r)$
        - the results: $(*, K, n, r)$ and $(*, n, r)$
    """
    steps = trace.steps
    v = gradient.new_empty((*gradient.shape[:-2], steps, *gradient.shape[-2:]))
    arriving = gradient
    if iterations is not None:  # a row that stopped early takes its gradient where it stopped
        arriving = gradient * (iterations == steps).unsqueeze(-1)
    later: Tensor | None = None
    for k in reversed(range(steps)):
        u = bounds.pull_back(arriving, trace.slot(k + 1), trace.scale_of(k))
        here = torch.mul(u, 1 + (trace.momentum_after(k - 1) if k else 0.0), out=v[..., k, :, :])
        if later is not None:
            _subtract_scaled_(here, later, trace.momentum_after(k))
        arriving = descent.pull_back(here)
        if iterations is not None:
            arriving += gradient * (iterations == k).unsqueeze(-1)
        later = u
    return v, arriving


def _subtract_scaled_(target: Tensor, other: Tensor, factor: Momentum) -> None:
    if isinstance(factor, Tensor):
        target.addcmul_(other, factor, value=-1)
    else:
        target.sub_(other, alpha=factor)
