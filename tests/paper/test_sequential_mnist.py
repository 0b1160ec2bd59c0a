from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.paper.made import CLASSES, TRAIN, context, made_images, numbers
from tests.paper.stopped import Killed, stop_at
from torchpfc import FactorizedRNN, VanillaRNN, keep_nonnegative, record_couplings, rnn_reconstruction_loss
from torchpfc.nmf import ColumnCap, MeanOfMax
from torchpfc.optim import RMSprop
from torchpfc.paper import experiments
from torchpfc.paper.devices import open_fabric
from torchpfc.paper.learners import small_states
from torchpfc.paper.recurrent_models import ImageReader
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.sequential_mnist import (
    NMFRun,
    NMFSequentialMNIST,
    SequentialMNIST,
    run,
)
from torchpfc.paper.settings import change, settings
from torchpfc.training import random_stream

pytestmark = pytest.mark.usefixtures("made_data")


def rows() -> dict[str, Any]:
    return {row.id: row for table in experiments()["sequential-mnist"].tables for row in table.rows}


def small(**changes: Any) -> SequentialMNIST:
    chosen = {"num_basis": 6, "iterations": 3, "batch_size": 20, "epochs": 3, "patience": 2, "lr": 3e-3}
    return change(SequentialMNIST(), **{**chosen, **changes})


def small_nmf(**changes: Any) -> NMFSequentialMNIST:
    chosen = {"num_basis": 7, "iterations": 3, "batch_size": 20, "epochs": 4, "patience": 2, "init_high": 0.2}
    return change(NMFSequentialMNIST(), **{**chosen, **changes})


def run_small(folder: Path, config: Any, *seeds: int, **options: Any) -> list[Result]:
    return list(run([Job(config, seed) for seed in seeds], context(folder, **options)))


def test_rows_have_the_settings_and_numbers_of_the_paper() -> None:
    found = rows()
    paper = {id: row.paper for id, row in found.items() if row.paper is not None}
    assert paper == {
        "T7.FAC.NO.512.N": 77.43, "T7.FAC.NO.512.S": 96.23, "T7.FAC.NO.2048.N": 75.81, "T7.FAC.NO.2048.S": 97.16,
        "T7.VAN.NO.512": 83.33, "T7.VAN.NO.2048": 94.06, "T7.FAC.YES.512.N": 98.56, "T7.FAC.YES.512.S": 98.16,
        "T7.FAC.YES.2048.N": 98.66, "T7.FAC.YES.2048.S": 99.00, "T7.VAN.YES.512": 97.94, "T7.VAN.YES.2048": 98.66,
    }  # fmt: skip
    for id in paper:
        _, network, through_time, size, *kind = id.split(".")
        config, row = settings(found[id].config), found[id]
        assert row.slack == 0.3 and row.seeds >= (3 if (through_time, size) == ("YES", "512") else 1)
        expected = {"num_basis": int(size), "bptt": through_time == "YES", "nonnegative": kind == ["N"]}
        expected |= {"watch_accuracy": False, "weight_decay": 1e-5}
        if network == "FAC":
            expected |= {"model": "factorized", "iterations": 10, "reconstruction_weight": 1}
            expected |= {"lr": 5e-5, "batch_size": 100, "patience": 10, "epochs": 100}
        else:
            batch = 200 if (size, through_time) == ("512", "NO") else 100
            expected |= {"model": "vanilla", "lr": 1e-5, "batch_size": batch, "patience": 5, "epochs": 200}
        assert config.items() >= expected.items()
    assert {"T7.LSTM.512", "T7.GRU.512", "T7.NMF.512"} <= set(found)


def test_sizes_go_from_small_to_those_of_the_table() -> None:
    found = rows()
    for kind in "NS":
        for through_time in ("YES", "NO"):
            ids = [id for id in found if id.startswith(f"BPTT.{through_time}.") and id.endswith(kind)]
            sizes = [found[id].config.model.units for id in ids]
            assert sizes == sorted(sizes) and len(sizes) >= 4
            for size in (512, 2048):
                assert found[f"BPTT.{through_time}.{size}.{kind}"].config == found[f"T7.FAC.{through_time}.{size}.{kind}"].config  # fmt: skip  # noqa: E501


def test_iterations_are_all_that_a_curve_over_them_changes() -> None:
    (table,) = (table for table in experiments()["sequential-mnist"].tables if table.id == "T7K")
    found = {row.id: row for row in table.rows}
    assert table.over == "iterations" and len(found) == 8
    for through_time in ("YES", "NO"):
        for iterations in (10, 25, 50, 100):
            row, fewest = found[f"T7K.{through_time}.{iterations}"], found[f"T7K.{through_time}.10"]
            assert row.config == change(fewest.config, iterations=iterations)
            assert row.config.model.bptt == (through_time == "YES") and row.seeds == 3


