r"""Lawson and Hanson's method for a whole batch: one part at a time, however nearly collinear the parts are.

Each row holds the amounts h of its own parts $P$, and a matrix $Z$ for which the columns of $Q = W_P Z$ are
orthonormal. So $Z Z^\top = (W_P^\top W_P)^{-1}$, and $Z Z^\top g$ leads from any h to the optimum over $P$, where g is
the negative gradient at h. A part enters as one more column of $Z$, made orthogonal twice. One leaves by a reflection
that turns its row of $Z$ onto a single column, which goes with it. Errors grow with the condition number of $W_P$, not
with its square as they do where a Gram matrix is factorized, and what h leaves of x is computed anew in every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchpfc.solvers.problem import NonnegativeLeastSquares

_NUMBERS_AT_ONCE = 2**22  # in the matrices Z of the rows that are solved together
_WORTH_COPYING = 0.25  # share of the rows that are done, from which on the others are copied together
_SMALLEST_BASIS = 8  # columns that Z has room for at first
_MOST_EXCHANGES = 100  # for each part; a few are what it takes

# In units of rounding.
_DEPENDENT = 30  # a part that is no further than this from the span of those in use depends on them
_NOISE = 4  # a pull below this is noise, relative to what is left of x
_DUST = 0.04  # and so is one below this, relative to x by h: it could not lower the residual by 1e-8 of x
_SETTLED = 32  # pulls of parts in use at an optimum, relative to x

# What is left of x is computed with twice the digits where it is less than this: its own digits are lost otherwise.
_NEARLY_NOTHING = 1e-5
_COARSE_BITS = 21  # twice as many, and those of a sum over the parts, are exact in float64


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
    """Solves a problem in float64 with a matrix W, from h = 0.

    Args:
        problem: The problem, in units in which rows of x and columns of W have norms close to one; x is zero where it
            is not observed.
        max_iter: Exchanges at most.
    """
    x, W, mask = problem.x, problem.W, problem.mask
    m, r = W.shape
    l1, l2 = (torch.as_tensor(weight, dtype=x.dtype, device=x.device) for weight in (problem.l1, problem.l2))
    if mask is None and m > r:
        Q, W = torch.linalg.qr(W)
        x = x @ Q
    rank = r if bool((l2 > 0).any()) else min(len(W), r)
    rows = max(_NUMBERS_AT_ONCE // max(rank, 1) ** 2, 1)
    max_iter = min(max_iter, _MOST_EXCHANGES * r)
    l1 = l1.expand(len(x), r)
    chunks = (
        _Exchange(x[chunk], W, l1[chunk], l2, None if mask is None else mask[chunk], rank).run(max_iter)
        for chunk in (slice(first, first + rows) for first in range(0, max(len(x), 1), rows))
    )
    return Solved(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


@dataclass(eq=False)
class _Rows:
    """The rows that are still open.

    Shape:
        - index, steps, norm, floor, best, size, at_optimum, settled, part, slot: $(n)$
        - x, mask: $(n, m)$
        - l1, h, pull, used, shut: $(n, r)$
        - Z: $(n, K, K)$
        - order: $(n, K)$
    """

    index: Tensor
    steps: Tensor
    x: Tensor
    mask: Tensor | None
    l1: Tensor
    norm: Tensor
    h: Tensor
    pull: Tensor
    """The negative gradient at h: how strongly each part wants to grow."""
    floor: Tensor
    """What a pull has to exceed to be more than rounding."""
    best: Tensor
    """The lowest objective so far at the optimum over a set of parts, doubled."""
    used: Tensor
    shut: Tensor
    """Parts in use, and those refused until another has helped."""
    Z: Tensor
    order: Tensor
    """Which part each row of Z belongs to."""
    size: Tensor
    """How many parts are in use."""
    at_optimum: Tensor
    """Whether h is the optimum over the parts in use, so that another may enter."""
    settled: Tensor
    """Whether that optimum has been corrected once."""
    part: Tensor
    """The part that wants to enter."""
    slot: Tensor
    """The row of Z whose part leaves, or -1."""

    def take(self, index: Tensor) -> Self:
        """Some of the rows."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[index] for name, value in values.items() if value is not None})


