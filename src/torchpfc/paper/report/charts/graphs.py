"""States on a ring, and arrows between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from torchpfc.markup import element
from torchpfc.paper.report.charts.svg import WIDTH, colour, draw, legend, points, short, text

RADIUS, LARGEST_NODE, HEAD = 190, 14, 6
BEND = 0.55
"""How far an arrow between states that are not neighbours leans towards the middle."""


@dataclass(frozen=True)
class Node:
    """A state."""

    label: str
    style: int
    note: str
    """What to say of it, for readers who point at it."""


@dataclass(frozen=True)
class Arrow:
    """A transition between nodes, by their places."""

    source: int
    target: int
    strength: float
    """From 0 to 1."""


def graph_chart(nodes: Sequence[Node], arrows: Sequence[Arrow], styles: Mapping[str, int], *, title: str) -> str:
    """Draws a graph clockwise from the top, so that a chain of states reads as a ring.

    Args:
        nodes: The states, at least one.
        arrows: Transitions between them.
        styles: What the colours mean, by name.
        title: What the chart shows, for readers who cannot see it.
    """
    parts, top = legend([(name, _disc(9, 0, 6, style)) for name, style in styles.items()])
    size = min(LARGEST_NODE, 0.8 * math.pi * RADIUS / len(nodes))
    centre = (WIDTH / 2, top + RADIUS + 2 * LARGEST_NODE)
    places = [_around(centre, RADIUS, i / len(nodes)) for i in range(len(nodes))]
    parts += [_arrow(arrow, places, centre, size) for arrow in arrows]
    for node, (x, y) in zip(nodes, places, strict=True):
        note = element("title", escape(node.note))
        label = text(x, y + 4, node.label, "middle inside") if size >= 7 else ""
        parts.append(element("g", note, _disc(x, y, size, node.style), label))
    return draw(parts, centre[1] + RADIUS + 2 * LARGEST_NODE, title)


Place = tuple[float, float]


def _around(centre: Place, radius: float, share: float) -> Place:
    """The place at a share of the way round, clockwise from the top."""
    angle = 2 * math.pi * share
    return centre[0] + radius * math.sin(angle), centre[1] - radius * math.cos(angle)


def _arrow(arrow: Arrow, places: Sequence[Place], centre: Place, size: float) -> str:
    start, end = places[arrow.source], places[arrow.target]
    if arrow.source == arrow.target:
        bend = _towards(centre, start, 1 + 4 * size / RADIUS)
        start, end = (_towards(start, bend, 0.3, sideways) for sideways in (-size, size))
    else:
        distance = (arrow.target - arrow.source) % len(places)
        near = min(distance, len(places) - distance) == 1
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        bend = middle if near else _towards(middle, centre, BEND)
        start, end = _shorten(start, bend, size + 1), _shorten(end, bend, size + 2)
    curve = f"M{points([start])} Q{points([bend, end])}"
    line = element("path", d=curve, class_="arrow")
    back = _shorten(end, bend, HEAD)
    beside = (_towards(end, back, 1.0, sideways) for sideways in (HEAD / 2, -HEAD / 2))
    head = element("polygon", points=points([end, *beside]), class_="head")
    return element("g", line, head, opacity=short(max(arrow.strength, 0.15)))


def _towards(start: Place, end: Place, share: float, sideways: float = 0.0) -> Place:
    """A place on the way, or beside it."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy) or 1.0
    return start[0] + share * dx - sideways * dy / length, start[1] + share * dy + sideways * dx / length


def _shorten(start: Place, end: Place, by: float) -> Place:
    return _towards(start, end, by / (math.dist(start, end) or 1.0))


def _disc(x: float, y: float, radius: float, style: int) -> str:
    disc = element("circle", cx=short(x), cy=short(y), r=short(radius), class_="dot")
    return element("g", disc, class_=colour(style))
