"""The document: tables and figures between comments, and around them whatever anybody wrote."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchpfc.paper.report.claims import LEVEL_WHEN, judge_claim
from torchpfc.paper.report.compare import Comparison, Line, Sample, Sheet, Verdict, as_written
from torchpfc.paper.report.kinds import Figure
from torchpfc.paper.report.layout import Wording
from torchpfc.paper.report.sentences import AGREE_WHEN, MET_WHEN, describe_sources, list_machines, tally
from torchpfc.paper.report.words import describe, deviation, literal, name_metric, name_preset, number, signed, varying
from torchpfc.paper.results import Result

FIGURES = "figures/paper"
"""Where the figures of the document are, beside it."""

PAGE = "report.html"
"""Where everything is on one page."""

NO_BREAK = "\u00a0"
"""A space at which no line ends."""

FEW_ROWS = 6
"""A table with more rows has its further metrics side by side, not one below the other."""

LEFT_OUT = frozenset({"peak_memory_mb"})
"""In older files only, and too large: with memory that libraries kept for earlier runs of the same process."""

CAPTION = "Further measurements: means over the runs."

Link = Callable[[Result], str]
"""The address of the file of a result."""

COMMENT = re.compile(r"<!-- (end|summary|claims|presets|other runs|(?:table|further|figures|figure) [^\n]*?) -->")
END = "end"

INTRODUCTION = """\
# The paper's experiments

`torchpfc report` writes what stands between comments on this page, from result files. What stands around them is kept.

