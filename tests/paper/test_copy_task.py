from pathlib import Path
from typing import Any

import pytest
import torch

from tests.paper.made import context, numbers
from tests.paper.stopped import assert_same_bits_when_stopped
from torchpfc.nmf import ColumnCap
from torchpfc.nn import SliceBySlice, rnn_reconstruction_loss, stack_models
from torchpfc.nn.recording import record_couplings
from torchpfc.paper import experiments
from torchpfc.paper.components import Optimizer
from torchpfc.paper.copy_task import CopyConfig, CopyRun, build_nmf, draw_batch, run
from torchpfc.paper.recurrent_models import NORMALIZATIONS, Network, SequenceErrors
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.settings import change
from torchpfc.training import random_stream

CPU: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float64}


def small(**changes: Any) -> CopyConfig:
    return change(change(CopyConfig(), **changes).smoke(), **changes)


def run_small(folder: Path, *seeds: int, config: CopyConfig) -> list[Result]:
    return list(run([Job(config, seed) for seed in seeds], context(folder)))


def rows() -> dict[str, Any]:
    return {row.id: row for table in experiments()["copy-task"].tables for row in table.rows}


def test_defaults_are_those_of_the_published_code() -> None:
    config = CopyConfig()
    assert (config.network.num_basis, config.network.iterations, config.batch_size) == (1024, 50, 256)
    assert (config.validate_every, config.valid_batches, config.tolerance) == (200, 100, 0.0)
    assert (config.task.input_size, config.task.num_symbols) == (12, 10)
    network = build_nmf(change(config, num_basis=9), 0)
    assert (network.input_size, network.output_size, network.rate_h, network.rate_w) == (12, 10, 0.5, 0.5)
    assert network.inference == SliceBySlice(50) and network.cap_over_batch and network.init_range == (0.0, 2e-2)
    assert config.updates.normalization == "column-cap" and network.normalization == ColumnCap()
    assert build_nmf(change(config, num_basis=9, nonnegative=False), 0).init_range == (-1e-2, 1e-2)


def test_every_kind_of_network_has_its_rows() -> None:
    found = rows()
    assert {found[f"COPY.NMF.{pause}"].config.task.pause for pause in (5, 10, 15, 20, 30)} == {5, 10, 15, 20, 30}
    assert found["COPY.NMF.10"].seeds == 8 and not found["COPY.SEMI.5"].config.network.nonnegative
    vanilla = found["COPY.VAN.BPTT.5"].config
    assert vanilla.network.model == "vanilla" and vanilla.optimizer == Optimizer(lr=5e-5, weight_decay=2e-4)
    assert (vanilla.batch_size, vanilla.valid_batches, vanilla.tolerance) == (512, 200, 1e-5)
    assert not found["COPY.VAN.NOBPTT.5"].config.network.bptt
    factorized = found["COPY.FAC.BPTT.5"].config
    assert factorized.network == Network(num_basis=512, nonnegative=False, iterations=20)
    assert (factorized.batch_size, factorized.optimizer.lr, factorized.updates.init_high) == (10, 1e-4, 5e-2)
    assert {"COPY.LSTM.5", "COPY.GRU.5"} <= set(found)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model": "rnn"}, "model must be one of nmf, factorized, vanilla, lstm, gru, got 'rnn'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"normalization": "cap"}, "normalization must be one of column-cap, mean-of-max, unnormalized, got 'cap'"),
        ({"pause": -1}, "pause must be at least 0, got -1"),
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(CopyConfig(), **setting)


def test_batches_depend_on_seed_round_and_number_alone(tmp_path: Path) -> None:
    config = small(validate_every=3)
    source = CopyRun("copy-task", [Job(config, 1), Job(config, 2)], context(tmp_path / "both")).source()
    source.set_epoch(4)
    batches = list(source)
    assert len(batches) == len(source) == 3 and batches[0].x.shape == (2, 8, config.task.slices, 5)
    for k, batch in enumerate(batches):
        _, own = draw_batch(config, [2], "batch", 4, k, **CPU)
        assert torch.equal(batch.x[1], own.x[0]) and torch.equal(batch.target[1], own.target[0])
        assert batch.state is not None and own.state is not None and torch.equal(batch.state[1], own.state[0])
    assert not torch.equal(batches[0].x, batches[1].x)
    tokens, fresh = draw_batch(config, [1, 2], "validation", 4, 0, **CPU)
    assert not torch.equal(fresh.x, batches[0].x)
    assert torch.equal(fresh.target[..., -2:, :].argmax(-1), tokens)
    assert draw_batch(change(config, model="vanilla"), [1], "batch", 0, 0, **CPU)[1].state is None


