"""The document: tables and figures between comments, and around them whatever anybody wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torchpfc.paper.registry import Cited
from torchpfc.paper.report.compare import Agreement, Comparison, Group, Line, Sample, Sheet, Verdict
from torchpfc.paper.report.figures import Drawn
from torchpfc.paper.report.further import CAPTION, measure_further
from torchpfc.paper.report.layout import Wording
from torchpfc.paper.report.provenance import Link, link_beside, machines
from torchpfc.paper.report.sentences import (
    HOW_PRESETS_AGREE,
    HOW_VERDICTS_ARE_MADE,
    describe_group,
    describe_sources,
    dissent,
    metrics_of,
    tally,
    tell_seeds,
    tell_verdict,
)
from torchpfc.paper.report.words import deviation, minutes, name_metric, name_preset, number, runs, signed
from torchpfc.paper.results import Result

FIGURES = "figures/paper"
"""Where the figures of the document are, beside it."""

PAGE = "report.html"
"""Where everything is on one page."""

NO_BREAK = "\u00a0"
"""A space at which no line ends."""

COMMENT = re.compile(r"<!-- (end|summary|presets|other runs|(?:table|further|figures|figure) [^\n]*?) -->")
END = "end"

INTRODUCTION = """\
# The paper's experiments

`torchpfc report` writes what stands between comments on this page, from result files. What stands around them is kept.

