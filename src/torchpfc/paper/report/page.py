"""The page: everything in one file that needs nothing else, but for the result files that its numbers link to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template

from torchpfc.paper.registry import Cited
from torchpfc.paper.report.compare import Agreement, Comparison, Group, Line, Sample, Sheet, Verdict
from torchpfc.paper.report.figures import Drawn
from torchpfc.paper.report.further import CAPTION, measure_further
from torchpfc.paper.report.layout import Wording, by_first
from torchpfc.paper.report.markup import element, read_style
from torchpfc.paper.report.provenance import Link, machines, remarks
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
from torchpfc.paper.report.words import (
    capitalised,
    deviation,
    minutes,
    name_metric,
    name_preset,
    number,
    plural,
    runs,
    signed,
)
from torchpfc.paper.results import Result

SHOWN = (Verdict.MET, Verdict.MISSED, Verdict.RUN, Verdict.NOT_RUN)
"""The order of verdicts in words and bars."""


def write_page(comparison: Comparison, figures: Sequence[Drawn], known_data: Mapping[str, str], link: Link) -> str:
    """Writes the page.

    Args:
        comparison: What the tables show.
        figures: What stands below them.
        known_data: Remarks on data sets, by the SHA-256 of their pixels.
        link: Where the file of a result is.
    """
    template = Template((files("torchpfc.paper.report") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=read_style("colours", "type", "charts/chart", "page"),
        facts="\n".join(_fact(comparison, verdict) for verdict in (Verdict.MET, Verdict.MISSED, Verdict.NOT_RUN)),
        tally=escape(tally(comparison)),
        machines=_machines(comparison),
        remarks="\n".join(element("p", escape(remark)) for remark in remarks(comparison.results, known_data)),
        rule=escape(HOW_VERDICTS_ARE_MADE),
        contents="\n".join(map(_entry, comparison.sheets)),
        tables="\n".join(_section(sheet, figures, known_data, link) for sheet in comparison.sheets),
        presets=_presets(comparison, link),
        others=_others(comparison, link),
    )


FACTS = {
    Verdict.MET: "met: at least the paper's number, less what the row allows",
    Verdict.MISSED: "missed: below that",
    Verdict.NOT_RUN: "not run: no result yet",
}


def _fact(comparison: Comparison, verdict: Verdict) -> str:
    count = comparison.count(verdict)
    text = f"{'row' if count == 1 else 'rows'} {FACTS[verdict]}"
    return element("div", element("dt", escape(text)), element("dd", str(count), class_=_class(verdict)))


def _machines(comparison: Comparison) -> str:
    rows = [
        [machine.name, machine.torch, machine.precision, f"{len(machine.results):,}", minutes(machine.seconds)]
        for machine in machines(comparison.results)
    ]
    if not rows:
        return element("p", "Nothing was run yet.")
    cells = [list(map(escape, row)) for row in rows]
    return _table("What it was run on", ["hardware", "torch", "precision", "runs", "minutes"], [cells])


def _entry(sheet: Sheet) -> str:
    counts = {verdict: sheet.count(verdict) for verdict in SHOWN if sheet.count(verdict)}
    bar = [element("i", class_=_class(verdict), style=f"flex-grow: {count}") for verdict, count in counts.items()]
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return element(
        "li",
        element("a", element("b", escape(sheet.table.id)), " ", escape(sheet.table.title), href=f"#{sheet.table.id}"),
        element("span", *bar, class_="bar", aria_hidden="true"),
        element("span", words, class_="counts"),
    )


def _section(sheet: Sheet, figures: Sequence[Drawn], known_data: Mapping[str, str], link: Link) -> str:
    drawn = [_figure(each) for each in figures if each.figure.table == sheet.table.id and each.svg]
    command = element("code", escape(f"torchpfc run {sheet.experiment.name} --rows '{sheet.table.id}.*'"))
    return element(
        "section",
        element("p", escape(sheet.table.id), class_="over"),
        element("h2", escape(sheet.table.title)),
        element("p", escape(sheet.table.note)) if sheet.table.note else "",
        _rows(sheet, link),
        element("p", escape(describe_sources(sheet, known_data)), " Run it: ", command, class_="note"),
        _further(sheet, link),
        *drawn,
        _players(sheet),
        id=sheet.table.id,
    )


def _players(sheet: Sheet) -> str:
    """What can be heard of each row: an estimate is called like the row, all else by its own name."""
    wording = Wording.of(sheet.table)
    items = [
        _player(wording.describe(line) if name == "estimate" else name, sound)
        for line in sheet.lines
        for result in (line.deciding.results if line.deciding else ())
        for name, sound in result.sounds.items()
    ]
    return element("ul", *items, class_="sounds") if items else ""


def _player(name: str, sound: str) -> str:
    source = f"data:audio/mpeg;base64,{sound}"
    player = element("audio", controls="", preload="none", aria_label=name, src=source)
    return element("li", element("span", escape(name)), player)


def _figure(drawn: Drawn) -> str:
    assert drawn.svg is not None
    chart = element("div", drawn.svg, class_="wide", tabindex=0)
    return "\n" + element("figure", chart, element("figcaption", escape(drawn.figure.caption)))


def _rows(sheet: Sheet, link: Link) -> str:
    wording, metric = Wording.of(sheet.table), sheet.table.metric
    heads = ["row", *(["paper"] if sheet.compared else []), *map(name_preset, sheet.presets), "verdict"]
    titles = {entry.line.row.id: group.title for group in by_first(sheet) for entry in group.entries}
    bodies: list[list[list[str]]] = []
    for _, lines in groupby(sheet.lines, key=lambda line: titles[line.row.id]):
        bodies.append([])
        for line in lines:
            paper = [_paper(line, metric)] if sheet.compared else []
            ours = [_cell(line, preset, link) for preset in sheet.presets]
            head = _head(wording.describe(line), line.row.id)
            bodies[-1].append([head, *paper, *ours, _verdict(line, metric)])
    if sheet.table.cited:
        bodies.append([_cited(cited, len(heads)) for cited in sheet.table.cited])
    return _table(capitalised(name_metric(metric)), heads, bodies)


def _cited(cited: Cited, cells: int) -> list[str]:
    """A number from other work, where the paper has it."""
    return [_head(cited.what, cited.id), escape(cited.value), *[""] * (cells - 3), element("small", "cited")]


def _further(sheet: Sheet, link: Link) -> str:
    """All else that was measured; folded where the paper has numbers, which then are what the table is about."""
    grid = measure_further(sheet)
    if grid is None:
        return ""
    rows = [
        [escape(cell) if isinstance(cell, str) else element("small", _seeds(cell, link)) for cell in row]
        for row in grid.rows
    ]
    options = {} if sheet.compared else {"open": ""}
    summary = element("summary", escape(CAPTION))
    return element("details", summary, _table(CAPTION, grid.heads, [rows]), **options)


def _head(words: str, name: str) -> str:
    return escape(words) + element("code", escape(name))


def _paper(line: Line, metric: str) -> str:
    if line.row.paper is None or line.needed is None:
        return ""
    return number(line.row.paper, metric) + element("small", f"≥ {number(line.needed, metric)}")


def _cell(line: Line, preset: str, link: Link) -> str:
    if preset in line.same:
        return element("small", "the same")
    return _spread(line.samples[preset], line.row.seeds, link) if preset in line.samples else ""


def _spread(sample: Sample, wanted: int, link: Link) -> str:
    """A mean and its spread, and below it the seeds, each of which leads to its file."""
    seeds = _seeds(sample.results, link, sample.metric)
    mean = element("strong", number(sample.mean, sample.metric))
    spread = element("span", f" {deviation(sample)}") if sample.deviation is not None else ""
    return mean + spread + element("small", f"{runs(sample, wanted)}, {seeds}")


def _seeds(results: Iterable[Result], link: Link, metric: str | None = None) -> str:
    """Links to the files of some runs, each with its own number as a title where they are asked for one metric."""

    def name(result: Result) -> str:
        title = {} if metric is None else {"title": number(result.metrics[metric], metric)}
        return element("a", str(result.seed), href=link(result), **title)

    return tell_seeds(results, name)


def _verdict(line: Line, metric: str) -> str:
    word, _, difference = tell_verdict(line, metric).partition(", ")
    notes = [element("small", escape(text)) for text in filter(None, (difference, *dissent(line)))]
    return "".join([element("b", word, class_=_class(line.verdict)) if word else "", *notes])


def _presets(comparison: Comparison, link: Link) -> str:
    if not comparison.agreements:
        return element("p", "No row was run under both presets yet.")
    held = sum(found.holds for found in comparison.agreements)
    heads = ["row", "paper preset", "fast preset", "difference", "two standard errors", "allowed", "agree"]
    rows = [_agreement(found, link) for found in comparison.agreements]
    count = f"They agree on {held} of {plural(len(rows), 'row')}."
    words = element("p", escape(f"{HOW_PRESETS_AGREE} {count}"))
    return words + _table("The same rows under both presets", heads, [rows])


def _agreement(found: Agreement, link: Link) -> list[str]:
    metric, seeds = found.paper.metric, found.line.row.seeds
    return [
        _head("", found.line.row.id),
        _spread(found.paper, seeds, link),
        _spread(found.fast, seeds, link),
        signed(found.difference, metric),
        "" if found.two_errors is None else number(found.two_errors, metric),
        number(found.allowed, metric),
        element("b", "yes", class_="met") if found.holds else element("b", "no", class_="missed"),
    ]


def _others(comparison: Comparison, link: Link) -> str:
    if not comparison.others:
        return element("p", "None.")
    rows = [_other(comparison, group, link) for group in comparison.others]
    return _table("Runs that no table asks for", ["run", "found"], [rows])


def _other(comparison: Comparison, group: Group, link: Link) -> list[str]:
    samples = [Sample("", group.results, metric) for metric in metrics_of(comparison, group)]
    found = (element("div", f"{escape(name_metric(each.metric))} ", _spread(each, 1, link)) for each in samples)
    return [_head(describe_group(comparison, group), group.experiment), "".join(found)]


def _table(caption: str, heads: Sequence[str], bodies: Iterable[Iterable[Sequence[str]]]) -> str:
    """A table of HTML. Where it is narrow, each cell shows the head of its column."""
    return element(
        "div",
        element(
            "table",
            element("caption", escape(caption)),
            element("thead", element("tr", *(element("th", escape(head), scope="col") for head in heads))),
            *("\n" + element("tbody", *(_row(heads, row) for row in rows)) for rows in bodies),
        ),
        class_="scroll",
    )


def _row(heads: Sequence[str], cells: Sequence[str]) -> str:
    rest = (element("td", cell, data_head=head) for head, cell in zip(heads[1:], cells[1:], strict=True))
    return "\n" + element("tr", element("th", cells[0], scope="row"), *rest)


def _class(verdict: Verdict) -> str:
    return verdict.replace(" ", "-")
