"""Pictures with axes: names and ticks around parts of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchpfc.markup import element
from torchpfc.paper.report.charts.pictures import LARGEST, Picture
from torchpfc.paper.report.charts.svg import WIDTH, Box, draw, rule, short, text

LEFT, ABOVE, BELOW, BETWEEN = 56, 20, 22, 16
"""Room for ticks, names, ticks and the next picture."""

TICK = 4


@dataclass(frozen=True)
class Area:
    """A part of a picture, with a name above it and ticks along its edges."""

    name: str
    box: Box
    """In pixels of the picture."""
    across: Mapping[float, str] = field(default_factory=dict)
    """What to write below it, by the share of its width."""
    up: Mapping[float, str] = field(default_factory=dict)
    """What to write left of it, by the share of its height, from below."""


def area_chart(pictures: Sequence[tuple[Picture, Sequence[Area]]], *, title: str, scale: tuple[str, str]) -> str:
    """Draws pictures one below the other, all as wide.

    Args:
        pictures: At least one, each with its areas.
        title: What the chart shows, for readers who cannot see it.
        scale: What white stands for, and what black.
    """
    parts, top = _grays(*scale), 34.0
    for picture, areas in pictures:
        width, height = picture.size
        size = min((WIDTH - LEFT) / width, LARGEST)
        parts.append(text(0, top, picture.label, "title"))
        where = Box(LEFT, top + 8 + ABOVE, size * width, size * height)
        parts.append(element("image", href=f"data:image/png;base64,{picture.png}", **where.attributes()))
        for area in areas:
            box = area.box
            placed = Box(where.left + size * box.left, where.top + size * box.top, size * box.width, size * box.height)
            parts += _surround(area, placed)
        top = where.bottom + BELOW + BETWEEN + 12
    return draw(parts, top - BETWEEN - 12, title)


def _surround(area: Area, box: Box) -> list[str]:
    parts = [element("rect", class_="frame", **box.attributes()), text(box.left, box.top - 6, area.name, "name")]
    for share, words in area.across.items():
        x = box.left + share * box.width
        parts.append(rule(x, box.bottom, x, box.bottom + TICK, "axis"))
        parts.append(text(x, box.bottom + 18, words, "middle" if 0 < share < 1 else "end" if share else ""))
    for share, words in area.up.items():
        y = box.bottom - share * box.height
        parts.append(rule(box.left - TICK, y, box.left, y, "axis"))
        parts.append(text(box.left - TICK - 4, y + 4, words, "end"))
    return parts


def _grays(white: str, black: str) -> list[str]:
    """The scale of all pictures."""
    steps, width = 16, 10
    bar = [
        element("rect", x=short(LEFT + k * width), y="0", width=str(width), height="12", fill=f"rgb({g},{g},{g})")
        for k in range(steps)
        for g in [round(255 * (1 - k / (steps - 1)))]
    ]
    frame = element("rect", class_="frame", **Box(LEFT, 0, steps * width, 12).attributes())
    return [*bar, frame, text(LEFT - 6, 10, white, "end"), text(LEFT + steps * width + 6, 10, black)]
