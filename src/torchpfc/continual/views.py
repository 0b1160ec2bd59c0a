"""Several looks at one input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Shifts:
    r"""Several looks at an image: as it is, and moved up, down, left and right, with zeros where it was.

    Args:
        shape: Channels, rows and columns of an image.
        pixels: How far to move it.

    Shape:
        - x: $(n, m)$ with $m$ the product of `shape`
        - the result: $(5, n, m)$

    Example:
        >>> Shifts((1, 1, 3))(torch.tensor([[1.0, 2.0, 3.0]]))[-1]
        tensor([[0., 1., 2.]])
    """

    shape: tuple[int, int, int]
    pixels: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        """All looks, the first of which is the image as it is."""
        (_, height, width), by = self.shape, self.pixels
        padded = F.pad(x.reshape(-1, *self.shape), (by, by, by, by))
        starts = ((by, by), (2 * by, by), (0, by), (by, 2 * by), (by, 0))
        moved = [padded[..., top : top + height, left : left + width] for top, left in starts]
        return torch.stack(moved).flatten(2)
