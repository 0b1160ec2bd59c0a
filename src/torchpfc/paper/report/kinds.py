"""Kinds of figures, which any table can have, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchpfc.checkpoint import CorruptFileError
from torchpfc.paper.report.charts import Picture, picture_chart
from torchpfc.paper.report.compare import Line, Sheet
from torchpfc.paper.results import Result


@dataclass(frozen=True)
class Figure:
    """A figure of a table."""

    name: str
    """Of its file, and of its place in a document."""
    table: str
    """The id of the table that it stands with."""
    title: str
    """What it shows, for readers who cannot see it."""
    caption: str
    svg: str | None
    """None where there is nothing to draw yet."""


@dataclass(frozen=True)
class Kind:
    """A figure that any table can have."""

    name: str
    title: str
    caption: str
    draw: Callable[[Sheet, str], str | None]
    """Takes a table, with the rows to show, and the title."""

    def of(self, sheet: Sheet) -> Figure:
        """The figure of a table, or of some of its rows."""
        table, title = sheet.table, f"{sheet.table.title}: {self.title}"
        name = f"{table.id}-{self.name.replace('_', '-')}"
        return Figure(name, table.id, title, self.caption, self.draw(sheet, title))


def gather(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float], list[float], list[float]]:
    """The places of some points, and the mean, lowest and highest value at each.

    Example:
        >>> gather([(1, 2.0), (2, 5.0), (1, 4.0)])
        ([1, 2], [3.0, 5.0], [2.0, 5.0], [4.0, 5.0])
    """
    at: dict[float, list[float]] = {}
    for x, y in points:
        at.setdefault(x, []).append(y)
    values = [at[x] for x in sorted(at)]
    return sorted(at), [sum(ys) / len(ys) for ys in values], [min(ys) for ys in values], [max(ys) for ys in values]


def pictured(sheet: Sheet, name: str) -> list[tuple[Line, Result]]:
    """The rows that have an image of some name, each with its first run that does."""
    found = []
    for line in sheet.lines:
        found += [(line, run) for run in line.results if name in run.images][:1]
    return found


def draw_pictures(shown: Iterable[tuple[str, Result, str]], title: str) -> str | None:
    """Images of runs, if there are any.

    Args:
        shown: What to write below an image, the run, and the name of the image.
        title: What they show, for readers who cannot see it.
    """
    pictures = [find_picture(*each) for each in shown]
    return picture_chart(pictures, title=title) if pictures else None


def find_picture(label: str, result: Result, name: str) -> Picture:
    """An image of a run, with what to write beside it."""
    try:
        return Picture(label, result.images[name])
    except ValueError as error:
        raise corrupt(result, f"images that can be drawn ({error})") from None


def corrupt(result: Result, wanted: str) -> CorruptFileError:
    """An error that names the file of a result, and what it should hold."""
    return CorruptFileError(f"{result.experiment}/{result.key}.json must hold {wanted}; delete it")
