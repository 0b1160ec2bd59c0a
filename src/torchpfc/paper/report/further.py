"""What was measured beside the metric that a table compares."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from torchpfc.paper.report.compare import Line, Sample, Sheet
from torchpfc.paper.report.layout import Wording
from torchpfc.paper.report.words import name_metric, name_preset, number
from torchpfc.paper.results import Result

FEW_ROWS = 6
"""A table with more rows has its metrics side by side, not one below the other."""

CAPTION = "Further measurements: means over the runs."

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
    """All other metrics of every row, under each preset that it was run with; None where there are none."""
    runs = _together(sheet)
    found = {name for run in runs for result in run.results for name in _measured(result)}
    metrics = sorted(found - LEFT_OUT - {sheet.table.metric})
    if not metrics:
        return None
    names = [name_metric(metric) for metric in metrics]
    cells = [[_mean(run.results, metric) for metric in metrics] for run in runs]
    if len(runs) > FEW_ROWS:
        rows: list[list[Cell]] = [[run.ids, *values, run.results] for run, values in zip(runs, cells, strict=True)]
        return Grid(["row", *names, RUNS], rows)
    rows = [[name, *(values[i] for values in cells)] for i, name in enumerate(names)]
    return Grid(["", *(run.words for run in runs)], [*rows, [RUNS, *(run.results for run in runs)]])


@dataclass(frozen=True)
class _Run:
    """The runs of a row, or of several rows of which each shows another metric."""

    ids: str
    words: str
    results: tuple[Result, ...]


def _together(sheet: Sheet) -> list[_Run]:
    """What was run, row by row and preset by preset; rows with the same runs as one."""
    found: dict[tuple[int, ...], tuple[Sample, list[Line]]] = {}
    for line in sheet.lines:
        for sample in line.samples.values():
            found.setdefault(tuple(map(id, sample.results)), (sample, []))[1].append(line)
    wording, several = Wording.of(sheet.table), len(sheet.presets) > 1
    runs = []
    for sample, lines in found.values():
        ids = ", ".join(line.row.id for line in lines)
        words = wording.describe(lines[0]) if len(lines) == 1 else ""
        preset = f", {name_preset(sample.preset)}" if several else ""
        runs.append(_Run(ids + preset, (words or ids) + preset, sample.results))
    return runs


def _measured(result: Result) -> dict[str, float]:
    """The metrics of a run; a time is that of all models that trained at once, so it says how many these were."""
    if "milliseconds_per_step" not in result.metrics or "stack" not in result.hardware:
        return dict(result.metrics)
    return {**result.metrics, "models_at_once": result.hardware["stack"]}


def _mean(results: tuple[Result, ...], metric: str) -> str:
    values = [measured[metric] for measured in map(_measured, results) if metric in measured]
    return number(statistics.fmean(values), metric) if values else ""
