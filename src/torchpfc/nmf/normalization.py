r"""How the scale of the columns of W and H is shared between them (Appendix A.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalization(ABC):
    """Factors for the columns of W and of H."""

    before_left: ClassVar[bool] = False
    """Applied just before W is updated; otherwise at the end of an iteration, so that it holds for the result."""
    keeps_product: ClassVar[bool] = False
    r"""Whether $H W^\top$ stays the same."""

    @abstractmethod
    def scales(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the columns of W and of the columns of H.

        Args:
            W: The transposed parts, one per row.
            H: The transposed codes, one row per part.

        Shape:
            - W: $(r, m)$
            - H: $(r, n)$
            - the results: $(r, 1)$
        """


@dataclass(frozen=True)
class MeanOfMax(Normalization):
    r"""The paper's joint normalization: the largest entries of a column of W and of H both become their mean.

    With $a_r = \max_i |W_{ir}|$ and $b_r = \max_i |H_{ir}|$, column r of W is scaled by $(a_r + b_r) / 2 a_r$ and that
    of H by $(a_r + b_r) / 2 b_r$. This changes the product unless a and b are equal, so that the objective may rise;
    the next iterations bring the two together.
    """

    def scales(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        """The factors that bring both largest entries to their mean."""
        largest_W, largest_H = _largest(W), _largest(H)
        mean = (largest_W + largest_H) / 2
        return ratio(mean, largest_W), ratio(mean, largest_H)


@dataclass(frozen=True)
class ColumnCap(Normalization):
    r"""The published code's rule: no column of W may have a larger entry than the same column of H.

    Just before each update of W, column r is scaled by $\min(1, \max_i |H_{ir}| / \max_i |W_{ir}|)$. H is not touched.
    A part that no example uses is pulled towards zero.
    """

    before_left: ClassVar[bool] = True

    def scales(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        """The factors that bring the largest entries of W under those of H."""
        largest_W, largest_H = _largest(W), _largest(H)
        return ratio(largest_H, largest_W).clamp_(max=1.0), torch.ones_like(largest_H)


@dataclass(frozen=True)
class UnitNorm(Normalization):
    r"""Columns of W have norm 1, and H is scaled by the inverse, so that the product stays the same."""

    keeps_product: ClassVar[bool] = True

    def scales(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        """The factors that bring the columns of W to norm 1; a column of zeros is left alone."""
        norms = torch.linalg.vector_norm(W, dim=1, keepdim=True)
        scale = ratio(torch.ones_like(norms), norms)
        return scale, ratio(torch.ones_like(norms), scale)


def unit_columns(W: Tensor) -> Tensor:
    """Columns of norm 1; those of zeros stay zero.

    Args:
        W: The parts, one per column.

    Example:
        >>> unit_columns(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
        tensor([[0.6000, 0.0000],
                [0.8000, 0.0000]])
    """
    return torch.nn.functional.normalize(W, dim=-2, eps=torch.finfo(W.dtype).tiny)


def _largest(F: Tensor) -> Tensor:
    return F.abs().amax(1, keepdim=True)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient of sizes, or 1 where the denominator is zero."""
    return torch.where(denominator > 0, numerator / denominator.clamp(min=torch.finfo(denominator.dtype).tiny), 1.0)
