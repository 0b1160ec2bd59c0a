"""Small pictures for a page: matrices become PNG images inside their own address."""

from __future__ import annotations

import base64

import torch
from torch import Tensor

from torchpfc.data.png import encode_png

INK = (0, 0, 0)
BELOW_ZERO = (11, 110, 105)


def data_uri(image: Tensor) -> str:
    r"""A picture of a matrix: 1 is ink, 0 is transparent, and what lies below zero has a colour of its own.

    Args:
        image: The matrix; entries beyond -1 and 1 are drawn as these.

    Shape:
        - image: $(\text{height}, \text{width})$

    Example:
        >>> data_uri(torch.eye(2))[:30]
        'data:image/png;base64,iVBORw0K'
    """
    return "data:image/png;base64," + base64.b64encode(encode(image)).decode()


def encode(image: Tensor) -> bytes:
    r"""The same picture as the bytes of a PNG file, RGBA with 8 bits each.

    Shape:
        - image: $(\text{height}, \text{width})$
    """
    opacity = image.abs().clamp(max=1).mul(255).round().unsqueeze(-1)
    colour = torch.where(image.unsqueeze(-1) < 0, torch.tensor(BELOW_ZERO), torch.tensor(INK))
    return encode_png(torch.cat([colour, opacity], dim=-1).to(torch.uint8))  # (height, width, 4)
