"""The doors of this package: `solve` for every choice, `nnls` for none."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchpfc.solvers.active_set import ActiveSet
from torchpfc.solvers.adjoint import Adjoint, Implicit, Run, Truncated, Unrolled
from torchpfc.solvers.admm import ADMM
from torchpfc.solvers.base import RANDOM_START, ConvergenceWarning, Solution, Solver
from torchpfc.solvers.checks import check_at_least_one
from torchpfc.solvers.descent import estimate_lipschitz, prepare
from torchpfc.solvers.fista import FISTA
from torchpfc.solvers.handover import Handover
from torchpfc.solvers.problem import NonnegativeLeastSquares
from torchpfc.solvers.scaling import Bounds
from torchpfc.solvers.units import Units

# ADMM takes fewer steps than FISTA, but inverts a matrix first: about as much arithmetic as so many steps of one row.
_STEPS_SAVED = 100

EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}
"""The violation that counts as none, where `nnls` is given no tolerance."""

_NO_LIMIT = 2**62
_NEAR = 1e-3  # the tolerance of a method whose result another one makes exact

# Two steps of the active-set method, on a few rows, tell whether solutions use few parts. Those of images over typical
# images use less than half of the parts considered, those of mixtures of many parts almost all of them.
_FEW_PARTS = 128  # with no more parts than this, to take them one at a time is fastest on a CPU
_ROWS_TRIED = 16
_STEPS_TRIED = 2
_SHARE_USED = 0.65


def solve(
    problem: NonnegativeLeastSquares,
    solver: Solver | None = None,
    *,
    adjoint: Adjoint | None = None,
    warm_start: Tensor | None = None,
    lipschitz: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Solution:
    r"""Solves a problem and attaches gradients with respect to x and W.

    Args:
        problem: What to solve.
        solver: How; `FISTA()` by default.
        adjoint: How gradients pass; by default `Unrolled()` where the solver has it, else `Implicit()`. Through a
            solver that has no adjoint, none pass.
        warm_start: Where to start instead of the solver's own start.
        lipschitz: The largest eigenvalue of $W^\top W$, or a bound on it, where it is known; counts as a constant.
        generator: Source of a random start.

    Shape:
        - warm_start: that of the solution, $(*, n, r)$
        - lipschitz: the leading dimensions of W

    Example:
        >>> W = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        >>> solution = solve(NonnegativeLeastSquares(torch.tensor([[3.0, 1.0]]), W), FISTA(tol=1e-6))
        >>> solution.h
        tensor([[2.0000, 1.0000]])
        >>> solution.converged
        tensor([True])
    """
    solver = FISTA() if solver is None else solver
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be a Solver, got {solver!r}")
    adjoint = default_adjoint(solver) if adjoint is None else adjoint
    if adjoint is not None:
        _check_adjoint(solver, adjoint)
    if problem.mask is not None and not solver.takes_mask:
        raise ValueError(f"mask must be None for {type(solver).__name__}, got one; FISTA takes masks")
    if lipschitz is not None and lipschitz.shape != problem.W.shape[:-2]:
        raise ValueError(
            f"lipschitz must have the leading dimensions of W {tuple(problem.W.shape[:-2])}, "
            f"got {tuple(lipschitz.shape)}"
        )
    start = _start(problem, solver, warm_start, generator)
    units = None if solver.tol is None else Units.of(problem)
    # Steps to a tolerance end at the same place in any units; a fixed number of steps, a floor and a cap do not.
    if units is None or solver.floor or solver.cap:
        return _solve(problem, problem, None, solver, adjoint, start, lipschitz)
    return _solve(problem, units.into(problem), units, solver, adjoint, start, None)


def _solve(
    problem: NonnegativeLeastSquares,
    inside: NonnegativeLeastSquares,
    units: Units | None,
    solver: Solver,
    adjoint: Adjoint | None,
    start: Tensor,
    lipschitz: Tensor | None,
) -> Solution:
    """Solves a problem in units, if there are any; `lipschitz` is that of W in these units."""
    x, W, l1, l2, mask, start = _flatten(inside, start if units is None else units.codes(start))
    with torch.autocast(start.device.type, enabled=False):
        with torch.no_grad():
            if not solver.needs_step:
                lipschitz = W.square().sum((-2, -1))
            elif lipschitz is not None and W.ndim > 2:
                lipschitz = lipschitz.expand(problem.shape[:-2]).flatten()
            flat = NonnegativeLeastSquares(x, W, l1, l2, mask)
            descent = prepare(flat, iterations=solver.max_iter, lipschitz=lipschitz, needs_gram=solver.needs_gram)
            bounds = Bounds.of(descent.x, floor=solver.floor, cap=solver.cap)
        run = Run(solver, descent, bounds)
        wanted = torch.is_grad_enabled() and (x.requires_grad or W.requires_grad or start.requires_grad)
        outcome = adjoint.apply(run, x, W, start) if wanted and adjoint is not None else run.from_start(start)
    h = outcome.h.view(problem.shape)
    solution = Solution(h if units is None else units.back(h), problem, solver, descent, bounds, outcome)
    if outcome.converged is not None:
        _warn_if_short(solver, solution)
    return solution


def nnls(
    x: Tensor,
    W: Tensor,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    mask: Tensor | None = None,
    tol: float | None = None,
    max_iter: int | None = None,
    warm_start: Tensor | None = None,
) -> Solution:
    r"""Solves $\min_{h \ge 0} \|x - W h\|$ for a batch of x, with gradients through the optimum.

    Ends at the optimum whatever the sizes of rows and columns are, and however nearly collinear the columns: with
    `ActiveSet`, for which `ADMM` does the first steps where there are many parts in use. With a tolerance of your own,
    rows end as soon as they reach it, and only those that get nowhere are left to `ActiveSet`.

    Args:
        x: What to explain, one example per row.
        W: The parts, one per column.
        l1: Weight of the sum of h.
        l2: Weight of half the squared norm of h.
        mask: True where x is observed.
        tol: Largest violation of the KKT conditions that a row may have, relative to the gradient at zero. None solves
            exactly, as far as the precision goes.
        max_iter: Steps to take at most; a `ConvergenceWarning` says when they were not enough. None takes as many as
            are needed.
        warm_start: Where to start instead of zero; only with more than 128 parts, since what takes one part at a time
            begins with none.

    Shape:
        - x: $(*, n, m)$, or $(m)$ for one example
        - W: $(m, r)$ or $(*, m, r)$
        - mask: broadcasts to the shape of x
        - warm_start and the solution's h: $(*, n, r)$

    Example:
        >>> nnls(torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])).h
        tensor([[2., 1.]])
    """
    problem = NonnegativeLeastSquares(x, W, l1, l2, mask)
    if max_iter is not None:
        check_at_least_one(max_iter=max_iter)
    units = Units.of(problem)
    inside = units.into(problem)
    solver, lipschitz = _choose(inside, tol, _NO_LIMIT if max_iter is None else max_iter)
    start = _start(problem, solver, warm_start, None)
    return _solve(problem, inside, units, solver, Implicit(), start, lipschitz)


@torch.no_grad()
def _choose(problem: NonnegativeLeastSquares, tol: float | None, max_iter: int) -> tuple[Solver, Tensor | None]:
    """The solver of `nnls`, and the largest eigenvalue where it has been found on the way."""
    x, W, (m, r) = problem.x, problem.W, problem.W.shape[-2:]
    rows = problem.shape[:-1].numel() // max(W.shape[:-2].numel(), 1)
    active_set = ActiveSet(max_iter, EXACT[x.dtype] if tol is None else tol)
    near = _NEAR if active_set.is_careful(x.dtype) else active_set.tol
    on_cpu = x.device.type == "cpu"
    no_gram = problem.mask is not None or r * r >= _STEPS_SAVED * max(rows, 1) * min(r, 2 * m)
    if (on_cpu and r <= _FEW_PARTS) or (no_gram and active_set.is_careful(x.dtype)):
        return replace(active_set, candidates=0), None
    lipschitz = estimate_lipschitz(W)
    if no_gram:
        return Handover(max_iter, active_set.tol, first=FISTA(max_iter, near, restart=True)), lipschitz
    if on_cpu and W.ndim == 2 and _uses_few_parts(problem, lipschitz):
        return active_set, lipschitz
    return Handover(max_iter, active_set.tol, first=ADMM(max_iter, near)), lipschitz


def _uses_few_parts(problem: NonnegativeLeastSquares, lipschitz: Tensor) -> bool:
    """Whether some of the rows suggest that solutions use few parts."""
    if isinstance(problem.l1, Tensor):
        return False
    x = problem.x.reshape(-1, problem.x.shape[-1])
    tried = replace(problem, x=x[:: max(len(x) // _ROWS_TRIED, 1)][:_ROWS_TRIED])
    solver = ActiveSet(max_iter=_STEPS_TRIED)
    h = solve(tried, solver, lipschitz=lipschitz).h
    considered = min(_STEPS_TRIED * solver.candidates, h.shape[-1])
    return bool((h > 0).sum(-1).double().mean() < _SHARE_USED * considered)


def default_adjoint(solver: Solver) -> Adjoint | None:
    """`Unrolled()` where it suits a solver, else `Implicit()`, or None where neither does."""
    return next((adjoint for adjoint in (Unrolled(), Implicit()) if adjoint.suits(solver)), None)


def _check_adjoint(solver: Solver, adjoint: Adjoint) -> None:
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint must be an Adjoint, got {adjoint!r}")
    if not adjoint.suits(solver):
        ours = (Unrolled(), Truncated(steps=1), Implicit())
        known = ", ".join(type(other).__name__ for other in ours if other.suits(solver)) or "none"
        raise TypeError(f"adjoint must be one that {type(solver).__name__} has ({known}), got {type(adjoint).__name__}")


def _start(
    problem: NonnegativeLeastSquares, solver: Solver, warm_start: Tensor | None, generator: torch.Generator | None
) -> Tensor:
    x = problem.x
    if warm_start is not None:
        if warm_start.shape != problem.shape:
            raise ValueError(
                f"warm_start must have the shape of the solution {tuple(problem.shape)}, got {tuple(warm_start.shape)}"
            )
        if warm_start.dtype != x.dtype or warm_start.device != x.device:
            raise ValueError(
                f"warm_start must have the dtype and device of x ({x.dtype}, {x.device}), "
                f"got ({warm_start.dtype}, {warm_start.device})"
            )
        return warm_start
    if solver.start == "random":
        return RANDOM_START * torch.rand(problem.shape, generator=generator, dtype=x.dtype, device=x.device)
    return x.new_full(problem.shape, solver.floor if solver.start == "floor" else 0.0)


def _flatten(
    problem: NonnegativeLeastSquares, start: Tensor
) -> tuple[Tensor, Tensor, float | Tensor, float | Tensor, Tensor | None, Tensor]:
    """Brings x, W, l1, l2, mask and start to two dimensions, or to three where there is a stack of W."""
    x, W, l1, l2, mask = problem.x, problem.W, problem.l1, problem.l2, problem.mask
    if mask is not None:
        mask = mask.expand(x.shape)
    if isinstance(l1, Tensor):
        l1 = l1.expand(problem.shape)
    if W.ndim == 2:
        rows = start.shape[:-1].numel()
        x, start = x.reshape(rows, x.shape[-1]), start.reshape(rows, W.shape[-1])
        l1 = l1.reshape(start.shape) if isinstance(l1, Tensor) else l1
        return x, W, l1, l2, None if mask is None else mask.reshape(x.shape), start

    def flat(part: Any) -> Any:
        return part.expand(*start.shape[:-2], -1, -1).flatten(0, -3) if isinstance(part, Tensor) else part

    return flat(x), flat(W), flat(l1), flat(l2), flat(mask), flat(start)


def _warn_if_short(solver: Solver, solution: Solution) -> None:
    short = (~solution.converged).flatten().nonzero().flatten()
    if not len(short):
        return
    text = f"{len(short)} of {solution.converged.numel()} rows did not reach tol={solver.tol}"
    if bool((solution.iterations.flatten()[short] < solver.max_iter).all()):
        worst = solution.condition_of(short[:_ROWS_TRIED]).max()
        text += (
            f": the parts they use are nearly collinear (condition number {worst:.0e}), and {solution.h.dtype} cannot "
            "hold amounts that exact; solve in float64, or penalise with l2"
        )
    else:
        text += f" in {solver.max_iter} steps; raise max_iter, or take nnls, which needs no limit"
    warnings.warn(text, ConvergenceWarning, stacklevel=3)
