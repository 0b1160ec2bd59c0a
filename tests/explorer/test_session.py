import copy

import numpy as np
import pytest
import torch

from torchpfc.explorer.loading import Loaded
from torchpfc.explorer.session import Session
from torchpfc.explorer.views import SHOWN_TERMS, stages_of
from torchpfc.interpret import counterfactual, describe_columns
from torchpfc.unlearning import fingerprint


def adds_up(view):
    total = np.array(view.base) + np.array(view.others.contributions)
    return total + np.sum([term.contributions for term in view.terms], axis=0)


def test_the_ready_model_knows_digits(session):
    model = session.model()
    assert model.accuracy.overall > 0.93
    assert model.shape == (1, 8, 8)
    assert (model.num_batches, model.num_examples, model.forgotten, model.undo) == (30, 360, [], 0)


def test_accuracy_is_the_score_of_the_estimator(session, loaded):
    x, y = loaded.examples.x.numpy(), loaded.examples.labels.numpy()
    assert session.model().accuracy.overall == pytest.approx(loaded.subject.estimator.score(x, y), abs=1e-12)


def test_parts_are_described_as_the_library_describes_them(session, loaded):
    subject = loaded.subject
    h = subject.explain(loaded.examples.x).h
    report = describe_columns(subject.block, h, labels=loaded.examples.labels, ledger=subject.ledger)
    views = session.parts()
    assert len(views) == len(report.columns)
    for view, column in zip(views, report.columns, strict=True):
        assert (view.column, view.usage, view.dead) == (column.column, column.usage, column.dead)
        assert view.mean_amount == pytest.approx(column.mean_amount, abs=1e-6)
        assert view.first_step == column.first_step
    detail, column = session.part(17), report.columns[17]
    assert detail.column.batches == column.batches
    assert detail.column.profile == pytest.approx(column.profile)
    assert detail.column.label_shares == pytest.approx(column.label_shares, abs=1e-6)
    assert [example.index for example in detail.top_examples][:5] == list(column.top_examples)
    assert detail.values == pytest.approx(subject.block.weight_x[:, 17].tolist())


@pytest.mark.parametrize("example", [0, 7, 100])
def test_an_explanation_adds_up_to_what_the_estimator_says(session, loaded, example):
    x = loaded.examples.x[example : example + 1].numpy()
    view = session.explain(example=example)
    estimator = loaded.subject.estimator
    assert view.y == pytest.approx(estimator.decision_function(x)[0].tolist(), abs=1e-6)
    assert adds_up(view) == pytest.approx(view.y, abs=1e-5)
    assert view.reconstruction == pytest.approx(estimator.explain(x).reconstruction[0].tolist(), abs=1e-6)
    assert np.array(view.input) == pytest.approx(np.array(view.reconstruction) + view.residual, abs=1e-6)
    assert view.recognition == pytest.approx(float(estimator.recognition_score(x)[0]))
    assert view.unexplained == pytest.approx(float(estimator.explain(x).unexplained[0]), abs=1e-6)
    assert view.before == view.y
    assert len(view.terms) <= SHOWN_TERMS


def test_an_input_of_one_s_own_is_explained_as_the_same_example_is(session, loaded):
    example = session.explain(example=3)
    own = session.explain(values=loaded.examples.x[3].tolist())
    assert own.label is None
    assert own.y == example.y


def test_changing_an_amount_changes_the_answer_by_what_the_part_adds(session):
    before = session.explain(example=4)
    first = before.terms[0]
    after = session.explain(example=4, factors={first.part: 0.0})
    assert np.array(before.y) - after.y == pytest.approx(first.contributions, abs=1e-6)
    assert after.before == before.y
    assert [term.part for term in after.terms][: len(before.terms)] == [term.part for term in before.terms]
    assert adds_up(after) == pytest.approx(after.y, abs=1e-5)
    doubled = session.explain(example=4, factors={first.part: 2.0})
    assert doubled.terms[0].amount == pytest.approx(2 * first.amount)


def test_others_can_make_the_best_of_a_change(session, together):
    assert not session.can_adapt  # each class explains an input by itself
    x, subject = together.examples.x, together.subject
    session = Session(together)
    part = session.explain(example=4).terms[0].part
    adapted = session.explain(example=4, factors={part: 0.0}, adapt=True)
    expected = counterfactual(subject.block, subject.encode(x[4:5]), {part: 0.0})
    assert adapted.y == pytest.approx(expected.y[0].tolist(), abs=1e-6)
    assert adds_up(adapted) == pytest.approx(adapted.y, abs=1e-5)
    plain = session.explain(example=4, factors={part: 0.0})
    assert adapted.unexplained < plain.unexplained


def test_time_ends_with_the_model_and_begins_with_its_first_class(session):
    time = session.time()
    assert time.exact
    assert len(time.stages) == 10
    assert time.stages[-1].accuracy == session.model().accuracy
    first = time.stages[0].accuracy.per_class
    assert first[0] > 0.95
    assert first[1:] == [0.0] * 9
    finished = [column for stage in time.stages for column in stage.finished]
    assert sorted(finished) == list(range(session.model().num_parts))


