from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.paper.made import context, made_images, numbers
from tests.paper.stopped import Killed, stop_at
from torchpfc import FISTA, MLP, ColumnRates, PFCBlock, RMSprop, RMSpropSLW, count_use, keep_nonnegative
from torchpfc.checkpoint import CorruptFileError, load_checkpoint
from torchpfc.data.streams import SPLIT_PAIRS, class_tasks
from torchpfc.optim import CodeUse
from torchpfc.paper.components import RatedOptimizer
from torchpfc.paper.continual import ORDERED_MLP, SPLIT_MLP, OrderedMNIST, OrderedRun, SplitMNIST, TasksRun
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import change
from torchpfc.training import Batches, EarlyStopping, SquaredErrors, evaluate, fit, random_stream

pytestmark = pytest.mark.usefixtures("made_data")


RATES = RatedOptimizer(lr=3e-2, half_after=4.0, use="square", use_kept=0.9)


def small(**changes: Any) -> SplitMNIST:
    settings: dict[str, Any] = {
        "num_basis": 80,
        "width": 6,
        "sweep_speed": 0.5,
        "iterations": 4,
        "eval_iterations": 5,
        "batch_size": 8,
        "epochs": 6,
        "patience": 2,
        "lr": 3e-2,
    }
    return change(SplitMNIST(), **{**settings, **changes})


def small_rated(rates: RatedOptimizer = RATES, **changes: Any) -> SplitMNIST:
    return replace(small(width=0, sweep_speed=0.0, num_basis=30, **changes), optimizer=rates)


def small_mlp(**changes: Any) -> SplitMNIST:
    settings: dict[str, Any] = {"hidden_features": 9, "batch_size": 8, "epochs": 4, "patience": 2, "lr": 1e-2}
    return change(SPLIT_MLP, **{**settings, **changes})


def ordered(**changes: Any) -> OrderedMNIST:
    settings: dict[str, Any] = {
        "num_basis": 30,
        "width": 5,
        "sweep_speed": 1.0,
        "iterations": 4,
        "eval_iterations": 4,
        "batch_size": 10,
        "epochs": 3,
        "lr": 1e-2,
    }
    return change(OrderedMNIST(), **{**settings, **changes})


def tasks_run(jobs: Sequence[Job], given: Context) -> TasksRun:
    return TasksRun("split-mnist", jobs, given)


def run_tasks(jobs: Sequence[Job], given: Context) -> list[Result]:
    return list(tasks_run(jobs, given).results())


def run_ordered(jobs: Sequence[Job], given: Context) -> list[Result]:
    return list(OrderedRun("ordered-mnist", jobs, given).results())


# What is learned, in which order


def test_a_task_has_its_own_classes_and_a_seed_decides_what_is_held_out() -> None:
    data = made_images("mnist")
    phases = small().phases(data, seed=3)
    assert len(phases) == 5
    for phase, classes in zip(phases, SPLIT_PAIRS, strict=True):
        for part, images in ((phase.train, data.train), (phase.valid, data.train), (phase.test, data.test)):
            assert set(images.label[part].tolist()) <= set(classes)
        assert not set(phase.train.tolist()) & set(phase.valid.tolist())
    assert sum(len(phase.test) for phase in phases) == len(data.test)
    assert not torch.equal(small().phases(data, seed=4)[0].valid, phases[0].valid)
    (joint,) = small(joint=True).phases(data, seed=3)
    assert len(joint.train) + len(joint.valid) == len(data.train)


def test_an_order_is_by_label_or_one_for_all() -> None:
    data = made_images("mnist")
    (by_label,) = ordered().phases(data, seed=3)
    (fixed,) = ordered(order="fixed").phases(data, seed=3)
    labels = data.train.label[by_label.train]
    assert (labels[1:] >= labels[:-1]).all() and not (data.train.label[fixed.train].diff() >= 0).all()
    assert set(by_label.train.tolist()) == set(fixed.train.tolist()) and torch.equal(by_label.valid, fixed.valid)
    assert not set(by_label.train.tolist()) & set(by_label.valid.tolist())


