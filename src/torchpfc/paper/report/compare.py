"""Puts results beside the rows of the tables that they belong to."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Any

from torchpfc.paper.claims import CLAIMS, Claim
from torchpfc.paper.registry import Experiment, Row, Table
from torchpfc.paper.results import Result
from torchpfc.paper.settings import settings

PAPER, FAST = "paper", "fast"
"""The presets that come first, in this order."""

SMALLEST_DIFFERENCE = 0.3
"""Points within which two presets agree, however small their spread."""

ROUNDING = 1e-9  # in floating point, 88.62 - 0.3 is more than 88.32


class Verdict(StrEnum):
    """What became of a row."""

    MET = "met"
    MISSED = "missed"
    OPEN = "open"
    """It would be missed, but seeds differ by more."""
    NOT_RUN = "not run"
    RUN = "run"
    """The paper has no number to compare with."""


@dataclass(frozen=True)
class Sample:
    """The runs of one row under one preset, by seed."""

    preset: str
    results: tuple[Result, ...]
    metric: str

    @property
    def values(self) -> list[float]:
        """The metric, run by run."""
        return [result.metrics[self.metric] for result in self.results]

    @property
    def mean(self) -> float:
        """Over the runs."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation; one run has none, nor has a share of the runs."""
        return statistics.stdev(self.values) if len(self.values) > 1 and not is_share(self.metric) else None

    def has(self, curve: str) -> bool:
        """Whether a run of it has a curve."""
        return any(curve in result.curves for result in self.results)

    @property
    def standard_error(self) -> float | None:
        """Of the mean; one run has none."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.values))


@dataclass(frozen=True)
class Line:
    """A row, and what came of running it."""

    row: Row
    samples: Mapping[str, Sample]
    """By preset; one that was not run is left out."""
    same: frozenset[str] = frozenset()
    """Presets that leave the row as another preset has it."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Of the row, before any preset."""
        return as_written(self.row.config)

    @property
    def needed(self) -> float | None:
        """How low a mean still meets the paper's number, or how high where lower is better."""
        if self.row.paper is None:
            return None
        return self.row.paper + (self.row.slack if self.row.lower_is_better else -self.row.slack)

    @property
    def deciding(self) -> Sample | None:
        """The sample that counts: the one with most runs, and the paper's preset where two have as many."""
        return max(self.samples.values(), key=lambda sample: len(sample.results), default=None)

    @property
    def results(self) -> tuple[Result, ...]:
        """The runs of that sample."""
        return self.deciding.results if self.deciding else ()

    def has(self, curve: str) -> bool:
        """Whether one of them has a curve."""
        return self.deciding is not None and self.deciding.has(curve)

    @property
    def verdict(self) -> Verdict:
        """Whether the sample that counts comes up to the paper's number, less the slack."""
        return Verdict.NOT_RUN if self.deciding is None else self.judge(self.deciding)

    def judge(self, sample: Sample) -> Verdict:
        """The same for any sample of the row."""
        if self.needed is None:
            return Verdict.RUN
        # A mean that is not a number is never enough.
        better = self.needed - sample.mean if self.row.lower_is_better else sample.mean - self.needed
        return Verdict.MET if better >= -ROUNDING else Verdict.MISSED


@dataclass(frozen=True)
class Sheet:
    """A table, and what came of running it."""

    experiment: Experiment
    table: Table
    lines: tuple[Line, ...]

    @property
    def compared(self) -> bool:
        """Whether the paper has a number for any row."""
        return any(row.paper is not None for row in self.table.rows)

    @property
    def presets(self) -> list[str]:
        """Those with a run."""
        return [name for name in ordered(self.experiment.presets) if any(name in line.samples for line in self.lines)]

    @property
    def results(self) -> list[Result]:
        """All that the table shows, each once."""
        samples = chain.from_iterable(line.samples.values() for line in self.lines)
        found = {result.key: result for sample in samples for result in sample.results}
        return [found[key] for key in sorted(found)]

    def only(self, keep: Callable[[Line], bool]) -> Sheet:
        """The same with some of its rows."""
        return replace(self, lines=tuple(filter(keep, self.lines)))


@dataclass(frozen=True)
class Group:
    """Runs with the same settings that no table asks for."""

    experiment: str
    config: Mapping[str, Any]
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Agreement:
    """One row under two presets."""

    line: Line
    paper: Sample
    fast: Sample

    @property
    def difference(self) -> float:
        """What the fast preset gains."""
        return self.fast.mean - self.paper.mean

    @property
    def two_errors(self) -> float | None:
        """Two standard errors of the difference; None where a preset was run once."""
        return two_errors(self.paper, self.fast)

    @property
    def allowed(self) -> float:
        """How far apart the two may be."""
        return max(self.two_errors or 0.0, SMALLEST_DIFFERENCE)

    @property
    def holds(self) -> bool:
        """Whether they are no further apart."""
        return abs(self.difference) <= self.allowed + ROUNDING


