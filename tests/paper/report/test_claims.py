import pytest

from tests.paper.report.made import Made, compare, experiment, faster, result
from tests.paper.report.test_markdown import document, part, rows
from torchpfc.paper.claims import Claim, Level, Within
from torchpfc.paper.registry import Row, Table
from torchpfc.paper.report.claims import judge_claim, judge_level, judge_within
from torchpfc.paper.report.compare import Verdict

A, B = Made(), Made(num_basis=2000)
OF = [experiment(Table("T", "two rows", (Row("A", A), Row("B", B))))]
EXACT = Within(row="A", metric="mse", high=1e-7, every=True)


def lines(*runs):
    return compare(*runs, of=OF).lines


def several(config, *values, metric="test_accuracy"):
    return [
        result(config, seed=seed, metrics={"test_accuracy": 0.0, metric: value}) for seed, value in enumerate(values)
    ]


def claim(*checks):
    return Claim(id="C", said="So it is.", met_when="It is so.", checks=checks, otherwise="contradicted")


@pytest.mark.parametrize(
    ("values", "verdict", "found"),
    [
        ([1e-8, 9e-8], Verdict.MET, "`A` 2 of 2 runs"),
        ([1e-8, 2e-7], Verdict.MISSED, "`A` 1 of 2 runs"),
        ([1e-8, float("nan")], Verdict.MISSED, "`A` 1 of 2 runs"),
        ([], Verdict.NOT_RUN, "`A` not run"),
    ],
)
def test_every_run_has_to_be_within_its_limits(values, verdict, found):
    judged = judge_within(EXACT, lines(*several(A, *values, metric="mse")))
    assert (judged.verdict, judged.found) == (verdict, found)


def test_a_mean_may_be_within_limits_that_a_run_is_not():
    check = Within(row="A", metric="valid_accuracy", low=9.0, high=11.0)
    judged = judge_within(check, lines(*several(A, 8.0, 12.0, metric="valid_accuracy")))
    assert (judged.verdict, judged.found) == (Verdict.MET, "`A` 10.00 (2 runs)")


def test_a_check_may_ask_for_a_preset():
    runs = lines(*several(faster(A), 1e-8, metric="mse"), *several(A, 1.0, 1.0, metric="mse"))
    asked = [Within(row="A", metric="mse", high=1e-7, preset=preset) for preset in ("", "paper", "fast")]
    assert [judge_within(check, runs).verdict for check in asked] == [Verdict.MISSED, Verdict.MISSED, Verdict.MET]
    assert judge_within(asked[2], lines(*several(A, 1e-8, metric="mse"))).verdict is Verdict.NOT_RUN


@pytest.mark.parametrize(
    ("ours", "others", "verdict"),
    [
        ([90.0, 90.1], [90.3, 90.4], Verdict.MET),  # 0.3 points below
        ([90.0, 90.1], [90.4, 90.5], Verdict.MISSED),
        ([89.0, 91.0], [90.4, 90.5], Verdict.OPEN),  # two standard errors are 2.0
        ([90.0], [90.4, 90.5], Verdict.MISSED),  # and one run has none
        ([90.0], [], Verdict.NOT_RUN),
    ],
)
def test_a_row_that_is_worse_by_less_than_seeds_differ_is_left_open(ours, others, verdict):
    found = judge_level(Level(row="A", other="B"), lines(*several(A, *ours), *several(B, *others)))
    assert found.verdict is verdict
    assert verdict is not Verdict.NOT_RUN or found.found == "`B` not run"


@pytest.mark.parametrize(("lower", "verdict"), [(False, Verdict.MISSED), (True, Verdict.MET)])
def test_a_lower_error_is_no_worse(lower, verdict):
    level = Level(row="A", other="B", lower_is_better=lower)
    assert judge_level(level, lines(*several(A, 1.0), *several(B, 2.0))).verdict is verdict


def test_rows_are_compared_under_a_preset_that_both_were_run_with():
    runs = [*several(A, 90.0), *several(faster(A), 95.0, 95.0), *several(B, 90.0)]
    level = Level(row="A", other="B")
    assert judge_level(level, lines(*runs)).found == "`A` 90.00 (1 run) against `B` 90.00 (1 run)"
    assert judge_level(level, lines(*runs[1:])).found == "`A` 95.00 (2 runs) against `B` 90.00 (1 run)"


def test_a_claim_holds_as_far_as_its_checks_were_run_and_not_if_one_fails():
    low, high = Within(row="A", metric="test_accuracy", low=50.0), Within(row="B", metric="test_accuracy", low=50.0)

    def judged(*runs):
        found = judge_claim(claim(low, high), lines(*runs))
        return found.verdict, found.complete

    assert judged() == (Verdict.NOT_RUN, False)
    assert judged(*several(A, 60.0)) == (Verdict.MET, False)
    assert judged(*several(A, 60.0), *several(B, 60.0)) == (Verdict.MET, True)
    assert judged(*several(A, 40.0)) == (Verdict.MISSED, False)
    assert judged(*several(A, 60.0), *several(B, 40.0)) == (Verdict.MISSED, True)


def test_a_document_has_claims_with_their_verdicts(monkeypatch):
    said = [claim(Within(row="A", metric="test_accuracy", low=low)) for low in (50.0, 70.0)]
    said += [claim(Level(row="B", other="A")), claim(said[0].checks[0], Within(row="B", metric="mse"))]
    unknown = claim(Within(row="C", metric="mse"))
    monkeypatch.setattr("torchpfc.paper.report.compare.CLAIMS", [*said, unknown])
    text = document(*several(A, 60.0), of=OF)
    assert [row[-2:] for row in rows(part(text, "claims"))] == [
        ["`A` 60.00 (1 run)", "met"],
        ["`A` 60.00 (1 run)", "**contradicted**"],
        ["`B` not run", "not run"],
        ["`A` 60.00 (1 run)<br>`B` not run", "met, as far as run"],
    ]


def test_a_document_about_other_rows_has_no_claims():
    assert "What the paper says in words" not in document(of=OF)
