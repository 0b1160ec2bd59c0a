"""The interface of a solver, the one loop that runs it, and what comes out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from torchpfc.solvers.checks import check_at_least_one, check_nonnegative
from torchpfc.solvers.descent import Descent, row_norm
from torchpfc.solvers.problem import NonnegativeLeastSquares
from torchpfc.solvers.scaling import Bounds

Start = Literal["zeros", "floor", "random"]
Momentum = float | Tensor

RANDOM_START = 1e-2
"""Upper end of the uniform distribution that a random start is drawn from."""

_ROWS_AT_ONCE = 1000  # of which condition numbers are computed

LOOSE_TOLERANCE = 1e-3
"""What counts as converged where the solver was given no tolerance."""


class ConvergenceWarning(UserWarning):
    """A solve with a tolerance took all its steps before every row reached it."""


@dataclass(frozen=True, eq=False)
class State:
    """Where a solver stands after a step; each solver adds what it needs.

    Shape:
        - h: $(*, n, r)$
        - scale: $(*, n, 1)$
    """

    h: Tensor
    """The iterate."""
    scale: Tensor | None
    """How much the cap scaled each row in the last step; None without a cap."""

    def rows(self, index: Tensor) -> Self:
        """The state of some of the rows."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if not f.metadata.get("shared")}
        return replace(self, **{name: part[index] for name, part in parts.items() if isinstance(part, Tensor)})


