"""PNG files from tensors, without a library for images."""

from __future__ import annotations

import math
import struct
import zlib

import torch
from torch import Tensor

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # gray, red-green-blue, and that with opacity


def encode_png(pixels: Tensor) -> bytes:
    r"""The bytes of a PNG file.

    Args:
        pixels: Gray, red-green-blue, or red-green-blue-opacity values from 0 to 255.

    Shape:
        - pixels: $(\text{height}, \text{width}, c)$ of type uint8, with c 1, 3 or 4

    Example:
        >>> encode_png(torch.zeros(2, 3, 1, dtype=torch.uint8))[:4]
        b'\x89PNG'
    """
    if pixels.ndim != 3 or pixels.shape[-1] not in _COLOUR_TYPES or pixels.dtype != torch.uint8:
        got = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
        raise ValueError(f"pixels must be uint8 of shape (height, width, channels) with 1, 3 or 4 channels, got {got}")
    height, width, channels = pixels.shape
    rows = pixels.cpu().reshape(height, width * channels)
    filtered = torch.cat([rows.new_zeros(height, 1), rows], dim=1)  # each row begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(filtered.numpy().tobytes(), 9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def image_grid(x: Tensor, shape: tuple[int, int, int], *, columns: int, gap: int = 1) -> Tensor:
    r"""Images side by side, row after row, as pixels for `encode_png`.

    Args:
        x: Images, from 0 to 1; what lies beyond is drawn as these.
        shape: Channels, rows and columns of an image.
        columns: Images in a row of the grid.
        gap: Pixels between images.

    Shape:
        - x: $(n, m)$

    Example:
        >>> image_grid(torch.rand(7, 4), (1, 2, 2), columns=4).shape
        torch.Size([5, 11, 1])
    """
    channels, height, width = shape
    lines = math.ceil(len(x) / columns)
    tiles = x.new_ones(lines * columns, channels, height + gap, width + gap)  # white between images
    tiles[: len(x), :, :height, :width] = x.reshape(-1, *shape)
    tiles = tiles.view(lines, columns, channels, height + gap, width + gap)
    grid = tiles.permute(0, 3, 1, 4, 2).reshape(lines * (height + gap), columns * (width + gap), channels)
    return grid[: lines * (height + gap) - gap, : columns * (width + gap) - gap].clamp(0, 1).mul(255).round().byte()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
