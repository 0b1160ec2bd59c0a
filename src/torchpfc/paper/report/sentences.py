"""How much was run, and where numbers come from: machines, minutes, versions, data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from torchpfc.paper.report.compare import SMALLEST_DIFFERENCE, Comparison, Line, Sheet, Verdict, is_share
from torchpfc.paper.report.words import NAMES, literal, minutes, name_metric, plural
from torchpfc.paper.results import Result

UNKNOWN = "unknown"

MET_WHEN = (
    "A row is met when the mean over its runs is at least the needed number: the paper's, less what the row allows. "
    "Where a row was run under two presets, the one with more runs decides, and the paper preset if both have as many."
)

AGREE_WHEN = (
    "Two presets agree on a row when their means differ by no more than two standard errors of the difference, or than "
    f"{SMALLEST_DIFFERENCE} points where that is more. A preset that was run once has no standard error."
)


def tally(comparison: Comparison) -> str:
    """How many rows were met, missed, run."""
    lines = [line for sheet in comparison.sheets for line in sheet.lines]
    compared = [line for line in lines if line.row.paper is not None]
    theirs, ours = ([line for line in compared if line.row.ours == own] for own in (False, True))
    sentences = [f"Of {plural(len(theirs), 'row')} of the paper with a number, {_count(theirs)}."]
    if ours:
        sentences.append(f"Of {plural(len(ours), 'row')} with settings of ours for such a number, {_count(ours)}.")
    if len(lines) > len(compared):
        run = sum(line.verdict is Verdict.RUN for line in lines)
        sentences.append(f"Of {plural(len(lines) - len(compared), 'row')} without one, {run} run.")
    if short := sum(0 < len(line.results) < line.row.seeds for line in lines):
        sentences.append(f"With fewer runs than its table asks for: {plural(short, 'row')}.")
    if comparison.results:
        count, spent = plural(len(comparison.results), "run"), time_spent(comparison.results)
        sentences.append(f"All {count} took {spent}; those that shared a device count in full.")
    return " ".join(sentences)


def _count(lines: Iterable[Line]) -> str:
    verdicts = Counter(line.verdict for line in lines)
    return ", ".join(f"{verdicts[one]} {one}" for one in (Verdict.MET, Verdict.MISSED, Verdict.NOT_RUN))


def describe_sources(sheet: Sheet, known_data: Mapping[str, str]) -> str:
    """What the numbers of a table are, and where they come from."""
    name, results = name_metric(sheet.table.metric), sheet.results
    what = name[:1].upper() + name[1:]
    if not results:
        return f"{what}. Not run yet."
    over_runs = "share of" if is_share(sheet.table.metric) else "mean ± sample standard deviation over"
    versions = ", ".join(sorted({_torch_version(result) for result in results}))
    sentences = [
        f"{what}: {over_runs} n runs.",
        *describe_ratios(sheet),
        f"{plural(len(results), 'run')}, torch {versions}, {time_spent(results)}.",
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


def remarks(results: Iterable[Result], known: Mapping[str, str]) -> list[str]:
    """What a reader has to know about the data of some results.

    Args:
        results: Each names its data sets by the SHA-256 of their pixels.
        known: Remarks by that SHA-256; an empty one says that there is nothing to say.
    """
    data = {(name, pixels) for result in results for name, pixels in result.data.items()}
    found = {(name, remark) for name, pixels in data if (remark := known.get(pixels))}
    return [f"{NAMES.get(name, literal(name))}: {remark}" for name, remark in sorted(found)]


def time_spent(results: Iterable[Result]) -> str:
    """The minutes of some results in words, by what they were computed on."""
    spent: dict[tuple[str, str], float] = {}
    for result in results:
        spent[_device(result)] = spent.get(_device(result), 0.0) + result.seconds
    return ", ".join(f"{minutes(spent[kind, name])} {kind} minutes ({name})" for kind, name in sorted(spent)[::-1])


def list_machines(results: Iterable[Result]) -> list[list[str]]:
    """What some results were computed on and with, GPUs before CPUs: name, torch, precision, runs and minutes."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        precision = literal(str(result.hardware.get("precision", "")))
        groups.setdefault((*_device(result), _torch_version(result), precision), []).append(result)
    return [
        [*words, f"{len(groups[kind, *words]):,}", minutes(sum(result.seconds for result in groups[kind, *words]))]
        for kind, *words in sorted(groups, reverse=True)
    ]


def _device(result: Result) -> tuple[str, str]:
    """GPU or CPU, and the name of it."""
    gpu = result.hardware.get("gpu")
    return ("GPU", literal(str(gpu))) if gpu else ("CPU", literal(str(result.hardware.get("cpu", UNKNOWN))))


def _torch_version(result: Result) -> str:
    return literal(str(result.versions.get("torch", UNKNOWN)))