# Training


def test_a_stack_over_tasks_is_a_loop_one_would_write(tmp_path: Path) -> None:
    """The second model of a stack, against a plain loop with the optimizer of the library."""
    config, data, seed = small(protocol="strict"), made_images("mnist"), 1
    run = tasks_run([Job(small(), 0), Job(config, seed)], context(tmp_path))
    run.train()
    x, target = data.train.x.double(), F.one_hot(data.train.label, 10).double()
    block = PFCBlock(16, 10, 80, solver=FISTA.paper(4), generator=random_stream(seed, "weights")).double()
    objective, position = SquaredErrors(0.5, 0.5), 0.0
    for task in class_tasks(data.train.label, seed=seed):
        optimizer = RMSpropSLW(block.parameters(), lr=3e-2, width=6, sweep_speed=0.5, weight_decay=1e-4)
        optimizer.reset_window(position)
        keep_nonnegative(block, optimizer)
        batches = Batches(x, target, batch_size=8, rows=task.train, seeds=seed, drop_last=True)
        best = (float("inf"), block.state_dict(), position)
        since, highest, lower = 0, -1.0, 0
        for _ in fit(block, optimizer, batches, objective, epochs=6):
            block.solver = FISTA.paper(5)
            valid = evaluate(block, Batches(x, target, batch_size=99, rows=task.validation), objective)
            block.solver = FISTA.paper(4)
            since, lower = since + 1, lower + 1
            if valid.accuracy > highest:
                highest, lower = float(valid.accuracy), 0
            if valid.loss < best[0]:
                weights = {name: value.clone() for name, value in block.state_dict().items()}
                best, since = (float(valid.loss), weights, optimizer.window.position), 0
            if since >= 2 or lower >= 2:
                break
        block.load_state_dict(best[1])
        position = best[2]
    found = run.learner.unstack()[1]
    assert isinstance(found, PFCBlock) and run.best_positions[1] == position > 0
    torch.testing.assert_close(found.weight_x, block.weight_x, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.weight_y, block.weight_y, rtol=1e-6, atol=1e-9)


def test_a_stack_whose_columns_have_rates_is_a_loop_one_would_write(tmp_path: Path) -> None:
    """The second model of a stack: weights and use of columns go back to the best epoch at the end of each task."""
    data, seed = made_images("mnist"), 1
    run = tasks_run([Job(small_rated(protocol="strict"), seed) for seed in range(2)], context(tmp_path))
    run.train()
    x, target = data.train.x.double(), F.one_hot(data.train.label, 10).double()
    block = PFCBlock(16, 10, 30, solver=FISTA.paper(4), generator=random_stream(seed, "weights")).double()
    inner, measure = RMSprop(block.parameters(), lr=3e-2, weight_decay=1e-4), CodeUse(power=2, keep=0.9)
    optimizer = ColumnRates(inner, half_after=4.0, measure=measure)
    keep_nonnegative(block, optimizer)
    count_use(block, optimizer)
    objective = SquaredErrors(0.5, 0.5)
    for task in class_tasks(data.train.label, seed=seed):
        optimizer.state.clear()
        batches = Batches(x, target, batch_size=8, rows=task.train, seeds=seed, drop_last=True)
        stopping, best = EarlyStopping(patience=2), (block.state_dict(), optimizer.state_dict())
        for _ in fit(block, optimizer, batches, objective, epochs=6):
            block.solver = FISTA.paper(5)
            valid = evaluate(block, Batches(x, target, batch_size=99, rows=task.validation), objective)
            block.solver = FISTA.paper(4)
            if stopping.update(valid.loss, valid.accuracy):
                best = deepcopy((block.state_dict(), optimizer.state_dict()))
            if stopping.stopped:
                break
        block.load_state_dict(best[0])
        optimizer.load_state_dict(best[1])
    found = run.learner.unstack()[1]
    assert isinstance(found, PFCBlock)
    torch.testing.assert_close(found.weight_x, block.weight_x, rtol=1e-6, atol=1e-9)
    for use in run.best_use:
        torch.testing.assert_close(use[1, 0], optimizer.use(block.weight_x), rtol=1e-6, atol=1e-9)


