"""Lines over a common quantity, with bands, in panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from operator import itemgetter

from torchpfc.markup import element
from torchpfc.paper.report.charts.axes import Scale
from torchpfc.paper.report.charts.svg import (
    COLUMNS,
    FONT,
    LETTER,
    WIDTH,
    Box,
    colour,
    dashes,
    draw,
    legend,
    points,
    rule,
    short,
    text,
)

GAP, TICK_ROOM, TICK_APART = 18, 40, 40
HEIGHTS = (240, 200, 170)
"""Of a panel that stands alone, or beside one or two others."""

MANY_POINTS = 20
"""A line with more points has no dots."""

MANY_LINES = 8
"""A chart with more lines in a panel has no bands, which would cover each other."""

LEAST_SHARE = 0.2
"""Share of a common scale that the lines of a panel must take up, or the panels have scales of their own."""


@dataclass(frozen=True)
class Series:
    """A line inside a band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    style: int = 0
    faint: bool = False
    """Drawn behind, and not named: a companion of the line with the same style."""

    def drawable(self, axes: Axes) -> Series:
        """Without the points that have no place on the axes."""
        kept = [
            (x, *ys)
            for x, *ys in zip(self.x, self.y, self.low, self.high, strict=True)
            if all(map(math.isfinite, (x, *ys))) and (x > 0 or not axes.log_x) and (min(ys) > 0 or not axes.log_y)
        ]
        x, y, low, high = zip(*kept, strict=True) if kept else ((), (), (), ())
        return replace(self, x=x, y=y, low=low, high=high)


