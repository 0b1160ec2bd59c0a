"""Pictures with axes: names and ticks around parts of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchpfc.markup import element
from torchpfc.paper.report.charts.pictures import Picture
from torchpfc.paper.report.charts.svg import WIDTH, Box, draw, rule, short, text

LEFT, ABOVE, BELOW, BETWEEN = 56, 20, 22, 28
"""Room for ticks, names, ticks and the next picture."""

TALLEST = 480
"""How high a picture is at most; one that is higher is squeezed, as plots may be."""

TICK, EDGE = 4, 0.04
"""Length of a tick, and how near to an edge, as a share, its words stay inside."""


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
        right = (WIDTH - LEFT) / width
        down = min(right, TALLEST / height)
        where = Box(LEFT, top + 8 + ABOVE, right * width, down * height)
        image = element(
            "image", href=f"data:image/png;base64,{picture.png}", preserveAspectRatio="none", **where.attributes()
        )
        parts += [text(0, top, picture.label, "title"), image]
        for area in areas:
            box = area.box
            corner = where.left + right * box.left, where.top + down * box.top
            parts += _surround(area, Box(*corner, right * box.width, down * box.height), highest=where.top + down)
        top = where.bottom + BELOW + BETWEEN
    return draw(parts, top - BETWEEN, title)


def _surround(area: Area, box: Box, highest: float) -> list[str]:
    """What belongs to an area; its name stands above it, or inside where something else is there."""
    outside = box.top <= highest
    where = (box.left, box.top - 6, area.name, "name") if outside else (box.left + 6, box.top + 16, area.name, "over")
    parts = [element("rect", class_="frame", **box.attributes()), text(*where)]
    for share, words in area.across.items():
        x = box.left + share * box.width
        parts.append(rule(x, box.bottom, x, box.bottom + TICK, "axis"))
        kind = "" if share < EDGE else "end" if share > 1 - EDGE else "middle"
        parts.append(text(x, box.bottom + 18, words, kind))
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
