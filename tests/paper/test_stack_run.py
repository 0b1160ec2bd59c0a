from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.paper.made import context, numbers
from tests.paper.stopped import assert_same_bits_when_stopped
from torchpfc import NMFRNN, PFCBlock, RMSprop, VanillaRNN, keep_nonnegative, stack_models, unstack_models
from torchpfc.checkpoint import CorruptFileError, save_checkpoint
from torchpfc.nn import SliceBySlice
from torchpfc.paper.devices import open_fabric
from torchpfc.paper.learners import (
    GradientLearner,
    Learner,
    NMFLearner,
    Sequences,
    Source,
    small_states,
)
from torchpfc.paper.recurrent_models import Network, SequenceErrors
from torchpfc.paper.recurrent_run import NetworkRun
from torchpfc.paper.registry import Job
from torchpfc.paper.stack_run import Examined, Found
from torchpfc.training import EpochStats, SquaredErrors, random_stream

CPU: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float64}


@dataclass
class Made:
    """Random sequences, other ones in every round."""

    seeds: Sequence[int]
    epoch: int = 0

    def __len__(self) -> int:
        return 2

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Sequences]:
        for k in range(2):
            streams = [random_stream(seed, self.epoch, k) for seed in self.seeds]
            x, y = (
                torch.stack([torch.rand(3, 4, n, generator=s, dtype=torch.float64) for s in streams]) for n in (5, 2)
            )
            yield Sequences(x, y)


def nmf(seed: int) -> NMFRNN:
    return NMFRNN(5, 6, 2, inference=SliceBySlice(4), init_range=(0.0, 0.5), generator=random_stream(seed, "weights"))


def network(seed: int, name: str = "factorized") -> nn.Module:
    stream = random_stream(seed, "weights")
    return Network(model=name, num_basis=6, iterations=3).build(5, 2, stream, init_high=0.5)


def gradient_learner(
    networks: Sequence[nn.Module], fabric: Any, objective: SequenceErrors | None = None, weight_decay: float = 1e-3
) -> GradientLearner:
    stack = stack_models(networks).double()
    optimizer = RMSprop(stack.parameters(), lr=1e-2, weight_decay=weight_decay)
    if any(isinstance(module, PFCBlock) for module in stack.modules()):
        keep_nonnegative(stack, optimizer)
    return GradientLearner(stack, optimizer, lambda members: objective or SequenceErrors(), fabric)


@dataclass(frozen=True)
class Config:
    kind: str = "nmf"
    rounds: int = 6


class MadeRun(NetworkRun):
    """Networks that stop after different numbers of rounds, and are best before that."""

    def build(self) -> Learner:
        if self.config.kind == "nmf":
            return NMFLearner([nmf(job.seed) for job in self.jobs], **CPU)
        return gradient_learner([network(job.seed, self.config.kind) for job in self.jobs], self.fabric)

    def num_epochs(self) -> int:
        return int(self.config.rounds)

    def source(self) -> Source:
        return Made(self.seeds())

    def examine(self, stats: EpochStats) -> Examined:
        seeds = torch.tensor([self.jobs[i].seed for i in self.members.tolist()])
        score = -((stats.epoch - seeds.double() / 2) ** 2)
        return Examined(-score, score, {"seen": seeds + stats.epoch}, done=stats.epoch >= seeds)

    def measure(self, model: Any, i: int) -> Found:
        total = sum(float(value.sum()) for value in model.state_dict().values())
        return Found({"total": total, "seed": float(self.jobs[i].seed)})


KINDS = ["nmf", "factorized", "vanilla"]
SEEDS = (4, 2, 9)


def jobs_of(kind: str, seeds: Sequence[int] = SEEDS) -> list[Job]:
    return [Job(Config(kind), seed) for seed in seeds]


def run(jobs: Sequence[Job], folder: Path) -> list[Any]:
    return list(MadeRun("made", jobs, context(folder)).results())


