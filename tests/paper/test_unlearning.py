from pathlib import Path
from typing import Any

import pytest
import torch

from tests.paper.made import context, made_images, numbers
from tests.paper.stopped import Killed
from torchpfc import PFCBlock
from torchpfc.paper import experiments, unlearning_audit, unlearning_replay
from torchpfc.paper.registry import Job
from torchpfc.paper.settings import change, settings
from torchpfc.paper.unlearning import UnlearningRun, run_unlearning
from torchpfc.paper.unlearning_replay import Training, run_replay
from torchpfc.paper.unlearning_settings import Unlearning, num_strangers
from torchpfc.unlearning import audit, load_model

pytestmark = pytest.mark.usefixtures("made_data")


def small(**changes: Any) -> Unlearning:
    chosen: dict[str, Any] = {
        "num_basis": 40,
        "width": 4,
        "sweep_speed": 1.0,
        "iterations": 4,
        "eval_iterations": 5,
        "batch_size": 10,
        "epochs": 2,
        "lr": 1e-2,
        "start": 6,
        "stop": 10,
        "relearn_steps": 2,
        "snapshot_every": 5,
    }
    return change(Unlearning(), **{**chosen, **changes})


def test_the_rows_are_those_of_the_paper() -> None:
    rows = {row.id: row for table in experiments()["unlearning"].tables for row in table.rows}
    assert [rows[f"T5.{name}"].paper for name in ("BEFORE", "AFTER", "UPPER")] == [83.81, 92.77, 95.35]
    assert rows["T5.BEFORE"].slack == 2.0 and rows["T5.AFTER"].slack == 0.0
    assert rows["T5.UPPER"].paper - rows["T5.UPPER"].slack == pytest.approx(95.0)
    expected = {"num_basis": 3000, "width": 50, "sweep_speed": 2.5, "batch_size": 50, "lr": 1e-3, "weight_decay": 1e-4}
    expected |= {"epochs": 8, "patience": 5, "start": 500, "stop": 800, "order": "fixed", "watch_accuracy": False}
    assert settings(rows["T5.BEFORE"].config).items() >= expected.items()


def test_the_ledger_of_the_schedule_is_that_of_the_paper_s_window() -> None:
    """The published range is 1250 to 2050; the last corrupt batch reaches 2046 only."""
    ledger = Unlearning().make_ledger(torch.arange(51_000))
    assert ledger.columns_of(range(500, 800)) == (range(1250, 2047),)
    assert ledger.columns_of(range(1020)) == (range(0, 2597),) and ledger.rows_of(2) == list(range(100, 150))


def test_a_part_of_the_images_is_never_used() -> None:
    config, data = small(), made_images("mnist")
    (phase,) = config.phases(data, seed=1)
    used = set(phase.train.tolist()) | set(phase.valid.tolist())
    assert len(phase.train) == 170 and 200 - len(used) == num_strangers(30) == 3


def test_what_is_forgotten_is_found() -> None:
    data = made_images("mnist")
    train = small().phases(data, seed=0)[0].train
    assert small().batches_to_forget(data, train) == [6, 7, 8, 9]
    scattered = small(what="examples", share=0.02)
    rows = scattered.rows_to_forget(data, train)
    assert len(rows) == 3 and len(scattered.batches_to_forget(data, train)) <= 3
    by_class = small(what="class", order="sorted", forgotten_class=3)
    ordered = by_class.phases(data, seed=0)[0].train
    found = by_class.batches_to_forget(data, ordered)
    labels = data.train.label[ordered].view(17, 10)
    assert found == [id for id in range(17) if 3 in labels[id]] and len(found) < 6
    assert [config.has_twin() for config in (small(), by_class, scattered, small(what="class"))] == [1, 1, 0, 0]


def test_models_and_their_twins_learn_as_they_would_alone(tmp_path: Path) -> None:
    """A stack of both, against two trainings with the window of the library, one of which skips.

    The stack also solves for batches that the twin skips, and so moves its estimate of the solver's step size.
    """
    job = Job(small(), 0)
    run = UnlearningRun([job], context(tmp_path))
    run.train()
    for found, skips in zip(run.learner.unstack(), (False, True), strict=True):
        training = Training(job, context(tmp_path))
        if skips:
            training.snapshots.skip(batches=range(6, 10))
        training.train()
        assert isinstance(found, PFCBlock)
        rtol = 1e-3 if skips else 1e-7
        torch.testing.assert_close(found.weight_x, training.at_best().weight_x, rtol=rtol, atol=1e-10)
        torch.testing.assert_close(found.weight_y, training.at_best().weight_y, rtol=rtol, atol=1e-10)


def test_a_result_compares_before_after_and_never(tmp_path: Path) -> None:
    jobs = [Job(small(), 0), Job(small(what="class", order="sorted"), 0), Job(small(what="examples"), 1)]
    results = list(run_unlearning(jobs, context(tmp_path)))
    for job, result in zip(jobs, results, strict=True):
        metrics, twin = result.metrics, job.config.has_twin()
        assert result.config == settings(job.config)
        for model in ("before", "after", "exact"):
            assert (f"{model}_accuracy" in metrics) == (model != "exact" or twin)
        assert metrics["test_accuracy"] == metrics["before_accuracy"]
        assert 0 < metrics["forgotten_share"] < 1 and 0 <= metrics["before_membership_auroc"] <= 1
        assert ("weights_before_and_after" in result.images) == (job.seed == 0)
        assert metrics["before_relearn_steps"] == 0
    first = results[0].metrics
    assert (first["first_forgotten_column"], first["last_forgotten_column"]) == (6, 12)
    assert (first["published_first_column"], first["published_last_column"]) == (6, 14)
    assert first["forgotten_columns"] == 7 and "after_published_range_accuracy" in first


