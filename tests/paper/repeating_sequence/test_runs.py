import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.paper.made import context
from tests.paper.stopped import assert_same_bits_when_stopped
from torchpfc.data.sequences import PATTERN
from torchpfc.nmf import ColumnCap, MeanOfMax
from torchpfc.nn import AllSlices, SliceBySlice
from torchpfc.paper import experiments
from torchpfc.paper.learners import GradientLearner
from torchpfc.paper.recurrent_models import Updates
from torchpfc.paper.registry import Job
from torchpfc.paper.repeating_sequence import CHANGES
from torchpfc.paper.repeating_sequence.runs import GradientRun, NMFRun, is_pictured, repeat_pattern, run
from torchpfc.paper.repeating_sequence.settings import ROUNDS, RepeatingSequence, TrainedSequence, fast
from torchpfc.paper.results import Result
from torchpfc.paper.settings import change
from torchpfc.training import EpochStats

PICTURES = {"stacked_weights", "factorization_before", "factorization_after", "sequences"}


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two repetitions are enough to see that something is measured."""
    monkeypatch.setattr("torchpfc.paper.repeating_sequence.runs.MEASURED_REPEATS", 2)


def rows() -> dict[str, Any]:
    return {row.id: row for table in experiments()["repeating-sequence"].tables for row in table.rows}


def small(**changes: Any) -> RepeatingSequence:
    settings = {"num_basis": 12, "repeats": 2, "passes": ROUNDS, "iterations": 3, "init_high": 0.3}
    return change(RepeatingSequence(), **{**settings, **changes})


def run_small(folder: Path, *seeds: int, config: Any = None, **changes: Any) -> list[Result]:
    config = small(**changes) if config is None else config
    return list(run([Job(config, seed) for seed in seeds], context(folder)))


# Settings and rows


def test_defaults_are_those_of_the_published_code() -> None:
    config = RepeatingSequence()
    assert (config.sequence.repeats, config.sequence.passes, config.iterations) == (8, 410, 100)
    assert config.threshold == 5e-4 and config.updates == Updates(init_high=2e-2, rate_h=0.5, rate_w=0.5)
    network = config.make_network(3)
    assert network.inference == SliceBySlice(100) and network.normalization == ColumnCap()
    assert network.init_range == (0.0, 2e-2) and network.threshold == 5e-4 and network.weight.shape == (108, 100)
    text = change(config, **CHANGES["text"][1]).make_network(3)
    assert text.normalization == MeanOfMax() and text.rate_h == text.rate_w == 1.0 and text.threshold == 0.0
    assert change(config, inference="all-slices").make_network(3).inference == AllSlices(100)
    assert not torch.equal(network.weight, config.make_network(3, start=1).weight)


def test_every_size_and_change_has_its_row() -> None:
    found = rows()
    assert {row.config.num_basis for id, row in found.items() if id.startswith("SEQ.")} >= {25, 50, 100, 150, 500}
    assert all(row.seeds >= 20 for id, row in found.items() if id.startswith(("SEQ.", "SEQR.", "SEQX.")))
    assert found["SEQR.100"].config.sequence.pattern == "random" and found["SEQX.50.five-starts"].config.starts == 5
    assert found["SEQ.50"].config == found["SEQX.50.published"].config
    assert found["SEQB.VAN"].config.network.model == "vanilla" and not found["SEQB.FAC.N.NOBPTT"].config.network.bptt


def test_the_fast_preset_carries_the_state_on() -> None:
    config = fast(change(RepeatingSequence(num_basis=150), pattern="random"))
    assert config.carried and config.settling > 0 and (config.num_basis, config.sequence.pattern) == (150, "random")
    assert config.make_network(0).threshold == 0 < config.threshold
    assert fast(TrainedSequence()) == TrainedSequence()


@pytest.mark.parametrize(("size", "total"), [(25, 0.5), (50, 0.5), (100, 1.0), (500, 1.0)])
def test_rows_of_the_weights_begin_with_a_sum_of_one_at_most(size: int, total: float) -> None:
    network = fast(RepeatingSequence(num_basis=size)).make_network(0)
    assert network.weight_h.sum(-1).mean().item() == pytest.approx(total, rel=0.05)


def test_the_fast_preset_takes_no_part_out_of_use_where_all_are_needed() -> None:
    few, more = (fast(RepeatingSequence(num_basis=size)) for size in (len(PATTERN), len(PATTERN) + 1))
    assert few.threshold == 0 < more.threshold and few.starts > more.starts == 1
    assert few.cost() > 2 * more.cost()  # all starts count


@pytest.mark.parametrize("size", [25, 300, 500])
def test_states_rise_from_zero_at_first(size: int) -> None:
    config = fast(RepeatingSequence(num_basis=size))
    network = config.make_network(0)
    config.prepare(network, 0.0)
    assert network.infer(torch.tensor(PATTERN)).max().item() > 0.01


def test_the_end_of_the_passes_has_settings_of_its_own() -> None:
    config = RepeatingSequence(threshold=0.5, settling=0.4, final_iterations=7)
    network, found = config.make_network(0), []
    for share in range(10):
        config.prepare(network, share / 10)
        found.append((network.inference, network.threshold, network.normalization))
    assert found == [(SliceBySlice(100), 0.5, ColumnCap())] * 6 + [(SliceBySlice(7), 0.0, None)] * 4
    assert config.make_network(0).inference == SliceBySlice(7)
    assert change(config, settling=0.0).make_network(0).threshold == 0.5


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
        change(RepeatingSequence(), **setting)


def test_networks_stack_where_only_the_seed_differs() -> None:
    config = RepeatingSequence()
    assert config.stack_key() == RepeatingSequence().stack_key() and config.stack_size() == 20
    assert config.stack_key() != change(config, threshold=0.0).stack_key() != TrainedSequence().stack_key()
    assert config.cost() < change(config, starts=5).cost() and config.cost() < change(config, num_basis=500).cost()


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
    symbols = repeat_pattern(PATTERN, 2)
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
    assert is_pictured(Job(change(known, num_basis=50), 2)) and not is_pictured(Job(change(known, starts=5), 0))


@pytest.mark.parametrize("model", ["factorized", "vanilla"])
def test_networks_that_learn_by_backpropagation(model: str, tmp_path: Path) -> None:
    config = change(TrainedSequence(), model=model, num_basis=8, repeats=2, passes=ROUNDS, iterations=2)
    config = change(config, nonnegative=model != "vanilla")
    together = run_small(tmp_path / "together", 0, 1, config=config)
    for result in together:
        (alone,) = run_small(tmp_path / f"{result.seed}", result.seed, config=config)
        for name in ("zero_state_mse", "settled_mse", "generated_mse"):
            assert result.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-6)
        losses = result.curves["train_loss"]
        assert losses[-1] < losses[0]
        assert 0 <= result.metrics["settled_accuracy"] <= 100
        assert ("machine" in result.metrics) == (model == "factorized")


def test_the_round_of_the_lowest_training_loss_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = change(TrainedSequence(), model="vanilla", num_basis=8, repeats=2, passes=ROUNDS, nonnegative=False)
    rounds = GradientLearner.rounds

    def falls_and_rises(self: GradientLearner, *arguments: Any) -> Iterator[EpochStats]:
        for stats in rounds(self, *arguments):
            yield stats._replace(loss=torch.tensor([abs(stats.epoch - 4.0), abs(stats.epoch - 7.0)]))

    monkeypatch.setattr(GradientLearner, "rounds", falls_and_rises)
    found = run_small(tmp_path, 0, 1, config=config)
    monkeypatch.undo()
    for result, best in zip(found, (4, 7), strict=True):
        alone = GradientRun("repeating-sequence", [Job(config, result.seed)], context(tmp_path / str(best)))
        assert len(list(alone.learner.rounds(alone.source(), alone.members, 0, best + 1))) == best + 1
        (network,) = alone.learner.unstack()
        with torch.no_grad():
            metrics = alone.measure(network.eval(), 0).metrics
        assert result.metrics["settled_mse"] == pytest.approx(metrics["settled_mse"], rel=1e-4)


def test_a_pattern_is_learned_exactly_in_a_small_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = (0, 1, 1, 2, 0, 3)
    monkeypatch.setattr("torchpfc.paper.repeating_sequence.settings.PATTERN", pattern)
    config = fast(RepeatingSequence(num_basis=30))
    config = change(config, passes=100, settling=0.3, final_iterations=40, threshold=1e-2)
    monkeypatch.setattr("torchpfc.paper.repeating_sequence.runs.MEASURED_REPEATS", 6)
    results = list(run([Job(config, seed) for seed in range(3)], context(tmp_path, precision="32")))
    assert sum(result.metrics["success"] for result in results) >= 2
    best = next(result for result in results if result.metrics["success"])
    assert best.metrics["columns"] == 6 and best.metrics["mse"] < 1e-7 and best.metrics["machine"] == 1
    assert best.metrics["generated_accuracy"] == 100 and best.metrics["zero_state_mse"] > 1e-4


def test_a_start_knows_nothing_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = RepeatingSequence.make_network
    monkeypatch.setattr(RepeatingSequence, "make_network", lambda self, seed, start=0: make(self, seed))
    (result,) = run_small(tmp_path, 0, config=small(starts=2, carried=True))
    losses = result.curves["train_loss"]
    assert len(losses) == 2 * ROUNDS and losses[:ROUNDS] == losses[ROUNDS:]


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = small(starts=2, carried=True)
    assert_same_bits_when_stopped(NMFRun, ROUNDS + 2, lambda folder: run_small(folder, 0, 1, config=config), tmp_path)
