"""From every number of the report to the files behind it, and back."""

import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.paper.report.made import EXPERIMENT, Made, by_name, faster, result
from torchpfc.paper.report import make_report
from torchpfc.paper.report.compare import Sample
from torchpfc.paper.report.markdown import CAPTION
from torchpfc.paper.report.words import deviation, name_metric, number
from torchpfc.paper.results import Result

DOCS = Path(__file__).parents[3] / "docs"
KINDS = ("paper.md", "report.html")

MEAN = re.compile(
    r"([^\s<>]+?(?:\u00a0%)?)(?:\u00a0±\u00a0(\S+?))?<br><small>n = (\d+)(?: of \d+)?, seeds? (.*?)</small>"
)
LINKS = {
    "paper.md": re.compile(r'\[(?P<seed>\d+)\]\((?P<path>\S+?)(?: "(?P<value>.*?)")?\)'),
    "report.html": re.compile(r'<a href="(?P<path>[^#"]+)"(?: title="(?P<value>.*?)")?>(?P<seed>\d+)</a>'),
}


@dataclass
class Linked:
    """A file that the report links to, as the report has it."""

    seed: int
    value: str | None
    result: Result


def follow(text, folder, kind):
    """Reads every file that some text links to; one that is not there fails."""
    return [
        Linked(int(link["seed"]), link["value"], Result.load(folder / unquote(link["path"])))
        for link in LINKS[kind].finditer(text)
    ]


def metrics_that_give(mean, spread, found):
    """The metrics whose numbers in the files are those that the report shows."""
    for metric in set.intersection(*(set(each.result.metrics) for each in found)):
        sample = Sample("", tuple(each.result for each in found), metric)
        values = [number(value, metric) for value in sample.values]
        words = number(statistics.fmean(sample.values), metric), deviation(sample)
        if values == [each.value for each in found] and words == (mean, f"± {spread}" if spread else None):
            yield metric


def check_means(folder, kind):
    """Every mean has a link for each of its runs, and is what their files say; how many there are."""
    lines = (folder / kind).read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if line.startswith(("|", "<td")))  # cells alone, no prose
    means = MEAN.findall(text)
    assert len(means) == len(re.findall(r"\bn = \d", text))  # none without its links
    for mean, spread, n, links in means:
        found = follow(links, folder, kind)
        assert len(found) == int(n)
        assert [each.seed for each in found] == [each.result.seed for each in found]
        assert list(metrics_that_give(mean.replace("\u00a0", " "), spread, found)), (mean, links)
    return len(means)


def further(text):
    """Tables of further measurements, as columns: first the names, then what was found, last the runs."""
    for table in re.findall(rf"{re.escape(CAPTION)}\n\n((?:\|.*\n)+)", text):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        rows = [lines[0], *lines[2:]]
        by_row = rows[0][-1] == "runs"
        yield rows if by_row else [list(column) for column in zip(*rows, strict=True)]


@pytest.fixture
def made(tmp_path):
    """A report on results that were made up, in a folder whose name needs quoting."""
    runs = [result(value=96.5 + seed / 10, seed=seed) for seed in range(3)]
    runs += [result(faster(Made()), metrics={"test_accuracy": 97.25, "epochs": 7.0, "loss": 0.125})]
    runs += [result(Made(num_basis=7), 80.0), result(name="unknown", metrics={"loss": 0.5})]
    for run in runs:
        run.save(tmp_path / "all results")
    make_report(tmp_path / "all results", tmp_path / "docs", experiments=by_name(EXPERIMENT))
    return tmp_path / "docs"


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_leads_to_files_that_say_so(made, kind):
    assert check_means(made, kind) == 6  # two in the table, the same two as presets, two of other runs


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_says_something_else_is_noticed(made, kind):
    path = next((made.parent / "all results" / "unknown").glob("*.json"))
    path.write_text(path.read_text("utf-8").replace('"loss": 0.5', '"loss": 0.75'), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"0\.5000"):
        check_means(made, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_the_documentation_leads_to_files_that_say_so(kind):
    assert check_means(DOCS, kind) > 0


def at_once(run):
    """What stands beside the time of a step."""
    return {"models_at_once": run.hardware["stack"]} if "milliseconds_per_step" in run.metrics else {}


def test_further_measurements_of_the_documentation_are_those_of_their_runs():
    checked = 0
    for names, *columns in further((DOCS / "paper.md").read_text("utf-8")):
        for column in columns:
            runs = [each.result.metrics | at_once(each.result) for each in follow(column[-1], DOCS, "paper.md")]
            metrics = {name_metric(metric): metric for run in runs for metric in run}
            for name, shown in zip(names[1:-1], column[1:-1], strict=True):
                values = [run[metrics[name]] for run in runs if metrics.get(name) in run]
                assert shown == (number(statistics.fmean(values), metrics[name]) if values else ""), (column[0], name)
                checked += 1
    assert checked > 0