"""


def write_document(
    before: str | None, comparison: Comparison, figures: Sequence[Figure], known_data: Mapping[str, str], link: Link
) -> str:
    """The document with the present tables and figures.

    A table that has no place in it comes at the end. `<!-- figures T2 -->` is the place of all figures of that table
    which have none of their own, such as `<!-- figure T2-epochs -->`; `<!-- further T2 -->` is that of all else that
    was measured.

    Args:
        before: The document as it is; None where there is none yet.
        comparison: What the tables show.
        figures: What stands with them.
        known_data: Remarks on data sets, by the SHA-256 of their pixels.
        link: Where the file of a result is.
    """
    text = _skeleton(comparison) if before is None else before
    places = set(COMMENT.findall(text))
    parts = {
        "summary": _summary(comparison),
        "claims": _claims(comparison),
        "presets": _presets(comparison, link),
        "other runs": _others(comparison, link),
    }
    for sheet in comparison.sheets:
        own = {f"figure {figure.name}": _figure(figure) for figure in figures if figure.table == sheet.table.id}
        parts |= {
            f"table {sheet.table.id}": _table(sheet, known_data, link),
            f"further {sheet.table.id}": tabulate_further(sheet, link),
            f"figures {sheet.table.id}": paragraphs(*(shown for place, shown in own.items() if place not in places)),
            **own,
        }
        if f"table {sheet.table.id}" not in places:
            text = f"{text.rstrip()}\n\n{_section(sheet)}"
    return fill_places(text, parts)


def fill_places(text: str, parts: Mapping[str, str]) -> str:
    r"""Puts each part between its comments, instead of what is there.

    Example:
        >>> fill_places("before <!-- summary -->old<!-- end --> after", {"summary": "new"})
        'before <!-- summary -->\n\nnew\n\n<!-- end --> after'
    """
    pieces = COMMENT.split(text)  # words, comment, words, comment, ... words
    done, opened = [pieces[0]], None
    for name, words in zip(pieces[1::2], pieces[2::2], strict=True):
        if (name == END) == (opened is None):
            raise ValueError(f"each part of the document must end with <!-- end -->, got <!-- {name} --> out of turn")
        if name == END:
            done.append(f"<!-- {END} -->{words}")
        elif name in parts:
            done.append(f"<!-- {name} -->\n\n{parts[name]}\n\n" if parts[name] else f"<!-- {name} -->\n")
        else:
            known = ", ".join(parts)
            raise ValueError(f"a comment must name a part of the report, got <!-- {name} -->; the parts are: {known}")
        opened = None if name == END else name
    if opened is not None:
        raise ValueError(f"each part of the document must end with <!-- end -->, got none after <!-- {opened} -->")
    return "".join(done)


def _skeleton(comparison: Comparison) -> str:
    sections = "".join(f"{_section(sheet)}\n" for sheet in comparison.sheets)
    ending = f"## Fast and paper presets\n\n{_place('presets')}\n## Other runs\n\n{_place('other runs')}"
    claims = f"## What the paper says in words\n\n{_place('claims')}\n" if comparison.claims else ""
    return f"{INTRODUCTION}{_place('summary')}\n{claims}{sections}{ending}"


def _section(sheet: Sheet) -> str:
    kinds = ["table", "figures"] if sheet.compared else ["table", "further", "figures"]
    places = "\n".join(_place(f"{kind} {sheet.table.id}") for kind in kinds)
    return f"## {sheet.table.id}: {sheet.table.title}\n\n{places}"


def _place(name: str) -> str:
    return f"<!-- {name} -->\n<!-- {END} -->\n"


def _figure(figure: Figure) -> str:
    return paragraphs(f"![{figure.title}]({FIGURES}/{figure.name}.svg)", figure.caption) if figure.svg else ""


def _summary(comparison: Comparison) -> str:
    """How many rows were met, what all was run on, and when a row is met."""
    rows = list_machines(comparison.results)
    table = _grid(["hardware", "torch", "precision", "runs", "minutes"], rows, words=3) if rows else ""
    return paragraphs(tally(comparison), table, MET_WHEN)


def _claims(comparison: Comparison) -> str:
    """What the paper says in words, and whether rows bear it out."""
    if not comparison.claims:
        return ""
    rows = []
    for claim in comparison.claims:
        found = judge_claim(claim, comparison.lines)
        words = f"**{claim.otherwise}**" if found.verdict is Verdict.MISSED else str(found.verdict)
        partly = "" if found.complete or found.verdict is not Verdict.MET else ", as far as run"
        rows.append([f"`{claim.id}`", claim.said, claim.met_when, found.found, f"{words}{partly}"])
    return paragraphs(_grid(["claim", "the paper says", "met when", "found", "verdict"], rows, words=5), LEVEL_WHEN)


def _table(sheet: Sheet, known_data: Mapping[str, str], link: Link) -> str:
    """A table with the paper's numbers beside ours, what to know of it, and where its numbers come from.

    Args:
        sheet: The table.
        known_data: Remarks on data sets, by the SHA-256 of their pixels.
        link: Where the file of a result is.
    """
    wording, metric = Wording.of(sheet.table), sheet.table.metric
    paper_heads = ["paper", "needed"] if sheet.compared else []
    heads = ["row", "settings", *paper_heads, *map(name_preset, sheet.presets), "verdict"]
    rows = []
    for line in sheet.lines:
        paper = [_maybe(value, metric) for value in (line.row.paper, line.needed)] if sheet.compared else []
        ours = [_cell(line, preset, link) for preset in sheet.presets]
        rows.append([f"`{line.row.id}`", wording.describe(line), *paper, *ours, _verdict(line, metric)])
    for cited in sheet.table.cited:
        rows.append([f"`{cited.id}`", cited.what, cited.value, *[""] * (len(heads) - 4), "cited"])
    command = f"torchpfc run {sheet.experiment.name} --rows '{sheet.table.id}.*'"
    where = f"{describe_sources(sheet, known_data)} {lead_to_page(sheet)}Run it: `{command}`."
    return paragraphs(sheet.table.note, _grid(heads, rows, words=2), where)


def lead_to_page(sheet: Sheet) -> str:
    """What the document says below a table of the page, and the page does not."""
    return f"[Every run]({PAGE}#{sheet.table.id}). "


def tabulate_further(sheet: Sheet, link: Link) -> str:
    """All other metrics of every row, under each preset that it was run with; nothing where there are none."""
    samples = _together(sheet)
    found = {name for results in samples.values() for result in results for name in _measured(result)}
    metrics = sorted(found - LEFT_OUT - {sheet.table.metric})
    if not metrics:
        return ""
    several = len(samples) > FEW_ROWS
    columns = [["row" if several else "", *(literal(name_metric(metric)) for metric in metrics), "runs"]]
    for (ids, words), results in samples.items():
        means = [_mean(results, metric) for metric in metrics]
        columns.append([ids if several else words, *means, f"<small>{_seeds(results, link)}</small>"])
    heads, *rows = columns if several else zip(*columns, strict=True)
    return paragraphs(CAPTION, _grid(heads, rows, words=1))


def _together(sheet: Sheet) -> dict[tuple[str, str], tuple[Result, ...]]:
    """What was run, by ids of rows and by words, row by row and preset by preset; rows with the same runs as one."""
    found: dict[tuple[int, ...], tuple[Sample, list[Line]]] = {}
    for line in sheet.lines:
        for sample in line.samples.values():
            found.setdefault(tuple(map(id, sample.results)), (sample, []))[1].append(line)
    wording, together = Wording.of(sheet.table), {}
    for sample, lines in found.values():
        preset = f", {name_preset(sample.preset)}" if len(sheet.presets) > 1 else ""
        ids = ", ".join(line.row.id for line in lines)
        words = wording.describe(lines[0]) if len(lines) == 1 else ""
        together[ids + preset, (words or ids) + preset] = sample.results
    return together


def _measured(result: Result) -> dict[str, float]:
    """The metrics of a run; a time is that of all models that trained at once, so it says how many these were."""
    if "milliseconds_per_step" not in result.metrics or "stack" not in result.hardware:
        return dict(result.metrics)
    return {**result.metrics, "models_at_once": result.hardware["stack"]}


def _mean(results: Iterable[Result], metric: str) -> str:
    values = [measured[metric] for measured in map(_measured, results) if metric in measured]
    return number(statistics.fmean(values), metric) if values else ""


def _maybe(value: float | None, metric: str) -> str:
    return "" if value is None else number(value, metric)


def _cell(line: Line, preset: str, link: Link) -> str:
    if preset in line.same:
        return "the same"
    return _spread(line.samples[preset], line.row.seeds, link) if preset in line.samples else ""


def _spread(sample: Sample, wanted: int, link: Link) -> str:
    """A mean and its spread, and below it the seeds, each of which leads to its file."""
    mean = " ".join(filter(None, (number(sample.mean, sample.metric), deviation(sample)))).replace(" ", NO_BREAK)
    count = len(sample.results)
    of = f" of {wanted}" if count < wanted else ""
    return f"{mean}<br><small>n = {count}{of}, {_seeds(sample.results, link, sample.metric)}</small>"


def _seeds(results: Sequence[Result], link: Link, metric: str | None = None) -> str:
    """Links to the files of some runs, each with its own number as a title where they are asked for one metric."""
    titles = ["" if metric is None else f' "{number(result.metrics[metric], metric)}"' for result in results]
    seeds = [f"[{result.seed}]({link(result)}{title})" for result, title in zip(results, titles, strict=True)]
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}"


def _verdict(line: Line, metric: str) -> str:
    """The verdict of a row, with the difference to the paper's number, and what presets say that do not decide."""
    text = f"**{line.verdict}**" if line.verdict is Verdict.MISSED else str(line.verdict)
    if line.deciding is not None:
        text = "" if line.row.paper is None else f"{text}, {signed(line.deciding.mean - line.row.paper, metric)}"
    judged = {preset: line.judge(sample) for preset, sample in line.samples.items()}
    others = [f"{name_preset(preset)}: {verdict}" for preset, verdict in judged.items() if verdict != line.verdict]
    return "; ".join([text, *others, *(["settings of ours"] if line.row.ours else [])])


