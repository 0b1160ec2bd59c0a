"""The doors of this package: `solve` for every choice, `nnls` for none."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from torchpfc.solvers.active_set import ActiveSet
from torchpfc.solvers.adjoint import Adjoint, Implicit, Run, Truncated, Unrolled
from torchpfc.solvers.admm import ADMM
from torchpfc.solvers.base import RANDOM_START, ConvergenceWarning, Solution, Solver
from torchpfc.solvers.descent import estimate_lipschitz, prepare
from torchpfc.solvers.fista import FISTA
from torchpfc.solvers.problem import NonnegativeLeastSquares
from torchpfc.solvers.scaling import Bounds

# ADMM takes fewer steps than FISTA, but inverts a matrix first: about as much arithmetic as so many steps of one row.
_STEPS_SAVED = 100

# Two steps of the active-set method, on a few rows, tell whether solutions use few parts. Those of images over typical
# images use less than half of the parts considered, those of mixtures of many parts almost all of them.
_FEW_PARTS = 64  # with no more parts than this ADMM takes no time
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
    x, W, mask, start = _flatten(problem, start)
    with torch.autocast(start.device.type, enabled=False):
        with torch.no_grad():
            if lipschitz is not None and W.ndim > 2:
                lipschitz = lipschitz.expand(problem.shape[:-2]).flatten()
            flat = NonnegativeLeastSquares(x, W, problem.l1, problem.l2, mask)
            descent = prepare(flat, iterations=solver.max_iter, lipschitz=lipschitz, needs_gram=solver.needs_gram)
            bounds = Bounds.of(descent.x, floor=solver.floor, cap=solver.cap)
        run = Run(solver, descent, bounds)
        wanted = torch.is_grad_enabled() and (x.requires_grad or W.requires_grad or start.requires_grad)
        outcome = adjoint.apply(run, x, W, start) if wanted and adjoint is not None else run.from_start(start)
    if outcome.converged is not None:
        _warn_if_short(solver, outcome.converged)
    return Solution(outcome.h.view(problem.shape), problem, solver, descent, bounds, outcome)


def nnls(
    x: Tensor,
    W: Tensor,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    mask: Tensor | None = None,
    tol: float | None = None,
    max_iter: int = 20_000,
    warm_start: Tensor | None = None,
) -> Solution:
    r"""Solves $\min_{h \ge 0} \|x - W h\|$ to a tolerance, for a batch of x, with gradients through the optimum.

    Uses `ADMM`, or `ActiveSet` where, on a CPU, the solutions of some of the rows use few parts of many. `FISTA` where
    there is a mask, or too few rows to make up for the inverse.

    Args:
        x: What to explain, one example per row.
        W: The parts, one per column.
        l1: Weight of the sum of h.
        l2: Weight of half the squared norm of h.
        mask: True where x is observed.
        tol: Largest violation of the KKT conditions that a row may have, relative to the gradient at zero. None
            chooses by the precision: 1e-5 in float32, 1e-10 in float64.
        max_iter: Steps to take at most; a `ConvergenceWarning` says when they were not enough.
        warm_start: Where to start instead of zero.

    Shape:
        - x: $(*, n, m)$, or $(m)$ for one example
        - W: $(m, r)$ or $(*, m, r)$
        - mask: broadcasts to the shape of x
        - warm_start and the solution's h: $(*, n, r)$

    Example:
        >>> nnls(torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])).h
        tensor([[2.0000, 1.0000]])
    """
    problem = NonnegativeLeastSquares(x, W, l1, l2, mask)
    if tol is None:
        tol = 1e-5 if x.dtype == torch.float32 else 1e-10
    with torch.no_grad():
        lipschitz = estimate_lipschitz(W)
    rows, (m, r) = problem.shape[:-1].numel() // W.shape[:-2].numel(), W.shape[-2:]
    if mask is not None or r * r >= _STEPS_SAVED * rows * min(r, 2 * m):
        solver: Solver = FISTA(max_iter=max_iter, tol=tol, restart=True)
    elif x.device.type == "cpu" and W.ndim == 2 and r > _FEW_PARTS and _uses_few_parts(problem, lipschitz):
        solver = ActiveSet(max_iter=max_iter, tol=tol)
    else:
        solver = ADMM(max_iter=max_iter, tol=tol)
    return solve(problem, solver, adjoint=Implicit(), warm_start=warm_start, lipschitz=lipschitz)


@torch.no_grad()
def _uses_few_parts(problem: NonnegativeLeastSquares, lipschitz: Tensor) -> bool:
    """Whether some of the rows suggest that solutions use few parts."""
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


def _flatten(problem: NonnegativeLeastSquares, start: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Brings x, W, mask and start to two dimensions, or to three where there is a stack of W."""
    x, W, mask = problem.x, problem.W, problem.mask
    if mask is not None:
        mask = mask.expand(x.shape)
    if W.ndim == 2:
        rows = start.shape[:-1].numel()
        x, start = x.reshape(rows, x.shape[-1]), start.reshape(rows, W.shape[-1])
        return x, W, None if mask is None else mask.reshape(x.shape), start
    stack = start.shape[:-2]
    x, W, start = (t.expand(*stack, -1, -1).flatten(0, -3) for t in (x, W, start))
    return x, W, None if mask is None else mask.expand(*stack, -1, -1).flatten(0, -3), start


def _warn_if_short(solver: Solver, converged: Tensor) -> None:
    if short := int((~converged).sum()):
        warnings.warn(
            f"{short} of {converged.numel()} rows did not reach tol={solver.tol} in {solver.max_iter} steps; "
            "raise max_iter or tol, or look at Solution.kkt",
            ConvergenceWarning,
            stacklevel=3,
        )
