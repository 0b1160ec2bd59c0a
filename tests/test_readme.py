"""The numbers in the README are those of the committed results."""

import json
import re
from pathlib import Path

import pytest

from torchpfc.paper import experiments
from torchpfc.paper.report.compare import fill
from torchpfc.paper.results import load_results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
ROWS = re.findall(r"^\|[^|]+\| `([\w.]+)` \| ([^|]+) \| ([\d.]+)", README, re.MULTILINE)


@pytest.fixture(scope="module")
def lines():
    results = load_results(ROOT / "docs" / "results")
    sheets = (fill(experiment, table, results) for experiment in experiments().values() for table in experiment.tables)
    return {line.row.id: line for sheet in sheets for line in sheet.lines}


@pytest.mark.parametrize(("row", "ours", "paper"), ROWS, ids=[row for row, *_ in ROWS])
def test_accuracies(row, ours, paper, lines):
    sample = lines[row].deciding
    spread = "" if sample.deviation is None else f" ± {sample.deviation:.2f}"
    assert ours == f"{sample.mean:.2f}{spread}, n = {len(sample.results)}"
    ours_only = {"T3.PARTS": "T3.SLW", "T3.PARTS.1500": "T3.SLW", "T4.PARTS.ORD": "T4.SLW.ORD"}
    assert float(paper) == lines[ours_only.get(row, row)].row.paper


def test_times_of_a_step():
    shapes = json.loads((ROOT / "benchmarks/results/gpu.json").read_text("utf-8"))["shapes"]
    (times,) = (s["median_seconds"] for s in shapes if (s["features"], s["num_basis"]) == (784, 300))
    found = re.search(r"takes ([\d.]+) ms on an H200,.*?takes ([\d.]+) ms, and ([\d.]+) ms", " ".join(README.split()))
    wanted = (1e3 * times[name] for name in ("fast", "textbook", "textbook_captured"))
    assert found.groups() == tuple(f"{ms:.3g}" if ms > 1 else f"{ms:.2f}" for ms in wanted)


def test_there_are_numbers_to_check():
    assert len(ROWS) == README.count("| `T")
