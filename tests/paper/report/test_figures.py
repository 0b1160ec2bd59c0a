from dataclasses import replace

import pytest

from tests.paper.report.charts.drawing import find, words
from tests.paper.report.charts.test_lines import lines_of
from tests.paper.report.made import ROWS, TABLE, Made, compare, drawn, experiment, faster, png, result
from torchpfc.checkpoint import CorruptFileError
from torchpfc.paper.registry import Row, Table
from torchpfc.paper.report.figures import draw_figures

CURVES = {"valid_accuracy": [50.0, 90.0, 95.0], "valid_loss": [0.5, 0.2, 0.1], "train_loss": [0.4, 0.1, 0.05]}


def test_nothing_is_drawn_before_anything_was_run():
    assert set(drawn().values()) == {None}
    assert {"T-numbers", "T-epochs", "T-losses", "T-iterations", "T-weights", "T-class-to-image"} <= set(drawn())


def test_every_figure_has_a_caption_a_title_and_a_name_of_its_own():
    figures = draw_figures(compare().sheets)
    assert len({figure.name for figure in figures}) == len({figure.title for figure in figures}) == len(figures)
    assert all(figure.caption.endswith(".") and figure.title.startswith("A made table: ") for figure in figures)


def test_the_paper_s_numbers_stand_beside_ours():
    svg = drawn(result(), result(faster(Made())))["T-numbers"]
    assert len(find(svg, "line", "mark")) == 1 + 3  # one in the legend, one for each number of the paper
    assert {"MNIST", "CIFAR-10", "300 parts", "2000 parts", "paper preset", "fast preset"} <= set(words(svg))


def test_a_table_without_numbers_of_the_paper_has_no_such_figure():
    bare = replace(TABLE, rows=tuple(replace(row, paper=None) for row in ROWS))
    assert drawn(result(), of=experiment(bare))["T-numbers"] is None


def test_many_rows_that_the_paper_has_not_stand_side_by_side_once_they_differ():
    many = Table("M", "many", tuple(Row(f"{i}", Made(num_basis=i)) for i in range(1, 9)))
    runs = [result(row.config, 90.0) for row in many.rows[:3]]
    assert drawn(*runs, of=experiment(many))["M-numbers"] is None
    svg = drawn(*runs, result(many.rows[3].config, 91.0), of=experiment(many))["M-numbers"]
    assert {"1 parts", "4 parts"} <= set(words(svg)) and not {"5 parts", "the paper's number"} & set(words(svg))
    assert len(find(svg, "circle", "dot")) == 1 + 4 and not find(svg, "line", "mark")
    few = replace(many, rows=many.rows[:4])
    assert drawn(*runs, result(many.rows[3].config, 91.0), of=experiment(few))["M-numbers"] is None


@pytest.mark.parametrize(("metric", "ranges"), [("steps", 1), ("success", 0)])
def test_a_share_of_the_runs_has_no_range(metric, ranges):
    table = replace(TABLE, metric=metric)
    runs = [result(Made(), seed=seed, metrics={metric: float(seed)}) for seed in (0, 1)]
    assert len(find(drawn(*runs, of=experiment(table))["T-numbers"], "line", "range")) == ranges


def test_shares_of_the_runs_and_their_marks_are_in_percent():
    rows = (Row("a", Made(), 0.9, 0.1), Row("b", Made(num_basis=7), 0.3, 0.0))
    table = Table("T", "Shares", rows, "success")
    runs = [result(row.config, seed=seed, metrics={"success": float(seed)}) for row in rows for seed in (0, 1)]
    svg = drawn(*runs, of=experiment(table))["T-numbers"]
    assert "success in %" in words(svg) and {"40", "60", "80"} <= set(words(svg))
    assert "0.5" not in words(svg)
    assert "<title>paper preset: 50.00</title>" in svg


def test_more_curves_than_a_legend_can_name_are_not_drawn():
    for count, some in ((16, True), (17, False)):
        many = Table("M", "many", tuple(Row(f"{i}", Made(num_basis=i)) for i in range(count)))
        runs = [result(row.config, curves=CURVES) for row in many.rows]
        assert (drawn(*runs, of=experiment(many))["M-epochs"] is not None) == some


def test_curves_of_several_runs_become_a_line_in_a_band():
    longer = CURVES | {"valid_accuracy": [60.0, 92.0, 95.0, 96.0]}
    svg = drawn(result(curves=CURVES), result(seed=1, curves=longer))["T-epochs"]
    assert [len(line) for line in lines_of(svg)] == [4]
    assert len(find(svg, "polygon", "band")) == 1
    assert "epoch" in words(svg)


