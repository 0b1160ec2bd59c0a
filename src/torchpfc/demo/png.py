"""Small pictures for a page: matrices become PNG images inside their own address."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

SIGNATURE = b"\x89PNG\r\n\x1a\n"
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
    height, width = image.shape
    opacity = image.abs().clamp(max=1).mul(255).round().unsqueeze(-1)
    colour = torch.where(image.unsqueeze(-1) < 0, torch.tensor(BELOW_ZERO), torch.tensor(INK))
    pixels = torch.cat([colour, opacity], dim=-1).to(torch.uint8)  # (height, width, 4)
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)  # each row begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
