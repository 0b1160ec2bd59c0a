"""Columns of weights as images, gathered while a model is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.data.png import image_grid
from torchpfc.paper.drawing import draw_pixels

IN_A_ROW = 25
"""Columns that each line of a picture shows."""

OF_A_TASK = 100
"""Columns that a picture shows of each task, as the paper's figure of weights without a window does."""

APART = 8
"""Pixels between frames that have several lines each."""


def learned_last(weight_x: Tensor, position: float) -> Tensor:
    """Columns that the window has left a moment ago, as images.

    Args:
        weight_x: Parts in columns.
        position: Where the window is; 0 shows the first columns.
    """
    start = min(max(0, int(position) - OF_A_TASK), max(0, weight_x.shape[-1] - OF_A_TASK))
    return as_images(weight_x[:, start : start + OF_A_TASK])


def spread_out(weight_x: Tensor) -> Tensor:
    """Columns at equal distances from the first to the last, as images: one frame of a film."""
    count = weight_x.shape[-1]
    chosen = torch.linspace(0, count - 1, min(IN_A_ROW, count)).round().long()
    return as_images(weight_x[:, chosen.to(weight_x.device)])


def draw_lines(frames: Mapping[str, Sequence[Tensor]], shape: tuple[int, int, int]) -> dict[str, str]:
    """Pictures of several frames one below the other, each a line of images or more, as PNG files in base64."""
    return {
        name: draw_pixels(_join(parts, shape, min(IN_A_ROW, len(parts[0])))) for name, parts in frames.items() if parts
    }


def draw_pairs(upper: Tensor, lower: Tensor, shape: tuple[int, int, int]) -> str:
    """Images, and below each the one that belongs to it, in as many lines as are needed, as a PNG file in base64."""
    columns = min(IN_A_ROW, len(upper))
    lines = [torch.split(F.pad(x, (0, 0, 0, -len(x) % columns), value=1.0), columns) for x in (upper, lower)]
    return draw_pixels(_join([torch.cat(pair) for pair in zip(*lines, strict=True)], shape, columns))


def _join(frames: Sequence[Tensor], shape: tuple[int, int, int], columns: int) -> Tensor:
    """Frames below each other, further apart where they have several lines."""
    grids = [image_grid(frame.cpu().float(), shape, columns=columns) for frame in frames]
    gap = 1 if len(frames[0]) <= columns else APART
    white = grids[0].new_full((gap, *grids[0].shape[1:]), 255)
    return torch.cat([part for grid in grids for part in (white, grid)][1:])


def draw_images(images: Tensor, shape: tuple[int, int, int], *, columns: int) -> str:
    """Images in lines of some columns, as a PNG file in base64."""
    return draw_pixels(image_grid(images.cpu().float(), shape, columns=columns))


def as_images(columns: Tensor) -> Tensor:
    """Columns in rows, each as bright as images are."""
    parts = columns.detach().T.cpu().float()
    return parts / parts.abs().amax(1, keepdim=True).clamp(min=1e-12)
