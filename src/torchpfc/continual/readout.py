"""A linear read-out of fixed features from running sums, which are kept by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class Likeness:
    r"""Non-negative features of an input: how much it is like each of some directions, $\mathrm{relu}(V x / \|x\|)$.

    With word vectors as directions, a feature has the name of a word.

    Args:
        directions: V, one direction per row.

    Shape:
        - directions: $(d, m)$
        - x: $(n, m)$
        - the result: $(n, d)$
    """

    directions: Tensor

    @classmethod
    def random(cls, in_features: int, count: int, *, seed: int = 0) -> Likeness:
        """Random directions, which depend on their number and the seed alone.

        Args:
            in_features: Size of the input.
            count: How many.
            seed: Of the random numbers.
        """
        directions = torch.randn(count, in_features, generator=torch.Generator().manual_seed(seed))
        return cls(F.normalize(directions))

    def __call__(self, x: Tensor) -> Tensor:
        """The features."""
        x = F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)
        return F.linear(x, self.directions.to(x)).relu_()


@dataclass(frozen=True, eq=False)
class RidgeReadout:
    r"""Scores of classes that are linear in features of the input, by ridge regression to one-hot targets.

    $$\min_{a, B} \sum_i w_i \|t_i - a - B \phi_i\|^2 + \rho \|B\|^2$$

    This takes sums of $\phi_i \phi_i^\top$, $\phi_i t_i^\top$ and $\phi_i$, over batches in the order in which those
    came. Each batch keeps a triangular factor of its own, so that one can be left out and the others added up again as
    if it had never come.

    Args:
        features: Finds $\phi$, of shape $(n, d)$, from inputs as they are given. It must not depend on data that the
            learner has seen.
        ridge: $\rho$, relative to the sum of squares of a feature around its mean, on average over features.
    """

    features: Callable[[Tensor], Tensor]
    ridge: float = 0.05

    def factor(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        r"""A triangular R with $R^\top R = \sum_i w_i [1, \phi_i]^\top [1, \phi_i]$, of no more rows than examples.

        Args:
            x: The examples.
            weight: What each counts.

        Shape:
            - the result: $(\min(n, 1 + d), 1 + d)$
        """
        R: Tensor | None = None
        for rows in range(0, len(x), _ROWS_AT_ONCE):
            phi = F.pad(self.features(x[rows : rows + _ROWS_AT_ONCE]), (1, 0), value=1.0)
            if weight is not None:
                phi = phi * weight[rows : rows + _ROWS_AT_ONCE].to(phi).sqrt().unsqueeze(1)
            R = triangular(phi if R is None else torch.cat([R, phi]))
        assert R is not None
        return R

    def sums(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        r"""The number of examples and the sum of their features, $\sum_i w_i [1, \phi_i]$: what there is of a class.

        Args:
            x: The examples.
            weight: What each counts.

        Shape:
            - the result: $(1 + d)$
        """
        total: Tensor | float = 0.0
        for rows in range(0, len(x), _ROWS_AT_ONCE):
            phi = F.pad(self.features(x[rows : rows + _ROWS_AT_ONCE]).double(), (1, 0), value=1.0)
            if weight is not None:
                phi = phi * weight[rows : rows + _ROWS_AT_ONCE].to(phi).unsqueeze(1)
            total = total + phi.sum(0)
        assert isinstance(total, Tensor)
        return total

    def solve(self, factors: Sequence[Tensor], sums: Tensor) -> Tensor:
        r"""The weights $[a, B]$.

        Args:
            factors: R of each batch.
            sums: The sums for each class.

        Shape:
            - sums: $(k, 1 + d)$
            - the result: $(k, 1 + d)$
        """
        n, total = sum(map(len, factors)), sums[:, 0].sum()
        mean, d = sums[:, 1:].sum(0) / total, sums.shape[1] - 1
        b = sums[:, 1:] - sums[:, :1] * mean  # (k, d), around the means
        G = A = None
        if n < d:  # rows, as good as those of the examples, without their means
            A = torch.cat(list(factors)).double()
            A = A[:, 1:] - A[:, :1] * mean
            diagonal = A.square().sum(0)
        else:
            G = -total * mean.outer(mean)
            for rows in _in_tall_pieces(factors):
                G.addmm_(rows[:, 1:].double().mT, rows[:, 1:].double())
            diagonal = G.diagonal()
        rho = self.ridge * float(diagonal.sum()) / d
        if rho <= 0:
            B = torch.zeros_like(b)
        elif A is not None:
            # (A^T A + rho I)^-1 b = (b - A^T (A A^T + rho I)^-1 A b) / rho: few rows need a small matrix only.
            B = (b - _solve(A @ A.mT, rho, A @ b.mT).mT @ A) / rho
        else:
            assert G is not None
            B = _solve(G, rho, b.mT).mT
        return torch.cat([sums[:, :1] / total - B @ mean.unsqueeze(1), B], 1)


def _in_tall_pieces(factors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The rows of all factors, many at a time: each product then reads and writes the sum for all of them."""
    piece: list[Tensor] = []
    for factor in factors:
        piece.append(factor)
        if sum(map(len, piece)) >= _ROWS_AT_ONCE:
            yield torch.cat(piece)
            piece = []
    if piece:
        yield torch.cat(piece)


def _solve(G: Tensor, rho: float, b: Tensor) -> Tensor:
    G.diagonal().add_(rho)
    found: Tensor = torch.cholesky_solve(b, torch.linalg.cholesky(G))
    return found


def triangular(A: Tensor) -> Tensor:
    r"""R with $R^\top R = A^\top A$, which says of the rows of A what their products say and no more.

    Args:
        A: The rows.

    Example:
        >>> R = triangular(torch.tensor([[3.0, 1.0], [4.0, 1.0], [0.0, 2.0]]))
        >>> (R.mT @ R).round()
        tensor([[25.,  7.],
                [ 7.,  6.]])
    """
    R: Tensor = torch.linalg.qr(A, mode="r").R
    return R
