from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.paper.made import CLASSES, TEST, TRAIN, context, made_images, numbers, small
from tests.paper.stopped import Killed, stop_at
from torchpfc.checkpoint import CorruptFileError, load_checkpoint, save_checkpoint
from torchpfc.paper import image_run, learners, stack_run
from torchpfc.paper.components import PFCModel
from torchpfc.paper.image_run import ClassifierRun, Sets
from torchpfc.paper.images import MLPImage, PFCImage, ResidualImage
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.settings import change
from torchpfc.training import Evaluation, SquaredErrors, evaluate

pytestmark = pytest.mark.usefixtures("made_data")

DIFFERENT = [("mnist", 0.5, 0), ("fashion-mnist", 1.0, 1), ("mnist", 0.1, 1), ("mnist", 0.9, 3)]
"""Data set, weight of the prediction, and seed of models that stop after different numbers of epochs."""


def jobs_of(**changes: Any) -> list[Job]:
    return [Job(small(dataset=d, prediction_weight=w, **{"lr": 1e-2, **changes}), seed) for d, w, seed in DIFFERENT]


def run(jobs: Sequence[Job], folder: Path, **options: Any) -> list[Result]:
    return list(ClassifierRun("pfc-image", jobs, context(folder, **options)).results())


def close(one: Any, other: Any) -> bool:
    """Whether numbers agree to 1e-9, whatever holds them."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(close(*pair) for pair in zip(one, other, strict=True))
    return one == (pytest.approx(other, rel=1e-9, abs=1e-9) if isinstance(one, float) else other)


# Splits and sets


@pytest.mark.parametrize(
    ("count", "batch_size", "train", "valid"),
    [(60_000, 200, 51_000, 9_000), (50_000, 200, 42_500, 7_400), (1_437, 200, 1_221, 200), (1_437, 400, 1_221, 216)],
)
def test_a_split_is_85_to_15_without_the_rest_of_a_batch(count: int, batch_size: int, train: int, valid: int) -> None:
    config = change(PFCImage(), dataset="digits", batch_size=batch_size)
    learned, held_out = config.split(count, seed=0)
    assert (len(learned), len(held_out)) == (train, valid)
    rows = torch.cat([learned, held_out]).tolist()
    assert len(set(rows)) == len(rows) and max(rows) < count


def test_a_split_depends_on_the_seed_alone() -> None:
    config = change(PFCImage(), dataset="digits")
    first = config.split(100, 0)
    assert torch.equal(change(config, lr=1.0).split(100, 0)[0], first[0])
    assert not torch.equal(config.split(100, 1)[0], first[0])


def test_each_model_sees_its_own_data_set(tmp_path: Path) -> None:
    jobs = [Job(small(dataset=name), seed) for name, seed in (("fashion-mnist", 0), ("mnist", 0), ("fashion-mnist", 4))]
    sets = Sets(jobs, context(tmp_path), torch.float64)
    assert sets.x.shape == (2 * TRAIN, 16) and sets.x.dtype == sets.target.dtype == torch.float64
    x, target, (rows,) = sets.test
    assert x.shape == (2 * TEST, 16) and rows.shape == (3, TEST)
    for i, job in enumerate(jobs):
        data = made_images(job.config.images.dataset)
        learned, held_out = job.config.split(TRAIN, job.seed)
        for own, part in ((sets.train[0][i], learned), (sets.valid[0][i], held_out)):
            assert torch.equal(sets.x[own].float(), data.train.x[part])
            assert torch.equal(sets.target[own].argmax(1), data.train.label[part])
        assert torch.equal(x[rows[i]].float(), data.test.x) and torch.equal(target[rows[i]].argmax(1), data.test.label)
    assert sets.target.shape[1] == CLASSES and (sets.target.sum(1) == 1).all()


# Training


@pytest.mark.parametrize("warm_codes", [True, False])
def test_a_stack_trains_exactly_as_its_models_would_alone(warm_codes: bool, tmp_path: Path) -> None:
    jobs = jobs_of(warm_codes=warm_codes)
    together = run(jobs, tmp_path / "together")
    lengths = [result.metrics["epochs"] for result in together]
    assert len(set(lengths)) >= 3 and min(lengths) < 12  # so that models have left the stack on the way
    for i, job in enumerate(jobs):
        (alone,) = run([job], tmp_path / f"{i}")
        assert close(numbers(together[i]), numbers(alone))
        assert together[i].hardware["stack"] == 4 and alone.hardware["stack"] == 1


def test_perceptrons_train_exactly_as_alone_with_weights_of_either_sign(tmp_path: Path) -> None:
    config = change(MLPImage(), hidden_features=6, lr=1e-2, batch_size=20, epochs=4)
    for nonnegative in (False, True):
        jobs = [Job(change(config, nonnegative=nonnegative), seed) for seed in range(2)]
        folder = tmp_path / str(nonnegative)
        together = run(jobs, folder)
        for i, job in enumerate(jobs):
            assert close(numbers(together[i]), numbers(run([job], folder / f"{i}")[0]))
        best = load_checkpoint(folder)["best"]
        least = min(value.min().item() for name, value in best.items() if name.endswith("weight"))
        assert least >= 0 if nonnegative else least < -0.01
        assert min(value.min().item() for name, value in best.items() if name.endswith("bias")) < 0


def test_images_may_be_halved_in_training_alone(tmp_path: Path) -> None:
    job = Job(small(epochs=2), 0)
    (half,), (full,) = (run([job], tmp_path / p, precision=p) for p in ("bf16", "32"))
    assert half.hardware["precision"] == "bf16"
    assert half.curves["train_loss"] != full.curves["train_loss"]
    assert half.curves["train_loss"] == pytest.approx(full.curves["train_loss"], rel=1e-2)


def test_two_blocks_train_exactly_as_alone(tmp_path: Path) -> None:
    small = {"num_basis": 5, "iterations": 4, "eval_iterations": 5, "batch_size": 20, "epochs": 2, "warm_codes": True}
    config = change(ResidualImage(), **small)
    jobs = [Job(change(config, dataset=name), seed) for name, seed in (("mnist", 0), ("fashion-mnist", 1))]
    together = run(jobs, tmp_path / "together")
    for i, job in enumerate(jobs):
        assert close(numbers(together[i]), numbers(run([job], tmp_path / f"{i}")[0]))


def test_the_paper_s_loop_written_out_gives_the_same_numbers(tmp_path: Path) -> None:
    config = small(epochs=3, patience=9)
    (result,) = run([Job(config, 5)], tmp_path)
    data = made_images("mnist")
    x, label = data.train.x.double(), data.train.label
    target = nn.functional.one_hot(label, CLASSES).double()
    learned, held_out = config.split(TRAIN, 5)
    block = config.model.build(data, image_run.random_stream(5, "weights")).double()
    square_avg = {name: torch.zeros_like(p) for name, p in block.named_parameters()}
    losses = []
    for epoch in range(3):
        block.train()
        order = learned[torch.randperm(len(learned), generator=image_run.random_stream(5, "order", epoch))]
        for k in range(0, len(order) - 19, 20):
            rows = order[k : k + 20]
            out = block.couple(x[rows])
            loss = 0.5 * (out.y - target[rows]).square().mean() + 0.5 * (out.x - x[rows]).square().mean()
            block.zero_grad()
            loss.backward()
            with torch.no_grad():
                for name, p in block.named_parameters():
                    square_avg[name].mul_(0.99).add_(0.01 * p.grad.square())
                    p.sub_(config.optimizer.lr * p.grad / (square_avg[name].sqrt() + 1e-8))
                    p.sub_(config.optimizer.weight_decay * p).clamp_(min=1e-5)
        block.eval()
        block.solver = config.model.inference.eval_solver
        with torch.no_grad():
            out = block.couple(x[held_out])
        block.solver = config.model.inference.solver
        errors = [(out.y - target[held_out]).square().mean(), (out.x - x[held_out]).square().mean()]
        losses.append((0.5 * errors[0] + 0.5 * errors[1]).item())
    assert result.curves["valid_loss"] == pytest.approx(losses, rel=1e-9)


def test_the_model_that_is_measured_is_that_of_the_lowest_validation_loss(tmp_path: Path) -> None:
    config = small(lr=0.03, nonnegative=False, epochs=30, watch_accuracy=False)
    jobs = [Job(config, seed) for seed in range(3)]
    for i, result in enumerate(run(jobs, tmp_path)):
        losses, metrics = result.curves["valid_loss"], result.metrics
        assert metrics["best_epoch"] < metrics["epochs"] == len(losses)
        assert metrics["best_epoch"] == 1 + losses.index(min(losses))
        assert metrics["valid_loss"] == pytest.approx(min(losses), rel=1e-9)
        best = {name: value[i] for name, value in load_checkpoint(tmp_path)["best"].items()}
        data = made_images("mnist")
        block = change(config, iterations=8).model.build(data, torch.Generator()).double()
        block.load_state_dict(best)
        target = nn.functional.one_hot(data.test.label, CLASSES).double()
        found = evaluate(block, [(data.test.x.double(), target)], SquaredErrors(0.5, 0.5))
        assert metrics["test_accuracy"] == pytest.approx(100 * found.accuracy.item())
        assert metrics["test_loss"] == pytest.approx(found.loss.item(), rel=1e-9)


def test_without_a_test_there_is_no_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sets, "test", None)
    (result,) = run([Job(small(epochs=1), 0)], tmp_path, test=False)
    assert not [name for name in result.metrics if name.startswith("test") or name == "sparsity"]
    assert result.metrics["valid_accuracy"] >= 0


def test_a_loss_that_is_never_a_number_ends_in_a_result_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = PFCModel.build

    def broken_block(model: PFCModel, data: Any, generator: torch.Generator) -> nn.Module:
        block = build(model, data, generator)
        with torch.no_grad():
            block.weight_y.fill_(float("nan"))
        return block

    monkeypatch.setattr(PFCModel, "build", broken_block)
    (result,) = run([Job(small(epochs=9, patience=3), 0)], tmp_path)
    metrics = result.metrics
    assert metrics["best_epoch"] == 0  # the weights of the start
    assert 3 <= metrics["epochs"] <= 4 and metrics["valid_loss"] != metrics["valid_loss"]
    path = result.save(tmp_path / "results")
    assert "NaN" not in path.read_text()
    assert Result.load(path).metrics["valid_loss"] != metrics["valid_loss"]


def test_a_loss_that_stops_being_a_number_ends_one_model_and_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(small(epochs=8, patience=2, watch_accuracy=False), seed) for seed in range(2)]
    healthy = run(jobs, tmp_path / "healthy")
    calls = []

    def spoiled(*args: Any) -> Evaluation:
        found, _ = evaluate(*args), calls.append(1)
        if 3 <= len(calls) <= 4:
            found.loss[1] = float("nan")
        return found

    monkeypatch.setattr(image_run, "evaluate", spoiled)
    kept, ended = run(jobs, tmp_path / "spoiled")
    assert close(numbers(kept), numbers(healthy[0])) and kept.metrics["epochs"] == 8
    assert ended.metrics["best_epoch"] == 2 and ended.metrics["epochs"] == 4
    assert ended.metrics["valid_loss"] == pytest.approx(healthy[1].curves["valid_loss"][1], rel=1e-9)


def test_a_tolerance_that_is_not_reached_is_no_reason_to_warn(tmp_path: Path) -> None:
    (result,) = run([Job(small(tol=1e-9, epochs=1), 0)], tmp_path)
    assert result.metrics["epochs"] == 1


@pytest.mark.parametrize("precision", ["tf32", "32", "64"])
def test_every_precision_trains(precision: str, tmp_path: Path) -> None:
    (result,) = run([Job(small(epochs=2, warm_codes=True), 0)], tmp_path, precision=precision)
    assert result.hardware["precision"] == precision
    state = load_checkpoint(tmp_path)
    assert state["best"]["weight_x"].dtype == (torch.float64 if precision == "64" else torch.float32)


def test_a_result_says_where_it_comes_from(tmp_path: Path) -> None:
    jobs = jobs_of(epochs=1)[:2]
    for job, result in zip(jobs, run(jobs, tmp_path, precision="32"), strict=True):
        assert result.data == {job.config.images.dataset: f"fingerprint of {job.config.images.dataset}"}
        assert result.hardware["processes"] == 1 and result.hardware["stack"] == 2 and result.hardware["gpu"] is None
        assert set(result.versions) == {"torchpfc", "torch", "python"}
        assert result.seconds > 0 and result.metrics["milliseconds_per_step"] > 0
        assert result.experiment == "pfc-image" and result.seed == job.seed


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    told: list[float] = []
    run([Job(small(epochs=2), 0)], tmp_path, tick=told.append)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) == 2 * (170 // 20)


# Stopping and going on


def run_in_pieces(jobs: Sequence[Job], folder: Path, epochs: int, **options: Any) -> tuple[list[Result], list[int]]:
    """Runs, is stopped in the middle of every epoch, and goes on; also how many models were left each time."""
    left = []
    for epoch in range(epochs):
        try:
            return run(jobs, folder, tick=stop_at((epoch + 0.5) / epochs), **options), left
        except Killed:
            state = load_checkpoint(folder)
            left.append(len(jobs if state is None else state["members"]))
            assert epoch == (0 if state is None else state["epoch"])
    return run(jobs, folder, **options), left


@pytest.mark.parametrize("warm_codes", [True, False])
def test_a_run_stopped_in_every_epoch_ends_in_the_same_bits(warm_codes: bool, tmp_path: Path) -> None:
    jobs = jobs_of(warm_codes=warm_codes)
    whole = run(jobs, tmp_path / "whole", precision="32")
    pieces, left = run_in_pieces(jobs, tmp_path / "pieces", epochs=12, precision="32")
    assert len(left) >= 10 and set(left) >= {4, 3, 1}  # stopped with all models, and after some had left
    assert [numbers(result) for result in pieces] == [numbers(result) for result in whole]
    best, expected = (load_checkpoint(tmp_path / name)["best"] for name in ("pieces", "whole"))
    for name, value in expected.items():
        assert torch.equal(best[name], value)


def test_between_two_checkpoints_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[Path] = []

    def save(folder: Path, state: Any) -> None:
        saves.append(folder)
        save_checkpoint(folder, state)

    monkeypatch.setattr(stack_run, "save_checkpoint", save)
    jobs = [Job(small(epochs=4, patience=9), 0)]
    run(jobs, tmp_path / "a", checkpoint_seconds=0.0)
    assert len(saves) == 5  # one an epoch, and one at the end
    run(jobs, tmp_path / "b", checkpoint_seconds=60.0)
    assert len(saves) == 6
    monkeypatch.setattr(stack_run, "_CHECKPOINT_SHARE", 1e9)
    run(jobs, tmp_path / "c", checkpoint_seconds=1e-9)
    assert len(saves) == 8  # the first is due, then it took too long to do it again so soon


def test_what_is_trained_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = jobs_of(epochs=2)
    expected = run(jobs, tmp_path / "whole")

    def stop(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(learners, "unstack_models", stop)
        with pytest.raises(Killed):
            run(jobs, tmp_path / "stopped")
    assert set(load_checkpoint(tmp_path / "stopped")) >= {"best", "history"}
    assert "model" not in load_checkpoint(tmp_path / "stopped")
    results = run(jobs, tmp_path / "stopped", tick=lambda share: pytest.fail("trains"))
    assert [numbers(result) for result in results] == [numbers(result) for result in expected]


def test_a_run_does_not_go_on_with_other_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        run(jobs_of(), tmp_path, tick=stop_at(0.3))
    changed = replace(made_images("mnist"), fingerprint="of others")
    monkeypatch.setattr("torchpfc.paper.components.load_images", lambda *_: changed)
    with pytest.raises(CorruptFileError, match="must hold a checkpoint of a training on the images that are there now"):
        run(jobs_of(), tmp_path)


@pytest.mark.parametrize("fault", ["other sizes", "missing"])
def test_a_checkpoint_of_other_models_is_named(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with pytest.raises(Killed):
        run([Job(small(), 0)], folder, tick=stop_at(0.3))
    if fault == "missing":
        state = load_checkpoint(folder)
        del state["history"]
        save_checkpoint(folder, state)
    config = small(num_basis=7) if fault == "other sizes" else small()
    message = f"{folder} must hold a checkpoint of these models .*; delete the folder {folder} to start from"
    with pytest.raises(CorruptFileError, match=message):
        run([Job(config, 0)], folder)


class Second:
    """A process that is not the first: sees what the first one sees, and is not to write."""

    is_global_zero = False

    def __init__(self, first: Any) -> None:
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)


def test_other_processes_write_no_checkpoints(tmp_path: Path) -> None:
    given = context(tmp_path / "a")
    other: Any = Second(given.fabric)
    jobs = [Job(small(epochs=2), 0)]
    (result,) = ClassifierRun("pfc-image", jobs, replace(given, fabric=other)).results()
    assert not (tmp_path / "a").exists()
    assert numbers(result) == numbers(run(jobs, tmp_path / "b")[0])


def test_codes_are_gathered_where_there_are_several_processes(tmp_path: Path) -> None:
    fabric: Any = SimpleNamespace(world_size=2, all_gather=lambda tensor: torch.stack([tensor, tensor]))
    gather = image_run._gather(fabric)
    assert gather is not None and gather(torch.ones(3)).shape == (2, 3)
    assert image_run._gather(context(tmp_path).fabric) is None


# What only a GPU can show


def on_gpu(jobs: Sequence[Job], folder: Path, **options: Any) -> list[Result]:
    from torchpfc.paper.devices import open_fabric

    given = context(folder, **{"precision": "32", **options})
    return list(ClassifierRun("pfc-image", jobs, replace(given, fabric=open_fabric("cuda", given.precision))).results())


@pytest.mark.gpu
@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_a_run_on_a_gpu_ends_in_the_same_bits_however_often_it_is_stopped(gradient: str, tmp_path: Path) -> None:
    jobs = jobs_of(warm_codes=True, gradient=gradient, gradient_steps=5)
    whole = on_gpu(jobs, tmp_path / "whole")
    for epoch in range(12):
        try:
            pieces = on_gpu(jobs, tmp_path / "pieces", tick=stop_at((epoch + 0.5) / 12))
            break
        except Killed:
            continue
    else:
        pieces = on_gpu(jobs, tmp_path / "pieces")
    assert [numbers(result) for result in pieces] == [numbers(result) for result in whole]
    best, expected = (load_checkpoint(tmp_path / name)["best"] for name in ("pieces", "whole"))
    for name, value in expected.items():
        assert torch.equal(best[name], value)
    assert whole[0].hardware["gpu"]


@pytest.mark.gpu
def test_a_stack_on_a_gpu_trains_as_its_models_would_alone(tmp_path: Path) -> None:
    jobs = jobs_of(warm_codes=True, epochs=4, patience=9)[:3]
    together = on_gpu(jobs, tmp_path / "together", precision="64")
    for i, job in enumerate(jobs):
        (alone,) = on_gpu([job], tmp_path / f"{i}", precision="64")
        (cpu,) = run([job], tmp_path / f"cpu {i}")
        for other in (alone, cpu):
            assert together[i].curves["valid_loss"] == pytest.approx(other.curves["valid_loss"], rel=1e-6)
            assert together[i].metrics["test_loss"] == pytest.approx(other.metrics["test_loss"], rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes", [{"tol": 1e-2}, {"gradient": "implicit"}, {"gradient": "truncated", "gradient_steps": 2}]
)
def test_steps_that_wait_for_the_device_train_on_a_gpu_too(changes: dict[str, Any], tmp_path: Path) -> None:
    job = Job(small(epochs=2, **changes), 0)
    (gpu,), (cpu,) = on_gpu([job], tmp_path / "gpu", precision="64"), run([job], tmp_path / "cpu")
    assert gpu.curves["valid_loss"] == pytest.approx(cpu.curves["valid_loss"], rel=1e-5)