def test_without_a_test_there_is_no_accuracy_on_test_images(tmp_path: Path) -> None:
    (result,) = run_unlearning([Job(small(relearn_steps=0), 0)], context(tmp_path, test=False))
    assert not {"test_accuracy", "after_accuracy", "after_published_range_accuracy"} & set(result.metrics)
    assert "after_membership_auroc" in result.metrics and "after_relearn_steps" not in result.metrics
    assert {"before_valid_accuracy", "after_valid_accuracy", "exact_valid_accuracy"} <= set(result.metrics)


def test_without_a_test_each_model_is_measured_on_images_that_itself_has_not_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = []

    def look(*args: Any, **kwargs: Any) -> Any:
        tested.append(kwargs["test"][0])
        return audit(*args, **kwargs)

    monkeypatch.setattr(unlearning_audit, "audit", look)
    jobs = [Job(small(relearn_steps=0), seed) for seed in (0, 1)]
    list(run_unlearning(jobs, context(tmp_path, test=False)))
    data = made_images("mnist")
    for job, x in zip(jobs, tested, strict=True):
        (phase,) = job.config.phases(data, job.seed)
        assert torch.equal(x, data.train.x[phase.valid].double())


def test_an_audit_looks_at_images_of_all_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of labels the first images that are retained are all of one class."""
    seen = {}

    def look(*args: Any, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return audit(*args, **kwargs)

    monkeypatch.setattr(unlearning_audit, "_AT_ONCE", 15)
    monkeypatch.setattr(unlearning_audit, "audit", look)
    list(run_unlearning([Job(small(what="class", order="sorted"), 0)], context(tmp_path)))
    retained, forgotten = (seen[name][1].argmax(-1) for name in ("retained", "forgotten"))
    assert set(retained.tolist()) == set(range(10)) - {3} and set(forgotten.tolist()) == {3}
    assert len(retained) <= 15 and len(forgotten) <= 15


def test_a_replay_ends_in_the_bits_of_a_training_that_never_saw_it(tmp_path: Path) -> None:
    config = small(replay=True, relearn_steps=0)
    folder = tmp_path / "models"
    result = run_replay(Job(config, 0), context(tmp_path, precision="32", models=folder))
    assert result.metrics["bit_equal"] == 1.0
    assert result.metrics["replayed_share"] == pytest.approx((34 - 5) / 34)  # from the snapshot before batch 6
    assert {"before_accuracy", "exact_accuracy"} <= set(result.metrics)
    saved = load_model(folder / "unlearning-0")
    assert saved.about["seed"] == 0 and saved.ledger.columns_of([6]) == (range(6, 10),)
    assert list((folder / "unlearning-0" / "snapshots").iterdir())
    (same,) = run_unlearning([Job(config, 0)], context(tmp_path, precision="32", test=False))
    assert same.metrics["bit_equal"] == 1.0 and "exact_accuracy" not in same.metrics
    assert numbers(same)["metrics"]["replayed_batches"] == result.metrics["replayed_batches"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"what": "all"}, "what must be one of batches, class, examples, got 'all'"),
        ({"order": "any"}, "order must be one of sorted, fixed, got 'any'"),
        ({"start": 8, "stop": 8}, "stop must be greater than start, 8, got 8"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"width": 50}, "width must be at most the number of units, 40, got 50"),
        ({"share": 1.0}, "share must be at least 0 and less than 1, got 1.0"),
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**setting)


def test_models_stack_whatever_they_forget_unless_they_are_replayed() -> None:
    others = [small(what="class"), small(order="sorted"), small(start=3), small(relearn_steps=0)]
    assert all(other.stack_key() == small().stack_key() for other in others)
    assert small(lr=1.0).stack_key() != small().stack_key() != small(replay=True).stack_key()
    assert small(replay=True).stack_size() == 1 < small().stack_size()


@pytest.mark.parametrize("epoch", range(6))
def test_a_replay_that_was_stopped_in_any_epoch_goes_on_and_keeps_its_model_once(
    epoch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(small(replay=True, relearn_steps=0), 0)
    whole = run_replay(job, context(tmp_path / "whole", models=tmp_path / "models"))
    evaluate, calls = unlearning_replay.evaluate, 0

    def counting(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1 + epoch:
            raise Killed
        return evaluate(*args)

    monkeypatch.setattr(unlearning_replay, "evaluate", counting)
    with pytest.raises(Killed):
        run_replay(job, context(tmp_path / "stopped", models=tmp_path / "again", test=False))
    calls = 10
    result = run_replay(job, context(tmp_path / "stopped", models=tmp_path / "again"))
    assert calls - 10 == [6, 5, 5, 5, 5, 4][epoch] + 2  # epochs that were left, and two tests
    assert numbers(result) == numbers(whole)
    one, other = (load_model(tmp_path / name / "unlearning-0") for name in ("models", "again"))
    assert all(torch.equal(a, b) for a, b in zip(one.block.parameters(), other.block.parameters(), strict=True))
    assert one.ledger.state_dict() == other.ledger.state_dict() and one.about == other.about
    assert [path.name for path in (tmp_path / "again" / "unlearning-0").glob("snapshots*")] == ["snapshots"]