@dataclass(frozen=True)
class Solver(ABC):
    """Finds h for a given x and W, step by step.

    Args:
        max_iter: Steps to take at most.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero.
            None takes every step and never waits for the device.
        floor: Smallest value of an entry of h.
        cap: Scale a row down after each step so that its largest entry does not exceed the largest of x in magnitude.
        start: Where to start without a warm start: zeros, the floor, or small random numbers.
        check_every: Steps between two tests of the tolerance.
    """

    max_iter: int = 100
    tol: float | None = None
    floor: float = 0.0
    cap: bool = False
    start: Start = "zeros"
    check_every: int = 5

    unrolls: ClassVar[bool] = False
    """Whether `pull_back` sends gradients back through the steps."""
    goes_on: ClassVar[bool] = False
    """Whether steps can go on from where others ended, as from any start."""
    minimizes: ClassVar[bool] = False
    """Whether h ends at a minimum of the problem, if the steps are enough."""
    needs_gram: ClassVar[bool] = False
    """Whether the steps need the Gram matrix, whatever it costs; there is none for a masked problem."""
    needs_step: ClassVar[bool] = True
    """Whether the largest eigenvalue has to be found, and not just a bound on it: whether there are gradient steps."""
    takes_mask: ClassVar[bool] = True
    """Whether x may be observed in part."""
    takes_cap: ClassVar[bool] = True
    """Whether the steps can be capped."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.max_iter < 0:
            raise ValueError(f"max_iter must be non-negative, got {self.max_iter}")
        if self.tol is not None and not 0 < self.tol < math.inf:
            raise ValueError(f"tol must be positive and finite or None, got {self.tol}")
        check_nonnegative(floor=self.floor)
        if self.start not in Start.__args__:  # type: ignore[attr-defined]
            raise ValueError(f"start must be one of 'zeros', 'floor', 'random', got {self.start!r}")
        check_at_least_one(check_every=self.check_every)
        if self.cap and not self.takes_cap:
            raise ValueError(f"cap must be False for {type(self).__name__}, got True")

    @property
    def method(self) -> str:
        """What this is called where people read it."""
        return type(self).__name__

    def init(self, descent: Descent, h: Tensor) -> Any:
        """The state before the first step from h."""
        return State(h, None)

    @abstractmethod
    def step(self, descent: Descent, bounds: Bounds, state: Any, out: Tensor | None = None) -> Any:
        """One step; writes the new iterate to `out` where given."""

    def all_steps(self, descent: Descent, bounds: Bounds, start: Tensor, trace: Trace | None) -> Outcome | None:
        """Takes all steps at once, where there is a way to; None where they have to be taken one by one."""
        return None

    def violation(self, descent: Descent, bounds: Bounds, state: Any) -> Tensor:
        """How much each row violates the KKT conditions, or a bound on it."""
        return _violation(descent, bounds, state.h)

    def pull_back(
        self, descent: Descent, bounds: Bounds, trace: Trace, iterations: Tensor | None, gradient: Tensor
    ) -> Pullback:
        """Sends a gradient with respect to the result back through every step; for solvers that can be unrolled."""
        raise NotImplementedError


@dataclass(eq=False)
class Trace:
    """The iterates of a run, kept for the backward pass.

    Shape:
        - h: $(*, K + 1, n, r)$
        - scale: $(*, K, n, 1)$
        - momentum: K numbers, or $(*, K, n, 1)$ where each row has its own
    """

    h: Tensor
    scale: Tensor | None = None
    momentum: list[float] | Tensor = field(default_factory=list)
    steps: int = 0

    @classmethod
    def of(cls, start: Tensor, max_steps: int) -> Trace:
        """Makes room for so many steps from a start."""
        h = start.new_empty((*start.shape[:-2], max_steps + 1, *start.shape[-2:]))
        h[..., 0, :, :] = start
        return cls(h)

    def slot(self, step: int) -> Tensor:
        """The iterate after this many steps."""
        return self.h[..., step, :, :]

    def add(self, state: State) -> None:
        """Keeps what else the backward pass needs of a step."""
        if state.scale is not None:
            if self.scale is None:
                self.scale = torch.empty_like(self.h[..., 1:, :, :1])
            self.scale[..., self.steps, :, :] = state.scale
        momentum: Momentum = getattr(state, "momentum", 0.0)
        if isinstance(momentum, Tensor):
            if not isinstance(self.momentum, Tensor):
                self.momentum = torch.empty_like(self.h[..., 1:, :, :1])
            self.momentum[..., self.steps, :, :] = momentum
        else:
            assert isinstance(self.momentum, list)
            self.momentum.append(momentum)
        self.steps += 1

    def scale_of(self, step: int) -> Tensor | None:
        """The scale that the cap applied in a step."""
        return None if self.scale is None else self.scale[..., step, :, :]

    def momentum_after(self, step: int) -> Momentum:
        """The momentum with which a step went on."""
        return self.momentum[..., step, :, :] if isinstance(self.momentum, Tensor) else self.momentum[step]


class Pullback(NamedTuple):
    """The gradient of a chain of steps, in the terms of `Descent.unrolled_gradients`.

    Shape:
        - v: $(*, K, n, r)$
        - total, start: $(*, n, r)$
    """

    v: Tensor
    """What reached the product with C in each step, negated."""
    total: Tensor
    """What reached the offset in all steps together."""
    start: Tensor
    """What reached the start."""


class Outcome(NamedTuple):
    """The end of a run.

    Shape:
        - h: $(*, n, r)$
        - scale: $(*, n, 1)$
        - iterations, converged, one_by_one: $(*, n)$
    """

    h: Tensor
    scale: Tensor | None
    """How much the cap scaled each row in its last step."""
    iterations: Tensor | None = None
    """Steps that each row needed; None where every row took all of them."""
    converged: Tensor | None = None
    """Whether each row reached the tolerance; None where there was none."""
    one_by_one: Tensor | None = None
    """Whether each row was solved one part at a time; None where none was."""

    @classmethod
    def stack(cls, members: Sequence[Outcome]) -> Outcome:
        """The outcomes of a stack of problems as one; all with a tolerance, none with a cap."""

        def together(name: str) -> Tensor:
            return torch.stack([getattr(member, name) for member in members])

        careful = [
            torch.zeros_like(m.h[..., 0], dtype=torch.bool) if m.one_by_one is None else m.one_by_one for m in members
        ]
        return cls(together("h"), None, together("iterations"), together("converged"), torch.stack(careful))

    def updated(self, index: Tensor, later: Outcome) -> Outcome:
        """The outcome of all rows, where some of them have gone on; both with a tolerance."""
        assert self.iterations is not None and self.converged is not None
        assert later.iterations is not None and later.converged is not None
        one_by_one = torch.zeros_like(self.converged) if self.one_by_one is None else self.one_by_one
        if later.one_by_one is not None:
            one_by_one = one_by_one.index_copy(0, index, later.one_by_one)
        return self._replace(
            h=self.h.index_copy(0, index, later.h),
            iterations=self.iterations.index_add(0, index, later.iterations),
            converged=self.converged.index_copy(0, index, later.converged),
            one_by_one=one_by_one,
        )


def iterate(solver: Solver, descent: Descent, bounds: Bounds, start: Tensor, trace: Trace | None = None) -> Outcome:
    """Runs a solver from a start."""
    outcome = solver.all_steps(descent, bounds, start, trace)
    return take_steps(solver, descent, bounds, start, trace) if outcome is None else outcome


def take_steps(
    solver: Solver,
    descent: Descent,
    bounds: Bounds,
    start: Tensor,
    trace: Trace | None = None,
    patience: int | None = None,
) -> Outcome:
    """Takes the steps of a solver one by one: the only loop.

    Args:
        solver: The solver.
        descent: The gradient step.
        bounds: The projection.
        start: Where to start.
        trace: What to keep of each step.
        patience: Give a row up once its violation has not halved in so many steps.
    """
    state = solver.init(descent, start)
    may_drop = trace is None and start.ndim == 2
    rows = None if solver.tol is None else _OpenRows(state, solver.tol, patience, may_drop=may_drop)
    for k in range(solver.max_iter):
        state = solver.step(descent, bounds, state, out=None if trace is None else trace.slot(k + 1))
        if trace is not None:
            trace.add(state)
        if rows is not None and ((k + 1) % solver.check_every == 0 or k + 1 == solver.max_iter):
            if rows.close(state, solver.violation(descent, bounds, state), k + 1):
                break
            if (kept := rows.drop_closed()) is not None:
                state, descent, bounds = state.rows(kept), descent.rows(kept), bounds.rows(kept)
    return Outcome(state.h, state.scale) if rows is None else rows.outcome


class _OpenRows:
    """The rows that have not reached the tolerance yet, and the results so far of all of them.

    Rows that are done leave the computation where that is possible, so that one hard row does not hold the rest.
    """

    def __init__(self, state: State, tol: float, patience: int | None, *, may_drop: bool) -> None:
        rows, device = state.h.shape[:-1], state.h.device
        self._tol = tol
        self._patience = patience
        self._may_drop = may_drop
        self._index = torch.arange(rows.numel(), device=device)  # the row of the results that each row in the state is
        self._open = self._index  # positions in the state
        self._h = state.h.clone()
        self._scale = torch.ones_like(state.h[..., :1])
        self._iterations = torch.zeros(rows, dtype=torch.int64, device=device)
        self._converged = torch.zeros(rows, dtype=torch.bool, device=device)
        self._goal = torch.full((rows.numel(),), math.inf, dtype=state.h.dtype, device=device)
        self._since = torch.zeros(rows.numel(), dtype=torch.int64, device=device)  # the step that last reached its goal

    def close(self, state: State, violation: Tensor, step: int) -> bool:
        """Takes the results of the open rows, closes those that have reached the tolerance, and says if that is all."""
        rows = self._index[self._open]
        violation = violation.flatten()[self._open]
        done = violation <= self._tol
        self._h.flatten(0, -2)[rows] = state.h.flatten(0, -2)[self._open]
        if state.scale is not None:
            self._scale.view(-1)[rows] = state.scale.flatten()[self._open]
        self._iterations.view(-1)[rows] = step
        self._converged.view(-1)[rows] = done
        if self._patience is not None:
            reached = violation < self._goal[rows]
            self._goal[rows] = (violation / 2).where(reached, self._goal[rows])
            self._since[rows] = self._since[rows].masked_fill(reached, step)
            done = done | (step - self._since[rows] >= self._patience)
        self._open = self._open[~done]
        return not len(self._open)

    def drop_closed(self) -> Tensor | None:
        """The positions to go on with, or None where the state stays as it is."""
        kept = self._open
        if not self._may_drop or len(kept) == len(self._index):
            return None
        self._index = self._index[kept]
        self._open = torch.arange(len(kept), device=kept.device)
        return kept

    @property
    def outcome(self) -> Outcome:
        return Outcome(self._h, self._scale, self._iterations, self._converged)


def _violation(descent: Descent, bounds: Bounds, h: Tensor) -> Tensor:
    """How much each row violates the KKT conditions, by how far a projected step moves it."""
    moved = descent.step(h)
    bounds.project_(moved)
    return descent.fixed_point_residual(h, moved)


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solve found, row by row.

    All but `h` is computed when it is first asked for, so that a training step does not pay for it. Printed, a solution
    says how it was found and how good it is. Only `h` carries gradients.

    Shape:
        - h: $(*, n, r)$
        - iterations, residual, kkt, converged, one_by_one, condition: $(*, n)$
    """

    h: Tensor
    _problem: NonnegativeLeastSquares
    _solver: Solver
    _descent: Descent
    _bounds: Bounds
    _outcome: Outcome

    @cached_property
    def iterations(self) -> Tensor:
        """Steps that each row needed to reach the tolerance: many for an input unlike those W was learned from."""
        if self._outcome.iterations is not None:
            return self._outcome.iterations.view(self.h.shape[:-1])
        return torch.full(self.h.shape[:-1], self._solver.max_iter, device=self.h.device)

    @cached_property
    def residual(self) -> Tensor:
        """The norm of what h leaves unexplained of the observed x."""
        with torch.no_grad():
            return row_norm(self._problem.residual(self.h))

    @cached_property
    def kkt(self) -> Tensor:
        """How much h violates the optimality conditions, relative to the gradient at zero.

        For a row that the cap holds down, these are the conditions of the capped problem.
        """
        with torch.no_grad():
            return _violation(self._descent, self._bounds, self._outcome.h).view(self.h.shape[:-1])

    @cached_property
    def converged(self) -> Tensor:
        """Whether each row reached the solver's tolerance; without one, whether `kkt` is at most 0.001."""
        if self._outcome.converged is not None:
            return self._outcome.converged.view(self.h.shape[:-1])
        return self.kkt <= LOOSE_TOLERANCE

    @cached_property
    def one_by_one(self) -> Tensor:
        """Whether each row had to be solved one part at a time, as where the parts it uses are nearly collinear."""
        if self._outcome.one_by_one is None:
            return torch.zeros(self.h.shape[:-1], dtype=torch.bool, device=self.h.device)
        return self._outcome.one_by_one.view(self.h.shape[:-1])

    @cached_property
    def condition(self) -> Tensor:
        """The condition number of the parts that each row uses, all brought to one norm: what h may be off by.

        Relative errors of x, rounding among them, come back in h up to so many times as large.
        """
        rows = torch.arange(self.converged.numel(), device=self.h.device)
        found = [self.condition_of(part) for part in torch.split(rows, _ROWS_AT_ONCE)]
        return torch.cat(found).view(self.converged.shape)

    @torch.no_grad()
    def condition_of(self, rows: Tensor) -> Tensor:
        """The condition numbers of some of the rows, by their place among all."""
        problem, (n, r) = self._problem, (self.h.shape[-2] if self.h.ndim > 1 else 1, self.h.shape[-1])
        W = problem.W.double()
        W = (W / torch.linalg.vector_norm(W, dim=-2, keepdim=True).clamp(min=torch.finfo(W.dtype).tiny)).mT
        W = W.expand(*self.h.shape[:-2], -1, -1).flatten(0, -3) if W.ndim > 2 else W.unsqueeze(0)
        model = rows // n if len(W) > 1 else torch.zeros_like(rows)
        used = self.h.detach().reshape(-1, r)[rows] > self._solver.floor
        size = used.sum(-1)
        parts = used.to(torch.uint8).topk(max(int(size.max()), 1) if len(rows) else 1).indices
        chosen = W[model.unsqueeze(-1), parts] * used.gather(-1, parts).unsqueeze(-1)  # (rows, parts, m)
        if problem.mask is not None:
            mask = problem.mask.expand(*self.h.shape[:-1], W.shape[-1]).reshape(-1, W.shape[-1])
            chosen = chosen * mask[rows].unsqueeze(-2)
        sizes = torch.linalg.svdvals(chosen)
        smallest = sizes.gather(-1, (size - 1).clamp(min=0, max=sizes.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        condition: Tensor = (sizes[:, 0] / smallest).masked_fill(size == 0, 1.0)
        return condition.to(self.h.dtype)

    def __repr__(self) -> str:
        """How h was found, and how good it is."""
        if not self.converged.numel():
            return f"Solution of no rows over {self.h.shape[-1]} parts, by {self._solver.method}"
        missing = int((~self.converged).sum())
        text = [
            f"Solution of {self.converged.numel()} rows over {self.h.shape[-1]} parts, by {self._solver.method}:",
            "  all converged" if not missing else f"  {missing} have not converged",
            f"  {_spread(self.iterations)} steps, KKT conditions violated by {self.kkt.max():.1e} at most",
        ]
        if hard := self.one_by_one.flatten().nonzero().flatten().tolist():
            worst = self.condition_of(self.one_by_one.new_tensor(hard[:_ROWS_AT_ONCE], dtype=torch.int64)).max()
            text.append(f"  {len(hard)} one part at a time; condition of the parts in use up to {worst:.0e}")
        return "\n".join(text)


def _spread(counts: Tensor) -> str:
    lowest, highest = int(counts.min()), int(counts.max())
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
