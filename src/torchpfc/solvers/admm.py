"""ADMM: one factorization of W, then one product per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from torchpfc.solvers.base import Solver, State
from torchpfc.solvers.descent import Descent, Gram, cold_start, largest_eigenvalue
from torchpfc.solvers.scaling import Bounds

# Measured on prototypes of handwritten digits and on made matrices of all shapes, norms and overlaps: mostly a fraction
# of the steps of FISTA, and never more than a few above them.
_PENALTY = 0.6
_RELAXATION = 1.9
_POWER_ITERATIONS = 15


@dataclass(frozen=True, eq=False)
class SplitState(State):
    """Where ADMM stands.

    Shape:
        - dual, free: $(*, n, r)$
        - inverse: $(*, r, r)$
        - penalty: a scalar, or $(*, 1, 1)$
    """

    dual: Tensor
    """How much the unconstrained solution has missed the constraint so far."""
    free: Tensor
    """The solution without constraint or penalty terms, $d (C + \\rho)^{-1}$."""
    inverse: Tensor = field(metadata={"shared": True})
    """$(C + \\rho)^{-1}$."""
    penalty: Tensor = field(metadata={"shared": True})
    """$\\rho$, in units of L."""


@dataclass(frozen=True)
class ADMM(Solver):
    r"""Alternates between the least-squares solution and the constraint.

    $$p = (G + \rho)^{-1} (W^\top x - l_1 + \rho (h - u)), \qquad h = \max(p + u, f), \qquad u = u + p - h$$

    with over-relaxation. The matrix is inverted once, so a step costs one product, as in `FISTA`, and far fewer steps
    are needed. Suits a fixed W and many rows; takes no mask, since each row would need an inverse of its own.

    Args:
        max_iter: Steps to take at most.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero.
        floor: Smallest value of an entry of h.
        start: Where to start without a warm start: zeros, the floor, or small random numbers.
        check_every: Steps between two tests of the tolerance.
        penalty: $\rho$ relative to the mean of the diagonal of G. None finds it from the spectrum: between that mean
            and a typical eigenvalue, the largest left aside.
    """

    penalty: float | None = None

    minimizes: ClassVar[bool] = True
    needs_gram: ClassVar[bool] = True
    takes_mask: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.penalty is not None and not self.penalty > 0:
            raise ValueError(f"penalty must be positive or None, got {self.penalty}")

    def init(self, descent: Descent, h: Tensor) -> SplitState:
        """The state before the first step from h."""
        assert isinstance(descent, Gram)
        penalty = self._penalty(descent.C).reshape(descent.L.shape)
        penalty = torch.where(penalty > torch.finfo(h.dtype).tiny, penalty, 1.0)  # no part at all: any will do
        identity = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)
        inverse = torch.linalg.inv_ex(descent.C + penalty * identity).inverse
        # At a solution the dual is the gradient over the penalty, negated: so a warm start is one for the dual too.
        gradient = descent.product(h) - descent.offset
        dual = -(gradient.clamp(min=0) / penalty) * (h <= self.floor)
        return SplitState(h, None, dual, descent.offset @ inverse, inverse, penalty)

    def _penalty(self, C: Tensor) -> Tensor:
        diagonal = C.diagonal(dim1=-2, dim2=-1)
        if self.penalty is not None:
            return self.penalty * diagonal.mean(-1)
        # The largest eigenvalue is what all parts have in common; the others decide how many steps it takes.
        top_square, _ = largest_eigenvalue(C, cold_start(C), _POWER_ITERATIONS)
        square = (C.square().sum((-2, -1)) - top_square).clamp(min=0)
        trace = (diagonal.sum(-1) - top_square.sqrt()).clamp(min=0)
        typical = torch.where(trace > 1e-3 * diagonal.sum(-1), square / trace, diagonal.mean(-1))
        return _PENALTY * (typical * diagonal.mean(-1)).sqrt()

    def step(self, descent: Descent, bounds: Bounds, state: SplitState, out: Tensor | None = None) -> SplitState:
        """One step."""
        pulled = ((state.h - state.dual) * state.penalty) @ state.inverse
        p = pulled.add_(state.free)
        reached = torch.lerp(state.h, p, _RELAXATION).add_(state.dual)
        h = reached.clamp(min=self.floor)
        return SplitState(h, None, reached.sub_(h), state.free, state.inverse, state.penalty)
