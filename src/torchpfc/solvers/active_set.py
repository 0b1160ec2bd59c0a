"""The active-set method: exact solutions, over a few parts at a time where that goes well, and else one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from torchpfc.solvers.base import Outcome, Solver, State, Trace, take_steps
from torchpfc.solvers.checks import check_nonnegative
from torchpfc.solvers.descent import Descent, Gram, prepare, row_norm
from torchpfc.solvers.lawson_hanson import solve_one_by_one
from torchpfc.solvers.problem import NonnegativeLeastSquares
from torchpfc.solvers.scaling import Bounds
from torchpfc.solvers.units import Units

_NUMBERS_AT_ONCE = 2**23  # in the small matrices of the rows that are solved together
_PATIENCE = 3  # exchanges that may make things worse before a row is left to take a gradient step
_STEPS_TO_HALVE = 2  # in which the violation of a row has to halve; else it goes on one part at a time
_FEW_DIGITS, _NOTHING = 1e-5, 1e-9  # what is left of x, relative to it
_EXACT = 1e-8  # the tolerance in float64 for what has to be exact in float32
_REPRESENTED = 1e-4  # of the norm of x: what rounding h to float32 may add to a residual


@dataclass(frozen=True, eq=False)
class GradientState(State):
    """Where the active-set method stands.

    Shape:
        - gradient: $(*, n, r)$
        - sure: $(*, n)$
    """

    gradient: Tensor
    """The gradient at h, in units of L."""
    sure: Tensor
    """Whether h is the minimum over the parts considered, to the precision that the tolerance asks for."""


@dataclass(frozen=True)
class ActiveSet(Solver):
    r"""Solves exactly over the parts in use and the few most wanted others, then looks for more.

    A step gives each row a small problem of its own: over the parts that it uses, and those unused ones along which the
    objective falls most steeply. Block principal pivoting solves it, one small Cholesky factorization at a time. Then
    one product tells which other parts are wanted. A handful of steps ends at the exact solution wherever it uses few
    parts of many; where it uses many, the small problems are not small, and `ADMM` is faster.

    With a tolerance, rows that get nowhere in this way go on in float64 by Lawson and Hanson's method, one part at a
    time, which ends at the optimum however nearly collinear the parts are. So do all rows where there is a mask.

    Args:
        max_iter: Steps to take at most, exchanges of single parts included.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero. Below
            the square root of the rounding unit, rows whose parts are nearly collinear take the careful way too.
        floor: Smallest value of an entry of h.
        start: Where to start without a warm start: zeros, the floor, or small random numbers.
        check_every: Steps between two tests of the tolerance.
        candidates: Unused parts that a step considers. With 0 parts are taken one at a time from the beginning, and no
            Gram matrix is needed: right for few rows.
    """

    check_every: int = 1
    candidates: int = 16

    minimizes: ClassVar[bool] = True
    takes_cap: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        check_nonnegative(candidates=self.candidates)

    @property
    def needs_gram(self) -> bool:  # type: ignore[override]
        """Whether there are steps over many parts."""
        return self.candidates > 0

    @property
    def needs_step(self) -> bool:  # type: ignore[override]
        """Whether there are steps over many parts, some of which follow the gradient."""
        return self.candidates > 0

    def init(self, descent: Descent, h: Tensor) -> GradientState:
        """The state before the first step from h, brought up to the floor: a warm start may lie anywhere."""
        h = h.clamp(min=self.floor)
        sure = torch.ones_like(h[..., 0], dtype=torch.bool)
        return GradientState(h, None, descent.product(h) - descent.offset, sure)

    def all_steps(self, descent: Descent, bounds: Bounds, start: Tensor, trace: Trace | None) -> Outcome | None:
        """Takes all steps to a tolerance: those of many parts, then those of one."""
        if self.tol is None:
            if not isinstance(descent, Gram):
                raise ValueError("tol must be given for ActiveSet where there is a mask, or candidates=0, got None")
            return None
        if start.ndim > 2:
            stacked = [self.to_the_end(*member, bounds) for member in zip(descent.members(), start, strict=True)]
            return Outcome.stack(stacked)
        return self.to_the_end(descent, start, bounds)

    def to_the_end(self, descent: Descent, start: Tensor, bounds: Bounds) -> Outcome:
        """Takes all steps for one W."""
        if self.is_careful(start.dtype) and start.dtype != torch.float64:
            exact = replace(self, tol=min(_EXACT, self.tol or _EXACT))
            return _rounded(exact.to_the_end(_widen(descent), start.double(), bounds), descent, self.floor)
        if not isinstance(descent, Gram) or not self.candidates:
            return self._one_by_one(descent, self.max_iter)
        outcome = take_steps(self, descent, bounds, start, patience=_STEPS_TO_HALVE)
        assert outcome.converged is not None and outcome.iterations is not None
        left = (~outcome.converged).nonzero().squeeze(-1)
        if not len(left) or (steps := self.max_iter - int(outcome.iterations[left].max())) <= 0:
            return outcome
        return outcome.updated(left, self._one_by_one(descent.rows(left), steps))

    def is_careful(self, dtype: torch.dtype) -> bool:
        """Whether the tolerance leaves no room for the errors of a Gram matrix."""
        return self.tol is not None and self.tol < torch.finfo(dtype).eps ** 0.5

    def _one_by_one(self, descent: Descent, max_iter: int) -> Outcome:
        """Lawson and Hanson's method, from zero and in float64."""
        if descent.x.dtype != torch.float64:
            return _rounded(self._one_by_one(_widen(descent), max_iter), descent, self.floor)
        x, W, mask, l1 = descent.x, descent.W, descent.mask, descent.l1
        if self.floor:  # h = floor + u with u >= 0
            lowest = self.floor * W.sum(-1)
            x = x - (lowest if mask is None else lowest * mask)
            l1 = l1 + self.floor * descent.l2
        given = NonnegativeLeastSquares(x, W, l1, descent.l2, mask)
        units = Units.of(given)
        solved = solve_one_by_one(units.into(given), max_iter)
        assert self.tol is not None
        converged = solved.ended & (solved.violation <= self.tol)
        h = self.floor + units.back(solved.h)
        return Outcome(h, None, solved.steps, converged, torch.ones_like(converged))

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
        h, sure = h.clone(), torch.ones_like(h[:, 0], dtype=torch.bool)
        for rows in torch.split(torch.arange(len(h), device=h.device), max(_NUMBERS_AT_ONCE // size**2, 1)):
            chosen = parts[rows]
            small = C[model[rows][:, None, None], chosen[:, :, None], chosen[:, None, :]]
            amounts = h[rows[:, None], chosen] - self.floor
            wanted = gradient[rows[:, None], chosen]
            better, sure[rows] = _improve(small, amounts, wanted)
            h[rows[:, None], chosen] = self.floor + better
        h, sure = h.view(state.h.shape), sure.view(state.sure.shape)
        if self.is_careful(h.dtype):
            # So little is left of x that it has too few digits to tell which parts explain it, and yet too much.
            left, norm = row_norm(descent.x - descent.reconstruct(h)), row_norm(descent.x)
            sure &= (left > _FEW_DIGITS * norm) | (left < _NOTHING * norm)
        return GradientState(h, None, descent.product(h) - descent.offset, sure)

    def violation(self, descent: Descent, bounds: Bounds, state: GradientState) -> Tensor:
        """How much each row violates the KKT conditions."""
        moved = (state.h - state.gradient).clamp_(min=self.floor)
        violation = descent.fixed_point_residual(state.h, moved)
        return violation.where(state.sure, torch.inf) if self.is_careful(state.h.dtype) else violation


def _improve(C: Tensor, h: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The non-negative minimum of each row's own problem, given its gradient at h; else a step towards it.

    Returns:
        The new h, and whether it is the minimum and the parts in use are far enough from collinear to rely on it.

    Shape:
        - C: $(n, p, p)$
        - h, gradient, and the first result: $(n, p)$
        - the second result: $(n)$
    """
    wanted = _product(C, h) - gradient
    found, done, apart = pivot(C, wanted, (h > 0) | (gradient < 0))
    change = found.clamp(min=0) - h
    # Where the parts are as good as collinear, rounding can have the last word over the exchanges.
    falls = ((gradient + 0.5 * _product(C, change)) * change).sum(-1) < 0
    better = torch.where((done & falls)[:, None], h + change, (h - gradient).clamp(min=0)).clamp_(min=0)
    return better, done & (apart > torch.finfo(h.dtype).eps ** 0.5)


def pivot(C: Tensor, wanted: Tensor, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Finds which parts are free in $\min_{h \ge 0} \tfrac12 h^\top C h - h^\top d$ by block principal pivoting.

    Every part that has the wrong sign changes sides at once. A row for which that has not helped for a while is given
    up.

    Returns:
        The solution, zero but for rounding where a part is not free; whether each row's is one; and the smallest share
        of a free part's squared norm that the parts before it do not have: near zero where they are nearly collinear.

    Shape:
        - C: $(n, p, p)$
        - wanted, free, and the first result: $(n, p)$
        - the others: $(n)$
    """
    eps = torch.finfo(wanted.dtype).eps
    solution, done = torch.zeros_like(wanted), torch.zeros(len(wanted), dtype=torch.bool, device=wanted.device)
    apart = torch.zeros_like(wanted[:, 0])
    row = torch.arange(len(wanted), device=wanted.device)
    fewest = torch.full_like(row, wanted.shape[-1] + 1)
    patience = torch.full_like(row, _PATIENCE)
    slack = 10 * eps * wanted.abs().amax(-1, keepdim=True)
    while len(row):
        on = free.to(C.dtype)
        matrix = C * on[:, :, None] * on[:, None, :]
        matrix.diagonal(dim1=-2, dim2=-1).mul_(1 + 10 * eps).add_(1 - on)
        factor = torch.linalg.cholesky_ex(matrix).L
        h = torch.cholesky_solve((wanted * on).unsqueeze(-1), factor).squeeze(-1)
        wrong = torch.where(free, h < 0, _product(C, h) - wanted < -slack)
        count = wrong.sum(-1)
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        apart[row] = (factor.diagonal(dim1=-2, dim2=-1).square() / diagonal).amin(-1)
        solution[row], done[row] = h, count == 0
        better = count < fewest
        fewest = torch.where(better, count, fewest)
        patience = torch.where(better, _PATIENCE, patience - 1)
        left = ((count > 0) & (patience >= 0)).nonzero().squeeze(-1)
        free = free ^ wrong
        C, wanted, slack, free, row = C[left], wanted[left], slack[left], free[left], row[left]
        fewest, patience = fewest[left], patience[left]
    return solution, done, apart


def _widen(descent: Descent) -> Descent:
    """The same step in float64."""
    l1, l2 = (weight.double() if isinstance(weight, Tensor) else weight for weight in (descent.l1, descent.l2))
    problem = NonnegativeLeastSquares(descent.x.double(), descent.W.double(), l1, l2, descent.mask)
    return prepare(problem, iterations=1, lipschitz=descent.L.double(), needs_gram=isinstance(descent, Gram))


def _rounded(outcome: Outcome, descent: Descent, floor: float) -> Outcome:
    """An outcome in float64 as one for a step in another precision, where that can hold it."""
    h = outcome.h.to(descent.x.dtype)
    x, W = descent.x.double(), descent.W.double()
    observed = 1.0 if descent.mask is None else descent.mask
    residual, best = (row_norm((x - u @ W.mT) * observed) for u in (h.double().clamp(min=floor), outcome.h))
    assert outcome.converged is not None
    held = residual <= best + _REPRESENTED * row_norm(x)
    return outcome._replace(h=h, converged=outcome.converged & held)


def _product(C: Tensor, h: Tensor) -> Tensor:
    return (C @ h.unsqueeze(-1)).squeeze(-1)
