"""What all charts are made of. How it looks is in `chart.css`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from torchpfc.markup import element, read_style

WIDTH = 760
MARGIN = 16
FONT = 12
LETTER = 0.56 * FONT  # about as wide as one is on average, in the fonts that system-ui stands for
COLUMNS = 3
"""How many panels stand side by side at most."""

STYLES = 6
"""How many colours there are."""

DASHES = ("none", "8 4", "2 4", "10 4 2 4", "4 3", "14 4")
"""A second way, for eyes and printers without colours, to tell lines apart."""


class Box(NamedTuple):
    """Where something is drawn."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Where it ends."""
        return self.top + self.height

    def attributes(self) -> dict[str, str]:
        """The place as SVG has it."""
        return dict(zip(("x", "y", "width", "height"), map(short, self), strict=True))


def draw(parts: Iterable[str], height: float, title: str) -> str:
    """A whole chart.

    Args:
        parts: From back to front.
        height: Of all of them; they are as wide as any chart.
        title: What the chart shows, for readers who cannot see it.
    """
    whole = Box(-MARGIN, -MARGIN, WIDTH + 2 * MARGIN, math.ceil(height) + 2 * MARGIN)
    view = " ".join(map(str, whole))
    inset = Box(whole.left + 0.5, whole.top + 0.5, whole.width - 1, whole.height - 1)  # or half its line is cut off
    sheet = element("rect", rx=6, class_="sheet", **inset.attributes())
    options = {"class_": "chart", "viewBox": view, "width": whole.width, "height": whole.height}
    return element("svg", sheet, *parts, role="img", aria_label=title, **options)


def standalone(chart: str) -> str:
    """A chart as a file, which follows the reader's choice of light or dark."""
    head, _, rest = chart.partition(">")
    style = element("style", "\n", read_style("colours"), read_style("charts/chart", package="torchpfc.paper.report"))
    return f'{head} xmlns="http://www.w3.org/2000/svg">{style}{rest}\n'


def legend(entries: Sequence[tuple[str, str]]) -> tuple[list[str], float]:
    """Samples with their names from left to right, in as many lines as it takes, and where the rest may begin."""
    parts, left, top = [], 0.0, FONT / 2
    for label, sample in entries:
        width = 24 + LETTER * len(label) + 22
        if left and left + width > WIDTH:
            left, top = 0.0, top + 20
        parts.append(element("g", sample, transform=f"translate({short(left)} {short(top)})"))
        parts.append(text(left + 24, top + 4, label, "name"))
        left += width
    return parts, top + 18


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words on a line."""
    return element("text", escape(words), x=short(x), y=short(y), **({"class_": kind} if kind else {}))


def rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return element("line", x1=short(x1), y1=short(y1), x2=short(x2), y2=short(y2), class_=kind)


def points(pairs: Iterable[tuple[float, float]]) -> str:
    """The corners of a polygon."""
    return " ".join(f"{short(x)},{short(y)}" for x, y in pairs)


def colour(style: int) -> str:
    """The class that gives a style its colour."""
    return f"s{style % STYLES}"


def dashes(style: int) -> str:
    """The dashes of a style; where colours are used again, they come with other ones."""
    return DASHES[(style + style // STYLES) % len(DASHES)]


def short(place: float) -> str:
    """A place, to a tenth of a pixel."""
    return f"{place:.1f}".removesuffix(".0")
