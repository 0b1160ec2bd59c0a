"""The alternation: update the codes, update the parts, again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchpfc.optim.alternating.matrix import Matrix, error_change
from torchpfc.optim.alternating.normalization import Normalization, UnitNorm
from torchpfc.optim.alternating.updates import HALS, HalfProblem, UpdateRule

Callback = Callable[[int, float], bool | None]

# The objective is compared with that of some iterations before: single ones may be taken back.
_CHECK_EVERY = 5
_COMPARED_WITH = 10
# Changes of a small error are added up for at most this many iterations before it is computed anew.
_ADD_CHANGES = 20


@dataclass
class History:
    """What happened in each iteration: the objective after it, and the seconds since the start."""

    objective: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Factorization(NamedTuple):
    r"""The result of `factorize`, $V \approx H W^\top$.

    Shape:
        - W: $(m, r)$, one part per column
        - H: $(n, r)$, one code per row
    """

    W: Tensor
    H: Tensor
    history: History

    @property
    def objective(self) -> float:
        """The objective at W and H."""
        return self.history.objective[-1]


_Move = tuple[Tensor, Tensor, Tensor, Tensor]
"""A factor before and after, the Gram matrix of the other factor, and its product with the data."""


class _Step(NamedTuple):
    """Transposed factors after an iteration, and the objective there."""

    W: Tensor  # (r, m)
    H: Tensor  # (r, n)
    objective: float


@dataclass(frozen=True, eq=False)
class Alternation:
    """Everything that one factorization needs but the start. Factors are transposed: (r, m) and (r, n)."""

    data: Matrix
    rule: UpdateRule
    normalization: Normalization | None
    l1: float
    nonnegative: bool
    batch_size: int | None

    def minimize(
        self, W: Tensor, H: Tensor, *, max_iter: int, tol: float, watchers: tuple[Callback | None, ...]
    ) -> Factorization:
        """Runs from W (m, r) and H (n, r) until a tolerance, a watcher or the number of iterations ends it."""
        history, start = History(), time.perf_counter()
        W, H = (F.T.clone(memory_format=torch.contiguous_format) for F in (W, H))
        for k, step in zip(range(1, max_iter + 1), self._iterations(W, H), strict=False):
            W, H = step.W, step.H
            history.objective.append(step.objective)
            history.seconds.append(time.perf_counter() - start)
            stops = [watch(k, step.objective) for watch in watchers if watch is not None]
            if any(stops) or self._has_converged(history.objective, tol):
                break
        at_end = UnitNorm() if self.l1 and self.normalization is None else self.normalization
        if at_end is not None and at_end.keeps_product:
            scale_W, scale_H = at_end.scales(W, H)
            W, H = W * scale_W, H * scale_H
        return Factorization(W.T.contiguous(), H.T.contiguous(), history)

    @staticmethod
    def _has_converged(objective: list[float], tol: float) -> bool:
        if objective[-1] <= 0:
            return True
        if not tol or len(objective) <= _COMPARED_WITH or len(objective) % _CHECK_EVERY:
            return False
        before = objective[-1 - _COMPARED_WITH]
        return abs(before - objective[-1]) <= _COMPARED_WITH * tol * before

    def _iterations(self, W: Tensor, H: Tensor) -> Iterator[_Step]:
        if self.batch_size is not None and self.batch_size < len(self.data.V):
            return self._batches(W, H, self.batch_size)
        if isinstance(self.rule, HALS) and self.rule.extrapolate and self._normalization_in_loop() is None:
            return self._extrapolated(W, H)
        return self._plain(W, H)

    def _normalization_in_loop(self) -> Normalization | None:
        """The normalization, unless it is enough to apply it at the end."""
        later = self.normalization is not None and self.normalization.keeps_product and self.rule.scale_free
        return None if later else self.normalization

    def _plain(self, W: Tensor, H: Tensor) -> Iterator[_Step]:
        """Right update, left update."""
        normalization = self._normalization_in_loop()
        while True:
            self._update_codes_(self.data, W, H)
            if normalization is not None and normalization.before_left:
                W *= normalization.scales(W, H)[0]
            A, C = self.data.left(W, H)
            self._update_parts_(W, A, C, H.sum(1, keepdim=True))
            if normalization is not None and not normalization.before_left:
                scale_W, scale_H = normalization.scales(W, H)
                W *= scale_W
                H *= scale_H
                A, C, _ = _scale_sums((A, C, C), scale_H)
            yield _Step(W, H, self._objective(W, H, A, C))

    def _extrapolated(self, W: Tensor, H: Tensor) -> Iterator[_Step]:
        """As `_plain`, but each half step starts ahead, and an iteration that raises the objective is taken back."""
        lowest_W, lowest_H = self.rule.floor if self.nonnegative else -math.inf, self.rule.floor
        reach = _Reach()
        error = _SmallError(self.data)
        best = _Step(W, H, math.inf)
        last_H, ahead_W, ahead_H = H, W, H
        while True:
            new_H, new_W = ahead_H.clone(), ahead_W.clone()
            G, B = self._update_codes_(self.data, ahead_W, new_H)
            ahead_H = _go_ahead(last_H, new_H, reach.share, lowest_H)
            A, C = self.data.left(ahead_W, ahead_H)
            self._update_parts_(new_W, A, C, ahead_H.sum(1, keepdim=True))
            moves = ((best.H, ahead_H, G, B), (ahead_W, new_W, A, C))
            objective = error.after(best.W, ahead_W, moves) + self._penalty(new_W, ahead_H)
            if objective <= best.objective:
                error.accept(A, C)
                ahead_W = _go_ahead(best.W, new_W, reach.share, lowest_W)
                last_H, best = new_H, _Step(new_W, ahead_H, objective)
                reach.grow()
            else:
                ahead_W, ahead_H, last_H = best.W, best.H, best.H
                reach.shrink()
            yield best

    def _batches(self, W: Tensor, H: Tensor, batch_size: int) -> Iterator[_Step]:
        """Updates W after each batch from running sums over the newest codes of all rows.

        Every batch remembers what it added to the sums, so that its next visit replaces it: after the first pass the
        sums are those of all rows, and no step raises the objective.
        """
        normalization = self._normalization_in_loop()
        batches, codes = self.data.batches(batch_size), _split(H, batch_size)
        # In float64, since differences are added for as long as the run takes.
        totals = tuple(W.new_zeros(len(W), size, dtype=torch.float64) for size in (len(W), W.shape[1], 1))
        added = [tuple(total.clone() for total in totals)] * len(batches)
        while True:
            for k, batch in enumerate(batches):
                self._update_codes_(batch, W, codes[k])
                new = (*batch.left(W, codes[k]), codes[k].sum(1, keepdim=True))
                for total, after, before in zip(totals, new, added[k], strict=True):
                    total += after - before
                added[k] = new
                self._update_parts_(W, *(total.to(W.dtype) for total in totals))
            H = torch.cat(codes, dim=1)
            if normalization is not None:
                scale_W, scale_H = normalization.scales(W, H)
                W *= scale_W
                H *= scale_H
                totals = _scale_sums(totals, scale_H)
                added = [_scale_sums(sums, scale_H) for sums in added]
                codes = _split(H, batch_size)
            yield _Step(W, H, self._objective(W, H, *totals[:2]))

    def _update_codes_(self, data: Matrix, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        """The right update; returns what it is made of, G = W^T W and B = W^T V^T."""
        G, B = data.right(W, H)
        penalty = self.l1 * torch.linalg.vector_norm(W, dim=1, keepdim=True) if self.l1 else None
        self.rule.update_(H, HalfProblem(G, B, summed=W.shape[1], penalty=penalty))
        return G, B

    def _update_parts_(self, W: Tensor, A: Tensor, C: Tensor, code_sums: Tensor) -> None:
        """The left update, from A = H^T H and C = H^T V."""
        norm_penalty = self.l1 * code_sums if self.l1 else None
        rows = len(self.data.V)
        self.rule.update_(W, HalfProblem(A, C, summed=rows, nonnegative=self.nonnegative, norm_penalty=norm_penalty))

    def _objective(self, W: Tensor, H: Tensor, A: Tensor, C: Tensor) -> float:
        return self.data.half_squared_error(W, H, A, C) + self._penalty(W, H)

    def _penalty(self, W: Tensor, H: Tensor) -> float:
        return self.l1 * float(torch.linalg.vector_norm(W, dim=1) @ H.sum(1)) if self.l1 else 0.0


@dataclass
class _Reach:
    """How far ahead a half step starts (Ang and Gillis, 2019).

    A share of the last move that grows while the objective falls, up to a limit that grows more slowly; where the
    objective rises both go back.
    """

    share: float = 0.5
    limit: float = 1.0
    last_good: float = 0.5

    def grow(self) -> None:
        self.last_good = self.share
        self.share, self.limit = min(self.limit, 1.05 * self.share), min(1.0, 1.01 * self.limit)

    def shrink(self) -> None:
        self.limit, self.share = self.last_good, self.share / 1.5


class _SmallError:
    """The error of `_extrapolated`, which must be able to tell whether it rose.

    Where the sums that it can be computed from cancel, as for data that are almost a product of two factors, changes
    are added up instead, and only now and then the error is computed from all entries.
    """

    def __init__(self, data: Matrix) -> None:
        self._data = data
        self._best = self._latest = math.inf
        self._products: tuple[Tensor, Tensor] | None = None  # H^T H and H^T V at the best codes
        self._added = 0  # changes since the error was computed from all entries

    def after(self, best_W: Tensor, ahead_W: Tensor, moves: tuple[_Move, _Move]) -> float:
        """The error after moves from the best codes, at the parts ahead, and from the parts ahead."""
        (_, H, _, _), (_, W, A, C) = moves
        error = self._data.error_from_sums(W, A, C)
        if error is not None:
            self._added = 0
        elif self._data.missing is None and 0 < self._added < _ADD_CHANGES and self._products is not None:
            to_start = error_change(best_W, ahead_W, *self._products)
            error = max(self._best + to_start + sum(error_change(*move) for move in moves), 0.0)
            self._added += 1
        else:
            error = self._data.error_from_entries(W, H)
            self._added = 1
        self._latest = error
        return error

    def accept(self, A: Tensor, C: Tensor) -> None:
        """Makes the latest error the best."""
        self._best, self._products = self._latest, (A, C)


def _go_ahead(last: Tensor, new: Tensor, share: float, lowest: float) -> Tensor:
    """The point a share of the last move ahead of the new one, no entry below the lowest."""
    return torch.lerp(last, new, 1 + share).clamp_(min=lowest)


def _scale_sums(sums: Sequence[Tensor], scale_H: Tensor) -> tuple[Tensor, ...]:
    """The sums H^T H, H^T V and of H that belong to scaled codes."""
    A, C, total = sums
    return A * scale_H * scale_H.T, C * scale_H, total * scale_H


def _split(H: Tensor, size: int) -> list[Tensor]:
    return [H[:, k : k + size].contiguous() for k in range(0, H.shape[1], size)]
