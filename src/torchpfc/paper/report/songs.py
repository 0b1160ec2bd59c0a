"""Figures of songs: what was separated, and the parts that were heard in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torchpfc.audio import Features
from torchpfc.paper.drawing import COLUMNS_GAP, FRAME, SPECTROGRAM_GAP
from torchpfc.paper.report.charts import Area, Box, Picture, area_chart
from torchpfc.paper.report.compare import Sheet
from torchpfc.paper.report.kinds import Kind, find_picture, pictured
from torchpfc.paper.report.layout import Wording

FEATURES = Features()
SPECTROGRAMS = ("mixture", "true vocals", "estimate of the vocals")
COLUMNS = ("in the mixture", "in the vocals")
"""What the rows of a picture of columns show."""


def draw_songs(
    sheet: Sheet, title: str, *, name: str, areas: Callable[[Picture], list[Area]], scale: tuple[str, str]
) -> str | None:
    """One picture of each row that has it, in the words of the row."""
    wording = Wording.of(sheet.table)
    pictures = [find_picture(wording.describe(line) or line.row.id, run, name) for line, run in pictured(sheet, name)]
    return area_chart([(each, areas(each)) for each in pictures], title=title, scale=scale) if pictures else None


def spectrogram_areas(picture: Picture) -> list[Area]:
    """The spectrograms of a picture, side by side."""
    width, height = (size - 2 * FRAME for size in picture.size)
    frames = (width - SPECTROGRAM_GAP * (len(SPECTROGRAMS) - 1)) / len(SPECTROGRAMS)
    seconds = frames * FEATURES.hop / FEATURES.rate
    across = {second / seconds: f"{second} s" for second in range(int(seconds) + 1)}
    return [
        Area(
            each,
            Box(FRAME + k * (frames + SPECTROGRAM_GAP), FRAME, frames, height),
            across,
            {} if k else frequencies(),
        )
        for k, each in enumerate(SPECTROGRAMS)
    ]


def column_areas(picture: Picture) -> list[Area]:
    """The rows of columns of a picture, one below the other."""
    width, height = picture.size
    bins = (height - COLUMNS_GAP * (len(COLUMNS) - 1)) / len(COLUMNS)
    return [
        Area(each, Box(0, k * (bins + COLUMNS_GAP), width, bins), {}, frequencies()) for k, each in enumerate(COLUMNS)
    ]


def frequencies() -> dict[float, str]:
    """What stands beside the bins, in kilohertz."""
    highest = FEATURES.bins * FEATURES.rate / FEATURES.window / 1000
    return {kilohertz / highest: f"{kilohertz} kHz" for kilohertz in range(0, int(highest) + 1, 2)}


SEPARATION = (
    Kind(
        "spectrograms",
        "what was separated",
        "Five seconds of a test song, over time and frequency: features as the models hear them, which are fourth "
        "roots of magnitudes, all on one scale.",
        partial(
            draw_songs,
            name="spectrograms",
            areas=spectrogram_areas,
            scale=("silence", "the loudest of the mixture"),
        ),
    ),
    Kind(
        "columns",
        "what the model heard",
        "The columns that were used most in these five seconds, low ones first: above what each explains of the "
        "mixture, below what it says of the vocals. Red is taken away.",
        partial(draw_songs, name="columns", areas=column_areas, scale=("nothing", "the most that the column has")),
    ),
)
