"""What the document and the page say alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torchpfc.paper.report.compare import (
    SMALLEST_DIFFERENCE,
    Comparison,
    Group,
    Line,
    Sheet,
    Verdict,
    as_written,
    is_share,
)
from torchpfc.paper.report.provenance import remarks, time_spent, torch_versions
from torchpfc.paper.report.words import (
    capitalised,
    describe,
    flatten,
    name_metric,
    name_preset,
    plural,
    signed,
    varying,
)
from torchpfc.paper.results import Result

HOW_VERDICTS_ARE_MADE = (
    "A row is met when the mean over its runs is at least the needed number: the paper's, less what the row allows. "
    "Where a row was run under two presets, the one with more runs decides, and the paper preset if both have as many."
)

HOW_PRESETS_AGREE = (
    "Two presets agree on a row when their means differ by no more than two standard errors of the difference, or than "
    f"{SMALLEST_DIFFERENCE} points where that is more. A preset that was run once has no standard error."
)


def tally(comparison: Comparison) -> str:
    """How many rows were met, missed, run."""
    met, missed = comparison.count(Verdict.MET), comparison.count(Verdict.MISSED)
    lines = [line for sheet in comparison.sheets for line in sheet.lines]
    compared = sum(line.row.paper is not None for line in lines)
    sentences = [
        f"Of {plural(compared, 'row')} with a number in the paper, {met} met, {missed} missed, "
        f"{compared - met - missed} not run."
    ]
    if len(lines) > compared:
        run = comparison.count(Verdict.RUN)
        sentences.append(f"Of {plural(len(lines) - compared, 'row')} without one, {run} run.")
    if short := sum(map(too_few, lines)):
        sentences.append(f"With fewer runs than its table asks for: {plural(short, 'row')}.")
    if comparison.results:
        count, spent = plural(len(comparison.results), "run"), time_spent(comparison.results)
        sentences.append(f"All {count} took {spent}; those that shared a device count in full.")
    return " ".join(sentences)


def too_few(line: Line) -> bool:
    """Whether a row was run, and not as often as its table asks for."""
    return line.deciding is not None and len(line.deciding.results) < line.row.seeds


def tell_verdict(line: Line, metric: str) -> str:
    """The verdict of a row, with the difference to the paper's number; nothing where it has none."""
    if line.deciding is None:
        return str(line.verdict)
    if line.row.paper is None:
        return ""
    return f"{line.verdict}, {signed(line.deciding.mean - line.row.paper, metric)}"


def dissent(line: Line) -> list[str]:
    """What the presets would say that do not decide, where they say something else."""
    judged = {preset: line.judge(sample) for preset, sample in line.samples.items()}
    return [f"{name_preset(preset)}: {verdict}" for preset, verdict in judged.items() if verdict != line.verdict]


def tell_seeds(results: Iterable[Result], name: Callable[[Result], str]) -> str:
    """The seeds of some runs.

    Args:
        results: The runs.
        name: How to write the seed of one.
    """
    names = [name(result) for result in results]
    return f"{'seed' if len(names) == 1 else 'seeds'} {', '.join(names)}"


def describe_sources(sheet: Sheet, known_data: Mapping[str, str]) -> str:
    """What the numbers of a table are, and where they come from."""
    what = capitalised(name_metric(sheet.table.metric))
    results = sheet.results
    if not results:
        return f"{what}. Not run yet."
    over_runs = "share of" if is_share(sheet.table.metric) else "mean ± sample standard deviation over"
    sentences = [
        f"{what}: {over_runs} n runs.",
        *describe_ratios(sheet),
        f"{plural(len(results), 'run')}, torch {torch_versions(results)}, {time_spent(results)}.",
        *remarks(results, known_data),
    ]
    return " ".join(sentences)


def describe_ratios(sheet: Sheet) -> list[str]:
    """How many times the number of a row that of another is, seed by seed, beside the paper's ratio."""
    samples = {line.row.id: line.deciding for line in sheet.lines}
    sentences = []
    for ratio in sheet.table.ratios:
        row, other = samples[ratio.row], samples[ratio.other]
        if row is None or other is None:
            continue
        values = [dict(zip((run.seed for run in found.results), found.values, strict=True)) for found in (row, other)]
        shared = sorted(values[0].keys() & values[1].keys())
        each = ", ".join(f"{values[0][seed] / values[1][seed]:.3f}" for seed in shared)
        mean = f"{row.mean / other.mean:.3f} times that of {ratio.other}"
        sentences.append(
            f"The mean of {ratio.row} is {mean} (seed by seed: {each or 'none in common'}); "
            f"the paper's is {ratio.paper:g} times."
        )
    return sentences


def describe_group(comparison: Comparison, group: Group) -> str:
    """The settings of some runs that differ from the defaults; all of them where the experiment is not known."""
    experiment = comparison.experiments.get(group.experiment)
    if experiment is None:
        return describe(group.config, list(flatten(group.config)))
    names = varying([as_written(experiment.config()), group.config])
    return describe(group.config, names) or "defaults"


def metrics_of(comparison: Comparison, group: Group) -> list[str]:
    """The metrics that tables of the experiment show; all of them where no table does."""
    experiment = comparison.experiments.get(group.experiment)
    shown = [table.metric for table in experiment.tables] if experiment else []
    had = sorted(set.intersection(*(set(result.metrics) for result in group.results)))
    return [name for name in dict.fromkeys(shown) if name in had] or had
