from dataclasses import replace

import pytest

from tests.paper.report.charts.drawing import find, words
from tests.paper.report.charts.test_lines import lines_of
from tests.paper.report.made import ROWS, TABLE, Made, experiment, faster, png, result
from tests.paper.report.made import drawn as drawn_of

SWEEP = replace(TABLE, over="num_basis", metric="success", rows=tuple(replace(row, paper=None) for row in ROWS))
MACHINE = {
    "machine_reads": [0.0, 1.0, 2.0],
    "machine_predicts": [1.0, 2.0, 0.0],
    "machine_sources": [2.0, 0.0, 1.0],
    "machine_targets": [0.0, 1.0, 2.0],
    "machine_weights": [1.0, 0.5, 2.0],
}


def made(num_basis=300, seed=0, success=1.0, dataset="mnist", **others):
    metrics = {"success": success, "columns": 25.0, "mse": 1.5e-9}
    return result(Made(dataset, num_basis), seed=seed, metrics=metrics, **others)


def drawn(*results, table=SWEEP):
    return drawn_of(*results, of=experiment(table))


def test_a_metric_is_drawn_over_a_setting_for_each_kind_of_row():
    runs = [made(), made(seed=1, success=0.0), made(2000), made(dataset="cifar10"), made(2000, dataset="cifar10")]
    svg = drawn(*runs)["T-over"]
    assert {"MNIST", "CIFAR-10", "parts", "success in %", "50", "100"} <= set(words(svg))
    assert {"300", "2000"} <= set(words(svg))  # the sizes that were run, round numbers or not
    lines = lines_of(svg)
    assert [len(line) for line in lines] == [2, 2]
    assert lines[0][0][1] > lines[0][1][1]  # half of the runs with 300 parts succeeded: lower on the page
    assert not find(svg, "polygon", "band")  # a share has no range


def test_rows_in_words_are_called_so():
    in_words = tuple(replace(row, what=f"all of {row.config.dataset}", under="some") for row in SWEEP.rows)
    svg = drawn(made(), made(2000), table=replace(SWEEP, rows=in_words))["T-over"]
    assert "all of mnist" in words(svg) and "MNIST" not in words(svg)


def test_presets_have_lines_of_their_own():
    fast = [result(faster(Made(num_basis=size)), metrics={"success": 1.0}) for size in (300, 2000)]
    svg = drawn(made(), made(2000), *fast)["T-over"]
    assert {"MNIST, paper preset", "MNIST, fast preset"} <= set(words(svg))


def test_a_run_that_is_the_same_under_two_presets_is_on_both_lines():
    def faster_if_small(config):
        return faster(config) if config.num_basis < 2000 else config

    runs = [made(), result(faster(Made()), metrics={"success": 0.5}), made(2000)]
    made_so = experiment(SWEEP, presets={"paper": lambda config: config, "fast": faster_if_small})
    svg = drawn_of(*runs, of=made_so)["T-over"]
    paper, fast = lines_of(svg)
    assert paper[1] == fast[1] and paper[0] != fast[0]


def test_an_accuracy_has_a_band_and_a_single_size_no_line():
    table = replace(SWEEP, metric="test_accuracy")
    runs = [result(Made(num_basis=size), value=value, seed=seed)
            for size in (300, 2000) for seed, value in enumerate((90.0, 95.0))]  # fmt: skip
    assert len(find(drawn(*runs, table=table)["T-over"], "polygon", "band")) == 1
    assert drawn(*runs[:2], table=table)["T-over"] is None
    assert drawn(*runs, table=replace(table, over=""))["T-over"] is None


def test_the_machine_of_a_run_that_succeeded_is_drawn():
    failed = made(seed=0, success=0.0, curves={name: [0.0] for name in MACHINE})
    svg = drawn(failed, made(seed=1, curves=MACHINE))["T-machine"]
    assert len(find(svg, "path", "arrow")) == 3
    assert [each.text for each in find(svg, "title")] == [
        "reads 0, predicts 1", "reads 1, predicts 2", "reads 2, predicts 0",
    ]  # fmt: skip
    assert drawn(made())["T-machine"] is None


@pytest.mark.parametrize("name", ["stacked_weights", "factorization_before", "factorization_after", "sequences"])
def test_pictures_say_which_run_they_show(name):
    figure = f"T-{name.replace('_', '-')}"
    svg = drawn(made(2000, images={name: png()}), made(seed=1, images={name: png(5, 5)}))[figure]
    assert "300 parts, seed 1, MSE 1.5e-09" in words(svg)
    assert len(find(svg, "image")) == (2 if name == "stacked_weights" else 1)
    assert drawn(made())[figure] is None
    assert drawn(made(images={name: png()}), table=replace(SWEEP, over=""))[figure] is None


def test_a_failed_run_is_shown_as_such():
    images = {"stacked_weights": png(), "sequences": png(9, 3)}
    runs = [made(images=images), made(seed=2, success=0.0, images=images), made(2000, success=0.0, images=images)]
    svg = drawn(*runs)["T-failed"]
    assert words(svg) == ["300 parts, seed 2, MSE 1.5e-09"] * 2
    assert drawn(runs[0])["T-failed"] is None


def test_curves_over_batches_and_over_passes():
    curves = {"steps": [200.0, 400.0], "accuracy_at_steps": [50.0, 100.0]}
    curves |= {"passes": [41.0, 82.0], "prediction_mse": [1e-2, 1e-8]}
    figures = drawn(made(curves=curves))
    assert "batches" in words(figures["T-steps"]) and "passes" in words(figures["T-passes"])
    assert [len(line) for line in lines_of(figures["T-steps"])] == [2]