@dataclass(frozen=True)
class Panel:
    """Lines with axes of their own."""

    title: str
    series: Sequence[Series]


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What a line chart measures.

    Args:
        x: What is below.
        y: What is on the left.
        log_x: Equal ratios are equally far apart.
        log_y: The same from bottom to top.
        shared: The panels of a row have the same axes.
        settling: Share of each line at its beginning that need not be in view, so that its end can be read; panels
            share axes only if none of them becomes too flat for this.
        at_points: Ticks below are at the points of the lines, which are few, instead of at round numbers.
    """

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    shared: bool = False
    settling: float = 0.0
    at_points: bool = False


def line_chart(rows: Sequence[Sequence[Panel]], axes: Axes, *, title: str) -> str:
    """Draws lines.

    Args:
        rows: Of panels, from top to bottom; one with more than three panels goes on below.
        axes: What they measure.
        title: What the chart shows, for readers who cannot see it.
    """
    rows = [[Panel(panel.title, [s.drawable(axes) for s in panel.series]) for panel in row] for row in rows]
    named = {s.label: s.style for row in rows for panel in row for s in panel.series if not s.faint}
    parts, top = legend([(label, _sample(style)) for label, style in sorted(named.items(), key=itemgetter(1))])
    parts.append(text(0, top + FONT, axes.y))
    top += FONT + (14 if any(panel.title for row in rows for panel in row) else -8)
    banded = max(sum(not s.faint for s in panel.series) for row in rows for panel in row) <= MANY_LINES
    columns = min(COLUMNS, max(map(len, rows)))
    width, height = (WIDTH - GAP * (columns - 1)) / columns, HEIGHTS[columns - 1]
    for row in rows:
        shared = axes.shared and (not axes.settling or _readable_together(row, axes))
        for i, panel in enumerate(row):
            column = i % columns
            if i and not column:
                top += height + 46
            box = Box(column * (width + GAP) + TICK_ROOM, top + 20, width - TICK_ROOM, height)
            parts += _panel(panel, row if shared else [panel], box, axes, banded=banded)
        top += height + 46
    parts.append(text(WIDTH, top + 12, axes.x, "end"))
    return draw(parts, top + 16, title)


def _readable_together(row: Sequence[Panel], axes: Axes) -> bool:
    """Whether each panel of a row can be read on a scale that has room for all of them."""
    settled = [_settled(panel.series, axes) for panel in row]
    everything = [value for values in settled for value in values]
    if not everything:
        return True
    scale = Scale.over(everything, 0.0, 1.0, log=axes.log_y)
    return all(scale(max(values)) - scale(min(values)) >= LEAST_SHARE for values in settled if len(set(values)) > 1)


def _settled(shown: Sequence[Series], axes: Axes) -> list[float]:
    """The values that have to be in view."""
    return [
        value for series in shown for ys in (series.low, series.high) for value in ys[int(axes.settling * len(ys)) :]
    ]


def _panel(panel: Panel, sharing: Sequence[Panel], box: Box, axes: Axes, *, banded: bool) -> list[str]:
    title = text(box.left - TICK_ROOM, box.top - 8, panel.title, "title")
    shown = [series for each in sharing for series in each.series if series.x]
    if not shown:
        frame = element("rect", class_="frame", **box.attributes())
        return [title, frame, text(box.left + 10, box.top + 22, "no numbers")]
    below = [value for series in shown for value in series.x]
    x = Scale.over(below, box.left, box.right, log=axes.log_x, exact=True)
    y = Scale.over(_settled(shown, axes), box.bottom, box.top, log=axes.log_y)
    if axes.at_points:
        marks = _apart([(value, f"{value:g}") for value in sorted(set(below))], x)
    else:
        whole = all(float(value).is_integer() for value in below)
        marks = _round_marks(x, int(box.width / TICK_APART), whole=whole)
    ticks = _ticks(box, x, y, marks)
    faint_first = sorted((series for series in panel.series if series.x), key=lambda series: not series.faint)
    return [title, *ticks, _cut([_line(series, x, y, banded=banded) for series in faint_first], box)]


def _cut(drawn: Sequence[str], box: Box) -> str:
    """Cuts off what lies outside: an SVG in an SVG does, and needs no identifier that a page could have twice."""
    place = Box(box.left - 4, box.top - 4, box.width + 8, box.height + 4).attributes()  # dots at the sides stay whole
    return element("svg", *drawn, viewBox=" ".join(place.values()), **place)


def _round_marks(x: Scale, most: int, *, whole: bool) -> list[tuple[float, str]]:
    """As many as have room for their labels, of which the last may stand to the left of its tick."""
    marks: list[tuple[float, str]] = []
    for count in range(most, 0, -1):
        marks = x.ticks(count, whole=whole)
        rooms = ((x(value) - x(before), label) for (before, _), (value, label) in pairwise(marks))
        if all(room >= LETTER * (1.5 * len(label) + 1) for room, label in rooms):
            break
    return marks


def _apart(marks: Sequence[tuple[float, str]], x: Scale) -> list[tuple[float, str]]:
    """Without those that would stand on the one before."""
    kept: list[tuple[float, str]] = []
    for mark in marks:
        if not kept or x(mark[0]) - x(kept[-1][0]) >= TICK_APART:
            kept.append(mark)
    return kept


def _ticks(box: Box, x: Scale, y: Scale, marks: Sequence[tuple[float, str]]) -> list[str]:
    parts = []
    for value, label in y.ticks(int(box.height / 26)):
        parts.append(rule(box.left, y(value), box.right, y(value), "grid"))
        parts.append(text(box.left - 6, y(value) + 4, label, "end"))
    for value, label in marks:
        parts.append(rule(x(value), box.bottom, x(value), box.bottom + 4, "axis"))
        # One at the right edge would stick out.
        parts.append(text(x(value), box.bottom + 17, label, "middle" if x(value) < box.right - 1 else "end"))
    return [*parts, rule(box.left, box.bottom, box.right, box.bottom, "axis")]


def _line(series: Series, x: Scale, y: Scale, *, banded: bool) -> str:
    places = [x(value) for value in series.x]
    above = points(zip(places, map(y, series.high), strict=True))
    below = points(zip(reversed(places), map(y, reversed(series.low)), strict=True))
    spread = banded and series.low != series.high
    band = element("polygon", points=f"{above} {below}", class_="band") if spread else ""
    path = list(zip(places, map(y, series.y), strict=True))
    line = element("polyline", points=points(path), class_="line", stroke_dasharray=dashes(series.style))
    few = len(path) <= MANY_POINTS and not series.faint
    dots = [element("circle", cx=short(cx), cy=short(cy), r=2.5, class_="dot") for cx, cy in path if few]
    kind = f"{colour(series.style)} faint" if series.faint else colour(series.style)
    return element("g", element("title", escape(series.label)), band, line, *dots, class_=kind)


def _sample(style: int) -> str:
    line = element("polyline", points="0,0 18,0", class_="line", stroke_dasharray=dashes(style))
    return element("g", line, class_=colour(style))
