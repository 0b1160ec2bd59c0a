import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.experiments.made import context, numbers
from torchpfc import NMFRNN, FactorizedRNN
from torchpfc.data.sequences import PATTERN
from torchpfc.experiments import experiments
from torchpfc.experiments.registry import Job
from torchpfc.experiments.repeating_sequence import (
    CHANGES,
    ROUNDS,
    RepeatingSequence,
    TrainedSequence,
    fast,
    go_on,
    is_pictured,
    judge_generated,
    judge_machine,
    machine_curves,
    repeat,
    run,
    slice_errors,
)
from torchpfc.experiments.results import Result
from torchpfc.experiments.sequence_pictures import CELL, SPARE
from torchpfc.nn import AllSlices, SliceBySlice
from torchpfc.optim.alternating import ColumnCap, MeanOfMax
from torchpfc.training import random_stream

PICTURES = {"stacked_weights", "factorization_before", "factorization_after", "sequences"}


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two repetitions are enough to see that something is measured."""
    monkeypatch.setattr("torchpfc.experiments.repeating_sequence.MEASURED_REPEATS", 2)


def rows() -> dict[str, Any]:
    return {row.id: row for table in experiments()["repeating-sequence"].tables for row in table.rows}


def small(**changes: Any) -> RepeatingSequence:
    settings = {"num_basis": 12, "repeats": 2, "passes": ROUNDS, "iterations": 3, "init_high": 0.3}
    return RepeatingSequence(**{**settings, **changes})


def run_small(folder: Path, *seeds: int, config: Any = None, **changes: Any) -> list[Result]:
    config = small(**changes) if config is None else config
    return list(run([Job(config, seed) for seed in seeds], context(folder)))


def machine(pattern: tuple[int, ...] = PATTERN, size: int = 40) -> NMFRNN:
    """A network that knows a pattern by heart."""
    rnn = NMFRNN(4, size, inference=SliceBySlice(60), dtype=torch.float64)
    rnn.weight.fill_(1e-5)
    count = len(pattern)
    for place in range(count):
        rnn.weight_x[pattern[place], place] = 1.0
        rnn.weight_y[pattern[(place + 1) % count], place] = 1.0
        rnn.weight_h[(place - 1) % count, place] = 1.0
    return rnn


def one_hot(symbols: Tensor) -> Tensor:
    return F.one_hot(symbols, 4).double()


# Settings and rows


def test_defaults_are_those_of_the_published_code() -> None:
    config = RepeatingSequence()
    assert (config.repeats, config.passes, config.iterations) == (8, 410, 100)
    assert (config.init_high, config.threshold, config.rate_h, config.rate_w) == (2e-2, 5e-4, 0.5, 0.5)
    network = config.make_network(3)
    assert network.inference == SliceBySlice(100) and network.normalization == ColumnCap()
    assert network.init_range == (0.0, 2e-2) and network.threshold == 5e-4 and network.weight.shape == (108, 100)
    text = replace(config, **CHANGES["text"]).make_network(3)
    assert text.normalization == MeanOfMax() and text.rate_h == text.rate_w == 1.0 and text.threshold == 0.0
    assert replace(config, inference="all-slices").make_network(3).inference == AllSlices(100)
    assert not torch.equal(network.weight, config.make_network(3, start=1).weight)


def test_every_size_and_change_has_its_row() -> None:
    found = rows()
    assert {row.config.num_basis for id, row in found.items() if id.startswith("SEQ.")} >= {25, 50, 100, 150, 500}
    assert all(row.seeds >= 20 for id, row in found.items() if id.startswith(("SEQ.", "SEQR.", "SEQX.")))
    assert found["SEQR.100"].config.pattern == "random" and found["SEQX.50.five-starts"].config.starts == 5
    assert found["SEQ.50"].config == found["SEQX.50.published"].config
    assert found["SEQB.VAN"].config.model == "vanilla" and not found["SEQB.FAC.N.NOBPTT"].config.bptt


def test_the_fast_preset_carries_the_state_on() -> None:
    config = fast(RepeatingSequence(num_basis=150, pattern="random"))
    assert config.carried and config.settling > 0 and (config.num_basis, config.pattern) == (150, "random")
    assert config.make_network(0).threshold == 0 < config.threshold
    assert fast(TrainedSequence()) == TrainedSequence()


def test_the_end_of_the_passes_has_settings_of_its_own() -> None:
    config = RepeatingSequence(threshold=0.5, settling=0.4, final_iterations=7)
    network, found = config.make_network(0), []
    for share in range(10):
        config.prepare(network, share / 10)
        found.append((network.inference, network.threshold, network.normalization))
    assert found == [(SliceBySlice(100), 0.5, ColumnCap())] * 6 + [(SliceBySlice(7), 0.0, None)] * 4
    assert config.make_network(0).inference == SliceBySlice(7)
    assert replace(config, settling=0.0).make_network(0).threshold == 0.5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"pattern": "other"}, "pattern must be one of published, random, got 'other'"),
        ({"passes": 0}, "passes must be at least 1, got 0"),
        ({"starts": 0}, "starts must be at least 1, got 0"),
        ({"inference": "none"}, "inference must be one of slice-by-slice, all-slices, got 'none'"),
        ({"normalization": "x"}, "normalization must be one of column-cap, mean-of-max, unnormalized, got 'x'"),
        ({"settling": 1.5}, "settling must be from 0 to 1, got 1.5"),
        ({"final_iterations": 0}, "final_iterations must be at least 1, got 0"),
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RepeatingSequence(**setting)


def test_networks_stack_where_only_the_seed_differs() -> None:
    config = RepeatingSequence()
    assert config.stack_key() == RepeatingSequence().stack_key() and config.stack_size() == 20
    assert config.stack_key() != replace(config, threshold=0.0).stack_key() != TrainedSequence().stack_key()
    assert config.cost() < replace(config, starts=5).cost() and config.cost() < replace(config, num_basis=500).cost()


# Measuring


def test_a_machine_that_knows_the_pattern_is_recognised() -> None:
    rnn = machine()
    symbols = repeat(PATTERN, 3)
    assert symbols.tolist() == [*PATTERN] * 3 + [0]
    assert judge_machine(rnn, PATTERN) == {"columns": 25.0, "machine": 1.0}
    generated = rnn.generate(one_hot(symbols[:15]), 50)
    judged = judge_generated(generated, symbols)
    assert judged["generated_accuracy"] == 100 and judged["generated_mse"] < 0.05
    curves = machine_curves(rnn)
    assert curves["machine_reads"] == [float(symbol) for symbol in PATTERN]
    assert curves["machine_targets"] == [float(place) for place in range(25)]
    assert curves["machine_sources"] == [24.0, *range(24)]
    assert curves["machine_predicts"] == [float(symbol) for symbol in (*PATTERN[1:], PATTERN[0])]


def test_a_machine_that_is_too_large_or_wrong_is_not() -> None:
    twice = machine((*PATTERN, *PATTERN), 60)
    assert judge_machine(twice, PATTERN) == {"columns": 50.0, "machine": 0.0}
    other = machine()
    other.weight_y[:, 3] = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert judge_machine(other, PATTERN)["machine"] == 0.0
    symbols = repeat(PATTERN, 3)
    wrong = one_hot(symbols[:65])
    wrong[20] = wrong[21] = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    assert judge_generated(wrong, symbols)["generated_accuracy"] == 96


def test_errors_of_slices_are_those_of_the_factorization() -> None:
    rnn = NMFRNN(
        4, 6, inference=SliceBySlice(5), init_range=(0.0, 0.5), dtype=torch.float64, generator=random_stream(0)
    )
    x, y = one_hot(repeat(PATTERN, 1))[:-1], one_hot(repeat(PATTERN, 1))[1:]
    state = torch.rand(6, dtype=torch.float64, generator=random_stream(1))
    for first in (None, state):
        errors = slice_errors(rnn, x, y, first)
        losses = NMFRNN.learn(pickled(rnn), x, y, state=first)
        assert [part.mean().item() for part in errors] == pytest.approx([part.item() for part in losses])
    stack = NMFRNN(4, 6, num_models=2, inference=SliceBySlice(5), dtype=torch.float64)
    stack.weight.copy_(torch.stack([rnn.weight, 2 * rnn.weight]))
    twins = slice_errors(stack, x.expand(2, 1, -1, -1), y.expand(2, 1, -1, -1), state.expand(2, 1, -1))
    for part, alone in zip(twins, slice_errors(rnn, x, y, state), strict=True):
        assert part.shape == (2, 25)
        torch.testing.assert_close(part[0], alone)


def pickled(rnn: NMFRNN) -> NMFRNN:
    """A copy, whose weights may change."""
    from copy import deepcopy

    return deepcopy(rnn)


def test_from_zeros_the_first_slices_cannot_be_predicted_and_the_last_can() -> None:
    rnn = machine()
    rnn.inference, rnn.rate_h = SliceBySlice(150), 1.0
    x, y = one_hot(repeat(PATTERN, 5))[:-1], one_hot(repeat(PATTERN, 5))[1:]
    errors = slice_errors(rnn, x, y, None)[0]
    by_repetition = errors.view(5, 25).mean(1)
    assert errors[0] == pytest.approx(0.25 / 4, rel=0.02)  # half of what is to be explained is missing
    assert errors.mean() > 1e-3 and by_repetition[-1] < 1e-7
    assert (by_repetition[1:3] < 0.2 * by_repetition[:2]).all()
    carried = rnn.infer(x)[-1]
    assert slice_errors(rnn, x, y, carried)[0].mean() < 1e-7


def test_a_network_goes_on_with_what_it_predicts() -> None:
    rnn = FactorizedRNN(4, 6, 4, dtype=torch.float64, init_range=(0.0, 0.5), generator=random_stream(0)).eval()
    seed = one_hot(torch.tensor(PATTERN[:5]))
    found = go_on(rnn, seed, 4)
    assert found.shape == (9, 4) and torch.equal(found[:5], seed)
    for length in (5, 8):
        torch.testing.assert_close(rnn(found[:length])[0][-1], found[length])


# Running


def test_networks_learn_at_once_as_they_would_alone(tmp_path: Path) -> None:
    for number, changes in enumerate(({"carried": True, "pattern": "random"}, {"inference": "all-slices"})):
        together = run_small(tmp_path / f"{number}", 0, 5, **changes)
        for result in together:
            (alone,) = run_small(tmp_path / f"{number}-{result.seed}", result.seed, **changes)
            for name in ("mse", "loss", "columns", "zero_state_mse", "generated_mse"):
                assert result.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-6)
            assert result.hardware["stack"] == 2
    assert set(together[0].curves) == {"train_loss", "loss", "prediction_mse", "columns", "passes"}
    assert together[0].curves["passes"] == [float(k) for k in range(1, ROUNDS + 1)]


def test_the_start_of_the_lowest_training_loss_counts(tmp_path: Path) -> None:
    (result,) = run_small(tmp_path, 3, starts=3)
    ends = result.curves["loss"][ROUNDS - 1 :: ROUNDS]
    assert len(ends) == 3 and len(set(ends)) == 3
    assert result.metrics["loss"] == pytest.approx(one_repetition_less(min(ends), result), rel=0.5)
    assert result.metrics["passes"] == 3 * ROUNDS and len(result.curves["passes"]) == 3 * ROUNDS
    (single,) = run_small(tmp_path / "single", 3)
    assert single.curves["loss"] == pytest.approx(result.curves["loss"][:ROUNDS])


def one_repetition_less(loss: float, result: Result) -> float:
    """Trained on two repetitions and measured on eight, the loss is nearly the same."""
    assert result.config["repeats"] == 2
    return loss


def test_a_run_begins_as_a_plain_fit(tmp_path: Path) -> None:
    config = small(passes=2 * ROUNDS, threshold=0.05, settling=0.5, final_iterations=4)
    (result,) = run_small(tmp_path, 7, config=config)
    rnn = config.make_network(7).double()
    symbols = repeat(PATTERN, 2)
    rnn.threshold, rnn.inference, rnn.normalization = 0.05, SliceBySlice(3), ColumnCap()
    first = rnn.fit(symbols, passes=ROUNDS)
    rnn.threshold, rnn.inference, rnn.normalization = 0.0, SliceBySlice(4), None
    second = rnn.fit(symbols, passes=ROUNDS)
    expected = torch.cat([first.total, second.total]).view(ROUNDS, 2).mean(1)
    assert result.curves["train_loss"] == pytest.approx(expected.tolist(), rel=1e-6)


def test_first_runs_have_pictures_and_a_machine(tmp_path: Path) -> None:
    config = RepeatingSequence().smoke()
    first, fourth = run_small(tmp_path, 0, 3, config=config)
    assert set(first.images) == PICTURES and not fourth.images
    assert {"machine_reads", "machine_sources", "machine_weights"} <= set(first.curves)
    assert not set(fourth.curves) & {"machine_reads", "machine_sources"}
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in first.images.values())
    known = RepeatingSequence(num_basis=100)
    assert is_pictured(Job(known, 0)) and is_pictured(Job(fast(known), 0)) and not is_pictured(Job(known, 1))
    assert is_pictured(Job(replace(known, num_basis=50), 2)) and not is_pictured(Job(replace(known, starts=5), 0))


def test_pictures_show_the_columns_in_use_and_a_few_others() -> None:
    from torchpfc.experiments.sequence_pictures import pictures

    rnn, symbols = machine(), repeat(PATTERN, 3)
    generated = rnn.generate(one_hot(symbols[:15]), 50)
    made = pictures(rnn, symbols, 15, generated)
    sizes = {name: size_of(png) for name, png in made.items()}
    shown = 25 + SPARE
    height = CELL * (4 + shown + 4) + 2 + 2  # two lines between matrices, and a frame
    assert sizes["stacked_weights"] == (CELL * shown + 2, height)
    assert sizes["factorization_after"] == (CELL * (65 + 3 + shown + 3 + 65) + 2, height)
    assert sizes["factorization_before"] == sizes["factorization_after"]
    assert sizes["sequences"] == (CELL * 65 + 2, CELL * 12 + 2 + 2)


def size_of(png: str) -> tuple[int, int]:
    data = base64.b64decode(png)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


@pytest.mark.parametrize("model", ["factorized", "vanilla"])
def test_networks_that_learn_by_backpropagation(model: str, tmp_path: Path) -> None:
    config = TrainedSequence(
        model=model, num_basis=8, repeats=2, passes=ROUNDS, iterations=2, nonnegative=model != "vanilla"
    )
    together = run_small(tmp_path / "together", 0, 1, config=config)
    for result in together:
        (alone,) = run_small(tmp_path / f"{result.seed}", result.seed, config=config)
        for name in ("zero_state_mse", "settled_mse", "generated_mse"):
            assert result.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-6)
        losses = result.curves["train_loss"]
        assert losses[-1] < losses[0]
        assert 0 <= result.metrics["settled_accuracy"] <= 100
        assert ("machine" in result.metrics) == (model == "factorized")


def test_a_pattern_is_learned_exactly_in_a_small_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = (0, 1, 1, 2, 0, 3)
    monkeypatch.setattr("torchpfc.experiments.repeating_sequence.PATTERN", pattern)
    change = {"passes": 100, "settling": 0.3, "final_iterations": 40, "threshold": 1e-2}
    config = replace(fast(RepeatingSequence(num_basis=30)), **change)
    monkeypatch.setattr("torchpfc.experiments.repeating_sequence.MEASURED_REPEATS", 6)
    results = list(run([Job(config, seed) for seed in range(3)], context(tmp_path, precision="32")))
    assert sum(result.metrics["success"] for result in results) >= 2
    best = next(result for result in results if result.metrics["success"])
    assert best.metrics["columns"] == 6 and best.metrics["mse"] < 1e-7 and best.metrics["machine"] == 1
    assert best.metrics["generated_accuracy"] == 100 and best.metrics["zero_state_mse"] > 1e-4


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchpfc.experiments.repeating_sequence import NMFRun

    config = small(starts=2, carried=True)
    whole = [numbers(result) for result in run_small(tmp_path / "whole", 0, 1, config=config)]
    examine = NMFRun.examine

    def stopping(self: NMFRun, stats: Any) -> Any:
        if stats.epoch == ROUNDS + 2:
            raise KeyboardInterrupt
        return examine(self, stats)

    monkeypatch.setattr(NMFRun, "examine", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_small(tmp_path / "stopped", 0, 1, config=config)
    monkeypatch.setattr(NMFRun, "examine", examine)
    assert [numbers(result) for result in run_small(tmp_path / "stopped", 0, 1, config=config)] == whole
