"""The page: the document in one file that needs nothing else, but for the result files that its numbers link to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template

from torchpfc.markup import element, read_style
from torchpfc.paper.report.compare import Comparison, Sheet
from torchpfc.paper.report.kinds import Figure
from torchpfc.paper.report.layout import Wording
from torchpfc.paper.report.markdown import FIGURES, INTRODUCTION, Link, lead_to_page, paragraphs, tabulate_further

TABLE = re.compile(r"<!-- table (\S+) -->(.*?)<!-- end -->", re.DOTALL)
FIGURE = re.compile(rf'<p><img alt="[^"]*" src="{FIGURES}/([^"]*)\.svg"></p>')


def write_page(document: str, comparison: Comparison, figures: Iterable[Figure], link: Link) -> str:
    """Writes the page.

    It says what the document says. Below a table it also has what can be heard, and what else was measured where the
    document has no place for that.

    Args:
        document: With its tables, and with links to its figures.
        comparison: What the tables show.
        figures: What takes the place of the links.
        link: Where the file of a result is.
    """
    from markdown import markdown

    sheets = {sheet.table.id: sheet for sheet in comparison.sheets}
    drawn = {figure.name: element("div", figure.svg, class_="wide", tabindex=0) for figure in figures if figure.svg}

    def show_table(found: re.Match[str]) -> str:
        sheet = sheets[found[1]]
        place = element("div", id=sheet.table.id)
        further = "" if f"<!-- further {sheet.table.id} -->" in document else tabulate_further(sheet, link)
        return paragraphs(place, found[2].replace(lead_to_page(sheet), ""), further, _players(sheet))

    text = TABLE.sub(show_table, document.removeprefix(INTRODUCTION))
    text = text.replace("\n## ", "\n[TOC]\n\n## ", 1)  # where the contents come
    depth = {"toc": {"toc_depth": "2-2"}}
    body = markdown(text, extensions=["fenced_code", "tables", "toc"], extension_configs=depth, output_format="html")
    body = body.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")
    body = body.replace(' style="text-align: right;"', ' class="number"')  # for the style sheet, and shorter
    body = FIGURE.sub(lambda found: drawn.get(found[1], found[0]), body)
    template = Template((files("torchpfc.paper.report") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=read_style("colours", "type") + read_style("charts/chart", "page", package="torchpfc.paper.report"),
        body=body,
    )


def _players(sheet: Sheet) -> str:
    """What can be heard of each row: an estimate is called like the row, all else by its own name."""
    wording, items = Wording.of(sheet.table), []
    for line in sheet.lines:
        for result in line.results:
            for name, sound in result.sounds.items():
                label = wording.describe(line) if name == "estimate" else name
                source = f"data:audio/mpeg;base64,{sound}"
                player = element("audio", controls="", preload="none", aria_label=label, src=source)
                items.append(element("li", element("span", escape(label)), player))
    return element("ul", *items, class_="sounds") if items else ""
