"""Judges what the paper says in words by the runs of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchpfc.paper.claims import Claim, Level, Within
from torchpfc.paper.report.compare import (
    ROUNDING,
    SMALLEST_DIFFERENCE,
    Line,
    Sample,
    Verdict,
    in_percent,
    two_errors,
)
from torchpfc.paper.report.words import number

LEVEL_WHEN = (
    "One row is no worse than another if its mean is at least as good, or an accuracy no more than "
    f"{SMALLEST_DIFFERENCE} points below. Where it is worse by less than two standard errors of the difference, that "
    "is left open. Two rows are compared under a preset that both were run with, if there is one."
)


@dataclass(frozen=True)
class Finding:
    """What became of a check, or of a claim with all of its checks."""

    verdict: Verdict
    found: str
    """The numbers that decided."""
    complete: bool = True
    """Whether all rows that it asks for were run."""


def judge_claim(claim: Claim, lines: Mapping[str, Line]) -> Finding:
    """Finds out whether a claim holds: not if a check fails, and otherwise as far as rows were run.

    Args:
        claim: What is said.
        lines: The rows that checks name, by their ids.
    """
    findings = [
        judge_level(check, lines) if isinstance(check, Level) else judge_within(check, lines) for check in claim.checks
    ]
    verdicts = {finding.verdict for finding in findings}
    worst = next(one for one in (Verdict.MISSED, Verdict.OPEN, Verdict.MET, Verdict.NOT_RUN) if one in verdicts)
    return Finding(worst, "<br>".join(one.found for one in findings), Verdict.NOT_RUN not in verdicts)


def judge_within(check: Within, lines: Mapping[str, Line]) -> Finding:
    """Compares the runs of a row, or their mean, with two numbers."""
    line, metric = lines[check.row], check.metric
    sample = line.samples.get(check.preset) if check.preset else line.deciding
    if sample is None:
        return _not_run([line])
    sample = replace(sample, metric=metric)
    inside = [check.low <= value <= check.high for value in (sample.values if check.every else [sample.mean])]
    found = f"{sum(inside)} of {len(inside)} runs" if check.every else _mean(sample)
    return Finding(Verdict.MET if all(inside) else Verdict.MISSED, f"`{line.row.id}` {found}")


def judge_level(check: Level, lines: Mapping[str, Line]) -> Finding:
    """Compares two rows; what is worse by less than seeds differ is left open."""
    line, other = lines[check.row], lines[check.other]
    one, two = _alike(line, other)
    if one is None or two is None:
        return _not_run(each for each, sample in ((line, one), (other, two)) if sample is None)
    behind = one.mean - two.mean if check.lower_is_better else two.mean - one.mean
    allowed = SMALLEST_DIFFERENCE if in_percent(one.metric) else 0.0
    if behind <= allowed + ROUNDING:
        verdict = Verdict.MET
    else:
        verdict = Verdict.OPEN if behind <= (two_errors(one, two) or 0.0) else Verdict.MISSED
    return Finding(verdict, f"`{line.row.id}` {_mean(one)} against `{other.row.id}` {_mean(two)}")


def _alike(line: Line, other: Line) -> tuple[Sample | None, Sample | None]:
    """Samples under the shared preset with most runs, or else those that count."""
    shared = [(line.samples[preset], other.samples[preset]) for preset in line.samples if preset in other.samples]
    return max(shared, key=_fewest_runs, default=(line.deciding, other.deciding))


def _fewest_runs(samples: Iterable[Sample]) -> int:
    return min(len(sample.results) for sample in samples)


def _not_run(lines: Iterable[Line]) -> Finding:
    names = ", ".join(f"`{line.row.id}`" for line in lines)
    return Finding(Verdict.NOT_RUN, f"{names} not run")


def _mean(sample: Sample) -> str:
    count = len(sample.results)
    return f"{number(sample.mean, sample.metric)} ({count} run{'s' if count > 1 else ''})"