def test_results_say_how_many_columns_hold_the_codes(tmp_path: Path) -> None:
    run = tasks_run([Job(small(), seed) for seed in range(2)], context(tmp_path))
    second = list(run.results())[1]
    model, rows = run.learner.unstack()[1], torch.cat([rows[1] for rows in run.sets.valid])
    assert isinstance(model, PFCBlock)
    model.solver = FISTA.paper(5)
    shares = sorted((model.couple(run.sets.x[rows]).h.sum(0) / model.couple(run.sets.x[rows]).h.sum()).tolist())
    count = next(n for n in range(1, 81) if sum(shares[-n:]) >= 0.99)
    assert second.metrics["columns_in_codes"] == count < 80


def test_a_learner_whose_columns_have_rates_carries_their_use_too(tmp_path: Path) -> None:
    config = small_rated(protocol="strict", epochs=1)
    (result,) = run_tasks([Job(config, 0)], context(tmp_path))
    assert result.metrics["bytes_kept"] == 4 * (16 + 10 + 1) * 30
    assert config.shared_batch() == 1  # each of several processes would count other codes


def test_what_the_window_has_left_never_changes_and_what_it_has_not_reached_is_random(tmp_path: Path) -> None:
    run = tasks_run([Job(small(), 0)], context(tmp_path))
    start = run.learner.unstack()[0]
    run.train()
    end = run.learner.unstack()[0]
    assert isinstance(start, PFCBlock) and isinstance(end, PFCBlock)
    used = int(run.records[0].columns[-1])
    assert 10 < used < 80 and run.records[0].columns == sorted(run.records[0].columns)
    assert torch.equal(start.weight_x[:, used:], end.weight_x[:, used:])
    assert (start.weight_x[:, :used] != end.weight_x[:, :used]).any(0).all()


def test_a_window_without_columns_left_ends_a_task(tmp_path: Path) -> None:
    (result,) = run_tasks([Job(small(num_basis=9), 0)], context(tmp_path))
    assert result.metrics["columns_used"] <= 9 and 0 in result.curves["epochs_of_phase"]
    assert "valid_loss" not in result.metrics


def test_the_epoch_that_is_kept_has_the_lowest_loss_or_the_highest_accuracy(tmp_path: Path) -> None:
    best = {}
    for keep in ("loss", "accuracy"):
        (result,) = run_tasks([Job(small(keep=keep, patience=6), 0)], context(tmp_path / keep))
        last = int(result.curves["epochs_of_phase"][-1])
        losses, accuracies = (result.curves[name][-last:] for name in ("valid_loss", "valid_accuracy"))
        best[keep] = losses.index(min(losses)) if keep == "loss" else accuracies.index(max(accuracies))
        assert result.metrics["valid_accuracy"] == pytest.approx(accuracies[best[keep]])  # measured again at the end
        assert result.metrics["valid_loss"] == losses[best[keep]]
    assert best["loss"] != best["accuracy"]


def test_results_hold_the_matrix_and_what_follows_from_it(tmp_path: Path) -> None:
    jobs = [Job(small(), 0), Job(small(protocol="strict"), 0)]
    results = list(run_tasks(jobs, context(tmp_path)))
    for job, result in zip(jobs, results, strict=True):
        metrics, matrix = result.metrics, result.curves["accuracy_matrix"]
        assert len(matrix) == 6 * 5 and len(result.curves["accuracy_after_task"]) == 5
        assert metrics["average_accuracy"] == pytest.approx(sum(matrix[-5:]) / 5)
        assert result.curves["accuracy_after_task"][-1] == pytest.approx(metrics["test_accuracy"])
        assert {"forgetting", "backward_transfer", "forward_transfer", "columns_used", "valid_loss"} <= set(metrics)
        assert ("used_alone_accuracy" in metrics) == (metrics["columns_used"] < 80)
        assert sum(result.curves["epochs_of_phase"]) == metrics["epochs"] == len(result.curves["valid_loss"])
        assert set(result.images) == {"window_film", "weights_by_task"}
        assert result.config["protocol"] == job.config.protocol and result.experiment == "split-mnist"
    weights = [4 * 26 * result.metrics["columns_used"] for result in results]
    kept = [result.metrics["bytes_kept"] for result in results]
    assert kept[1] == weights[1] and kept[0] > weights[0]  # images of earlier tasks, to validate on


