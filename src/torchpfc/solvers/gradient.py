"""What the solvers that follow the gradient share: the step, and the gradient of a chain of steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchpfc.solvers.base import Momentum, Pullback, Solver, State, Trace
from torchpfc.solvers.cuda import choice, fused
from torchpfc.solvers.cuda.halves import Halves
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.scaling import Bounds


@dataclass(frozen=True, eq=False)
class GradientState(State):
    """Where a gradient solver stands.

    Shape:
        - ahead, origin: $(*, n, r)$
    """

    ahead: Tensor
    """The point that the next step starts from."""
    origin: Tensor
    """The point that the last step started from."""
    momentum: Momentum = 0.0
    """How far `ahead` lies beyond h along the last move."""
    clock: Momentum = 1.0
    """The momentum schedule's own time."""
    halves: Halves | None = None
    """What `ahead` is in half precision, where products may be rounded."""


@dataclass(frozen=True)
class GradientSolver(Solver):
    r"""A projected gradient step from a point $y_k$ ahead of $h_k$ along the last move.

    $$y_k = h_k + b_{k-1} (h_k - h_{k-1}), \qquad h_{k+1} = s_k \max(y_k - \nabla(y_k) / L, f)$$
    """

    unrolls: ClassVar[bool] = True
    goes_on: ClassVar[bool] = True
    minimizes: ClassVar[bool] = True

    @property
    def momentum_is_fixed(self) -> bool:
        """Whether the momentum depends on the number of the step alone."""
        return True

    @abstractmethod
    def momentum(self, state: GradientState, h: Tensor) -> tuple[Momentum, Momentum]:
        """The momentum after a step from `state` to h, and the schedule's next time."""

    def init(self, descent: Descent, h: Tensor) -> GradientState:
        """The state before the first step from h."""
        # Rows can leave the computation only where there is a tolerance, and there they stay in one precision.
        halves = choice.halves_of(descent, h) if self.tol is None and self.momentum_is_fixed else None
        return GradientState(h, None, h, h, halves=halves)

    def step(self, descent: Descent, bounds: Bounds, state: GradientState, out: Tensor | None = None) -> GradientState:
        """One step; writes the new iterate to `out` where given."""
        if self.momentum_is_fixed and choice.applies_to_rows(descent):  # gpu-only: a kernel does all but the product
            momentum, clock = self.momentum(state, state.h)
            assert not isinstance(momentum, Tensor)
            h, scale, ahead = fused.take_step(state.ahead, state.h, state.halves, descent, bounds, momentum, out)
            return GradientState(h, scale, ahead, state.ahead, momentum, clock, state.halves)
        h = descent.step(state.ahead, out=out)
        scale = bounds.project_(h)
        momentum, clock = self.momentum(state, h)
        moving = isinstance(momentum, Tensor) or momentum > 0
        ahead = torch.lerp(state.h, h, 1 + momentum) if moving else h
        return GradientState(h, scale, ahead, state.ahead, momentum, clock)

    def violation(self, descent: Descent, bounds: Bounds, state: GradientState) -> Tensor:
        """How far the last step moved, which bounds the violation where it ended."""
        return descent.fixed_point_residual(state.origin, state.h)

    def pull_back(
        self, descent: Descent, bounds: Bounds, trace: Trace, iterations: Tensor | None, gradient: Tensor
    ) -> Pullback:
        r"""Sends a gradient with respect to the result back through every step.

        With $g_k$ the gradient with respect to $h_k$:

        $$u_k = s_k g_{k+1} [z_k > f], \qquad v_k = (1 + b_{k-1}) u_k - b_k u_{k+1}, \qquad g_k = v_k - C v_k$$

        Args:
            descent: The step.
            bounds: The projection.
            trace: The iterates.
            iterations: Steps that each row took; None where every row took all of them.
            gradient: The gradient with respect to the result.

        Shape:
            - iterations: $(*, n)$
            - gradient: $(*, n, r)$
        """
        by_kernels = choice.pull_back(descent, bounds, trace, iterations, gradient)
        if by_kernels is not None:  # gpu-only: a kernel took the steps
            return by_kernels
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
        return Pullback(v, v.sum(-3), arriving)


def _subtract_scaled_(target: Tensor, other: Tensor, factor: Momentum) -> None:
    if isinstance(factor, Tensor):
        target.addcmul_(other, factor, value=-1)
    else:
        target.sub_(other, alpha=factor)
