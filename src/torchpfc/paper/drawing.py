"""Pictures as they are kept in results: PNG files in base64."""

from __future__ import annotations

import base64

import torch.nn.functional as F
from torch import Tensor

from torchpfc.data.png import encode_png

WHITE, LINE = 0.0, 0.35
"""How dark the ground is, and the lines between matrices; the largest entry has 1."""

FRAME, SPECTROGRAM_GAP, COLUMNS_GAP = 1, 6, 2
"""Pixels around a framed picture, between spectrograms side by side, and between rows of columns."""


def draw_pixels(pixels: Tensor) -> str:
    r"""A picture with values from 0 to 255, as `encode_png` takes it."""
    return base64.b64encode(encode_png(pixels)).decode()


def draw_framed(picture: Tensor) -> str:
    """A picture with values from 0, white, to 1, black, inside a frame."""
    framed = F.pad(picture.clamp(0, 1), (FRAME,) * 4, value=LINE)
    return draw_pixels((255 * (1 - framed)).round().byte().unsqueeze(-1))
