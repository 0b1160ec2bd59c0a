"""Figures of separated songs: spectrograms, and the columns that a model used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torchpfc.paper.report.charts import Picture, picture_chart
from torchpfc.paper.report.compare import Line, Sheet
from torchpfc.paper.report.layout import Wording

Draw = Callable[[Sheet, str], str | None]


def draw_rows(sheet: Sheet, title: str, *, name: str) -> str | None:
    """One picture of each row that has it."""
    wording = Wording.of(sheet.table)
    pictures = [
        Picture(wording.describe(line) or line.row.id, image) for line in sheet.lines if (image := _image(line, name))
    ]
    return picture_chart(pictures, title=title) if pictures else None


def _image(line: Line, name: str) -> str | None:
    results = line.deciding.results if line.deciding else ()
    return next((result.images[name] for result in results if name in result.images), None)


SEPARATION: tuple[tuple[str, str, str, Draw], ...] = (
    (
        "spectrograms",
        "what was separated",
        "Five seconds of a test song, low frequencies below: from left to right the mixture, the true vocals, and what "
        "was found of them. Features as the models hear them, darker where they are louder.",
        partial(draw_rows, name="spectrograms"),
    ),
    (
        "columns",
        "what the model heard",
        "The columns that were used most in these five seconds, low ones first: above what each explains of the "
        "mixture, below what it says of the vocals. Red is taken away.",
        partial(draw_rows, name="columns"),
    ),
)
"""Name, title, caption, and how it is drawn."""
