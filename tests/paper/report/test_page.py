import re
from html.parser import HTMLParser

import pytest

from tests.paper.report.made import EXPERIMENT, ROWS, Made, compare, experiment, png, result
from tests.paper.report.test_markdown import RUNS, link, part, rows
from torchpfc.paper.registry import Cited, Row, Table
from torchpfc.paper.report.figures import draw_figures
from torchpfc.paper.report.markdown import CAPTION, write_document
from torchpfc.paper.report.page import write_page

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Reads a page, and fails where a tag is left open or closed twice."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows, self.words = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def write(*results, of=(EXPERIMENT,), known_data=None, before=None, edit=lambda document: document):
    """A document, and the page that is made from it after somebody has edited it."""
    comparison = compare(*results, of=of)
    figures = draw_figures(comparison.sheets)
    document = edit(write_document(before, comparison, figures, known_data or {}, link))
    return document, write_page(document, comparison, figures, link)


def read(*results, **options):
    return Page(write(*results, **options)[1])


CURVES = {"valid_accuracy": [50.0, 90.0], "valid_loss": [0.2, 0.1]}
FULL = [
    *RUNS,
    result(ROWS[2].config, 53.0, curves=CURVES, images={"weights": png()}, data={"cifar10": "abc"}),
    result(Made(num_basis=7), 80.0),
]


@pytest.fixture(scope="module")
def written():
    return write(*FULL, known_data={"abc": "JPEG &amp; pixels."})


@pytest.fixture(scope="module")
def text(written):
    return written[1]


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_needs_nothing_else(text, page):
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "img"})
    assert not re.search(r"https?:|@import|url\(", text)
    assert all(image["href"].startswith("data:image/png;base64,") for image in page.of("image"))


def test_the_page_speaks_to_everyone(text, page):
    names = [tag for tag, _ in page.tags]
    assert names.count("h1") == 1
    assert all(figure["aria-label"] for figure in page.of("svg") if figure.get("class") == "chart")
    assert 'lang="en"' in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_every_gap_is_filled(text, page):
    assert "$" not in text and "[TOC]" not in text
    assert "JPEG & pixels." in page.words


@pytest.mark.parametrize("name", ["summary", "table T", "presets", "other runs"])
def test_the_page_has_the_tables_of_the_document(name, written, page):
    found = [[re.sub(r"[`*]", "", cell) for cell in row] for row in rows(part(written[0], name))]
    shown = [[cell.replace("\u00a0", " ") for cell in row] for row in page.rows]
    assert found
    for row in found:
        assert [re.sub(r" \((n = .*?)\)", r"\1", cell) for cell in row] in shown


def test_wide_things_scroll_in_boxes_of_their_own(text, page):
    assert text.count('<div class="scroll" tabindex="0"><table>') == text.count("<table>") == 4
    assert text.count('<div class="wide" tabindex="0"><svg ') == 4


def test_each_number_leads_to_the_files_behind_it(page):
    links = {link["href"]: link["title"] for link in page.of("a") if not link["href"].startswith("#")}
    assert links == {f"r/{run.key}.json": f"{run.metrics['test_accuracy']:.2f}" for run in FULL}


def test_the_contents_lead_to_every_section_and_others_lead_to_tables(page):
    places = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    inner = [link["href"][1:] for link in page.of("a") if link["href"].startswith("#")]
    assert inner == ["t-a-made-table", "fast-and-paper-presets", "other-runs"]
    assert {*inner, "T"} <= places


def test_what_somebody_wrote_is_on_the_page_and_what_concerns_the_document_is_not():
    page = read(result(), edit=lambda text: text.replace("## Fast", "Why **B** misses: see `T`.\n\n## Fast"))
    assert "Why B misses: see T." in page.words
    assert "between comments" not in page.words and "Every run" not in page.words
    assert "Run it: torchpfc run made --rows 'T.*'." in page.words


def test_figures_stand_where_the_document_has_them():
    place = "<!-- figure T-numbers -->\n<!-- end -->\n\n## T\n\n<!-- table T -->\n<!-- end -->\n"
    _, text = write(*RUNS, before=place)
    assert text.index("<svg ") < text.index("<table>") and "<img" not in text
    assert "The paper's numbers and ours" in Page(text).words
    other = read(result(), edit=lambda text: f"{text}\n![A photograph](figures/paper/gone.svg)\n")
    assert other.of("img") == [{"alt": "A photograph", "src": "figures/paper/gone.svg"}]


def test_without_results_every_row_says_not_run():
    page = read()
    assert [row[-1] for row in page.rows if row[0] != "row"] == ["not run"] * 4
    assert "No row was run under both presets yet." in page.words
    assert "None." in page.words
    assert page.of("svg") == []


def test_text_is_escaped():
    odd = Table("T", "bare & plain", (Row("A", Made()),), cited=(Cited("B", "other <work", "19 to 20"),))
    page = read(result(), of=[experiment(odd)])
    assert ["B", "other <work", "19 to 20", "cited"] in page.rows
    assert "T: bare & plain" in page.words


def test_what_else_was_measured_stands_below_the_table_once():
    run = result(metrics={"test_accuracy": 90.0, "epochs": 7.0})
    document, text = write(run)
    assert CAPTION not in document and text.count(CAPTION) == 1
    assert [row for row in Page(text).rows if row[0] in ("epochs", "runs")] == [["epochs", "7"], ["runs", "seed 0"]]
    document, text = write(run, of=[experiment(Table("T", "bare", (Row("A", Made()),)))])
    assert document.count(CAPTION) == text.count(CAPTION) == 1
    assert CAPTION not in write(result())[1]


def test_what_can_be_heard_has_players():
    page = read(result(sounds={"estimate": "SUQz", "vocals": "SUQ0"}), result(seed=1))
    first, second = page.of("audio")
    assert (first["aria-label"], first["src"]) == ("MNIST, 300 parts", "data:audio/mpeg;base64,SUQz")
    assert (second["aria-label"], second["src"]) == ("vocals", "data:audio/mpeg;base64,SUQ0")
    assert read(result()).of("audio") == []
