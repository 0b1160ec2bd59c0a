"""Numbers in rows and columns, the larger ones darker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchpfc.markup import element
from torchpfc.paper.report.charts.svg import COLUMNS, LETTER, WIDTH, Box, draw, short, text

GAP, CELL_HEIGHT, HEAD = 24, 24, 40
PALEST, DARKEST = 0.04, 0.6
"""Opacities of the smallest and the largest number; words stay readable on both."""


@dataclass(frozen=True)
class Heat:
    """A grid of numbers with its names."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    """Row by row; NaN leaves a cell empty."""
    decimals: int = 0

    def __post_init__(self) -> None:
        if [len(row) for row in self.values] != [len(self.columns)] * len(self.rows):
            sizes = f"{len(self.rows)} rows of {len(self.columns)}"
            raise ValueError(f"values must have {sizes}, got rows of {[len(row) for row in self.values]}")

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        finite = [value for row in self.values for value in row if math.isfinite(value)]
        return (min(finite), max(finite)) if finite else (0.0, 1.0)


def heat_chart(
    heats: Sequence[Heat], *, rows: str, columns: str, title: str, limits: tuple[float, float] | None = None
) -> str:
    """Draws grids, up to three side by side.

    Args:
        heats: At least one.
        rows: What rows are.
        columns: What columns are.
        title: What the chart shows, for readers who cannot see it.
        limits: The numbers that are palest and darkest; None takes the range of each grid.
    """
    across = min(COLUMNS, len(heats))
    width = (WIDTH - GAP * (across - 1)) / across
    parts, top = [text(0, 12, f"from top to bottom: {rows}; from left to right: {columns}")], 20.0
    for start in range(0, len(heats), across):
        side_by_side = heats[start : start + across]
        for column, heat in enumerate(side_by_side):
            place = Box(column * (width + GAP), top, width, HEAD + CELL_HEIGHT * len(heat.rows))
            parts += _grid(heat, place, limits or heat.range)
        top += max(HEAD + CELL_HEIGHT * len(heat.rows) for heat in side_by_side) + 16
    return draw(parts, top, title)


def _grid(heat: Heat, place: Box, limits: tuple[float, float]) -> list[str]:
    room = LETTER * max(map(len, heat.rows)) + 8
    width = (place.width - room) / len(heat.columns)
    parts = [text(place.left, place.top + 16, heat.title, "title")]
    for j, name in enumerate(heat.columns):
        parts.append(text(place.left + room + (j + 0.5) * width, place.top + HEAD - 6, name, "middle"))
    for i, (name, values) in enumerate(zip(heat.rows, heat.values, strict=True)):
        top = place.top + HEAD + i * CELL_HEIGHT
        parts.append(text(place.left, top + 16, name, "name"))
        for j, value in enumerate(values):
            cell = Box(place.left + room + j * width, top, width - 1, CELL_HEIGHT - 1)
            parts += _cell(value, cell, limits, heat.decimals)
    return parts


def _cell(value: float, place: Box, limits: tuple[float, float], decimals: int) -> list[str]:
    if not math.isfinite(value):
        return [element("rect", class_="frame", **place.attributes())]
    low, high = limits
    share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 1.0
    opacity = short(100 * (PALEST + share * (DARKEST - PALEST)))
    shade = element("rect", class_="cell s0", fill_opacity=f"{opacity}%", **place.attributes())
    return [shade, text(place.left + place.width / 2, place.top + 16, f"{value:.{decimals}f}", "middle name")]
