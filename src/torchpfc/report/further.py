"""What was measured beside the metric that a table compares."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from torchpfc.experiments.results import Result
from torchpfc.report.compare import Line, Sheet
from torchpfc.report.layout import Wording
from torchpfc.report.words import name_metric, number

FEW_ROWS = 6
"""A table with more rows has its metrics side by side, not one below the other."""

CAPTION = "Further measurements: means over the runs that decide."

RUNS = "runs"
"""The head of the cells that lead to the files."""

LEFT_OUT = frozenset({"peak_memory_mb"})
"""In older files only, and too large: with memory that libraries kept for earlier runs of the same process."""

Cell = str | tuple[Result, ...]
"""Words, or the runs that the numbers beside or above come from."""


@dataclass(frozen=True)
class Grid:
    """Cells in rows and columns."""

    heads: list[str]
    rows: list[list[Cell]]


def measure_further(sheet: Sheet) -> Grid | None:
    """All other metrics of the runs that decide; None where there are none."""
    lines = _together(sheet)
    runs = {row: group[0].deciding.results for row, group in lines.items() if group[0].deciding}
    found = {name for results in runs.values() for result in results for name in _measured(result)}
    metrics = sorted(found - LEFT_OUT - {sheet.table.metric})
    if not metrics:
        return None
    cells = {row: [_mean(results, metric) for metric in metrics] for row, results in runs.items()}
    names = [name_metric(metric) for metric in metrics]
    if len(runs) > FEW_ROWS:
        return Grid(["row", *names, RUNS], [[row, *values, runs[row]] for row, values in cells.items()])
    wording = Wording.of(sheet.table)
    heads = [wording.describe(group[0]) or row if len(group) == 1 else row for row, group in lines.items()]
    rows: list[list[Cell]] = [[name, *(values[i] for values in cells.values())] for i, name in enumerate(names)]
    return Grid(["", *heads], [*rows, [RUNS, *runs.values()]])


def _together(sheet: Sheet) -> dict[str, list[Line]]:
    """Lines that were run, by their ids; those with the same runs, of which each shows another metric, as one."""
    found: dict[tuple[int, ...], list[Line]] = {}
    for line in sheet.lines:
        if line.deciding:
            found.setdefault(tuple(map(id, line.deciding.results)), []).append(line)
    return {", ".join(line.row.id for line in group): group for group in found.values()}


def _measured(result: Result) -> dict[str, float]:
    """The metrics of a run; a time is that of all models that trained at once, so it says how many these were."""
    if "milliseconds_per_step" not in result.metrics or "stack" not in result.hardware:
        return dict(result.metrics)
    return {**result.metrics, "models_at_once": result.hardware["stack"]}


def _mean(results: tuple[Result, ...], metric: str) -> str:
    values = [measured[metric] for measured in map(_measured, results) if metric in measured]
    return number(statistics.fmean(values), metric) if values else ""
