import json
from urllib.parse import unquote

import pytest

from tests.paper.report.charts.drawing import SVG
from tests.paper.report.made import EXPERIMENT, Made, by_name, png, result
from tests.paper.report.test_page import Page
from torchpfc.checkpoint import CorruptFileError
from torchpfc.paper import registry
from torchpfc.paper.report import make_report

MADE = by_name(EXPERIMENT)


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "all results"
    for seed in range(2):
        result(seed=seed, curves={"valid_accuracy": [1.0, 2.0]}, images={"weights": png()}).save(folder)
    return folder


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_report_is_a_document_a_page_and_figures(results, tmp_path):
    out = tmp_path / "docs" / "made"
    written = make_report(results, out, experiments=MADE)
    names = ["figures/paper/T-epochs.svg", "figures/paper/T-numbers.svg", "figures/paper/T-weights.svg"]
    assert [path.relative_to(out).as_posix() for path in written] == [*names, "paper.md", "report.html"]
    assert sorted(files(out)) == [*names, "paper.md", "report.html"]
    assert all(SVG[1:-1] in files(out)[name].decode() for name in names)


def test_links_lead_from_the_page_to_the_files(results, tmp_path):
    out = tmp_path / "docs" / "made"
    make_report(results, out, experiments=MADE)
    links = [link["href"] for link in Page((out / "report.html").read_text("utf-8")).of("a")]
    found = [out / unquote(link) for link in links if not link.startswith("#")]
    assert [json.loads(path.read_text("utf-8"))["seed"] for path in found] == [0, 1]


def test_the_same_results_give_the_same_bytes(results, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    make_report(results, first, experiments=MADE)
    make_report(results, second, experiments=MADE)
    assert files(first) == files(second)
    assert make_report(results, first, experiments=MADE) == []


def test_checking_writes_nothing_and_names_what_would_change(results, tmp_path):
    out = tmp_path / "docs"
    assert len(make_report(results, out, experiments=MADE, check=True)) == 5
    assert not out.exists()
    make_report(results, out, experiments=MADE)
    assert make_report(results, out, experiments=MADE, check=True) == []
    (out / "paper.md").write_text((out / "paper.md").read_text("utf-8").replace("96.90", "99.90"), encoding="utf-8")
    (out / "figures" / "paper" / "T-epochs.svg").unlink()
    before = files(out)
    changed = make_report(results, out, experiments=MADE, check=True)
    assert [path.name for path in changed] == ["T-epochs.svg", "paper.md"]
    assert files(out) == before
    make_report(results, out, experiments=MADE)
    assert "99.90" not in (out / "paper.md").read_text("utf-8")


def test_a_figure_that_is_no_longer_drawn_is_removed(results, tmp_path):
    out = tmp_path / "docs"
    make_report(results, out, experiments=MADE)
    stale, other = out / "figures" / "paper" / "old.svg", out / "figures" / "old.svg"
    for path in (stale, other):
        path.write_text("<svg/>")
    assert make_report(results, out, experiments=MADE, check=True) == [stale]
    assert stale.exists()
    assert make_report(results, out, experiments=MADE) == [stale]
    assert not stale.exists()
    assert other.exists()


def test_sentences_in_the_document_are_kept(results, tmp_path):
    make_report(results, tmp_path, experiments=MADE)
    path = tmp_path / "paper.md"
    path.write_text(path.read_text("utf-8") + "\nWhat we think of it: ± λ.\n", encoding="utf-8")
    result(Made(num_basis=2000), 97.7).save(results)
    make_report(results, tmp_path, experiments=MADE)
    text = path.read_text("utf-8")
    assert "97.70" in text
    assert text.endswith("\nWhat we think of it: ± λ.\n")


def test_an_empty_folder_gives_a_report_in_which_nothing_was_run(tmp_path):
    (tmp_path / "results").mkdir()
    make_report(tmp_path / "results", tmp_path, experiments=MADE)
    assert sorted(files(tmp_path)) == ["paper.md", "report.html"]
    assert (tmp_path / "paper.md").read_text("utf-8").count("| not run |") == 4


def test_a_corrupt_file_is_named(results, tmp_path):
    broken = results / "made" / "0.json"
    broken.write_text("{")
    with pytest.raises(CorruptFileError, match=r"made/0\.json must hold JSON .*; delete it"):
        make_report(results, tmp_path / "docs", experiments=MADE)
    assert not (tmp_path / "docs").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"results must be a folder with result files, got '.*nowhere'"):
        make_report(tmp_path / "nowhere", tmp_path, experiments=MADE)


def test_the_registered_experiments_are_compared_unless_others_are_given(results, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "experiments", lambda: MADE)
    make_report(results, tmp_path)
    assert "<!-- table T -->" in (tmp_path / "paper.md").read_text("utf-8")


def test_remarks_on_data_reach_the_report(tmp_path):
    result(data={"mnist": "abc"}).save(tmp_path / "results")
    make_report(tmp_path / "results", tmp_path, experiments=MADE, known_data={"abc": "Not the usual pixels."})
    assert "MNIST: Not the usual pixels." in (tmp_path / "paper.md").read_text("utf-8")
    assert "MNIST: Not the usual pixels." in (tmp_path / "report.html").read_text("utf-8")


def test_a_result_under_the_name_of_another_is_named(results, tmp_path):
    path = next(results.glob("*/*.json"))
    path.rename(path.with_name("0123456789abcdef.json"))
    with pytest.raises(CorruptFileError, match=r"0123456789abcdef\.json must hold the result that it is named after"):
        make_report(results, tmp_path / "out")