def test_a_stage_is_the_model_that_learned_no_more(session, loaded):
    estimator = copy.deepcopy(loaded.subject.estimator)
    estimator.forget(range(15, 30), how="remove")
    x, y = loaded.examples.x.numpy(), loaded.examples.labels.numpy()
    assert session.time().stages[4].accuracy.overall == pytest.approx(estimator.score(x, y))


def test_stages_after_forgetting_are_found_as_if_nothing_had_been_known(session, loaded):
    session.time()
    session.forget([12, 13, 14])
    subject = loaded.subject.copy()
    subject.forget([12, 13, 14])
    now = session.time()
    assert now == Session(Loaded(subject, loaded.examples)).time()
    session.undo()
    before = session.time()
    same = [ours.accuracy == theirs.accuracy for ours, theirs in zip(now.stages, before.stages, strict=False)]
    assert same == [True] * 4 + [False] * 5


def test_batches_name_the_class_that_they_taught(session):
    assert [batch.output for batch in session.batches()] == [k // 3 for k in range(30)]


def test_many_batches_are_grouped_into_few_stages(session):
    batches = session.batches() * 40
    sizes = {len(group) for group in stages_of(batches)[:-1]}
    assert len(stages_of(batches)) <= 12
    assert sizes == {100}


def test_a_preview_is_what_forgetting_does_and_changes_nothing(session):
    before = session.model()
    preview = session.preview([9, 10, 11])
    assert session.model() == before
    done = session.forget([9, 10, 11])
    assert done == preview
    after = session.model()
    assert after.accuracy == preview.after
    assert after.sha256 == preview.report.sha256_after != before.sha256
    assert after.accuracy.per_class[3] == 0
    assert (after.version, after.forgotten, after.undo) == (1, [9, 10, 11], 1)
    assert {part.column for part in session.parts() if part.gone} == {
        c for a, b in preview.report.columns for c in range(a, b)
    }


def test_a_preview_of_another_state_is_not_what_forgetting_does(session, loaded):
    session.forget([9])
    session.preview([12])
    session.undo()
    assert session.forget([12]) == Session(loaded).forget([12])
    assert session.model().forgotten == [12]


def test_forgetting_is_that_of_the_library(session, loaded):
    estimator = copy.deepcopy(loaded.subject.estimator)
    report = estimator.forget([0, 5], how="zero")
    view = session.forget([0, 5])
    assert view.report == report
    assert report.sha256_after == fingerprint(estimator.bits())
    x = loaded.examples.x[:4].numpy()
    assert session.explain(example=1).y == pytest.approx(estimator.decision_function(x)[1].tolist(), abs=1e-6)


def test_undo_brings_everything_back_but_the_version(session, loaded):
    weights = loaded.subject.block.weight_x.clone()
    before, explained = session.model(), session.explain(example=2)
    session.forget([0])
    session.forget([1, 2])
    assert session.model().forgotten == [0, 1, 2]
    assert session.undo().forgotten == [0]
    after = session.undo()
    assert (after.sha256, after.accuracy) == (before.sha256, before.accuracy)
    assert session.explain(example=2) == explained
    assert torch.equal(loaded.subject.block.weight_x, weights)
    with pytest.raises(LookupError, match="nothing to take back"):
        session.undo()


def test_the_report_says_what_was_forgotten(session):
    with pytest.raises(LookupError, match="nothing was forgotten"):
        session.report()
    session.forget([3])
    view = session.forget([4, 5])
    report = session.report()
    assert [change["batches"] for change in report["changes"]] == [[3], [4, 5]]
    assert report["changes"][1]["accuracy"]["after"]["overall"] == view.after.overall
    assert report["changes"][1]["sha256_after"] == session.model().sha256
    session.undo()
    assert len(session.report()["changes"]) == 1


@pytest.mark.parametrize(
    ("batches", "problem"),
    [
        ([99], "must have been learned from"),
        (range(1, 30), "must leave at least one"),
        ([0], "must not be forgotten already"),
    ],
)
def test_what_cannot_be_forgotten_is_refused(session, batches, problem):
    session.forget([0])
    with pytest.raises(ValueError, match=problem):
        session.preview(list(batches))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({}, "got neither"),
        ({"example": 0, "values": [0.0] * 64}, "got both"),
        ({"example": 360}, r"example must be in \[0, 360\), got 360"),
        ({"values": [0.0] * 63}, "values must be 64 numbers, got 63"),
        ({"values": [-1.0] * 64}, "must not be negative"),
        ({"example": 0, "factors": {180: 1.0}}, r"factors must name parts in \[0, 180\), got 180"),
    ],
)
def test_what_cannot_be_explained_is_refused(session, asked, problem):
    with pytest.raises(ValueError, match=problem):
        session.explain(**asked)


def test_an_empty_input_has_an_explanation(session):
    view = session.explain(values=[0.0] * 64)
    assert view.y == [0.0] * 10
    assert view.terms == []


def test_examples_can_be_chosen_by_class_and_by_mistake(session, loaded):
    threes, total = session.list_examples(0, 5, label=3)
    assert total == int((loaded.examples.labels == 3).sum())
    assert [example.label for example in threes] == [3] * 5
    wrong, total = session.list_examples(0, 200, wrong=True)
    assert total == len(wrong) == round(360 * (1 - session.model().accuracy.overall))
    assert all(example.label != example.answer for example in wrong)
