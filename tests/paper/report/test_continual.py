from dataclasses import dataclass, replace

import pytest

from tests.paper.report.charts.drawing import find, words
from tests.paper.report.made import PRESETS, Made, compare, drawn, experiment, never, png, result
from torchpfc.checkpoint import CorruptFileError
from torchpfc.paper.registry import Cited, Experiment, Row, Table
from torchpfc.paper.report.compare import Comparison, Verdict, fill
from torchpfc.paper.report.continual import MOST_PICTURES
from torchpfc.paper.report.figures import draw_figures
from torchpfc.paper.report.markdown import write_document

MATRIX = [10.0, 20.0, 90.0, 30.0, 70.0, 80.0]
TABLE = Table("T", "Tasks", (Row("T.A", Made()), Row("T.B", Made(num_basis=5))))


@dataclass(frozen=True)
class Windowed(Made):
    width: int = 1
    sweep_speed: float = 0.5


def test_matrices_are_means_over_runs():
    runs = [result(seed=seed, curves={"accuracy_matrix": [a + seed for a in MATRIX]}) for seed in range(3)]
    svg = drawn(*runs, of=experiment(TABLE))["T-matrix"]
    assert {"T.A", "after 1", "after 2", "1", "2", "91", "31", "71", "81"} <= set(words(svg))
    assert "11" not in words(svg)  # of the untrained model
    assert len(find(svg, "rect", "cell")) == 4


def test_one_task_makes_no_matrix():
    assert drawn(result(curves={"accuracy_matrix": [10.0, 97.0]}), of=experiment(TABLE))["T-matrix"] is None


def test_a_matrix_of_another_size_names_its_file():
    broken = result(curves={"accuracy_matrix": [1.0, 2.0, 3.0]})
    with pytest.raises(CorruptFileError, match=rf"made/{broken.key}\.json must hold an accuracy matrix"):
        drawn(broken, of=experiment(TABLE))


def test_accuracy_is_drawn_after_each_task():
    svg = drawn(result(curves={"accuracy_after_task": [99.0, 80.0]}), of=experiment(TABLE))["T-tasks"]
    assert "tasks" in words(svg)


def test_a_sweep_has_widths_above_each_other_and_speeds_side_by_side():
    rows = tuple(Row(f"S.{w}.{s}", Windowed(width=w, sweep_speed=s)) for w in (5, 15) for s in (0.25, 0.5))
    of = Experiment("made", "something made", Windowed, never, PRESETS, (Table("S", "Sweep", rows),))
    runs = [
        result(row.config, metrics={"test_accuracy": 90.0 + i, "columns_used": 10.0 * i}) for i, row in enumerate(rows)
    ][:3]
    svg = drawn(*runs, of=of)["S-sweep"]
    assert {"5", "15", "0.25", "0.5", "90.00", "92.00", "20", "columns used"} <= set(words(svg))
    assert len(find(svg, "rect", "cell")) == 6  # of eight: one run is missing
    shared = replace(of, tables=(Table("T", "First", rows[:1]), replace(of.tables[0], metric="columns_used")))
    again = drawn(*runs, of=shared)["S-sweep"]
    assert len(find(again, "rect", "cell")) == 6 and "test accuracy in %" not in words(again)
    assert drawn(of=of)["S-sweep"] is None and drawn(result(), of=experiment(TABLE))["T-sweep"] is None


def test_pictures_are_named_by_their_rows():
    runs = [result(row.config, images={"window_film": png(), "weights_by_task": png()}) for row in TABLE.rows]
    figures = drawn(*runs, of=experiment(TABLE))
    assert words(figures["T-window-film"]) == words(figures["T-weights-by-task"]) == ["T.A", "T.B"]
    assert figures["T-parts-by-class"] is None
    with pytest.raises(CorruptFileError, match="must hold images that can be drawn"):
        drawn(result(images={"parts_by_class": "none"}), of=experiment(TABLE))


def test_too_many_pictures_are_left_out():
    rows = tuple(Row(f"S.{width}", Windowed(width=width)) for width in range(1, MOST_PICTURES + 2))
    of = Experiment("made", "something made", Windowed, never, PRESETS, (Table("S", "Many", rows),))
    runs = [result(row.config, images={"parts_by_class": png()}) for row in rows]
    assert drawn(*runs, of=of)["S-parts-by-class"] is None
    assert len(words(drawn(*runs[:-1], of=of)["S-parts-by-class"])) == MOST_PICTURES


METRICS = Table(
    "M",
    "Metrics of one run",
    (
        Row("M.BEFORE", Made(), 80.0, 2.0, metric="before_accuracy"),
        Row("M.AFTER", Made(), 92.0, metric="after_accuracy"),
    ),
    cited=(Cited("M.OTHER", "other <work>", "19 to 20"),),
)


def test_rows_may_compare_different_metrics_of_one_run():
    run = result(metrics={"before_accuracy": 79.0, "after_accuracy": 91.0}, images={"window_film": png()})
    before, after = fill(experiment(METRICS), METRICS, [run]).lines
    assert (before.verdict, after.verdict) == (Verdict.MET, Verdict.MISSED)
    less = replace(run, metrics={"after_accuracy": 93.0})
    assert fill(experiment(METRICS), METRICS, [less]).lines[0].deciding is None
    assert words(drawn(run, of=experiment(METRICS))["M-window-film"]) == ["M.BEFORE"]  # once


def test_cited_numbers_stand_below_the_rows_and_say_so():
    run = result(metrics={"before_accuracy": 79.0, "after_accuracy": 91.0})
    document = write_document(None, compare(run, of=[experiment(METRICS)]), [], {}, lambda _: "file")
    lines = [line for line in document.splitlines() if line.startswith("| `M.")]
    assert [line.split(" | ")[0] for line in lines] == ["| `M.BEFORE`", "| `M.AFTER`", "| `M.OTHER`"]
    assert lines[2] == "| `M.OTHER` | other <work> | 19 to 20 |  |  | cited |"
    assert "before accuracy in %" in lines[0] and len({line.count(" | ") for line in lines}) == 1


def test_every_figure_of_the_registered_experiments_has_a_name_of_its_own():
    from torchpfc.paper import experiments

    names = [figure.name for figure in draw_figures(Comparison(experiments(), []).sheets)]
    assert len(set(names)) == len(names) and {"T3-matrix", "SWEEP-sweep", "T5-weights-before-and-after"} <= set(names)
