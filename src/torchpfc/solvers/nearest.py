"""Nearest neighbours: codes that pick the parts most like the input (Section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from torchpfc.solvers.base import Solver, State
from torchpfc.solvers.checks import check_at_least_one
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.scaling import Bounds

Similarity = Literal["euclidean", "cosine"]


@dataclass(frozen=True)
class NearestNeighbors(Solver):
    r"""Spreads a total of one over the k parts most similar to x, by the softmax of their similarity.

    With one neighbour, h is one-hot and the block is the 1-NN predictor. This is no least-squares solution, so `l1` and
    `l2` mean nothing here, and no gradient passes to x or `weight_x` through h; `weight_y` still learns.

    Args:
        k: How many neighbours.
        similarity: The cosine of the angle, or the negated Euclidean distance.
    """

    k: int = 1
    similarity: Similarity = "euclidean"

    takes_cap: ClassVar[bool] = False

    def __init__(self, k: int = 1, similarity: Similarity = "euclidean") -> None:
        check_at_least_one(k=k)
        if similarity not in ("euclidean", "cosine"):
            raise ValueError(f"similarity must be 'euclidean' or 'cosine', got {similarity!r}")
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "similarity", similarity)
        super().__init__(max_iter=1)

    def step(self, descent: Descent, bounds: Bounds, state: State, out: Tensor | None = None) -> State:
        """The search."""
        num_basis = descent.W.shape[-1]
        if self.k > num_basis:
            raise ValueError(f"k must be at most the number of parts ({num_basis}), got {self.k}")
        similarity = _similarity(descent, self.similarity)
        nearest = similarity.topk(self.k, dim=-1)
        return State(torch.zeros_like(similarity).scatter_(-1, nearest.indices, nearest.values.softmax(-1)), None)


def _similarity(descent: Descent, kind: Similarity) -> Tensor:
    x, W = descent.x, descent.W
    product, own, squares = x @ W, x.square().sum(-1, keepdim=True), W.square()
    squares = squares.sum(-2, keepdim=True) if descent.mask is None else descent.mask.to(x.dtype) @ squares
    if kind == "cosine":
        return product / (own * squares).sqrt().clamp(min=torch.finfo(x.dtype).tiny)
    return -(own + squares - 2 * product).clamp(min=0).sqrt()
