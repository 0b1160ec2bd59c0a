"""Pictures with their names."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from torchpfc.markup import element
from torchpfc.paper.report.charts.svg import COLUMNS, WIDTH, Box, draw, text

GAP = 20
SMALLEST, LARGEST = 0.8, 3
"""How many times larger than it is a picture is drawn, at least where several stand side by side, and at most."""

STRIP = 3
"""How many times wider than high a picture is that gets a line of its own."""

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEAD = 24
"""Bytes up to the end of width and height."""


@dataclass(frozen=True)
class Picture:
    """A PNG file in base64, and what it shows."""

    label: str
    png: str

    def __post_init__(self) -> None:
        if len(self._head()) < HEAD or not self._head().startswith(SIGNATURE):
            raise ValueError(f"png must be a PNG file in base64, got {self.png[:32]!r}")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        width, height = struct.unpack_from(">II", self._head(), offset=16)
        return width, height

    def _head(self) -> bytes:
        try:
            return base64.b64decode(self.png[: HEAD * 4 // 3], validate=True)
        except binascii.Error:
            return b""


def picture_chart(pictures: Sequence[Picture], *, title: str) -> str:
    """Draws pictures in reading order, as many side by side as there is room for at about their own size.

    Args:
        pictures: At least one.
        title: What the chart shows, for readers who cannot see it.
    """
    widest = max(picture.size[0] for picture in pictures)
    strips = all(width >= STRIP * height for width, height in (picture.size for picture in pictures))
    across = 1 if strips else max(1, min(COLUMNS, int((WIDTH + GAP) / (SMALLEST * widest + GAP))))
    width = min((WIDTH - GAP * (across - 1)) / across, LARGEST * widest)
    kind = {"class_": "enlarged"} if width > widest else {}
    parts, top = [], 0.0
    for start in range(0, len(pictures), across):
        row = pictures[start : start + across]
        boxes = [
            Box(column * (width + GAP), top, width, width * picture.size[1] / picture.size[0])
            for column, picture in enumerate(row)
        ]
        bottom = max(box.bottom for box in boxes)
        for picture, box in zip(row, boxes, strict=True):
            parts.append(element("image", href=f"data:image/png;base64,{picture.png}", **kind, **box.attributes()))
            parts.append(element("rect", class_="frame", **box.attributes()))
            parts.append(text(box.left, bottom + 18, picture.label, "name"))
        top = bottom + 40
    return draw(parts, top - 18, title)