def close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        one["metrics"][name] == pytest.approx(other["metrics"][name], rel=1e-9) for name in one["metrics"]
    ) and all(one["curves"][name] == pytest.approx(other["curves"][name], rel=1e-9) for name in one["curves"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_learns_as_its_networks_would_alone(kind: str, tmp_path: Path) -> None:
    together = run(jobs_of(kind), tmp_path / "together")
    assert [result.metrics["rounds"] for result in together] == [5, 3, 6]  # two have left the stack on the way
    assert together[0].curves["seen"] == [4, 5, 6, 7, 8]
    for result, seed in zip(together, SEEDS, strict=True):
        (alone,) = run(jobs_of(kind, [seed]), tmp_path / str(seed))
        assert close(numbers(alone), numbers(result))
        assert result.hardware["stack"] == 3 and result.seed == seed == result.metrics["seed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_run_that_was_stopped_ends_with_the_same_bits(kind: str, stop: int, tmp_path: Path) -> None:
    assert_same_bits_when_stopped(MadeRun, stop, lambda folder: run(jobs_of(kind), folder), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_where_all_is_learned_nothing_is_left_but_to_measure(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [numbers(result) for result in run(jobs_of(kind), tmp_path)]
    monkeypatch.setattr(MadeRun, "examine", lambda *_: pytest.fail("learns"))
    assert [numbers(result) for result in run(jobs_of(kind), tmp_path)] == whole


def test_a_checkpoint_of_something_else_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"round": 3})
    with pytest.raises(
        CorruptFileError, match=r"must hold a checkpoint of this version, got one of another; delete the folder"
    ):
        MadeRun("made", jobs_of("nmf"), context(tmp_path))


def test_the_weights_of_the_best_round_are_kept(tmp_path: Path) -> None:
    (result,) = run([Job(Config("nmf"), 4)], tmp_path)  # best after the third of five rounds
    rnn = nmf(4).double()
    source = Made([4])
    for epoch in range(3):
        source.set_epoch(epoch)
        for batch in source:
            rnn.learn(batch.x[0], batch.target[0])
    assert result.metrics["total"] == pytest.approx(float(rnn.weight.sum()), rel=1e-9)


def test_a_gradient_learner_is_the_plain_loop() -> None:
    learner = gradient_learner([network(3)], open_fabric("cpu", "64"), SequenceErrors(1.0, 1.0))
    plain = network(3).double()
    optimizer = RMSprop(plain.parameters(), lr=1e-2, weight_decay=1e-3)
    keep_nonnegative(plain, optimizer)
    source = Made([3])
    losses = [stats.loss.item() for stats in learner.rounds(source, torch.arange(1), 0, 2)]
    from torchpfc import record_couplings, rnn_reconstruction_loss

    for epoch in range(2):
        source.set_epoch(epoch)
        total = 0.0
        for batch in source:
            with record_couplings(plain) as seen:
                y, _ = plain(batch.x[0])
            loss = (y - batch.target[0]).square().mean() + rnn_reconstruction_loss(seen)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        assert losses[epoch] == pytest.approx(total / 2, rel=1e-9)
    (member,) = unstack_models(learner.stack)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(member.state_dict()[name], value)


def trained_block(halved: bool) -> tuple[Tensor, set[torch.dtype]]:
    """The parts of two blocks that have learned, and the types of what they predicted meanwhile."""
    stack = stack_models([PFCBlock(5, 2, 4, generator=random_stream(seed)) for seed in range(2)])
    seen: set[torch.dtype] = set()
    stack.register_forward_hook(lambda module, args, y: seen.add(y.dtype))
    optimizer, fabric = RMSprop(stack.parameters(), lr=0.1), open_fabric("cpu", "bf16")
    learner = GradientLearner(stack, optimizer, lambda members: SquaredErrors(1.0, 1.0), fabric, halved=halved)
    batch = torch.rand(2, 6, 5, generator=random_stream(0)), torch.rand(2, 6, 2, generator=random_stream(1))
    list(learner.rounds([batch] * 2, torch.arange(2), 0, 2))
    return stack.state_dict()["weight_x"], seen


@pytest.mark.parametrize("halved", [True, False])
def test_products_are_halved_where_a_learner_is_told_to(halved: bool) -> None:
    weight, seen = trained_block(halved)
    assert seen == {torch.bfloat16 if halved else torch.float32} and weight.dtype == torch.float32


def test_no_step_uses_halves_of_the_weights_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, _ = trained_block(halved=True)
    monkeypatch.setattr(torch, "autocast", partial(torch.autocast, cache_enabled=False))
    assert torch.equal(trained_block(halved=True)[0], weight)


def test_signed_weights_stay_free() -> None:
    signed = VanillaRNN(5, 6, 2, generator=random_stream(0))
    learner = gradient_learner([signed], open_fabric("cpu", "64"), weight_decay=0.0)
    list(learner.rounds(Made([0]), torch.arange(1), 0, 1))
    assert learner.stack.recurrent.weight.min() < 0


def test_a_pass_may_begin_where_the_last_one_ended() -> None:
    x, y = (torch.rand(2, 1, 4, n, dtype=torch.float64) for n in (5, 2))
    learner = NMFLearner([nmf(0), nmf(1)], carried=True, **CPU)

    @dataclass
    class Same:
        def set_epoch(self, epoch: int) -> None: ...
        def __iter__(self) -> Iterator[Sequences]:
            yield from [Sequences(x, y)] * 3

    list(learner.rounds(Same(), torch.arange(2), 0, 1))
    for i in range(2):
        rnn = nmf(i).double()
        rnn.fit(x[i], y[i], passes=3, periodic=True)
        torch.testing.assert_close(learner.stack.weight[i], rnn.weight)
    learner.select_(torch.tensor([1]))
    assert learner.carried is not None and learner.carried.shape == (1, 1, 6) and learner.carried.any()


def test_settings_can_change_between_rounds() -> None:
    told = []

    def change(stack: NMFRNN, number: int) -> None:
        told.append(number)
        stack.threshold = 0.1 * number

    learner = NMFLearner([nmf(0)], change=change, **CPU)
    list(learner.rounds(Made([0]), torch.arange(1), 1, 3))
    assert told == [1, 2] and learner.stack.threshold == pytest.approx(0.2)


def test_small_states_depend_on_seed_and_purpose_alone() -> None:
    like = torch.zeros(1, dtype=torch.float64)

    def draw(*seeds: int, purpose: object = "a") -> Tensor:
        return small_states(seeds, (3, 4), 0.5, like, purpose)

    assert draw(1, 2).shape == (2, 3, 4) and draw(1).dtype == torch.float64
    assert draw(1).min() >= 0 and 0.3 < draw(1).max() < 0.5
    assert torch.equal(draw(1, 2)[1], draw(2)[0])
    assert not torch.equal(draw(1), draw(2)) and not torch.equal(draw(1), draw(1, purpose="b"))