def test_without_a_test_nothing_looks_at_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    whole = TasksRun.evaluate_rows

    def watch(self: TasksRun, x: torch.Tensor, *args: Any) -> Any:
        seen.append(len(x))
        return whole(self, x, *args)

    monkeypatch.setattr(TasksRun, "evaluate_rows", watch)
    (result,) = run_tasks([Job(small(epochs=1), 0)], context(tmp_path, test=False))
    assert "test_accuracy" not in result.metrics and result.metrics["valid_accuracy"] >= 0
    assert set(seen) == {200}


def test_the_strict_protocol_never_looks_at_images_of_earlier_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[set[int]] = []
    label = made_images("mnist").train.label

    def watch(self: TasksRun, x: torch.Tensor, target: torch.Tensor, rows: torch.Tensor, *args: Any) -> Any:
        if len(x) == 200 and self.phase < 5:  # while it learns
            looked.append({int(c) // 2 for c in label[rows.cpu()].flatten()} | {-self.phase - 1})
        return whole(self, x, target, rows, *args)

    whole = TasksRun.evaluate_rows
    monkeypatch.setattr(TasksRun, "evaluate_rows", watch)
    list(run_tasks([Job(small(epochs=1, protocol="strict"), 0)], context(tmp_path / "strict")))
    assert looked and all(found == {-1 - min(found), min(found)} for found in looked)
    looked.clear()
    list(run_tasks([Job(small(epochs=1), 0)], context(tmp_path / "paper")))
    assert {0, -5} in looked and {4, -5} in looked


def test_a_perceptron_learns_inside_the_window_alone(tmp_path: Path) -> None:
    config = small_mlp(hidden_features=40, width=4, sweep_speed=0.5, epochs=2)
    run = tasks_run([Job(config, 0)], context(tmp_path))
    start = run.learner.unstack()[0]
    run.train()
    end, used = run.learner.unstack()[0], int(run.records[0].columns[-1])
    assert isinstance(start, MLP) and isinstance(end, MLP) and 4 < used < 40
    for one, other in ((start.hidden.weight, end.hidden.weight), (start.output.weight.T, end.output.weight.T)):
        changed = (one != other).any(1)
        assert changed[:used].all() and not changed[used:].any()
    assert torch.equal(start.output.bias, end.output.bias)


def test_elastic_weights_hold_what_earlier_tasks_need(tmp_path: Path) -> None:
    moved = []
    for penalty in (0.0, 1e3):
        config = small_mlp(penalty=penalty, protocol="strict", lr=3e-2)
        run = tasks_run([Job(config, 0)], context(tmp_path / f"{penalty}"))
        run.train()
        moved.append(run.records[0].matrix)
        assert bool(run.memory) == bool(penalty)
    free, held = ([row[0] for row in matrix] for matrix in moved)
    assert held[-1] >= free[-1] and held[1] == free[1]  # the first task is learned alike


def test_importance_is_the_mean_squared_slope_of_the_outputs(tmp_path: Path) -> None:
    run = tasks_run([Job(small_mlp(penalty=1.0), seed) for seed in range(2)], context(tmp_path))
    run.phase = 1
    run.remember_importance()
    model = run.learner.unstack()[1]
    x = run.sets.x[run.sets.train[0][1]]
    for name, p in model.named_parameters():
        expected = torch.zeros_like(p)
        for example in x:
            for output in model(example):
                (slope,) = torch.autograd.grad(output, p, retain_graph=True)
                expected += slope.square() / len(x)
        torch.testing.assert_close(run.memory[f"importance.{name}"][1], expected)
        torch.testing.assert_close(run.memory[f"anchor.{name}"][1], expected * p.detach())


def test_the_joint_bound_learns_all_classes_at_once(tmp_path: Path) -> None:
    jobs = [Job(small(joint=True, width=0, sweep_speed=0.0, epochs=12, patience=12), 0)]
    (joint,) = run_tasks(jobs, context(tmp_path))
    assert joint.metrics["test_accuracy"] > 50 and "forgetting" not in joint.metrics
    assert len(joint.curves["accuracy_matrix"]) == 2


def test_the_window_starts_anew_in_every_epoch_of_an_order(tmp_path: Path) -> None:
    run = OrderedRun("ordered-mnist", [Job(ordered(), 0), Job(ordered(order="fixed"), 0)], context(tmp_path))
    run.train()
    steps = 170 // 10
    assert run.best_positions == [float(steps)] * 2
    assert [record.columns[-1] for record in run.records] == [steps - 1 + 5] * 2
    first, second = run.history
    assert first["valid_loss"] != second["valid_loss"]


def test_accuracy_decides_in_an_order_too(tmp_path: Path) -> None:
    (result,) = run_ordered([Job(ordered(keep="accuracy", epochs=6, lr=5e-2), 0)], context(tmp_path))
    losses, accuracies = result.curves["valid_loss"], result.curves["valid_accuracy"]
    assert result.metrics["valid_accuracy"] == max(accuracies) > accuracies[losses.index(min(losses))]


def test_learning_in_order_leaves_a_result(tmp_path: Path) -> None:
    results = list(run_ordered([Job(ordered(order=order), 0) for order in ("sorted", "fixed")], context(tmp_path)))
    assert [result.config["order"] for result in results] == ["sorted", "fixed"]
    assert all(result.experiment == "ordered-mnist" and result.metrics["test_accuracy"] > 0 for result in results)
    assert all({"used_alone_accuracy", "unused_share_of_codes"} <= set(result.metrics) for result in results)
    config = change(ORDERED_MLP, hidden_features=8, batch_size=10, epochs=1)
    (result,) = run_ordered([Job(config, 0)], context(tmp_path / "mlp", test=False))
    assert not {"test_accuracy", "used_alone_accuracy"} & set(result.metrics) and result.metrics["columns_used"] == 8


# Stopping and going on


def run_in_pieces(run: Any, jobs: Sequence[Job], folder: Path, pieces: int) -> list[Result]:
    for piece in range(1, pieces):
        try:
            return list(run(jobs, context(folder, precision="32", tick=stop_at(piece / pieces))))
        except Killed:
            continue
    return list(run(jobs, context(folder, precision="32")))


@pytest.mark.parametrize("kind", ["block", "rates", "elastic", "ordered"])
def test_a_run_that_was_stopped_again_and_again_ends_in_the_same_bits(kind: str, tmp_path: Path) -> None:
    jobs, run = {
        "block": ([Job(small(protocol=p), seed) for seed in range(2) for p in ("paper", "strict")], run_tasks),
        "rates": ([Job(small_rated(), seed) for seed in range(2)], run_tasks),
        "elastic": ([Job(small_mlp(penalty=5.0), seed) for seed in range(2)], run_tasks),
        "ordered": ([Job(ordered(order=order, patience=1), 0) for order in ("sorted", "fixed")], run_ordered),
    }[kind]
    whole = list(run(jobs, context(tmp_path / "whole", precision="32")))
    pieces = run_in_pieces(run, jobs, tmp_path / "pieces", pieces=12)
    assert [numbers(result) for result in pieces] == [numbers(result) for result in whole]
    best, expected = (load_checkpoint(tmp_path / name)["best"] for name in ("pieces", "whole"))
    assert all(torch.equal(best[name], value) for name, value in expected.items())


def test_a_checkpoint_of_other_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        list(run_tasks([Job(small(), 0)], context(tmp_path, tick=stop_at(0.3))))
    with pytest.raises(CorruptFileError, match=r"must hold a checkpoint of these models .* delete the folder"):
        list(run_tasks([Job(small(num_basis=90), 0)], context(tmp_path)))
