import re
from html.parser import HTMLParser

import pytest

from tests.paper.report.made import EXPERIMENT, ROWS, TABLE, Made, by_name, experiment, faster, png, result
from tests.paper.report.test_markdown import RUNS
from torchpfc.paper.registry import Row, Table
from torchpfc.paper.report.compare import Comparison
from torchpfc.paper.report.figures import draw_figures
from torchpfc.paper.report.page import write_page

VOID = {"meta", "img"}


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


def write(*results, of=(EXPERIMENT,), known_data=None):
    experiments = by_name(*of)
    comparison = Comparison(experiments, results)
    return write_page(comparison, draw_figures(experiments, results), known_data or {}, lambda run: f"r/{run.key}.json")


CURVES = {"valid_accuracy": [50.0, 90.0], "valid_loss": [0.2, 0.1]}
FULL = [
    *RUNS,
    result(ROWS[2].config, 53.0, curves=CURVES, images={"weights": png()}, data={"cifar10": "abc"}),
    result(Made(num_basis=7), 80.0),
]


@pytest.fixture(scope="module")
def text():
    return write(*FULL, known_data={"abc": "JPEG <pixels>."})


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_needs_nothing_else(text, page):
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed"})
    assert not re.search(r"https?:|@import|url\(", text)
    assert all(image["href"].startswith("data:image/png;base64,") for image in page.of("image"))


def test_the_page_speaks_to_everyone(text, page):
    names = [tag for tag, _ in page.tags]
    assert names.count("table") == names.count("caption") == 4
    assert names.count("h1") == 1
    assert all(figure["aria-label"] for figure in page.of("svg") if figure.get("class") == "chart")
    assert names.count("figure") == names.count("figcaption") == 4
    assert 'lang="en"' in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_every_gap_is_filled_and_text_is_escaped(text, page):
    assert "$" not in text
    assert "JPEG <pixels>." in page.words


def test_each_number_leads_to_the_files_behind_it(page):
    links = {link["href"]: link["title"] for link in page.of("a") if not link["href"].startswith("#")}
    assert links == {f"r/{run.key}.json": f"{run.metrics['test_accuracy']:.2f}" for run in FULL}


def test_a_row_has_the_paper_s_number_ours_and_the_verdict(page):
    assert [
        "MNIST, 300 partsA",
        "96.83≥ 96.63",
        "96.60 ± 0.10n = 3, seeds 0, 1, 2",
        "97.05 ± 0.07n = 2 of 3, seeds 0, 1",
        "missed−0.23fast preset: met",
    ] in page.rows
    assert ["CIFAR-10, 300 partsC", "53.25≥ 52.25", "53.00n = 1, seed 0", "", "met−0.25"] in page.rows
    assert ["CIFAR-10, 2000 partsD", "", "51.00n = 1, seed 0", "", ""] in page.rows


def test_the_page_counts_rows(page):
    facts = re.findall(r"rows? (met|missed|not run): \D*(\d+)", page.words)
    assert facts == [("met", "1"), ("missed", "2"), ("not run", "0")]
    assert "1 met, 2 missed, 1 run" in page.words


def test_the_page_names_machines_versions_and_minutes(page):
    assert ["A GPU", "2.11", "", "9", "9.0"] in page.rows
    assert "8 runs, torch 2.11, 8.0 GPU minutes (A GPU)." in page.words


def test_the_page_compares_presets_and_lists_other_runs(page):
    assert [
        "A",
        "96.60 ± 0.10n = 3, seeds 0, 1, 2",
        "97.05 ± 0.07n = 2 of 3, seeds 0, 1",
        "+0.45",
        "0.15",
        "0.30",
        "no",
    ] in (page.rows)
    assert "They agree on 0 of 1 row." in page.words
    assert ["7 partsmade", "test accuracy in % 80.00n = 1, seed 0"] in page.rows


def test_presets_that_agree_say_yes():
    page = Page(write(result(), result(faster(Made()))))
    assert page.rows[-1][-1] == "yes"
    assert "They agree on 1 of 1 row." in page.words


def test_rows_of_one_data_set_stand_together(page, text):
    section = text[text.index('<section id="T">') :]
    assert section[: section.index("</table>")].count("<tbody>") == 2


def test_the_contents_lead_to_every_table(page):
    targets = {section.get("id") for section in page.of("section")}
    inner = {link["href"][1:] for link in page.of("a") if link["href"].startswith("#")}
    assert inner == {"T"} <= targets


def test_without_results_every_row_says_not_run():
    page = Page(write())
    assert [row[-1] for row in page.rows if len(row) > 1 and row[0] != "row"] == ["not run"] * 4
    assert "Nothing was run yet." in page.words
    assert "No row was run under both presets yet." in page.words
    assert "None." in page.words
    assert page.of("figure") == []


def test_a_preset_that_changes_nothing_says_so():
    idle = experiment(TABLE, presets={"paper": lambda c: c, "fast": lambda c: faster(c) if c == Made() else c})
    page = Page(write(result(faster(Made())), of=[idle]))
    assert ["MNIST, 2000 partsB", "97.00≥ 96.80", "the same", "not run"] in page.rows


def test_a_table_without_numbers_of_the_paper_has_no_column_for_them():
    bare = Table("T", "bare & plain", (Row("A", Made()), Row("B", Made(num_basis=2))))
    page = Page(write(result(), of=[experiment(bare)]))
    assert ["row", "paper preset", "verdict"] in page.rows
    assert "bare & plain" in page.words


def test_what_else_was_measured_is_folded_where_the_paper_has_numbers():
    run = result(metrics={"test_accuracy": 90.0, "epochs": 7.0})
    compared = Page(write(run))
    assert compared.rows[-2:] == [["epochs", "7"], ["runs", "seed 0"]]
    assert compared.of("a")[-1] == {"href": f"r/{run.key}.json"}
    assert compared.of("details") == [{}]
    bare = Table("T", "bare", (Row("A", Made()),))
    assert Page(write(run, of=[experiment(bare)])).of("details") == [{"open": ""}]
    assert Page(write(result())).of("details") == []


def test_what_can_be_heard_has_players():
    page = Page(write(result(sounds={"estimate": "SUQz", "vocals": "SUQ0"}), result(seed=1)))
    first, second = page.of("audio")
    assert (first["aria-label"], first["src"]) == ("MNIST, 300 parts", "data:audio/mpeg;base64,SUQz")
    assert (second["aria-label"], second["src"]) == ("vocals", "data:audio/mpeg;base64,SUQ0")
    assert Page(write(result())).of("audio") == []
