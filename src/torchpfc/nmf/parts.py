"""Parts from examples that are alike, such as those of a class: a start for learning, or all that is learned."""

from __future__ import annotations

import torch
from torch import Tensor

from torchpfc.nmf.factorize import factorize
from torchpfc.nmf.k_means import k_means
from torchpfc.nmf.normalization import unit_columns
from torchpfc.solvers import NonnegativeLeastSquares, Solver, solve


@torch.no_grad()
def make_parts(
    x: Tensor,
    count: int,
    *,
    weight: Tensor | None = None,
    iterations: int = 20,
    copies: bool = True,
    refine: int = 0,
    l1: float = 0.0,
    solver: Solver | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Means of similar examples, as columns of norm 1, which a few passes of a factorization can refine.

    Args:
        x: The examples.
        count: How many parts.
        weight: What each example counts for the means; None counts all alike.
        iterations: How often examples choose their mean.
        copies: Whether a part may be a copy of an example. Where not, it is no closer to one than the mean of two would
            be.
        refine: Passes of the factorization; 0 keeps the means.
        l1: Weight of the sum of h in the factorization.
        solver: How the codes are found that the factorization starts from.
        generator: Source of random numbers, which decide where k-means starts.

    Shape:
        - x: $(n, m)$
        - weight: $(n)$
        - the result: $(m, \text{count})$

    Example:
        >>> make_parts(torch.tensor([[0.0, 1.0], [0.0, 3.0], [4.0, 0.0]]), 2).sort(1).values
        tensor([[0., 1.],
                [0., 1.]])
    """
    W = unit_columns(k_means(x, count, weight=weight, iterations=iterations, generator=generator).mT)
    W = W if copies else _without_copies(x, W)
    if not refine:
        return W
    h = solve(NonnegativeLeastSquares(x, W, l1=l1), solver).h
    W = unit_columns(factorize(x, count, l1=l1, init=(W, h), max_iter=refine, tol=0, progress=False).W)
    return W if copies else _without_copies(x, W)


def _without_copies(x: Tensor, W: Tensor) -> Tensor:
    """Parts, where one that is more like an example than the mean of its two closest examples becomes that mean."""
    if len(x) < 2:
        return W
    likeness, nearest = (W.mT @ x.mT).topk(2)
    means = unit_columns(x[nearest].mean(1).mT)
    enough = (means.mT * x[nearest[:, 0]]).sum(1)
    return W.where(likeness[:, 0] <= enough, means)
