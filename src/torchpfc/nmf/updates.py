r"""Update rules for one factor of $V \approx H W^\top$ while the other stays fixed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchpfc.solvers.checks import check_at_least_one, check_nonnegative
from torchpfc.solvers.descent import COLD_ITERATIONS, cold_start

# Rows that `HALS` updates one after the other before a product with all rows; measured on CPUs for 20 to 200 parts.
_BLOCK = 16
# Sweeps beyond these rarely pay; and an operation of a sweep takes about this many times as long as one of a product.
_MOST_SWEEPS = 4
_SWEEP_COST = 6
# A part this much shorter than the longest one still moves, but by a bounded amount.
_SHORTEST = 1e-7


@dataclass(frozen=True, eq=False)
class HalfProblem:
    r"""What both half steps of a factorization have in common: least squares in one factor.

    $$\min_F \tfrac12 \langle F, G F \rangle - \langle B, F \rangle + \sum_r l_r \sum_i F_{ri} + \sum_r p_r \|F_r\|$$

    For the codes, $F = H^\top$, $G = W^\top W$ and $B = W^\top V^\top$; for the parts, $F = W^\top$, $G = H^\top H$ and
    $B = H^\top V$. One row of F belongs to one part, so that a rule that goes part by part reads memory in order.

    Args:
        G: The Gram matrix of the fixed factor.
        B: The product of the fixed factor with the data.
        summed: Entries of the data that each entry of B sums over: how costly the problem was to set up.
        nonnegative: Whether F must not be negative.
        penalty: Weight $l_r$ of the sum of each row, or None.
        norm_penalty: Weight $p_r$ of the norm of each row, or None.

    Shape:
        - G: $(r, r)$
        - B: $(r, n)$, the shape of F
        - penalty, norm_penalty: $(r, 1)$
    """

    G: Tensor
    B: Tensor
    summed: int
    nonnegative: bool = True
    penalty: Tensor | None = None
    norm_penalty: Tensor | None = None

    def linear_term(self) -> Tensor:
        """B less the penalty on sums."""
        return self.B if self.penalty is None else self.B - self.penalty


@dataclass(frozen=True)
class UpdateRule(ABC):
    """How a half step improves one factor.

    Args:
        floor: Smallest value of an entry of a factor that must not be negative.
    """

    floor: float = 0.0

    scale_free: ClassVar[bool] = True
    """Whether scaling a column of W, and that of H by the inverse, leaves all later products the same."""
    signed: ClassVar[bool] = True
    """Whether the rule can update a factor without a sign."""

    def __post_init__(self) -> None:
        check_nonnegative(floor=self.floor)

    @abstractmethod
    def update_(self, F: Tensor, problem: HalfProblem) -> None:
        """Improves F in place."""


@dataclass(frozen=True)
class HALS(UpdateRule):
    r"""Hierarchical alternating least squares: each part in turn gets its best values, all others fixed.

    $$F_j \leftarrow \mathrm{relu}\Bigl(F_j + \frac{B_j - (G F)_j}{G_{jj}}\Bigr)$$

    Rows are taken in blocks: one product brings in the other blocks, and only the rows of the block itself go one by
    one. This is the same arithmetic as row after row, with most of it in matrix products.

    With `extrapolate`, once progress is slow, a pass over the data starts ahead of the last result, in the direction
    of the last move, by a factor that grows while the objective falls; a pass that raises it is taken back. So the
    objective never rises, and a given one is reached in far fewer passes.

    Args:
        floor: Smallest value of an entry of a factor that must not be negative.
        sweeps: Times that a half step goes through all parts. None goes up to four times, as long as a sweep costs
            little beside the products with the data that come before it.
        extrapolate: Whether passes may start ahead of the last result. With a normalization that changes the product
            they do not.
    """

    sweeps: int | None = None
    extrapolate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(sweeps=self.sweeps)

    def update_(self, F: Tensor, problem: HalfProblem) -> None:
        """Goes through the rows of F, `sweeps` times."""
        diagonal = problem.G.diagonal()
        curvature = torch.maximum(diagonal, diagonal.max() * _SHORTEST**2).clamp_(min=torch.finfo(F.dtype).tiny)
        curvature = curvature.unsqueeze(1)
        step = problem.linear_term() / curvature
        pull = problem.G / curvature  # what a row takes from the others
        # Where the curvature was raised the row keeps a share of itself, so that the step is shorter.
        pull.diagonal().sub_(1.0)
        shrink = None if problem.norm_penalty is None else problem.norm_penalty / curvature
        starts = range(0, len(F), _BLOCK)
        inside = [pull[k : k + _BLOCK, k : k + _BLOCK].clone() for k in starts]
        for k in starts:
            pull[k : k + _BLOCK, k : k + _BLOCK] = 0.0
        for _ in range(self._count_sweeps(problem)):
            for k, within in zip(starts, inside, strict=True):
                rows = F[k : k + _BLOCK]
                targets = torch.addmm(step[k : k + _BLOCK], pull[k : k + _BLOCK], F, alpha=-1)
                self._update_block_(rows, targets, within, problem.nonnegative, shrink, k)

    def _count_sweeps(self, problem: HalfProblem) -> int:
        if self.sweeps is not None:
            return self.sweeps
        return min(_MOST_SWEEPS, 1 + problem.summed // (_SWEEP_COST * len(problem.G)))

    def _update_block_(
        self, rows: Tensor, targets: Tensor, within: Tensor, nonnegative: bool, shrink: Tensor | None, first: int
    ) -> None:
        columns = rows.T
        for j, (row, target, weights) in enumerate(
            zip(rows.unbind(), targets.unbind(), within.unbind(), strict=True), start=first
        ):
            target.addmv_(columns, weights, alpha=-1)
            if nonnegative:
                torch.clamp(target, min=self.floor, out=row)
            else:
                row.copy_(target)
            if shrink is not None:
                _shrink_rows_(row.unsqueeze(0), shrink[j])


@dataclass(frozen=True)
class GradientUpdates(UpdateRule):
    r"""Projected gradient steps with rates from the power method, the SGD updates of the paper (Appendix A).

    $$F \leftarrow \mathrm{relu}(F - \tfrac{\eta}{L} (G F - B))$$

    L is the largest eigenvalue of G. On the codes this is the right update and on the parts the left update.

    Args:
        floor: Smallest value of an entry of a factor that must not be negative; the paper uses 1e-5.
        steps: Steps in a half step.
        rate: $\eta$, the length of a step relative to $1 / L$. Up to 1 the objective never rises.
    """

    steps: int = 1
    rate: float = 1.0

    scale_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(steps=self.steps)
        if not 0 < self.rate < 2:
            raise ValueError(f"rate must be greater than 0 and less than 2, got {self.rate}")

    @classmethod
    def paper(cls) -> Self:
        """One step a half step, and a floor of 1e-5."""
        return cls(floor=1e-5)

    def update_(self, F: Tensor, problem: HalfProblem) -> None:
        """Takes `steps` projected gradient steps."""
        eta = self.rate / _largest_eigenvalue(problem.G).clamp(min=torch.finfo(F.dtype).tiny)
        offset = problem.linear_term() * eta
        C = problem.G * eta
        for _ in range(self.steps):
            F.add_(offset - C @ F)
            if problem.nonnegative:
                F.clamp_(min=self.floor)
            if problem.norm_penalty is not None:
                _shrink_rows_(F, problem.norm_penalty * eta)


@dataclass(frozen=True)
class LeeSeung(UpdateRule):
    r"""Multiplicative updates: every entry is scaled by the ratio of the two parts of its gradient.

    $$F \leftarrow F \cdot \frac{B + \epsilon}{G F + l + \epsilon}$$

    Simple and monotone, and slow: a zero stays zero, and an entry that should become zero only approaches it.

    Args:
        floor: Smallest value of an entry; the published code uses 1e-5, with which the objective may rise.
        steps: Steps in a half step.
        eps: Keeps the division finite; the published code uses 1e-5.
        rate: A share a of the scaling, $a \cdot \mathrm{ratio} + (1 - a)$.
    """

    steps: int = 1
    eps: float = 1e-10
    rate: float = 1.0

    signed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(steps=self.steps)
        if not 0 < self.eps < math.inf:
            raise ValueError(f"eps must be positive and finite, got {self.eps}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be greater than 0 and at most 1, got {self.rate}")

    @classmethod
    def paper(cls) -> Self:
        """The published code's floor and epsilon, both 1e-5."""
        return cls(floor=1e-5, eps=1e-5)

    def update_(self, F: Tensor, problem: HalfProblem) -> None:
        """Scales F, `steps` times."""
        attraction = problem.B + self.eps
        for _ in range(self.steps):
            repulsion = problem.G @ F
            if problem.penalty is not None:
                repulsion += problem.penalty
            if problem.norm_penalty is not None:
                # The norm lies under a parabola that touches it here: p |f| <= p (f^2 / c + c) / 2 with c = |f| now.
                repulsion.addcmul_(F, problem.norm_penalty / _row_norms(F))
            ratio = attraction / repulsion.add_(self.eps)
            if self.rate < 1:
                ratio.mul_(self.rate).add_(1 - self.rate)
            F.mul_(ratio)
            if self.floor:
                F.clamp_(min=self.floor)


def _row_norms(F: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(F, dim=1, keepdim=True)
    return norms.clamp_(min=torch.finfo(F.dtype).tiny)


def _shrink_rows_(F: Tensor, amounts: Tensor) -> None:
    """Moves each row towards zero by an amount, and no further: the proximal step of a norm."""
    F.mul_((1 - amounts / _row_norms(F)).clamp_(min=0.0))


def _largest_eigenvalue(G: Tensor) -> Tensor:
    """The largest eigenvalue of a Gram matrix by the power method."""
    vector = cold_start(G)
    for _ in range(COLD_ITERATIONS):
        vector = G @ vector
        vector = vector / torch.linalg.vector_norm(vector).clamp(min=torch.finfo(G.dtype).tiny)
    value: Tensor = torch.linalg.vector_norm(G @ vector)
    return value
