r"""Lawson and Hanson's method for a whole batch: one part at a time, however nearly collinear the parts are.

Each row holds the amounts h of its own parts $P$, and a matrix $Z$ for which the columns of $Q = W_P Z$ are
orthonormal. So $Z Z^\top = (W_P^\top W_P)^{-1}$, and $Z Z^\top g$ leads from any h to the optimum over $P$, where g is
the negative gradient at h. A part enters as one more column of $Z$, made orthogonal twice. One leaves by a reflection
that turns its row of $Z$ onto a single column, which goes with it. Errors grow with the condition number of $W_P$, not
with its square as they do where a Gram matrix is factorized, and what h leaves of x is computed anew in every step.

Written in NumPy: a step is a hundred small operations, which cost it half of what they cost PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchpfc.solvers.problem import NonnegativeLeastSquares

_NUMBERS_AT_ONCE = 2**20  # in the matrices Z of the rows that are solved together, so that they stay in the cache
_MOST_EXCHANGES = 100  # for each part; a few are what it takes
_IDLE = 2  # exchanges for each part that have hardly helped; after so many, those to come will not either
_HARDLY = 1e-21  # of the squared norm of x
_FEWEST_COPIED, _WORTH_COPYING = 16, 0.25  # rows that are done, and their share, before the others are copied
_ROOM = 8  # rows and columns by which Z grows

# In units of rounding.
_EPS = float(np.finfo(np.float64).eps)
_DEPENDENT = 500 * _EPS  # a part that is no further than this from the span of those in use depends on them
_NOISE = 4 * _EPS  # a pull below this is noise, relative to what is left of x
_DUST = 0.04 * _EPS  # and so is one below this, relative to x by h: it could not lower the residual by 1e-8 of x
_SETTLED = 32 * _EPS  # pulls of parts in use at an optimum, relative to x
_TINY = float(np.finfo(np.float64).tiny)

# What is left of x is computed with twice the digits where it is less than this: its own digits are lost otherwise.
_NEARLY_NOTHING = 3e-7
_NOTHING = 1e-11  # where not even this is left of x, there is nothing more to explain
_COARSE_BITS = 21  # twice as many, and those of a sum over the parts, are exact in float64

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Solved(NamedTuple):
    """What became of each row.

    Shape:
        - h: $(n, r)$
        - steps, ended, violation: $(n)$
    """

    h: Tensor
    steps: Tensor
    """Exchanges that each row took."""
    ended: Tensor
    """Whether no part was left that would lower the objective by more than rounding can tell."""
    violation: Tensor
    """The largest violation of the KKT conditions, relative to the norm of x."""


def solve_one_by_one(problem: NonnegativeLeastSquares, max_iter: int) -> Solved:
    """Solves a problem in float64 with a matrix W, on the CPU and from h = 0.

    Args:
        problem: The problem, in units in which rows of x and columns of W have norms close to one; x is zero where it
            is not observed.
        max_iter: Exchanges at most.
    """
    (m, r), device = problem.W.shape, problem.x.device
    x, W = problem.x.cpu().numpy(), problem.W.cpu().numpy()
    mask = None if problem.mask is None else problem.mask.expand(problem.x.shape).cpu().numpy()
    l1, l2 = (torch.as_tensor(weight, dtype=torch.float64).cpu().numpy() for weight in (problem.l1, problem.l2))
    if mask is None and m > r:
        Q, W = np.linalg.qr(W)
        x = x @ Q
    rank = r if l2.any() else min(len(W), r)
    rows = max(_NUMBERS_AT_ONCE // max(rank, 1) ** 2, 2 * _FEWEST_COPIED)
    # A last part that is zero stands where there is none.
    W = np.concatenate([W, np.zeros((len(W), 1))], axis=1)
    l1 = np.concatenate([np.broadcast_to(l1, (len(x), r)), np.zeros((len(x), 1))], axis=1)
    l2 = np.append(np.broadcast_to(l2, r), 0.0)
    gram = W.T @ W if mask is None and r <= len(x) * rank else None
    parts = [
        _Exchange(x[chunk], W, l1[chunk], l2, None if mask is None else mask[chunk], gram, rank).run(
            min(max_iter, _MOST_EXCHANGES * r)
        )
        for chunk in (slice(first, first + rows) for first in range(0, max(len(x), 1), rows))
    ]
    h, *rest = (torch.from_numpy(np.concatenate(part)).to(device) for part in zip(*parts, strict=True))
    return Solved(h[:, :r], *rest)


@dataclass(eq=False)
class _Rows:
    """The rows that are still open.

    Shape:
        - index, steps, idle, norm, floor, best, size, at_optimum, settled, part, slot: $(n)$
        - x, mask: $(n, m)$
        - l1, h, pull, used, shut: $(n, r)$
        - Z: $(n, K, K)$
        - order: $(n, K)$
    """

    index: Places
    steps: Places
    idle: Places
    """Steps since the objective has fallen by more than hardly."""
    x: Numbers
    mask: Flags | None
    l1: Numbers
    norm: Numbers
    h: Numbers
    pull: Numbers
    """The negative gradient at h: how strongly each part wants to grow."""
    floor: Numbers
    """What a pull has to exceed to be more than rounding."""
    best: Numbers
    """The lowest objective so far at the optimum over a set of parts, doubled."""
    used: Flags
    shut: Flags
    """Parts in use, and those refused until another has helped."""
    Z: Numbers
    """Zero beyond the parts in use."""
    order: Places
    """The part that each row of Z belongs to."""
    size: Places
    """How many parts are in use."""
    at_optimum: Flags
    """Whether h is the optimum over the parts in use, so that another may enter."""
    settled: Flags
    """Whether that optimum needs no correction."""
    part: Places
    """The part that wants to enter."""
    slot: Places
    """The row of Z whose part leaves, or -1."""

    def take(self, index: Places) -> Self:
        """Some of the rows."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[index] for name, value in values.items() if value is not None})


