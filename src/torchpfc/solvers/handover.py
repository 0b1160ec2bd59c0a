"""A first method that gets near, and a second one that ends where the first gets nowhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from torchpfc.solvers.active_set import ActiveSet
from torchpfc.solvers.admm import ADMM
from torchpfc.solvers.base import Outcome, Solver, Trace, take_steps
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.scaling import Bounds

_STEPS_TO_HALVE = 100  # in which the first method has to halve the violation of a row to keep it


@dataclass(frozen=True)
class Handover(Solver):
    """What `nnls` does with many parts: another method first, and the active set for what that leaves.

    Where the active set is careful it takes all rows, from where the first method has brought them.

    Args:
        max_iter: Steps to take at most, of both together.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero.
        first: The first method, with a tolerance of its own.
    """

    first: Solver = field(default_factory=ADMM)

    minimizes: ClassVar[bool] = True
    takes_cap: ClassVar[bool] = False

    @property
    def needs_gram(self) -> bool:  # type: ignore[override]
        """Whether the first method does; the second takes it where it is there."""
        return self.first.needs_gram

    @property
    def method(self) -> str:
        """What this is called where people read it."""
        return f"{self.first.method}, then {ActiveSet.__name__}"

    def step(self, descent: Descent, bounds: Bounds, state: object, out: Tensor | None = None) -> object:
        """Single steps are those of the two methods."""
        raise NotImplementedError

    def all_steps(self, descent: Descent, bounds: Bounds, start: Tensor, trace: Trace | None) -> Outcome:
        """Takes the steps of both."""
        if start.ndim > 2:
            stacked = [self._both(*member, bounds) for member in zip(descent.members(), start, strict=True)]
            return Outcome.stack(stacked)
        return self._both(descent, start, bounds)

    def _both(self, descent: Descent, start: Tensor, bounds: Bounds) -> Outcome:
        outcome = take_steps(self.first, descent, bounds, start, patience=_STEPS_TO_HALVE)
        assert outcome.converged is not None and outcome.iterations is not None
        then = ActiveSet(self.max_iter, self.tol, candidates=16 if self.first.needs_gram else 0)
        left = (~outcome.converged | then.is_careful(start.dtype)).nonzero().squeeze(-1)
        if not len(left) or (steps := self.max_iter - int(outcome.iterations[left].max())) <= 0:
            return outcome
        then = replace(then, max_iter=steps)
        return outcome.updated(left, then.to_the_end(descent.rows(left), outcome.h[left], bounds.rows(left)))
