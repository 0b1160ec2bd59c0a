from dataclasses import replace

from tests.paper.report.made import EXPERIMENT, ROWS, TABLE, Made, by_name, experiment, result
from torchpfc.paper.registry import Ratio, Row, Table
from torchpfc.paper.report.compare import Comparison, fill
from torchpfc.paper.report.sentences import describe_ratios, describe_sources, list_machines, remarks, tally, time_spent

CPU = {"gpu": None, "cpu": "a CPU"}


def test_a_tally_says_only_what_there_is_to_say():
    compared = experiment(Table("T", "compared", ROWS[:3]))
    assert (
        tally(Comparison(by_name(compared), [])) == "Of 3 rows of the paper with a number, 0 met, 0 missed, 3 not run."
    )


def test_a_row_of_ours_is_counted_apart_from_those_of_the_paper():
    rows = (*ROWS, Row("B.ours", Made(num_basis=7), paper=97.0, slack=0.2, ours=True))
    runs = [result(ROWS[0].config), result(rows[-1].config, 97.1)]
    assert tally(Comparison(by_name(experiment(Table("T", "compared", rows))), runs)).startswith(
        "Of 3 rows of the paper with a number, 1 met, 0 missed, 2 not run. "
        "Of 1 row with settings of ours for such a number, 1 met, 0 missed, 0 not run. "
        "Of 1 row without one, 0 run."
    )


def test_a_table_that_was_not_run_has_no_sources():
    assert describe_sources(fill(EXPERIMENT, TABLE, []), {}) == "Test accuracy in %. Not run yet."


def test_a_share_of_the_runs_is_called_so():
    runs = [result(Made(), seed=seed, metrics={"success": float(seed)}) for seed in (0, 1)]
    found = describe_sources(fill(EXPERIMENT, replace(TABLE, metric="success"), runs), {})
    assert found.startswith("Success: share of n runs. 2 runs")


def test_two_rows_are_divided_seed_by_seed():
    rows = Row("A", Made()), Row("B", Made(num_basis=7))
    table = Table("T", "errors", rows, "test_mse", ratios=(Ratio("A", "B", 0.683),))

    def told(errors, others):
        runs = [result(rows[0].config, seed=seed, metrics={"test_mse": value}) for seed, value in errors.items()]
        runs += [result(rows[1].config, seed=seed, metrics={"test_mse": value}) for seed, value in others.items()]
        return describe_ratios(fill(experiment(table), table, runs))

    assert told({0: 1.0}, {}) == []
    assert told({0: 1.0, 1: 3.0, 2: 8.0}, {0: 2.0, 1: 4.0}) == [
        "The mean of A is 1.333 times that of B (seed by seed: 0.500, 0.750); the paper's is 0.683 times."
    ]
    (sentence,) = told({0: 1.0}, {1: 2.0})
    assert "seed by seed: none in common" in sentence
    assert sentence in describe_sources(
        fill(
            experiment(table),
            table,
            [
                result(rows[0].config, metrics={"test_mse": 1.0}),
                result(rows[1].config, seed=1, metrics={"test_mse": 2.0}),
            ],
        ),
        {},
    )


def test_time_is_added_up_by_what_was_computed_on():
    runs = [
        result(seconds=30.0, hardware=CPU),
        result(seconds=60.0),
        result(seconds=90.0),
        result(seconds=6000.0, hardware={"gpu": "B GPU"}),
    ]
    assert time_spent(runs) == "100 GPU minutes (B GPU), 2.5 GPU minutes (A GPU), 0.5 CPU minutes (a CPU)"
    assert time_spent([]) == ""


def test_machines_are_told_apart_by_name_version_and_precision():
    runs = [
        result(hardware=CPU),
        result(),
        result(versions={"torch": "2.13"}),
        result(hardware={"gpu": "A GPU", "precision": "tf32"}),
        result(seconds=12.0),
    ]
    assert list_machines(runs) == [
        ["A GPU", "2.13", "", "1", "1.0"],
        ["A GPU", "2.11", "tf32", "1", "1.0"],
        ["A GPU", "2.11", "", "2", "1.2"],
        ["a CPU", "2.11", "", "1", "1.0"],
    ]


def test_a_result_that_says_nothing_about_itself_is_counted():
    assert list_machines([result(versions={}, hardware={})]) == [["unknown", "unknown", "", "1", "1.0"]]


def test_versions_are_named_once():
    runs = [result(), result(seed=1), result(seed=2, versions={"torch": "2.10"})]
    assert "3 runs, torch 2.10, 2.11, 3.0 GPU" in describe_sources(fill(EXPERIMENT, TABLE, runs), {})


def test_data_that_is_known_gets_its_remark_once():
    runs = [result(data={"cifar10": "abc", "mnist": "def"}), result(data={"cifar10": "abc"}), result()]
    assert remarks(runs, {"abc": "JPEG pixels."}) == ["CIFAR-10: JPEG pixels."]
    assert remarks(runs, {"abc": ""}) == remarks(runs, {}) == []