def test_the_fast_preset_changes_how_fast_networks_learn_and_nothing_else() -> None:
    fast, found = experiments()["sequential-mnist"].presets["fast"], rows()
    for row in found.values():
        before, after = settings(row.config), settings(fast(row.config))
        slows_down = before.get("lr_decay", 1.0) < 1
        if before["model"] == "nmf" or slows_down or (before["num_basis"] == 2048 and before["nonnegative"]):
            assert after == before
            continue
        assert {name for name in before if before[name] != after[name]} <= {"lr", "lr_decay", "epochs"}
        assert after["epochs"] < before["epochs"]
        assert (after["lr"] > before["lr"] and after["lr_decay"] < 1) or row.id.startswith("T7.VAN.NO")
    for row_id in ("BPTT.YES.32.N", "BPTT.NO.128.S"):
        at_table_size = change(found[row_id].config, num_basis=512)
        assert fast(at_table_size) == change(fast(found[row_id].config), num_basis=512)


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        (SequentialMNIST, {"model": "nmf"}, "model must be one of factorized, vanilla, lstm, gru, got 'nmf'"),
        (SequentialMNIST, {"model": "gru"}, "nonnegative and reconstruction_weight must be off for 'gru'"),
        (SequentialMNIST, {"iterations": 0}, "iterations must be at least 1, got 0"),
        (SequentialMNIST, {"lr_decay": 0.0}, "lr_decay must be greater than 0 and at most 1, got 0.0"),
        (SequentialMNIST, {"lr_decay": 1.1}, "lr_decay must be greater than 0 and at most 1, got 1.1"),
        (NMFSequentialMNIST, {"num_basis": 0}, "num_basis must be at least 1, got 0"),
        (NMFSequentialMNIST, {"normalization": "no"}, "normalization must be one of column-cap, .*, got 'no'"),
    ],
)
def test_a_setting_out_of_range_is_named(kind: type, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(kind(), **setting)


def test_models_are_what_their_config_says() -> None:
    data = made_images("mnist")
    reader = small(nonnegative=False, bptt=False).model.build(data, random_stream(0))
    assert isinstance(reader, ImageReader) and isinstance(reader.rnn, FactorizedRNN)
    assert (reader.rnn.input_size, reader.rnn.num_basis, reader.rnn.output_size) == (4, 6, 10)
    assert not reader.rnn.bptt and not reader.rnn.block.nonnegative
    other = small(model="vanilla", nonnegative=False, reconstruction_weight=0.0).model.build(data, random_stream(0))
    assert isinstance(other, ImageReader) and isinstance(other.rnn, VanillaRNN)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bptt": False, "nonnegative": False},
        {"model": "vanilla", "nonnegative": False, "reconstruction_weight": 0.0},
        {"model": "lstm", "nonnegative": False, "reconstruction_weight": 0.0},
    ],
    ids=["factorized", "semi-NMF without BPTT", "vanilla", "LSTM"],
)
def test_seeds_train_at_once_as_they_would_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    config = small(**changes)
    together = run_small(tmp_path / "together", config, 0, 4)
    for result in together:
        (alone,) = run_small(tmp_path / f"{result.seed}", config, result.seed)
        assert result.curves["valid_loss"] == pytest.approx(alone.curves["valid_loss"], rel=1e-7)
        assert result.metrics["test_accuracy"] == pytest.approx(alone.metrics["test_accuracy"])


@pytest.mark.parametrize("lr_decay", [1.0, 0.3])
def test_the_paper_s_loop_written_out_gives_the_same_numbers(lr_decay: float, tmp_path: Path) -> None:
    config = small(lr_decay=lr_decay)
    (result,) = run_small(tmp_path, config, 5)
    data = made_images("mnist")
    x = data.train.x.double().view(-1, 4, 4).transpose(1, 2)  # columns from left to right
    target = nn.functional.one_hot(data.train.label, CLASSES).double()
    learned, held_out = config.split(TRAIN, 5)
    reader: Any = config.model.build(data, random_stream(5, "weights")).double()
    rnn, lr = reader.rnn, config.optimizer.lr
    optimizer = RMSprop(rnn.parameters(), lr=lr, weight_decay=config.optimizer.weight_decay)
    keep_nonnegative(rnn, optimizer)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        with record_couplings(rnn) as seen:
            y, _ = rnn(x[rows])
        return (y[:, -1] - target[rows]).square().mean() + rnn_reconstruction_loss(seen)

    losses = []
    for epoch in range(3):
        optimizer.param_groups[0]["lr"] = lr * lr_decay**epoch
        rnn.train()
        order = learned[torch.randperm(len(learned), generator=random_stream(5, "order", epoch))]
        for k in range(0, len(order) - 19, 20):
            optimizer.zero_grad()
            loss_of(order[k : k + 20]).backward()
            optimizer.step()
        rnn.eval()
        with torch.no_grad():
            losses.append(loss_of(held_out).item())
    assert result.curves["valid_loss"] == pytest.approx(losses, rel=1e-9)