def test_the_loss_is_that_of_the_slices_that_are_asked() -> None:
    network = Network(num_basis=6, iterations=3).build(5, 3, random_stream(0)).double()
    stack = stack_models([network.eval()])
    _, batch = draw_batch(small(model="factorized"), [0], "batch", 0, 0, **CPU)
    scored = SequenceErrors(1.0, 0.5, 2)(stack, batch.x, batch.target)
    with record_couplings(network) as seen:
        y, _ = network(batch.x[0])
    error = (y[:, -2:] - batch.target[0][:, -2:]).square().mean()
    torch.testing.assert_close(scored.loss[0], error + 0.5 * rnn_reconstruction_loss(seen))
    torch.testing.assert_close(SequenceErrors(1.0, 0.0, 2)(stack, batch.x, batch.target).loss[0], error)


@pytest.mark.parametrize("model", ["nmf", "factorized", "vanilla", "gru"])
def test_networks_learn_at_once_as_they_would_alone(model: str, tmp_path: Path) -> None:
    config = small(model=model, nonnegative=model in ("nmf", "factorized"))
    together = run_small(tmp_path / "together", 0, 3, config=config)
    for result in together:
        (alone,) = run_small(tmp_path / f"{result.seed}", result.seed, config=config)
        assert result.curves["train_loss"] == pytest.approx(alone.curves["train_loss"], rel=1e-6)
        assert result.curves["steps"] == [2.0, 4.0] and result.metrics["steps"] == 4
        assert result.metrics["solved"] == 0 and result.metrics["valid_accuracy"] == pytest.approx(
            max(result.curves["accuracy_at_steps"])
        )


@pytest.mark.parametrize("model", ["nmf", "factorized", "vanilla", "gru"])
def test_sequences_are_not_halved(model: str, tmp_path: Path) -> None:
    jobs = [Job(small(model=model, nonnegative=model in ("nmf", "factorized")), seed) for seed in range(2)]
    half, full = (list(run(jobs, context(tmp_path / p, precision=p))) for p in ("bf16", "32"))
    assert [numbers(result) for result in half] == [numbers(result) for result in full]
    assert {result.hardware["precision"] for result in half + full} == {"32"}


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_first_passes_are_those_of_the_network(normalization: str, tmp_path: Path) -> None:
    config = small(steps=2, validate_every=2, normalization=normalization)
    (result,) = run_small(tmp_path, 5, config=config)
    rnn = build_nmf(config, 5).double()
    batches = [draw_batch(config, [5], "batch", 0, k, **CPU)[1] for k in range(2)]
    losses = [
        rnn.learn(batch.x[0], batch.target[0], mask=config.task.asked, state=batch.state[0]).total
        for batch in batches
        if batch.state is not None
    ]
    assert result.curves["train_loss"] == pytest.approx([(sum(losses) / 2).item()], rel=1e-9)


def learner(**changes: Any) -> CopyConfig:
    """Two of three symbols after a pause of one: learned in seconds."""
    settings = {"num_tokens": 2, "num_symbols": 3, "pause": 1, "num_basis": 48, "batch_size": 32, "iterations": 20}
    return change(CopyConfig(), **{**settings, "validate_every": 50, "valid_batches": 20, "steps": 400, **changes})


def test_a_short_copy_task_is_solved_without_backpropagation_and_then_left(tmp_path: Path) -> None:
    config = learner()
    results = list(run([Job(config, seed) for seed in range(2)], context(tmp_path, precision="32")))
    assert sum(result.metrics["solved"] for result in results) >= 1
    for result in results:
        if result.metrics["solved"]:
            assert result.metrics["valid_accuracy"] == 100 and result.curves["accuracy_at_steps"][-1] == 100
            assert result.metrics["steps"] == 50 * len(result.curves["accuracy_at_steps"]) <= 400


def test_few_mistakes_may_be_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answers(self: CopyRun, batch: Any) -> Any:
        asked.append(len(batch.x))
        y = batch.target.clone()
        y[0, 0, -1] = y[0, 0, -1].roll(1)  # one wrong symbol in each batch, by the first network alone
        return y

    monkeypatch.setattr(CopyRun, "answer", answers)
    config = small(valid_batches=10, steps=2)
    strict = run_small(tmp_path / "strict", 0, 1, config=config)
    assert [result.metrics["solved"] for result in strict] == [0, 1] and len(asked) == 10
    lenient = run_small(tmp_path / "lenient", 0, 1, config=change(config, tolerance=0.1))
    assert [result.metrics["solved"] for result in lenient] == [1, 1]
    assert lenient[0].metrics["valid_accuracy"] == pytest.approx(100 * (1 - 1 / 16))
    asked.clear()
    run_small(tmp_path / "alone", 0, config=config)
    assert len(asked) == 4  # it has made a mistake, and so has every other: that is enough


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = small(steps=6)
    assert_same_bits_when_stopped(CopyRun, 2, lambda folder: run_small(folder, 0, 1, config=config), tmp_path)


def test_what_takes_longer_costs_more() -> None:
    vanilla, longer = change(CopyConfig(), model="vanilla"), change(CopyConfig(), pause=30)
    costs = [config.cost() for config in (vanilla, CopyConfig(), longer)]
    assert costs == sorted(costs) and len(set(costs)) == 3 and CopyConfig().stack_size() == 8
    assert CopyConfig().stack_key() == CopyConfig().stack_key() != longer.stack_key()
