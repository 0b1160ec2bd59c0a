"""Columns of weights as images, gathered while a model is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpfc.data.png import image_grid
from torchpfc.paper.drawing import draw_pixels

IN_A_ROW = 25
"""Columns that each line of a picture shows."""

LEFT_OF_WINDOW = 50
"""How far left of the window the columns begin that were learned last, as in the paper's figure."""


def learned_last(weight_x: Tensor, position: float) -> Tensor:
    """Columns that the window has left a moment ago, as images.

    Args:
        weight_x: Parts in columns.
        position: Where the window is; 0 shows the first columns.
    """
    start = min(max(0, int(position) - LEFT_OF_WINDOW), max(0, weight_x.shape[-1] - IN_A_ROW))
    return as_images(weight_x[:, start : start + IN_A_ROW])


def spread_out(weight_x: Tensor) -> Tensor:
    """Columns at equal distances from the first to the last, as images: one frame of a film."""
    count = weight_x.shape[-1]
    chosen = torch.linspace(0, count - 1, min(IN_A_ROW, count)).round().long()
    return as_images(weight_x[:, chosen.to(weight_x.device)])


def draw_lines(frames: Mapping[str, Sequence[Tensor]], shape: tuple[int, int, int]) -> dict[str, str]:
    """Pictures of several lines of images, each a PNG file in base64."""
    return {
        name: draw_images(torch.cat(list(lines)), shape, columns=len(lines[0]))
        for name, lines in frames.items()
        if lines
    }


def draw_images(images: Tensor, shape: tuple[int, int, int], *, columns: int) -> str:
    """Images in lines of some columns, as a PNG file in base64."""
    return draw_pixels(image_grid(images.cpu().float(), shape, columns=columns))


def as_images(columns: Tensor) -> Tensor:
    """Columns in rows, each as bright as images are."""
    parts = columns.detach().T.cpu().float()
    return parts / parts.abs().amax(1, keepdim=True).clamp(min=1e-12)