@pytest.mark.parametrize(("other", "shared"), [("mnist", True), ("cifar10", False)])
def test_panels_of_the_same_data_have_the_same_axes(other, shared):
    configs = [Made(solver=f"{i}") for i in range(4)] + [Made(other, solver=f"{i}") for i in range(4, 8)]
    rows = [
        Row(f"{i}", config, what=config.solver, under="first" if i < 4 else "second")
        for i, config in enumerate(configs)
    ]
    high, low = ({"valid_accuracy": [start, start + 20.0]} for start in (60.0, 40.0))
    runs = [result(row.config, curves=high if i < 4 else low) for i, row in enumerate(rows)]
    lines = lines_of(drawn(*runs, of=experiment(Table("P", "panels", tuple(rows))))["P-epochs"])
    rises = [begin[1] - end[1] for begin, end in lines]
    assert len(lines) == 8 and (max(rises) < 120) == shared


def test_epochs_of_several_tasks_are_not_drawn_over_one_another():
    for phases, some in (([3.0], True), ([1.0, 2.0], False)):
        figures = drawn(result(curves=CURVES | {"epochs_of_phase": phases}))
        assert (figures["T-epochs"] is not None) == (figures["T-losses"] is not None) == some


def test_presets_have_panels_of_their_own_where_no_setting_parts_the_rows():
    slow = [result(Made(num_basis=size), curves=CURVES) for size in (300, 2000)]
    fast = [result(faster(Made(num_basis=2000)), seed=seed, curves=CURVES) for seed in range(2)]
    svg = drawn(*slow, *fast)["T-epochs"]
    assert {"paper preset", "fast preset"} <= set(words(svg))
    assert len(lines_of(svg)) == 2 + 1
    alone = drawn(*slow)["T-epochs"]
    assert "paper preset" not in words(alone) and len(lines_of(alone)) == 2
    later = drawn(slow[1], result(faster(Made()), curves=CURVES), *fast)["T-epochs"]  # the second row in both panels
    assert words(later).index("MNIST, 300 parts") < words(later).index("MNIST, 2000 parts")
    without = [replace(run, curves={}) for run in fast[:1]]  # as many runs, so the paper's preset decides
    assert drawn(*slow, *without)["T-epochs"] == alone


def test_the_preset_that_decides_is_drawn_where_settings_part_the_rows():
    many = Table("M", "many", tuple(Row(f"{i}", Made(dataset=d, num_basis=i)) for d in ("mnist", "cifar10") for i in range(1, 5)))  # fmt: skip  # noqa: E501
    runs = [result(row.config, curves=CURVES) for row in many.rows]
    longer = CURVES | {"valid_accuracy": [1.0, 2.0, 3.0, 4.0]}
    runs += [result(faster(many.rows[0].config), seed=seed, curves=longer) for seed in range(2)]
    svg = drawn(*runs, of=experiment(many))["M-epochs"]
    assert {"MNIST", "CIFAR-10"} <= set(words(svg)) and "fast preset" not in words(svg)
    assert sorted(len(line) for line in lines_of(svg)) == [3] * 7 + [4]
    no_curve = [*runs[:-2], *(replace(run, curves={}) for run in runs[-2:])]
    assert len(lines_of(drawn(*no_curve, of=experiment(many))["M-epochs"])) == 7


def test_the_training_loss_lies_behind_the_validation_loss():
    svg = drawn(result(curves=CURVES))["T-losses"]
    assert [each.get("class") for each in find(svg, "g") if each.get("class", "").startswith("s")][1:] == [
        "s0 faint",
        "s0",
    ]
    assert len(lines_of(drawn(result(curves={"valid_loss": [0.5, 0.2]}))["T-losses"])) == 1


def test_accuracy_is_drawn_over_iterations():
    curves = {"iterations": [1, 10, 100], "accuracy_at_iterations": [20.0, 80.0, 95.0]}
    svg = drawn(result(curves=curves))["T-iterations"]
    ((a, _), (b, _), (c, _)) = lines_of(svg)[0]
    assert b - a == pytest.approx(c - b, abs=0.2)
    assert {"1", "10", "100", "iterations"} <= set(words(svg))


@pytest.mark.parametrize("curves", [{}, {"iterations": [1, 2]}])
def test_curves_that_do_not_fit_together_name_their_file(curves):
    broken = result(curves={"accuracy_at_iterations": [20.0], **curves})
    with pytest.raises(CorruptFileError, match=rf"made/{broken.key}\.json must hold as many iterations as values"):
        drawn(broken)