def _presets(comparison: Comparison, link: Link) -> str:
    """The rows that were run under both presets."""
    if not comparison.agreements:
        return "No row was run under both presets yet."
    heads = ["row", "paper preset", "fast preset", "difference", "two standard errors", "allowed", "agree"]
    rows = []
    for found in comparison.agreements:
        row, metric = found.line.row, found.paper.metric
        ours = [_spread(sample, row.seeds, link) for sample in (found.paper, found.fast)]
        apart = [signed(found.difference, metric), _maybe(found.two_errors, metric), number(found.allowed, metric)]
        rows.append([f"`{row.id}`", *ours, *apart, "yes" if found.holds else "**no**"])
    return paragraphs(AGREE_WHEN, _grid(heads, rows, words=1))


def _others(comparison: Comparison, link: Link) -> str:
    """Runs that no table asks for, with the metrics that tables show; all where there is no experiment, or no table."""
    if not comparison.others:
        return "None."
    rows = []
    for group in comparison.others:
        settings, shown = describe(group.config, group.config), {}
        if experiment := comparison.experiments.get(group.experiment):
            settings = describe(group.config, varying([as_written(experiment.config()), group.config])) or "defaults"
            shown = dict.fromkeys(table.metric for table in experiment.tables)
        had = sorted(set.intersection(*(set(result.metrics) for result in group.results)))
        metrics = [name for name in shown if name in had] or had
        found = [
            f"{literal(name_metric(metric))} {_spread(Sample('', group.results, metric), 1, link)}"
            for metric in metrics
        ]
        rows.append([literal(group.experiment), literal(settings), "; ".join(found)])
    return _grid(["experiment", "settings that differ from the defaults", "found"], rows, words=3)


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    """A table whose first columns are words, and whose others are numbers."""
    rules = ["---" if i < words else "---:" for i in range(len(heads))]
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in (heads, rules, *rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def paragraphs(*parts: str) -> str:
    """Parts of a text with a blank line between them, those without words left out."""
    return "\n\n".join(filter(None, parts))