@dataclass(frozen=True)
class Comparison:
    """All experiments, all results."""

    experiments: Mapping[str, Experiment]
    results: Sequence[Result]

    @cached_property
    def sheets(self) -> list[Sheet]:
        """Every table, in the order in which they are registered."""
        return [fill(one, table, self.results) for one in self.experiments.values() for table in one.tables]

    @cached_property
    def lines(self) -> dict[str, Line]:
        """Every row, by its id."""
        return {line.row.id: line for sheet in self.sheets for line in sheet.lines}

    @cached_property
    def claims(self) -> list[Claim]:
        """What the paper says in words of these rows."""
        return [claim for claim in CLAIMS if claim.rows <= self.lines.keys()]

    @cached_property
    def others(self) -> list[Group]:
        """Runs that no table asks for."""
        asked = {result.key for sheet in self.sheets for result in sheet.results}
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            if result.key not in asked:
                groups.setdefault((result.experiment, json.dumps(result.config, sort_keys=True)), []).append(result)
        return [Group(name, runs[0].config, _by_seed(runs)) for (name, _), runs in sorted(groups.items())]

    @cached_property
    def agreements(self) -> list[Agreement]:
        """Every row of an accuracy that was run under both presets."""
        lines = chain.from_iterable(sheet.lines for sheet in self.sheets if in_percent(sheet.table.metric))
        both = (line for line in lines if PAPER in line.samples and FAST in line.samples)
        return [Agreement(line, line.samples[PAPER], line.samples[FAST]) for line in both]


def fill(experiment: Experiment, table: Table, results: Iterable[Result]) -> Sheet:
    """Finds the runs of each row: those with its settings, under any preset, which have the metric of the row."""
    runs = [result for result in results if result.experiment == experiment.name]
    plain = [as_written(row.config) for row in table.rows]
    given = {
        preset: [as_written(experiment.presets[preset](row.config)) for row in table.rows]
        for preset in ordered(experiment.presets)
    }
    lines = []
    for i, row in enumerate(table.rows):
        wanted = {preset: configs[i] for preset, configs in given.items() if not _confuses(configs, plain, i)}
        metric = row.metric or table.metric
        lines.append(_fill_row(row, wanted, metric, [result for result in runs if metric in result.metrics]))
    return Sheet(experiment, table, tuple(lines))


def _confuses(given: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]], i: int) -> bool:
    """Whether a preset makes a row equal to another one, and so undoes what the two are there to compare."""
    return any(given[i] == other and plain[i] != own for other, own in zip(given, plain, strict=True))


def _fill_row(row: Row, wanted: Mapping[str, Mapping[str, Any]], metric: str, runs: Sequence[Result]) -> Line:
    samples: dict[str, Sample] = {}
    same = set()
    known: list[Mapping[str, Any]] = []
    for preset, config in wanted.items():
        found = _by_seed(result for result in runs if result.config == config)
        if config in known:
            same.add(preset)
        elif found:
            samples[preset] = Sample(preset, found, metric)
        known.append(config)
    return Line(row, samples, frozenset(same))


def two_errors(one: Sample, other: Sample) -> float | None:
    """Two standard errors of the difference of two means; None where either was run once."""
    if one.standard_error is None or other.standard_error is None:
        return None
    return 2 * math.hypot(one.standard_error, other.standard_error)


def as_written(config: Any) -> dict[str, Any]:
    """The settings of a config as they come back from a file, where a tuple is a list."""
    plain: dict[str, Any] = json.loads(json.dumps(settings(config)))
    return plain


def ordered(presets: Iterable[str]) -> list[str]:
    """The paper's preset, the fast one, then the others by name."""
    return sorted(presets, key=lambda name: (name != PAPER, name != FAST, name))


def in_percent(metric: str) -> bool:
    """Whether a metric is an accuracy."""
    return metric.endswith("accuracy")


def is_share(metric: str) -> bool:
    """Whether a metric is 1 or 0 in each run, so that its mean is the share of runs that something holds for."""
    return metric in ("success", "machine", "solved", "bit_equal")


def _by_seed(results: Iterable[Result]) -> tuple[Result, ...]:
    return tuple(sorted(results, key=lambda result: result.seed))