def test_rows_with_equal_words_have_equal_colours_in_all_panels():
    many = Table("T", "many", tuple(Row(f"{d}{n}", Made(d, n)) for d in ("mnist", "cifar10") for n in range(1, 5)))
    runs = [result(row.config, curves=CURVES) for row in many.rows]
    svg = drawn(*runs, of=experiment(many))["T-epochs"]
    styles = [each.get("class") for each in find(svg, "g") if len(each) > 1]
    assert styles == ["s0", "s1", "s2", "s3"] * 2
    assert {"MNIST", "CIFAR-10", "1 parts", "4 parts"} <= set(words(svg))


LAMBDAS = Table("L", "lambda", tuple(Row(f"L{i}", Made(prediction_weight=i / 10)) for i in (1, 9, 5)))


def test_images_are_ordered_by_lambda_and_named_by_it():
    runs = [result(row.config, value=90.0 + i, images={"weights": png()}) for i, row in enumerate(LAMBDAS.rows)]
    figures = drawn(*runs, of=experiment(LAMBDAS))
    assert words(figures["L-weights"]) == ["λ = 0.9, 91.00 %", "λ = 0.5, 92.00 %", "λ = 0.1, 90.00 %"]
    assert figures["L-completion"] is None


def test_images_of_different_settings_say_which():
    first = LAMBDAS.rows[0].config
    other = replace(first, num_basis=7)
    table = replace(LAMBDAS, metric="auroc", rows=(*LAMBDAS.rows, Row("other", other)))
    runs = [result(config, metrics={"auroc": 0.5}, images={"completion": png()}) for config in (first, other)]
    svg = drawn(*runs, of=experiment(table))["L-completion"]
    assert words(svg) == ["λ = 0.1, 300 parts", "λ = 0.1, 7 parts"]


def test_an_image_is_that_of_the_first_run_which_has_one():
    row = LAMBDAS.rows[0]
    runs = [result(row.config, seed=0), result(row.config, 91.5, seed=1, images={"weights": png()})]
    assert words(drawn(*runs, of=experiment(LAMBDAS))["L-weights"]) == ["λ = 0.1, 91.50 %"]


@pytest.mark.parametrize("name", ["weights", "spectrograms", "stacked_weights"])
def test_an_image_that_cannot_be_drawn_names_its_file(name):
    broken = result(LAMBDAS.rows[0].config, images={name: "no image"})
    with pytest.raises(CorruptFileError, match=rf"made/{broken.key}\.json must hold images that can be drawn"):
        drawn(broken, of=experiment(replace(LAMBDAS, over="prediction_weight")))


def test_curves_stand_with_the_first_table_that_asks_for_a_run():
    second = Table("U", "again", (ROWS[0], Row("new", Made(num_basis=9))), metric="auroc")
    third = Table("V", "again", ROWS[:1], metric="fpr")
    runs = [result(row.config, metrics={"auroc": 0.5, "test_accuracy": 90.0}, curves=CURVES) for row in second.rows]
    figures = drawn(*runs, of=experiment(TABLE, second, third))
    assert len(lines_of(figures["T-epochs"])) == 1
    assert len(lines_of(figures["U-epochs"])) == 1
    assert figures["V-epochs"] is None
    assert "V-numbers" in figures


def test_a_figure_of_some_rows_follows_the_verdicts_of_the_whole_table():
    sweep = Table("S", "solvers", (Row("1", Made(solver="a")), Row("2", Made(solver="b"))))
    first = Table("T", "first", sweep.rows[:1])
    runs = [result(Made(solver="b"), curves=CURVES), *(result(Made(solver="quick"), seed=i) for i in range(3))]
    assert drawn(*runs, of=experiment(first, sweep))["S-epochs"] is not None


def test_errors_are_drawn_over_batches_before_those_of_training():
    curves = {"valid_mse": [0.2, 0.1], "train_loss": [0.3, 0.2], "steps": [100.0, 200.0]}
    svg = drawn(result(curves=curves))["T-errors"]
    assert len(lines_of(svg)) == 2 and {"batches", "mean squared error"} <= set(words(svg))
    assert drawn(result())["T-errors"] is None


def test_pictures_of_separated_songs_stand_row_by_row():
    runs = [result(), result(seed=1, images={"spectrograms": png()}), result(ROWS[1].config, images={"columns": png()})]
    figures = drawn(*runs)
    assert "MNIST, 300 parts" in words(figures["T-spectrograms"]) and len(find(figures["T-spectrograms"], "image")) == 1
    assert "MNIST, 2000 parts" in words(figures["T-columns"])
    assert drawn(result())["T-columns"] is None
