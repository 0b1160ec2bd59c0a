"""The alternation: update the codes, update the parts, again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from torchpfc.nmf.matrix import Matrix
from torchpfc.nmf.normalization import Normalization, UnitNorm
from torchpfc.nmf.updates import HALS, HalfProblem, UpdateRule

Callback = Callable[[int, float], bool | None]

# The objective is compared with that of some iterations before: single ones may be taken back.
_CHECK_EVERY = 5
_COMPARED_WITH = 10
# While a pass takes away at least this share of the objective, it needs no help from going ahead.
_FAST = 0.1
# A sample of the rows is worth a start of its own if it has so many rows, and all together a multiple of them.
_FEWEST_ROWS = 1000
_FEWEST_ROWS_PER_PART = 40
_FEWEST_SAMPLES = 4
_MOST_SAMPLE_PASSES = 10


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


class _State(NamedTuple):
    """Where a pass over the data ended. Factors are transposed, one row per part."""

    W: Tensor  # (r, m)
    codes: list[Tensor]  # (r, rows) for each batch
    shares: list[_Sums]  # what each batch added to the sums
    sums: _Sums
    objective: float


class _Sums(NamedTuple):
    """What the update of W needs to know of the codes."""

    gram: Tensor  # H^T H, (r, r)
    product: Tensor  # H^T V, (r, m)
    codes: Tensor  # the sum over examples, (r, 1)

    def replace(self, old: _Sums, new: _Sums) -> _Sums:
        """The sums with one share exchanged for another."""
        return _Sums(*(total + (after - before) for total, before, after in zip(self, old, new, strict=True)))

    def scale(self, factors: Tensor) -> _Sums:
        """The sums that belong to scaled codes."""
        return _Sums(self.gram * factors * factors.T, self.product * factors, self.codes * factors)


@dataclass(frozen=True, eq=False)
class Alternation:
    """Everything that one factorization needs but the start."""

    data: Matrix
    rule: UpdateRule
    normalization: Normalization | None
    l1: float
    nonnegative: bool
    batch_size: int | None

    def minimize(self, W: Tensor, H: Tensor, *, max_iter: int, tol: float, watch: Callback) -> Factorization:
        """Runs from W (m, r) and H (n, r) until a tolerance, the watcher or the number of iterations ends it."""
        history, start = History(), time.perf_counter()
        state: _State | None = None
        for k, state in zip(range(1, max_iter + 1), self._passes(W.T.contiguous(), H.T), strict=False):
            history.objective.append(state.objective)
            history.seconds.append(time.perf_counter() - start)
            if watch(k, state.objective) or _has_converged(history.objective, tol):
                break
        assert state is not None
        W, H = state.W, torch.cat(state.codes, dim=1)
        if self.at_end is not None:
            scale_W, scale_H = self.at_end.scales(W, H)
            W, H = W * scale_W, H * scale_H
        return Factorization(W.T.contiguous(), H.T.contiguous(), history)

    @property
    def at_end(self) -> Normalization | None:
        """The normalization that is applied to the result."""
        chosen = UnitNorm() if self.l1 and self.normalization is None else self.normalization
        return chosen if chosen is not None and chosen.keeps_product else None

    def _passes(self, W: Tensor, H: Tensor) -> Iterator[_State]:
        """Passes over the data, each from a point ahead of the last one where that helps.

        Once passes bring little, the next starts ahead by a share of the last move. Where that raises the objective
        the pass is taken back, and the next one starts from where it should have.
        """
        rows = len(self.data.V)
        size = rows if self.batch_size is None else self.batch_size
        batches, codes = self.data.batches(size), [H[:, k : k + size] for k in range(0, rows, size)]
        W = self._start_on_sample(W, H)
        # Sums are in float64, since differences are added for as long as the run takes.
        none = _Sums(*(W.new_zeros(len(W), size, dtype=torch.float64) for size in (len(W), W.shape[1], 1)))
        last = now = _State(W, codes, [none] * len(batches), none, math.inf)
        reach, share = _Reach(), 0.0
        may_go_ahead = isinstance(self.rule, HALS) and self.rule.extrapolate and self._normalization_in_loop() is None
        while True:
            new = self._pass(batches, last, now, share)
            if share and new.objective > now.objective:
                reach.shrink()
                last, share = now, 0.0
            else:
                slow = now.objective - new.objective < _FAST * now.objective
                last, now = now, new
                share = reach.grow() if slow and may_go_ahead else 0.0
            yield now

    def _start_on_sample(self, W: Tensor, H: Tensor) -> Tensor:
        """W after passes over a sample of the rows, for as long as they bring much; W itself where rows are few."""
        stride = len(self.data.V) // max(_FEWEST_ROWS, _FEWEST_ROWS_PER_PART * len(W))
        if stride < _FEWEST_SAMPLES or not isinstance(self.rule, HALS) or self.batch_size is not None:
            return W
        sampled = replace(self, data=self.data.sample(stride))
        before = math.inf
        for state in islice(sampled._passes(W, H[:, ::stride]), _MOST_SAMPLE_PASSES):
            W = state.W
            if before - state.objective < _FAST * before:
                break
            before = state.objective
        return W

    def _pass(self, batches: list[Matrix], last: _State, now: _State, share: float) -> _State:
        """Updates the codes of each batch in turn, and W after each.

        The sums over codes always hold the newest codes of every row seen so far: a batch exchanges its share. So no
        update raises the objective once all rows have been seen.
        """
        normalization = self._normalization_in_loop()
        W = _go_ahead(last.W, now.W, share, self.rule.floor if self.nonnegative else -math.inf)
        codes, shares, sums = list(now.codes), list(now.shares), now.sums
        for k, batch in enumerate(batches):
            h = codes[k] = _go_ahead(last.codes[k], now.codes[k], share, self.rule.floor)
            self._update_codes_(batch, W, h)
            if normalization is not None and normalization.before_left:
                W *= normalization.scales(W, torch.cat(codes, dim=1))[0]
            added = _Sums(*batch.left(W, h), h.sum(1, keepdim=True))
            sums, shares[k] = sums.replace(shares[k], added), added
            self._update_parts_(W, _Sums(*(total.to(W.dtype) for total in sums)))
        if normalization is not None and not normalization.before_left:
            scale_W, scale_H = normalization.scales(W, torch.cat(codes, dim=1))
            W, codes = W * scale_W, [h * scale_H for h in codes]
            sums, shares = sums.scale(scale_H), [added.scale(scale_H) for added in shares]
        return _State(W, codes, shares, sums, self._objective(batches, W, codes, sums))

    def _update_codes_(self, batch: Matrix, W: Tensor, h: Tensor) -> None:
        """The right update."""
        G, B = batch.right(W, h)
        penalty = self.l1 * torch.linalg.vector_norm(W, dim=1, keepdim=True) if self.l1 else None
        self.rule.update_(h, HalfProblem(G, B, summed=W.shape[1], penalty=penalty))

    def _update_parts_(self, W: Tensor, sums: _Sums) -> None:
        """The left update."""
        norm_penalty = self.l1 * sums.codes if self.l1 else None
        rows = len(self.data.V)
        problem = HalfProblem(
            sums.gram, sums.product, summed=rows, nonnegative=self.nonnegative, norm_penalty=norm_penalty
        )
        self.rule.update_(W, problem)

    def _objective(self, batches: list[Matrix], W: Tensor, codes: list[Tensor], sums: _Sums) -> float:
        error = self.data.error_from_sums(W, sums.gram, sums.product)
        if error is None:
            error = sum(batch.error_from_entries(W, h) for batch, h in zip(batches, codes, strict=True))
        if self.l1:
            error += self.l1 * float(torch.linalg.vector_norm(W, dim=1).double() @ sums.codes[:, 0])
        return error

    def _normalization_in_loop(self) -> Normalization | None:
        """The normalization, unless it is enough to apply it at the end."""
        later = self.normalization is not None and self.normalization.keeps_product and self.rule.scale_free
        return None if later else self.normalization


@dataclass
class _Reach:
    """How far ahead a pass starts (Ang and Gillis, 2019).

    A share of the last move that grows while the objective falls, up to a limit that grows more slowly; where the
    objective rises both go back.
    """

    share: float = 0.5
    limit: float = 1.0
    last_good: float = 0.5

    def grow(self) -> float:
        self.last_good = self.share
        self.share, self.limit = min(self.limit, 1.05 * self.share), min(1.0, 1.01 * self.limit)
        return self.share

    def shrink(self) -> None:
        self.limit, self.share = self.last_good, self.share / 1.5


def _go_ahead(last: Tensor, now: Tensor, share: float, lowest: float) -> Tensor:
    """A new tensor, a share of the last move ahead, no entry below the lowest."""
    return torch.lerp(last, now, 1 + share).clamp_(min=lowest)


def _has_converged(objective: list[float], tol: float) -> bool:
    if objective[-1] <= 0:
        return True
    if not tol or len(objective) <= _COMPARED_WITH or len(objective) % _CHECK_EVERY:
        return False
    before = objective[-1 - _COMPARED_WITH]
    return abs(before - objective[-1]) <= _COMPARED_WITH * tol * before