def test_a_run_that_slows_down_ends_in_the_same_bits_when_stopped(tmp_path: Path) -> None:
    config = small(lr=1e-2, lr_decay=0.5, epochs=6, patience=1)
    whole = run_small(tmp_path / "whole", config, 0, 1, 2)
    assert len({result.metrics["epochs"] for result in whole}) > 1  # some go on when others have left
    for epoch in range(6):
        with pytest.raises(Killed):
            run_small(tmp_path / "pieces", config, 0, 1, 2, tick=stop_at((epoch + 0.5) / 6))
    pieces = run_small(tmp_path / "pieces", config, 0, 1, 2)
    assert [numbers(result) for result in pieces] == [numbers(result) for result in whole]


# Without backpropagation


@pytest.mark.parametrize("normalization", ["column-cap", "mean-of-max"])
def test_a_first_epoch_without_backpropagation_is_the_plain_loop(normalization: str, tmp_path: Path) -> None:
    config = small_nmf(epochs=1, normalization=normalization)
    (result,) = run_small(tmp_path, config, 5)
    data = made_images("mnist")
    x = data.train.x.double().view(-1, 4, 4).transpose(1, 2)
    target = nn.functional.one_hot(data.train.label, CLASSES).double()
    learned, _ = config.split(TRAIN, 5)
    order = learned[torch.randperm(len(learned), generator=random_stream(5, "order", 0))]
    rnn = config.model.build(data, random_stream(5, "weights")).double()
    assert rnn.normalization == {"column-cap": ColumnCap(), "mean-of-max": MeanOfMax()}[normalization]
    losses = []
    for k in range(len(order) // 20):
        rows = order[20 * k : 20 * (k + 1)]
        y = torch.zeros(20, 4, CLASSES, dtype=torch.float64)
        y[:, -1] = target[rows]
        state = small_states([5], (20, 7), 0.2, y, 0, k)[0]
        last = torch.tensor([False, False, False, True])
        losses.append(rnn.learn(x[rows], y, mask=last, state=state).total.item())
    assert result.curves["train_loss"] == pytest.approx([sum(losses) / len(losses)], rel=1e-9)
    test = data.test.x.double().view(-1, 4, 4).transpose(1, 2)
    answers = [
        rnn.predict(part, small_states([5], (20, 7), 0.2, part, "measured", k)[0])[:, -1].argmax(-1)
        for k, part in enumerate(test.split(20))  # in batches as large as those of the training: the cap is theirs
    ]
    right = torch.cat(answers) == data.test.label
    assert result.metrics["test_accuracy"] == pytest.approx(100 * right.double().mean().item(), rel=1e-5)


def test_networks_without_backpropagation_stop_by_themselves(tmp_path: Path) -> None:
    config = small_nmf(epochs=12, patience=2)
    together = run_small(tmp_path / "together", config, 0, 1, 2)
    for result in together:
        accuracies = result.curves["valid_accuracy"]
        best = accuracies.index(max(accuracies))
        assert result.metrics["best_epoch"] == best + 1 and result.metrics["epochs"] == len(accuracies)
        assert len(accuracies) == 12 or len(accuracies) == best + 1 + 2
        assert result.metrics["valid_accuracy"] == max(accuracies)
        (alone,) = run_small(tmp_path / f"{result.seed}", config, result.seed)
        assert alone.curves["train_loss"] == pytest.approx(result.curves["train_loss"], rel=1e-6)
    assert together[0].data == {"mnist": "fingerprint of mnist"}
    (blind,) = run_small(tmp_path / "blind", config, 0, test=False)
    assert "test_accuracy" not in blind.metrics and "valid_accuracy" in blind.metrics


def test_a_stopped_run_without_backpropagation_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_nmf()
    whole = [numbers(result) for result in run_small(tmp_path / "whole", config, 0, 1)]
    examine = NMFRun.examine

    def stopping(self: NMFRun, stats: Any) -> Any:
        if stats.epoch == 2:
            raise KeyboardInterrupt
        return examine(self, stats)

    monkeypatch.setattr(NMFRun, "examine", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_small(tmp_path / "stopped", config, 0, 1)
    monkeypatch.setattr(NMFRun, "examine", examine)
    assert [numbers(result) for result in run_small(tmp_path / "stopped", config, 0, 1)] == whole


def test_networks_on_other_images_do_not_share_a_stack() -> None:
    one, other = small_nmf(), small_nmf(dataset="fashion-mnist")
    assert one.stack_key() != other.stack_key() and one.stack_key() == small_nmf().stack_key()
    assert small().stack_key() != small(bptt=False).stack_key()
    assert small().cost() < change(small(), iterations=50).cost()


# What only a GPU can show


@pytest.mark.gpu
def test_a_recorded_step_follows_a_learning_rate_that_falls(tmp_path: Path) -> None:
    config = small(lr_decay=0.3, epochs=4, patience=9)
    (cpu,) = run_small(tmp_path / "cpu", config, 0)
    on_gpu = replace(context(tmp_path / "gpu"), fabric=open_fabric("cuda", "64"))
    (gpu,) = run([Job(config, 0)], on_gpu)
    assert gpu.curves["valid_loss"] == pytest.approx(cpu.curves["valid_loss"], rel=1e-6)
