import math
import statistics

import numpy as np
import pytest
from scipy.stats import ttest_ind_from_stats

from tests.paper.report.made import EXPERIMENT, ROWS, TABLE, Made, by_name, experiment, faster, result
from torchpfc.paper.registry import Row, Table
from torchpfc.paper.report.compare import Agreement, Comparison, Line, Sample, Verdict, fill, ordered
from torchpfc.paper.results import load_results


def sample(*values, preset="paper", metric="test_accuracy"):
    runs = tuple(result(seed=seed, metrics={metric: value}) for seed, value in enumerate(values))
    return Sample(preset, runs, metric)


def line(paper, slack, *values):
    return Line(Row("A", Made(), paper, slack), {"paper": sample(*values)} if values else {})


@pytest.mark.parametrize(
    ("paper", "slack", "values", "verdict"),
    [
        (96.83, 0.2, [96.63], Verdict.MET),
        (88.62, 0.3, [88.32], Verdict.MET),  # in floating point, 88.62 - 0.3 is more
        (96.83, 0.2, [96.62], Verdict.MISSED),
        (96.83, 0.0, [96.8, 96.86], Verdict.MET),
        (96.83, 0.0, [96.8, 96.85], Verdict.MISSED),
        (96.83, 0.2, [math.nan], Verdict.MISSED),
        (96.83, 0.2, [], Verdict.NOT_RUN),
        (None, 0.0, [12.0], Verdict.RUN),
        (None, 0.0, [], Verdict.NOT_RUN),
    ],
)
def test_a_row_is_met_when_its_mean_reaches_the_paper_s_number_less_the_slack(paper, slack, values, verdict):
    assert line(paper, slack, *values).verdict is verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([2.7e-3], Verdict.MET),
        ([2.0e-3, 3.3e-3], Verdict.MET),
        ([2.8e-3], Verdict.MISSED),
        ([math.nan], Verdict.MISSED),
    ],
)
def test_an_error_is_met_when_its_mean_is_no_higher(values, verdict):
    row = Row("A", Made(), paper=2.5e-3, slack=0.2e-3, lower_is_better=True)
    found = Line(row, {"paper": sample(*values)})
    assert found.needed == pytest.approx(2.7e-3) and found.verdict is verdict


def test_the_spread_is_that_of_a_sample():
    values = [96.1, 96.9, 97.3]
    assert sample(*values).mean == pytest.approx(np.mean(values))
    assert sample(*values).deviation == pytest.approx(np.std(values, ddof=1))
    assert sample(*values).standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(3))
    assert sample(96.1).deviation is None
    assert sample(96.1).standard_error is None


def test_a_result_belongs_to_the_row_and_the_preset_whose_settings_it_has(tmp_path):
    for made in (
        result(seed=1, value=97.0),
        result(seed=0, value=96.0),
        result(faster(Made()), 95.0),
        result(Made(num_basis=2000), 94.0),
        result(Made(num_basis=2001), 93.0),
        result(value=92.0, name="another"),
    ):
        made.save(tmp_path)
    first, second, *rest = fill(EXPERIMENT, TABLE, load_results(tmp_path)).lines
    assert {preset: found.values for preset, found in first.samples.items()} == {"paper": [96.0, 97.0], "fast": [95.0]}
    assert {preset: found.values for preset, found in second.samples.items()} == {"paper": [94.0]}
    assert [each.samples for each in rest] == [{}, {}]


def test_the_preset_with_more_runs_decides_and_the_paper_s_where_both_have_as_many():
    runs = [result(value=90.0), result(faster(Made()), 97.0)]
    assert fill(EXPERIMENT, TABLE, runs).lines[0].verdict is Verdict.MISSED
    runs.append(result(faster(Made()), 97.0, seed=1))
    row = fill(EXPERIMENT, TABLE, runs).lines[0]
    assert row.verdict is Verdict.MET
    assert row.judge(row.samples["paper"]) is Verdict.MISSED


