from dataclasses import replace

from tests.paper.report.made import EXPERIMENT, ROWS, TABLE, Made, by_name, experiment, faster, result
from torchpfc.paper.registry import Ratio, Row, Table
from torchpfc.paper.report.compare import Comparison, fill
from torchpfc.paper.report.sentences import describe_ratios, describe_sources, dissent, tally, tell_verdict


def test_a_tally_says_only_what_there_is_to_say():
    compared = experiment(Table("T", "compared", ROWS[:3]))
    assert (
        tally(Comparison(by_name(compared), [])) == "Of 3 rows with a number in the paper, 0 met, 0 missed, 3 not run."
    )


def test_a_verdict_comes_with_the_difference_to_the_paper_s_number():
    lines = fill(EXPERIMENT, TABLE, [result(value=96.7), result(ROWS[3].config, 50.0)]).lines
    assert [tell_verdict(line, "test_accuracy") for line in lines] == ["met, −0.13", "not run", "not run", ""]


def test_a_preset_that_does_not_decide_is_heard_only_when_it_differs():
    runs = [result(value=96.9), result(faster(Made()), 96.8)]
    assert dissent(fill(EXPERIMENT, TABLE, runs).lines[0]) == []
    runs[1] = result(faster(Made()), 90.0)
    assert dissent(fill(EXPERIMENT, TABLE, runs).lines[0]) == ["fast preset: missed"]


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