"""


def write_document(
    before: str | None,
    comparison: Comparison,
    figures: Sequence[Drawn],
    known_data: Mapping[str, str],
    link: Link = link_beside,
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
        "presets": _presets(comparison, link),
        "other runs": _others(comparison, link),
    }
    for sheet in comparison.sheets:
        own = [drawn for drawn in figures if drawn.figure.table == sheet.table.id]
        rest = [drawn for drawn in own if f"figure {drawn.figure.name}" not in places]
        parts |= {
            f"table {sheet.table.id}": _table(sheet, known_data, link),
            f"further {sheet.table.id}": _further(sheet, link),
            f"figures {sheet.table.id}": _paragraphs(*map(_figure, rest)),
            **{f"figure {drawn.figure.name}": _figure(drawn) for drawn in own},
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
    return f"{INTRODUCTION}{_place('summary')}\n{sections}{ending}"


def _section(sheet: Sheet) -> str:
    kinds = ["table", "figures"] if sheet.compared else ["table", "further", "figures"]
    places = "\n".join(_place(f"{kind} {sheet.table.id}") for kind in kinds)
    return f"## {sheet.table.id}: {sheet.table.title}\n\n{places}"


def _place(name: str) -> str:
    return f"<!-- {name} -->\n<!-- {END} -->\n"


def _summary(comparison: Comparison) -> str:
    rows = [
        [machine.name, machine.torch, machine.precision, f"{len(machine.results):,}", minutes(machine.seconds)]
        for machine in machines(comparison.results)
    ]
    table = _grid(["hardware", "torch", "precision", "runs", "minutes"], rows, words=3) if rows else ""
    return _paragraphs(tally(comparison), table, HOW_VERDICTS_ARE_MADE)


def _table(sheet: Sheet, known_data: Mapping[str, str], link: Link) -> str:
    wording, metric = Wording.of(sheet.table), sheet.table.metric
    paper_heads = ["paper", "needed"] if sheet.compared else []
    heads = ["row", "settings", *paper_heads, *map(name_preset, sheet.presets), "verdict"]
    rows = []
    for line in sheet.lines:
        paper = [_maybe(value, metric) for value in (line.row.paper, line.needed)] if sheet.compared else []
        ours = [_cell(line, preset, link) for preset in sheet.presets]
        rows.append([f"`{line.row.id}`", wording.describe(line), *paper, *ours, _verdict(line, metric)])
    rows += [_cited(cited, len(heads)) for cited in sheet.table.cited]
    command = f"torchpfc run {sheet.experiment.name} --rows '{sheet.table.id}.*'"
    where = f"[Every run]({PAGE}#{sheet.table.id}). Run it: `{command}`."
    return _paragraphs(sheet.table.note, _grid(heads, rows, words=2), f"{describe_sources(sheet, known_data)} {where}")


def _cited(cited: Cited, cells: int) -> list[str]:
    """A number from other work, where the paper has it."""
    return [f"`{cited.id}`", cited.what, cited.value, *[""] * (cells - 4), "cited"]


def _further(sheet: Sheet, link: Link) -> str:
    grid = measure_further(sheet)
    if grid is None:
        return ""
    rows = [
        [cell if isinstance(cell, str) else f"<small>{_seeds(cell, link)}</small>" for cell in row] for row in grid.rows
    ]
    return _paragraphs(CAPTION, _grid(grid.heads, rows, words=1))


def _maybe(value: float | None, metric: str) -> str:
    return "" if value is None else number(value, metric)


def _cell(line: Line, preset: str, link: Link) -> str:
    if preset in line.same:
        return "the same"
    return _spread(line.samples[preset], line.row.seeds, link) if preset in line.samples else ""


def _spread(sample: Sample, wanted: int, link: Link) -> str:
    """A mean and its spread, and below it the seeds, each of which leads to its file."""
    mean = " ".join(filter(None, (number(sample.mean, sample.metric), deviation(sample)))).replace(" ", NO_BREAK)
    return f"{mean}<br><small>{runs(sample, wanted)}, {_seeds(sample.results, link, sample.metric)}</small>"


def _seeds(results: Iterable[Result], link: Link, metric: str | None = None) -> str:
    """Links to the files of some runs, each with its own number as a title where they are asked for one metric."""

    def name(result: Result) -> str:
        title = "" if metric is None else f' "{number(result.metrics[metric], metric)}"'
        return f"[{result.seed}]({link(result)}{title})"

    return tell_seeds(results, name)


def _verdict(line: Line, metric: str) -> str:
    text = tell_verdict(line, metric)
    if line.verdict is Verdict.MISSED:
        text = text.replace(Verdict.MISSED, f"**{Verdict.MISSED}**", 1)
    return "; ".join([text, *dissent(line)])


def _figure(drawn: Drawn) -> str:
    figure, svg = drawn
    return _paragraphs(f"![{figure.title}]({FIGURES}/{figure.name}.svg)", figure.caption) if svg else ""


def _presets(comparison: Comparison, link: Link) -> str:
    if not comparison.agreements:
        return "No row was run under both presets yet."
    heads = ["row", "paper preset", "fast preset", "difference", "two standard errors", "allowed", "agree"]
    rows = [_agreement(found, link) for found in comparison.agreements]
    return _paragraphs(HOW_PRESETS_AGREE, _grid(heads, rows, words=1))


def _agreement(found: Agreement, link: Link) -> list[str]:
    metric, seeds = found.paper.metric, found.line.row.seeds
    return [
        f"`{found.line.row.id}`",
        _spread(found.paper, seeds, link),
        _spread(found.fast, seeds, link),
        signed(found.difference, metric),
        _maybe(found.two_errors, metric),
        number(found.allowed, metric),
        "yes" if found.holds else "**no**",
    ]


def _others(comparison: Comparison, link: Link) -> str:
    if not comparison.others:
        return "None."
    heads = ["experiment", "settings that differ from the defaults", "found"]
    rows = [
        [group.experiment, describe_group(comparison, group), _found(comparison, group, link)]
        for group in comparison.others
    ]
    return _grid(heads, rows, words=3)


def _found(comparison: Comparison, group: Group, link: Link) -> str:
    samples = (Sample("", group.results, metric) for metric in metrics_of(comparison, group))
    return "; ".join(f"{name_metric(sample.metric)} {_spread(sample, 1, link)}" for sample in samples)


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    """A table whose first columns are words, and whose others are numbers."""
    rules = ["---" if i < words else "---:" for i in range(len(heads))]
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in (heads, rules, *rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))