class _Exchange:
    """One run of the method."""

    def __init__(self, x: Tensor, W: Tensor, l1: Tensor, l2: Tensor, mask: Tensor | None, rank: int) -> None:
        self._W, self._WT, self._l2, self._rank = W, W.mT.contiguous(), l2, rank
        self._coarse_WT = _round_to(self._WT, torch.zeros_like(self._WT[:1]))
        self._gram = self._WT @ W if mask is None and W.shape[1] <= len(x) * rank else None
        self._eps, self._tiny = torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
        n, r, basis = len(x), W.shape[1], min(_SMALLEST_BASIS, rank)
        none, count = x.new_zeros(n, r, dtype=torch.bool), x.new_zeros(n, dtype=torch.int64)
        norm = torch.linalg.vector_norm(x, dim=-1)
        self._rows = _Rows(
            index=torch.arange(n, device=x.device),
            steps=count.clone(),
            x=x,
            mask=mask,
            l1=l1,
            norm=norm,
            h=x.new_zeros(n, r),
            pull=x @ W - l1,
            floor=_NOISE * self._eps * norm,
            best=x.square().sum(-1),
            used=none,
            shut=none.clone(),
            Z=x.new_zeros(n, basis, basis),
            order=x.new_zeros(n, basis, dtype=torch.int64),
            size=count,
            at_optimum=torch.ones_like(count, dtype=torch.bool),
            settled=torch.ones_like(count, dtype=torch.bool),
            part=count.clone(),
            slot=count - 1,
        )
        ended = torch.zeros_like(count, dtype=torch.bool)
        self._solved = Solved(x.new_zeros(n, r), count.clone(), ended, x.new_full((n,), torch.inf))

    def run(self, max_iter: int) -> Solved:
        """Exchanges parts until no row has another to take, or there are no steps left."""
        step = 0
        while len(self._rows.index):
            rows = self._rows
            strongest, rows.part = rows.pull.masked_fill(rows.shut, 0.0).max(-1)
            last = rows.at_optimum & (strongest <= rows.floor)
            done = last & rows.settled if step < max_iter else torch.ones_like(last)
            if int(done.sum()) > _WORTH_COPYING * len(done) or bool(done.all()):
                self._close(done, last)
                rows, last, done = self._rows, last[~done], done[~done]
                if not len(last):
                    break
            direction = torch.zeros_like(rows.h)
            self._enter(_where(rows.at_optimum & ~last), direction)
            self._drop(_where(rows.slot >= 0))
            self._settle(_where(~rows.at_optimum | (last & ~done)), direction)
            self._advance(direction)
            rows.settled |= last & ~done  # once is enough
            rows.steps += ~done
            step += 1
        return self._solved

    def _close(self, done: Tensor, ended: Tensor) -> None:
        index, rows = _where(done), self._rows.take(_where(done))
        # Where the steps have run out, h is feasible all the same.
        violation = torch.where(rows.used, rows.pull.abs(), rows.pull.clamp(min=0)).amax(-1)
        solved = self._solved
        solved.h[rows.index], solved.steps[rows.index], solved.ended[rows.index] = rows.h, rows.steps, ended[index]
        solved.violation[rows.index] = violation / rows.norm.clamp(min=self._tiny)
        self._rows = self._rows.take(_where(~done))

    def _enter(self, which: Tensor, direction: Tensor) -> None:
        """Takes one more part in rows at an optimum; the direction leads to the next one."""
        if not len(which):
            return
        rows, row = self._rows, torch.arange(len(which), device=which.device)
        size, part = rows.size[which], rows.part[which]
        k = int(size.max())
        self._make_room(k + 1)
        room = rows.Z.shape[-1]
        new = torch.zeros_like(rows.h[which])
        new[row, part] = 1.0
        if k:
            # Once would leave an error that grows with the condition number of the parts in use.
            Z, order = rows.Z[which, :k, :k], rows.order[which, :k]
            for overlap in self._overlaps(which, new, part, order):
                new.scatter_add_(1, order, -_multiply(Z, _multiply(Z.mT, overlap)))
        length = (self._apply(new, which).square().sum(-1) + (self._l2 * new.square()).sum(-1)).sqrt()
        new /= length.clamp(min=self._tiny).unsqueeze(-1)
        gain = (new * rows.pull[which]).sum(-1)
        fine = (length > _DEPENDENT * self._eps) & (gain > 0) & (size < room)
        direction[which] = new * gain.where(fine, 0.0).unsqueeze(-1)
        slot = size.clamp(max=room - 1)
        rows.order[which, slot] = part.where(fine, rows.order[which, slot])
        column = new.gather(1, rows.order[which])
        column *= torch.arange(room, device=column.device) <= slot.unsqueeze(-1)
        rows.Z[which, :, slot] = column.where(fine.unsqueeze(-1), rows.Z[which, :, slot])
        rows.size[which] += fine
        rows.used[which, part] = fine
        rows.shut[which, part] = True

    def _drop(self, which: Tensor) -> None:
        """Takes out the parts that have reached zero."""
        if not len(which):
            return
        rows, row = self._rows, torch.arange(len(which), device=which.device)
        slot, last = rows.slot[which], rows.size[which] - 1
        k = int(last.max()) + 1
        Z, order = rows.Z[which, :k, :k], rows.order[which, :k]
        mirror = Z[row, slot]
        at_last = mirror.gather(1, last.unsqueeze(-1))
        length = torch.linalg.vector_norm(mirror, dim=-1, keepdim=True)
        mirror = mirror.scatter_add(1, last.unsqueeze(-1), length.where(at_last >= 0, -length))
        scaled = mirror * (2 / mirror.square().sum(-1, keepdim=True))
        Z = torch.baddbmm(Z, _multiply(Z, mirror).unsqueeze(-1), scaled.unsqueeze(-2), alpha=-1)
        Z[row, slot], order[row, slot] = Z[row, last], order[row, last]
        Z[row, last] = 0.0
        Z[row, :, last] = 0.0
        rows.Z[which, :k, :k], rows.order[which, :k], rows.size[which] = Z, order, last
        rows.slot[which] = -1

    def _settle(self, which: Tensor, direction: Tensor) -> None:
        """Leads to the optimum over the parts in use, from wherever h is."""
        if not len(which):
            return
        rows = self._rows
        k = int(rows.size[which].max())
        Z, order = rows.Z[which, :k, :k], rows.order[which, :k]
        move = _multiply(Z, _multiply(Z.mT, rows.pull[which].gather(1, order)))
        direction[which] = torch.zeros_like(rows.h[which]).scatter_add_(1, order, move)

    def _advance(self, direction: Tensor) -> None:
        """Moves along the direction, to its end or until the first amount reaches zero."""
        rows = self._rows
        h = rows.h + direction
        share = (rows.h / (rows.h - h)).masked_fill_(~(rows.used & (h <= 0)), 2.0)
        share, first = share.min(-1)
        rows.at_optimum = share > 1
        blocked = _where(~rows.at_optimum)
        if len(blocked):
            h = torch.addcmul(rows.h, direction, share.clamp(max=1).unsqueeze(-1)).clamp_(min=0)
            part = first[blocked]
            h[blocked, part], rows.used[blocked, part] = 0.0, False  # shut until something has helped
            rows.slot[blocked] = self._find(blocked, part)
        rows.h = h
        left = rows.x - self._apply(h)
        size = torch.linalg.vector_norm(left, dim=-1)
        if bool((size < _NEARLY_NOTHING * rows.norm).any()):
            left = self._left_precisely(h)
            size = torch.linalg.vector_norm(left, dim=-1)
        rows.pull = left @ self._W - rows.l1 - self._l2 * h
        rows.floor = self._eps * (
            _NOISE * size + _DUST * rows.norm.square() / (rows.norm + h.sum(-1)).clamp(min=self._tiny)
        )
        objective = size.square() + ((2 * rows.l1 + self._l2 * h) * h).sum(-1)
        helped = rows.at_optimum & (objective < rows.best)
        rows.shut = rows.used.where(helped.unsqueeze(-1), rows.shut)
        rows.best = objective.where(helped, rows.best)
        rows.settled = (rows.pull.abs() * rows.used).amax(-1) <= _SETTLED * self._eps * rows.norm

    def _find(self, which: Tensor, part: Tensor) -> Tensor:
        """The row of Z that belongs to a part."""
        order = self._rows.order[which]
        present = torch.arange(order.shape[-1], device=order.device) < self._rows.size[which].unsqueeze(-1)
        return ((order == part.unsqueeze(-1)) & present).to(torch.uint8).argmax(-1)

    def _overlaps(self, which: Tensor, new: Tensor, part: Tensor, order: Tensor) -> Iterator[Tensor]:
        """The products of the parts in use with the new one, and then with what is left of it."""
        if self._gram is not None:
            yield self._gram[part.unsqueeze(-1), order]
        else:
            yield (self._apply(new, which) @ self._W).gather(1, order)
        yield (self._apply(new, which) @ self._W + self._l2 * new).gather(1, order)

    def _apply(self, h: Tensor, which: Tensor | None = None) -> Tensor:
        """The observed part of W h, for some of the rows."""
        product, mask = h @ self._WT, self._rows.mask
        return product if mask is None else product * (mask if which is None else mask[which])

    def _left_precisely(self, h: Tensor) -> Tensor:
        """What h leaves of x, with twice the digits: products of coarse factors are exact, and so is their sum."""
        coarse = _round_to(h, h.amax(-1, keepdim=True))
        fine, fine_WT = h - coarse, self._WT - self._coarse_WT
        left = self._rows.x - coarse @ self._coarse_WT - (coarse @ fine_WT + fine @ self._coarse_WT) - fine @ fine_WT
        return left if self._rows.mask is None else left * self._rows.mask

    def _make_room(self, size: int) -> None:
        rows, have = self._rows, self._rows.Z.shape[-1]
        if size > have and have < self._rank:
            more = min(2 * have, self._rank) - have
            rows.Z, rows.order = pad(rows.Z, (0, more, 0, more)), pad(rows.order, (0, more))


def _round_to(values: Tensor, largest: Tensor) -> Tensor:
    """Values with so few digits that products of two of them are exact; those of the largest, or of one, count."""
    _, exponent = torch.frexp(largest)
    step = torch.ldexp(torch.ones_like(largest), exponent - _COARSE_BITS)
    return (values / step).round() * step


def _where(flags: Tensor) -> Tensor:
    return flags.nonzero().squeeze(-1)


def _multiply(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.bmm(matrix, vector.unsqueeze(-1)).squeeze(-1)