def test_a_preset_that_changes_nothing_has_no_runs_of_its_own():
    idle = experiment(TABLE, presets={"paper": lambda config: config, "fast": lambda config: config})
    row = fill(idle, TABLE, [result()]).lines[0]
    assert list(row.samples) == ["paper"]
    assert row.same == {"fast"}


def test_a_preset_that_makes_two_rows_equal_does_not_count_for_them():
    sweep = Table("S", "solvers", (Row("1", Made(solver="a")), Row("2", Made(solver="b")), Row("3", Made("cifar10"))))
    runs = [result(Made(solver="quick")), result(Made(solver="a")), result(Made("cifar10", solver="quick"))]
    lines = fill(experiment(sweep), sweep, runs).lines
    assert [list(each.samples) for each in lines] == [["paper"], [], ["fast"]]


def test_a_row_that_stands_twice_in_a_table_keeps_its_runs():
    twice = Table("S", "twice", (Row("1", Made()), Row("2", Made())))
    assert [list(each.samples) for each in fill(experiment(twice), twice, [result()]).lines] == [["paper"]] * 2


def test_a_table_shows_the_presets_that_were_run_the_paper_s_first():
    assert fill(EXPERIMENT, TABLE, []).presets == []
    assert fill(EXPERIMENT, TABLE, [result(faster(Made()))]).presets == ["fast"]
    assert fill(EXPERIMENT, TABLE, [result(faster(Made())), result()]).presets == ["paper", "fast"]
    assert ordered(["zeta", "fast", "alpha", "paper"]) == ["paper", "fast", "alpha", "zeta"]


def test_a_table_has_each_of_its_results_once():
    table = Table("S", "twice", (Row("1", Made()), Row("2", Made())))
    runs = [result(seed=seed) for seed in range(3)]
    assert sorted(found.seed for found in fill(experiment(table), table, runs).results) == [0, 1, 2]


def test_runs_that_no_row_asks_for_are_kept_in_groups_of_equal_settings():
    odd, without_metric = Made(num_basis=7), result(seed=5, metrics={"auroc": 0.5})
    runs = [result(), result(odd, seed=1), result(odd, seed=0), without_metric, result(name="another")]
    groups = Comparison(by_name(EXPERIMENT), runs).others
    assert [(group.experiment, [run.seed for run in group.results]) for group in groups] == [
        ("another", [0]),
        ("made", [5]),
        ("made", [0, 1]),
    ]
    assert groups[2].config["num_basis"] == 7


def agreement(paper, fast):
    return Agreement(line(None, 0.0), sample(*paper), sample(*fast, preset="fast"))


def test_presets_agree_within_two_standard_errors():
    paper, fast = [90.0, 92.0, 94.0], [91.0, 93.0, 97.0]
    found = agreement(paper, fast)
    moments = [(statistics.fmean(xs), statistics.stdev(xs), len(xs)) for xs in (fast, paper)]
    t = ttest_ind_from_stats(*moments[0], *moments[1], equal_var=False).statistic  # the difference over its error
    assert found.two_errors == pytest.approx(2 * found.difference / t)
    assert found.allowed == found.two_errors
    assert found.holds


@pytest.mark.parametrize(("fast", "holds"), [(96.3, True), (95.7, True), (96.31, False), (95.69, False)])
def test_presets_with_little_spread_agree_within_three_tenths(fast, holds):
    found = agreement([96.0, 96.0], [fast, fast])
    assert found.two_errors == 0
    assert found.allowed == 0.3
    assert found.holds is holds


def test_a_preset_that_was_run_once_has_no_standard_error():
    found = agreement([96.0, 97.0], [96.7])
    assert found.two_errors is None
    assert found.allowed == 0.3


def test_agreement_is_asked_of_accuracies_that_both_presets_have():
    runs = [result(), result(faster(Made())), result(Made(num_basis=2000))]
    assert [found.line.row.id for found in Comparison(by_name(EXPERIMENT), runs).agreements] == ["A"]
    times = experiment(Table("T", "times", ROWS, metric="test_seconds"))
    runs = [result(config, metrics={"test_seconds": 1.0}) for config in (Made(), faster(Made()))]
    assert Comparison(by_name(times), runs).agreements == []
