"""Figures of continual learning and unlearning: what was known when, the window on its way, what was removed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from torchpfc.paper.report.charts import Heat, heat_chart
from torchpfc.paper.report.compare import Sheet
from torchpfc.paper.report.kinds import Kind, corrupt, draw_pictures, pictured
from torchpfc.paper.report.words import name_metric
from torchpfc.paper.results import Result

MATRIX = "accuracy_matrix"
FEWEST = 2
"""Tasks, widths or speeds that make a grid."""
MOST_PICTURES = 9
"""Of a kind: rows that change one setting after another look alike, and their pictures are large."""


def draw_matrices(sheet: Sheet, title: str) -> str | None:
    """The accuracy on each task after each task, a grid for each row of the table."""
    grids = {line.row.id: mean_matrix(line.results) for line in sheet.lines if line.has(MATRIX)}
    heats = [
        Heat(row, [f"after {i}" for i in range(1, len(grid))], [str(j + 1) for j in range(len(grid[0]))], grid[1:])
        for row, grid in grids.items()
        if len(grid[0]) >= FEWEST
    ]
    if not heats:
        return None
    return heat_chart(heats, rows="tasks learned", columns="tasks measured", title=title, limits=(0.0, 100.0))


def mean_matrix(results: Iterable[Result]) -> list[list[float]]:
    """The mean over runs of all accuracies; its first row is that of untrained models."""
    found = [(result, result.curves[MATRIX]) for result in results if MATRIX in result.curves]
    result, first = found[0]
    count = (math.isqrt(1 + 4 * len(first)) - 1) // 2  # (T + 1) T numbers
    if count * (count + 1) != len(first) or any(len(values) != len(first) for _, values in found):
        raise corrupt(result, "an accuracy matrix of T + 1 rows of T numbers")
    means = [sum(values) / len(found) for values in zip(*(values for _, values in found), strict=True)]
    return [means[i * count : (i + 1) * count] for i in range(count + 1)]


def draw_sweep(sheet: Sheet, title: str) -> str | None:
    """Accuracy and columns used, by the width of a window and its speed."""
    places = [(line.settings.get("width", 0), line.settings.get("sweep_speed", 0.0)) for line in sheet.lines]
    widths, speeds = (sorted({place[k] for place in places if place[k]}) for k in range(2))
    if len(widths) < FEWEST or len(speeds) < FEWEST or len(set(places)) != len(widths) * len(speeds):
        return None
    found = {place: line.results for place, line in zip(places, sheet.lines, strict=True) if line.results}
    if not found:
        return None

    def grid(metric: str) -> list[list[float]]:
        return [[_mean(found.get((width, speed), ()), metric) for speed in speeds] for width in widths]

    names = [f"{width}" for width in widths], [f"{speed:g}" for speed in speeds]
    heats = [
        Heat(name_metric(sheet.table.metric), *names, grid(sheet.table.metric), decimals=2),
        Heat("columns used", *names, grid("columns_used")),
    ]
    return heat_chart(heats, rows="width of the window", columns="columns that it moves in a step", title=title)


def _mean(results: Iterable[Result], metric: str) -> float:
    values = [result.metrics[metric] for result in results if metric in result.metrics]
    return sum(values) / len(values) if values else math.nan


def draw_rows(sheet: Sheet, title: str, *, name: str) -> str | None:
    """One picture of each row that has it, unless these are too many to look at."""
    shown = [(line.row.id, run, name) for line, run in pictured(sheet, name)]
    return draw_pictures(shown, title) if len(shown) <= MOST_PICTURES else None


SWEEP = Kind(
    "sweep",
    "width of the window against its speed",
    "What becomes of other windows: accuracy, and how many columns they used.",
    draw_sweep,
)
"""Of all rows of a table: a grid has no hole where a run stands in another table too."""

CONTINUAL = (
    Kind(
        "matrix",
        "accuracy on each task after each task",
        "Accuracy in % on held-out images of each task, after so many tasks were learned: the mean over the runs. "
        "Where nothing is forgotten, a column stays as dark as it has become.",
        draw_matrices,
    ),
    Kind(
        "weights_by_task",
        "weights after each task",
        "Columns as images after each task: without a window the first ones, and with one those that it has just left. "
        "A hundred of each task, or 25 of runs that were made earlier. Where there is no window, each task overwrites "
        "them.",
        partial(draw_rows, name="weights_by_task"),
    ),
    Kind(
        "window_film",
        "the window on its way through the columns",
        "Columns from the first to the last as images, a line before the first task and after each. Columns that the "
        "window has not reached are random; those that it has left stay as they are.",
        partial(draw_rows, name="window_film"),
    ),
    Kind(
        "parts_by_class",
        "parts of every class",
        "The first parts of every class as images, a line for each class.",
        partial(draw_rows, name="parts_by_class"),
    ),
    Kind(
        "weights_before_and_after",
        "weights before and after forgetting",
        "Columns from the first to the last as images: before forgetting, after it, and, where there is one, of "
        "a model that never saw what was to be forgotten.",
        partial(draw_rows, name="weights_before_and_after"),
    ),
)
