"""The active-set method: exact solutions over a few parts at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchpfc.solvers.base import Solver, State
from torchpfc.solvers.checks import check_at_least_one
from torchpfc.solvers.descent import Descent, Gram
from torchpfc.solvers.scaling import Bounds

_NUMBERS_AT_ONCE = 2**23  # in the small matrices of the rows that are solved together
_PATIENCE = 3  # exchanges that may make things worse before a row changes one part at a time
_EXCHANGES = 100  # at most; a row that is not done then takes a gradient step


@dataclass(frozen=True, eq=False)
class GradientState(State):
    """Where the active-set method stands.

    Shape:
        - gradient: $(*, n, r)$
    """

    gradient: Tensor
    """The gradient at h, in units of L."""


@dataclass(frozen=True)
class ActiveSet(Solver):
    r"""Solves exactly over the parts in use and the few most wanted others, then looks for more.

    A step gives each row a small problem of its own: over the parts that it uses, and those unused ones along which the
    objective falls most steeply. Block principal pivoting solves it, one small Cholesky factorization at a time. Then
    one product tells which other parts are wanted. A handful of steps ends at the exact solution wherever it uses few
    parts of many; where it uses many, the small problems are not small, and `ADMM` is faster. Takes no mask.

    Args:
        max_iter: Steps to take at most.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero.
        floor: Smallest value of an entry of h.
        start: Where to start without a warm start: zeros, the floor, or small random numbers.
        check_every: Steps between two tests of the tolerance.
        candidates: Unused parts that a step considers.
    """

    check_every: int = 1
    candidates: int = 16

    minimizes: ClassVar[bool] = True
    needs_gram: ClassVar[bool] = True
    takes_mask: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        check_at_least_one(candidates=self.candidates)

    def init(self, descent: Descent, h: Tensor) -> GradientState:
        """The state before the first step from h, brought up to the floor: a warm start may lie anywhere."""
        h = h.clamp(min=self.floor)
        return GradientState(h, None, descent.product(h) - descent.offset)

    def step(self, descent: Descent, bounds: Bounds, state: GradientState, out: Tensor | None = None) -> GradientState:
        """One step."""
        assert isinstance(descent, Gram)
        if not state.h.numel():
            return state
        h, gradient = state.h.flatten(0, -2), state.gradient.flatten(0, -2)
        C = descent.C.view(-1, *descent.C.shape[-2:])
        model = torch.arange(len(C), device=h.device).repeat_interleave(len(h) // len(C))
        tiny = torch.finfo(h.dtype).tiny
        steepness = -gradient / C.diagonal(dim1=-2, dim2=-1).clamp(min=tiny).sqrt()[model]
        used = h > self.floor
        size = min(int(used.sum(-1).max()) + self.candidates, h.shape[-1])
        parts = steepness.masked_fill_(used, torch.inf).topk(size, sorted=False).indices
        h = h.clone()
        for rows in torch.split(torch.arange(len(h), device=h.device), max(_NUMBERS_AT_ONCE // size**2, 1)):
            chosen = parts[rows]
            small = C[model[rows][:, None, None], chosen[:, :, None], chosen[:, None, :]]
            amounts = h[rows[:, None], chosen] - self.floor
            h[rows[:, None], chosen] = self.floor + _improve(small, amounts, gradient[rows[:, None], chosen])
        h = h.view(state.h.shape)
        return GradientState(h, None, descent.product(h) - descent.offset)

    def violation(self, descent: Descent, bounds: Bounds, state: GradientState) -> Tensor:
        """How much each row violates the KKT conditions."""
        moved = (state.h - state.gradient).clamp_(min=self.floor)
        return descent.fixed_point_residual(state.h, moved)


def _improve(C: Tensor, h: Tensor, gradient: Tensor) -> Tensor:
    """The non-negative minimum of each row's own problem, given its gradient at h; else a step towards it.

    Shape:
        - C: $(n, p, p)$
        - h, gradient: $(n, p)$
    """
    wanted = _product(C, h) - gradient
    found, done = _pivot(C, wanted, (h > 0) | (gradient < 0))
    change = found.clamp(min=0) - h
    # Where the parts are as good as collinear, rounding can have the last word over the exchanges.
    falls = ((gradient + 0.5 * _product(C, change)) * change).sum(-1) < 0
    return torch.where((done & falls)[:, None], h + change, (h - gradient).clamp(min=0)).clamp_(min=0)


def _pivot(C: Tensor, wanted: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    r"""Finds which parts are free in $\min_{h \ge 0} \tfrac12 h^\top C h - h^\top d$ by block principal pivoting.

    Every part that has the wrong sign changes sides at once. A row for which that has not helped for a while changes
    only its last wrong part, which cannot go round in circles.

    Returns:
        The solution, zero but for rounding where a part is not free, and whether each row's is one.

    Shape:
        - C: $(n, p, p)$
        - wanted, free, and the first result: $(n, p)$
        - the second result: $(n)$
    """
    eps = torch.finfo(wanted.dtype).eps
    solution, done = torch.zeros_like(wanted), torch.zeros(len(wanted), dtype=torch.bool, device=wanted.device)
    row = torch.arange(len(wanted), device=wanted.device)
    fewest = torch.full_like(row, wanted.shape[-1] + 1)
    patience = torch.full_like(row, _PATIENCE)
    slack = 10 * eps * wanted.abs().amax(-1, keepdim=True)
    for _ in range(_EXCHANGES):
        on = free.to(C.dtype)
        matrix = C * on[:, :, None] * on[:, None, :]
        matrix.diagonal(dim1=-2, dim2=-1).mul_(1 + 10 * eps).add_(1 - on)
        factor = torch.linalg.cholesky_ex(matrix).L
        h = torch.cholesky_solve((wanted * on).unsqueeze(-1), factor).squeeze(-1)
        wrong = torch.where(free, h < 0, _product(C, h) - wanted < -slack)
        count = wrong.sum(-1)
        solution[row], done[row] = h, count == 0
        left = count.nonzero().squeeze(-1)
        if not len(left):
            break
        better = count < fewest
        fewest = torch.where(better, count, fewest)
        patience = torch.where(better, _PATIENCE, patience - 1)
        last = wrong & (wrong.cumsum(-1) == count[:, None])
        free = free ^ torch.where((patience >= 0)[:, None], wrong, last)
        C, wanted, slack, free, row = C[left], wanted[left], slack[left], free[left], row[left]
        fewest, patience = fewest[left], patience[left]
    return solution, done


def _product(C: Tensor, h: Tensor) -> Tensor:
    return (C @ h.unsqueeze(-1)).squeeze(-1)
