"""Dots beside marks: what came of something, beside the paper's number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from torchpfc.markup import element
from torchpfc.paper.report.charts.axes import Scale
from torchpfc.paper.report.charts.svg import COLUMNS, FONT, LETTER, WIDTH, Box, colour, draw, legend, rule, short, text

ROW_HEIGHT, GAP, LABEL_ROOM = 26, 30, 300

MARK, NEEDED = "the paper's number", "met down to here"
"""What the marks are, and the strokes that end where a row is no longer met."""


@dataclass(frozen=True)
class Dots:
    """What belongs to one row."""

    mark: float | None
    """The paper's number."""
    needed: float | None
    """How low still counts as reached."""
    samples: Mapping[str, Sequence[float]]
    """What came of it, by how it was tried."""

    @property
    def values(self) -> list[float]:
        """All that must fit on a scale."""
        found = (self.mark, self.needed, *(value for sample in self.samples.values() for value in sample))
        return [value for value in found if value is not None and math.isfinite(value)]


Panels = Mapping[str, Mapping[str, Dots]]
"""By title, each with its rows by name."""


def dot_chart(panels: Panels, styles: Mapping[str, int], *, axis: str, title: str, shared: bool = False) -> str:
    """Draws the mean and the range of each sample beside the paper's number.

    Args:
        panels: By title, each with its rows by name. Up to three stand side by side, with their rows aligned.
        styles: The style of every sample, by its name.
        axis: What is measured.
        title: What the chart shows, for readers who cannot see it.
        shared: Whether all panels have the same scale.
    """
    marked = any(dots.mark is not None for rows in panels.values() for dots in rows.values())
    signs = [(MARK, _mark(9, 0)), (NEEDED, rule(0, 0, 18, 0, "slack"))] if marked else []
    parts, top = legend([*signs, *((name, _dot(9, 0, style)) for name, style in styles.items())])
    titles = [title for title, rows in panels.items() if any(dots.values for dots in rows.values())]
    for start in range(0, len(titles), COLUMNS):
        side_by_side = {title: panels[title] for title in titles[start : start + COLUMNS]}
        top += 30 if any(side_by_side) else 12
        parts += _draw_row(side_by_side, styles, top, panels if shared else None)
        top += ROW_HEIGHT * len(_labels(side_by_side)) + 28
    return draw([*parts, text(WIDTH, top + 8, axis, "end")], top + 12, title)


def _labels(panels: Panels) -> list[str]:
    return list(dict.fromkeys(label for rows in panels.values() for label in rows))


def _draw_row(panels: Panels, styles: Mapping[str, int], top: float, alike: Panels | None) -> Iterable[str]:
    """Panels side by side, each with a scale of its own unless some are named that all have to fit on it."""
    labels = _labels(panels)
    room = min(LABEL_ROOM, LETTER * max(map(len, labels)) + 14)
    width = (WIDTH - room - GAP * (len(panels) - 1)) / len(panels)
    middles = {label: top + (i + 0.5) * ROW_HEIGHT for i, label in enumerate(labels)}
    for label, y in middles.items():
        lines = wrap(label, int((room - 14) / LETTER) + 1)
        yield from (text(0, y + 4 + FONT * (i - (len(lines) - 1) / 2), line, "name") for i, line in enumerate(lines))
    for column, (title, rows) in enumerate(panels.items()):
        box = Box(room + column * (width + GAP), top, width, ROW_HEIGHT * len(labels))
        fitting = [rows] if alike is None else alike.values()
        values = (value for some in fitting for dots in some.values() for value in dots.values)
        x = Scale.over(values, box.left, box.right)
        yield text(box.left, top - 12, title, "title")
        for value, label in x.ticks(int(width / 34)):
            yield rule(x(value), box.top, x(value), box.bottom, "grid")
            yield text(x(value), box.bottom + 17, label, "middle")
        yield rule(box.left, box.bottom, box.right, box.bottom, "axis")
        for label, dots in rows.items():
            yield from _draw_dots(dots, styles, x, middles[label])


def _draw_dots(dots: Dots, styles: Mapping[str, int], x: Scale, y: float) -> Iterable[str]:
    if dots.mark is not None and dots.needed is not None:
        yield rule(x(dots.needed), y, x(dots.mark), y, "slack")
    if dots.mark is not None:
        yield _mark(x(dots.mark), y)
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in dots.samples.items()}
    drawn = {name: values for name, values in finite.items() if values}
    for i, (name, values) in enumerate(drawn.items()):
        place, style = y + 10 * (i - (len(drawn) - 1) / 2), styles[name]
        mean = sum(values) / len(values)
        spread = rule(x(min(values)), place, x(max(values)), place, "range") if len(values) > 1 else ""
        note = element("title", escape(f"{name}: {mean:.2f}"))
        yield element("g", note, spread, _dot(x(mean), place, style), class_=colour(style))


def _mark(x: float, y: float) -> str:
    return rule(x, y - 9, x, y + 9, "mark")


def _dot(x: float, y: float, style: int) -> str:
    if style % 2:
        shape = element("rect", class_="dot", **Box(x - 4, y - 4, 8, 8).attributes())
    else:
        shape = element("circle", cx=short(x), cy=short(y), r=4.5, class_="dot")
    return element("g", shape, class_=colour(style))