class _Exchange:
    """One run of the method."""

    def __init__(
        self,
        x: Numbers,
        W: Numbers,
        l1: Numbers,
        l2: Numbers,
        mask: Flags | None,
        gram: Numbers | None,
        rank: int,
    ) -> None:
        self._W, self._WT, self._gram, self._rank = W, np.ascontiguousarray(W.T), gram, rank
        self._coarse_WT = _round_to(self._WT, np.ones((1, 1)))
        self._l2 = l2 if l2.any() else None
        self._has_l1 = bool(l1.any())
        n, r = len(x), W.shape[1]
        room = min(_ROOM, rank)
        norm = _norm(x)
        self._rows = _Rows(
            index=np.arange(n),
            steps=np.zeros(n, dtype=np.int64),
            idle=np.zeros(n, dtype=np.int64),
            x=x,
            mask=mask,
            l1=l1,
            norm=norm,
            h=np.zeros((n, r)),
            pull=x @ W - l1,
            floor=_NOISE * norm,
            best=norm**2,
            used=np.zeros((n, r), dtype=np.bool_),
            shut=np.zeros((n, r), dtype=np.bool_),
            Z=np.zeros((n, room, room)),
            order=np.full((n, room), r - 1),
            size=np.zeros(n, dtype=np.int64),
            at_optimum=np.ones(n, dtype=np.bool_),
            settled=np.ones(n, dtype=np.bool_),
            part=np.zeros(n, dtype=np.int64),
            slot=np.full(n, -1),
        )
        self._h, self._steps = np.zeros((n, r)), np.zeros(n, dtype=np.int64)
        self._ended, self._violation = np.zeros(n, dtype=np.bool_), np.full(n, np.inf)

    def run(self, max_iter: int) -> tuple[Numbers, Places, Flags, Numbers]:
        """Exchanges parts until no row has another to take, or there are no steps left."""
        for step in range(max_iter + 1):
            rows = self._rows
            pull = np.where(rows.shut, 0.0, rows.pull)
            rows.part = pull.argmax(1)
            floor = np.where(rows.idle > _IDLE * pull.shape[1], np.inf, rows.floor)
            last = rows.at_optimum & (pull[np.arange(len(pull)), rows.part] <= floor)
            done = last & rows.settled if step < max_iter else np.full(len(last), True)
            count = int(done.sum())
            if count == len(done) or count >= max(_FEWEST_COPIED, _WORTH_COPYING * len(done)):
                self._close(done, last)
                if count == len(done):
                    break
                rows, last, done = self._rows, last[~done], done[~done]
            rows.steps += ~done
            direction = np.zeros_like(rows.h)
            self._enter(np.flatnonzero(rows.at_optimum & ~last), direction)
            self._drop(np.flatnonzero(rows.slot >= 0))
            again = last & ~done
            rows.shut[again] = rows.used[again]
            self._settle(np.flatnonzero(~rows.at_optimum | again), direction)
            self._advance(direction)
            rows.settled |= last  # once is enough
        return self._h, self._steps, self._ended, self._violation

    def _close(self, done: Flags, ended: Flags) -> None:
        closed = self._rows.take(np.flatnonzero(done))
        index = closed.index
        # Where the steps have run out, h is feasible all the same.
        violation = np.where(closed.used, np.abs(closed.pull), closed.pull).max(1, initial=0.0)
        self._h[index], self._steps[index], self._ended[index] = closed.h, closed.steps, ended[done]
        self._violation[index] = violation / np.maximum(closed.norm, _TINY)
        self._rows = self._rows.take(np.flatnonzero(~done))

    def _enter(self, which: Places, direction: Numbers) -> None:
        """Takes one more part in rows at an optimum; the direction leads to the next one."""
        if not len(which):
            return
        rows, row = self._rows, np.arange(len(which))
        size, part = rows.size[which], rows.part[which]
        k = int(size.max())
        self._make_room(k + 1)
        room = rows.Z.shape[-1]
        new = np.zeros((len(which), self._W.shape[1]))
        new[row, part] = 1.0
        if k:
            # Once would leave an error that grows with the condition number of the parts in use.
            Z, order = rows.Z[which, :k, :k], rows.order[which, :k]
            flat, transposed = order + row[:, None] * new.shape[1], Z.transpose(0, 2, 1)
            for overlap in self._overlaps(which, new, part, flat):
                new.ravel()[flat] -= _multiply(Z, _multiply(transposed, overlap))
        left = self._apply(new, which)
        length = _norm(left) if self._l2 is None else np.sqrt((left**2).sum(1) + (self._l2 * new**2).sum(1))
        new /= np.maximum(length, _TINY)[:, None]
        gain = np.einsum("ij,ij->i", new, rows.pull[which])
        fine = (length > _DEPENDENT) & (gain > 0) & (size < room)
        rows.shut[which, part] = True
        if not fine.all():
            which, row, new, gain, size, part = (value[fine] for value in (which, row, new, gain, size, part))
        direction[which] = new * gain[:, None]
        rows.order[which, size] = part
        order = rows.order[which]
        rows.Z[which, :, size] = np.take_along_axis(new, order, 1) * (order < new.shape[1] - 1)
        rows.size[which] = size + 1
        rows.used[which, part] = True

    def _drop(self, which: Places) -> None:
        """Takes out the parts that have reached zero."""
        if not len(which):
            return
        rows, row = self._rows, np.arange(len(which))
        slot, last = rows.slot[which], rows.size[which] - 1
        k = int(last.max()) + 1
        Z, order = rows.Z[which, :k, :k], rows.order[which, :k]
        mirror = Z[row, slot]
        mirror[row, last] += np.copysign(_norm(mirror), mirror[row, last])
        scale = 2 / np.einsum("ij,ij->i", mirror, mirror)
        Z -= _multiply(Z, mirror)[:, :, None] * (scale[:, None] * mirror)[:, None, :]
        Z[row, slot], order[row, slot] = Z[row, last], order[row, last]
        Z[row, last] = 0.0
        Z[row, :, last] = 0.0
        order[row, last] = self._W.shape[1] - 1
        rows.Z[which, :k, :k], rows.order[which, :k], rows.size[which], rows.slot[which] = Z, order, last, -1

    def _settle(self, which: Places, direction: Numbers) -> None:
        """Leads to the optimum over the parts in use, from wherever h is."""
        if not len(which):
            return
        rows = self._rows
        k = int(rows.size[which].max())
        Z, order = rows.Z[which, :k, :k], rows.order[which, :k]
        pull = np.take_along_axis(rows.pull[which], order, 1)
        direction[which[:, None], order] = _multiply(Z, _multiply(Z.transpose(0, 2, 1), pull))

    def _advance(self, direction: Numbers) -> None:
        """Moves along the direction, to its end or until the first amount reaches zero."""
        rows = self._rows
        h = rows.h + direction
        falls = rows.used & (h <= 0)
        rows.at_optimum = np.logical_not(falls.any(axis=1))
        if falls.any():
            share = np.divide(rows.h, -direction, out=np.where(falls, 0.0, 2.0), where=falls & (direction < 0))
            first = share.argmin(1)
            h = np.maximum(rows.h + np.minimum(share.min(1), 1.0)[:, None] * direction, 0.0)
            blocked = np.flatnonzero(~rows.at_optimum)
            part = first[blocked]
            h[blocked, part], rows.used[blocked, part], rows.shut[blocked, part] = 0.0, False, False
            rows.slot[blocked] = (rows.order[blocked] == part[:, None]).argmax(1)
        rows.h = h
        left = rows.x - self._apply(h)
        size = _norm(left)
        nearly = size < _NEARLY_NOTHING * rows.norm
        if nearly.any():
            left = self._left_precisely(h)
            size = _norm(left)
        pull, objective = left @ self._W, size**2
        rows.floor = _NOISE * size + _DUST * rows.norm**2 / np.maximum(rows.norm + h.sum(1), _TINY)
        if self._l2 is None and not self._has_l1:
            rows.floor[size <= _NOTHING * rows.norm] = np.inf
        if self._has_l1:
            pull -= rows.l1
            objective += 2 * (rows.l1 * h).sum(1)
        if self._l2 is not None:
            pull -= self._l2 * h
            objective += (self._l2 * h**2).sum(1)
        rows.pull = pull
        helped = rows.at_optimum & (objective < rows.best)
        rows.shut = np.where(helped[:, None], rows.used, rows.shut)
        rows.idle = np.where(helped & (rows.best - objective > _HARDLY * rows.norm**2), 0, rows.idle + 1)
        rows.best = np.where(helped, objective, rows.best)
        rows.settled = np.abs(pull * rows.used).max(1) <= _SETTLED * rows.norm
        if nearly.any():  # parts that were refused may help now that h is more exact
            rows.settled &= ~(nearly & helped & (size > _NOTHING * rows.norm))

    def _overlaps(self, which: Places, new: Numbers, part: Places, flat: Places) -> Iterator[Numbers]:
        """The products of the parts in use with the new one, and then with what is left of it."""
        first = (self._apply(new, which) @ self._W) if self._gram is None else self._gram[part]
        yield first.ravel().take(flat)
        left = self._apply(new, which) @ self._W
        yield (left if self._l2 is None else left + self._l2 * new).ravel().take(flat)

    def _apply(self, h: Numbers, which: Places | None = None) -> Numbers:
        """The observed part of W h, for some of the rows."""
        product, mask = h @ self._WT, self._rows.mask
        return product if mask is None else product * (mask if which is None else mask[which])

    def _left_precisely(self, h: Numbers) -> Numbers:
        """What h leaves of x, with twice the digits: products of coarse factors are exact, and so is their sum."""
        coarse = _round_to(h, np.maximum(h.max(1, keepdims=True), _TINY))
        fine, fine_WT = h - coarse, self._WT - self._coarse_WT
        left: Numbers = self._rows.x - coarse @ self._coarse_WT
        left = left - (coarse @ fine_WT + fine @ self._coarse_WT) - fine @ fine_WT
        return left if self._rows.mask is None else np.where(self._rows.mask, left, 0.0)

    def _make_room(self, size: int) -> None:
        rows, have = self._rows, self._rows.Z.shape[-1]
        if size > have and have < self._rank:
            more = (0, min(_ROOM, self._rank - have))
            rows.Z = np.pad(rows.Z, ((0, 0), more, more))
            rows.order = np.pad(rows.order, ((0, 0), more), constant_values=self._W.shape[1] - 1)


def _round_to(values: Numbers, largest: Numbers) -> Numbers:
    """Values with so few digits that products of two of them are exact; those of the largest count."""
    step = np.ldexp(1.0, np.frexp(largest)[1] - _COARSE_BITS)
    rounded: Numbers = np.rint(values / step) * step
    return rounded


def _norm(rows: Numbers) -> Numbers:
    norm: Numbers = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norm


def _multiply(matrix: Numbers, vector: Numbers) -> Numbers:
    product: Numbers = (matrix @ vector[:, :, None])[:, :, 0]
    return product
