"""Trains stacks of recurrent networks in rounds, with backpropagation or without, and goes on where it was stopped."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchpfc.checkpoint import save_checkpoint
from torchpfc.experiments.devices import dtype_of
from torchpfc.experiments.recurrent_models import build_network
from torchpfc.experiments.registry import Job, settings
from torchpfc.experiments.results import Result
from torchpfc.nn import NMFRNN, PFCBlock, keep_nonnegative, stack_models, unstack_models
from torchpfc.nn.stack import select_models_
from torchpfc.optim import RMSprop
from torchpfc.training import BestWeights, EpochStats, Objective, Recorded, fit, random_stream

if TYPE_CHECKING:
    from torchpfc.experiments.runner import Context


class Sequences(NamedTuple):
    r"""A batch of sequences for each network of a stack.

    Shape:
        - x: $(s, n, T, \text{input_size})$
        - target: $(s, n, T, \text{output_size})$, or as much of it as the objective asks for
        - state: $(s, n, \text{num_basis})$
    """

    x: Tensor
    target: Tensor
    state: Tensor | None = None
    """The state before the first slice, for learning without backpropagation; None for zeros."""


def small_states(seeds: Sequence[int], size: tuple[int, int], high: float, like: Tensor, *purpose: object) -> Tensor:
    r"""First states between 0 and a small number, $(s, n, \text{num_basis})$, for learning without backpropagation.

    Args:
        seeds: One for each network.
        size: Sequences of a network, and size of a state.
        high: The small number.
        like: A tensor on the device and of the type that they should have.
        purpose: What they are for; others get other numbers.
    """
    states = []
    for seed in seeds:
        # Drawn where they are needed: there are too many to be sent there.
        own = random_stream(seed, "states", *purpose).initial_seed()
        generator = torch.Generator(like.device).manual_seed(own)
        states.append(torch.rand(size, generator=generator, device=like.device, dtype=like.dtype))
    return high * torch.stack(states)


class Source(Protocol):
    """Where sequences come from; the same in the same round, whatever came before."""

    def set_epoch(self, epoch: int) -> None:
        """Chooses the round."""

    def __iter__(self) -> Iterator[Sequences]:
        """The batches of that round."""


class Learner(ABC):
    """A stack of networks that learn from batches, each from its own."""

    stack: nn.Module

    @abstractmethod
    def rounds(self, source: Source, first: int, stop: int) -> Iterator[EpochStats]:
        """Learns round by round, from the first up to the last but one."""

    @abstractmethod
    def select_(self, members: Tensor) -> None:
        """Goes on with some of the networks."""

    @abstractmethod
    def unstack(self) -> list[Any]:
        """The networks by themselves."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""


class GradientLearner(Learner):
    """Networks that learn by backpropagation, with the paper's optimizer.

    Args:
        networks: The networks.
        objective: Their loss.
        lr: Learning rate.
        weight_decay: Share of each weight that a step takes away.
        device: Where they learn.
        dtype: Of their weights.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        objective: Objective,
        *,
        lr: float,
        weight_decay: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.stack = stack_models(networks).to(device, dtype)
        self.objective = objective
        self.optimizer = RMSprop(self.stack.parameters(), lr=lr, weight_decay=weight_decay)
        if any(isinstance(module, PFCBlock) and module.nonnegative for module in self.stack.modules()):
            keep_nonnegative(self.stack, self.optimizer)

    def rounds(self, source: Source, first: int, stop: int) -> Iterator[EpochStats]:
        """Learns round by round, each step as one launch where the device can do that."""
        return fit(self.stack, self.optimizer, source, self.objective, epochs=stop, first_epoch=first)

    def select_(self, members: Tensor) -> None:
        """Goes on with some of the networks."""
        select_models_(self.stack, members, self.optimizer)

    def unstack(self) -> list[Any]:
        """The networks by themselves."""
        return unstack_models(self.stack)

    def state_dict(self) -> dict[str, Any]:
        """Weights, and what the optimizer remembers."""
        return {"model": self.stack.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""
        self.stack.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class NMFLearner(Learner):
    """Networks that learn without backpropagation.

    Args:
        networks: The networks, each by itself.
        device: Where they learn.
        dtype: Of their weights.
        mask: True for slices that have a target; None for all.
        carried: Whether a pass begins in the state in which the one before ended, for a single sequence each.
        change: Told the stack and the number of each round before it; may change settings and values of the stack.

    Shape:
        - mask: $(T)$
    """

    stack: NMFRNN

    def __init__(
        self,
        networks: Sequence[NMFRNN],
        *,
        device: torch.device,
        dtype: torch.dtype,
        mask: Tensor | None = None,
        carried: bool = False,
        change: Callable[[NMFRNN, int], None] | None = None,
    ) -> None:
        self.stack = deepcopy(networks[0])
        self.stack.weight = torch.stack([network.weight for network in networks]).to(device, dtype)
        self._mask = None if mask is None else mask.to(device)
        size = (len(networks), 1, self.stack.num_basis)
        self.carried = torch.zeros(size, device=device, dtype=dtype) if carried else None
        self._change = change

    def rounds(self, source: Source, first: int, stop: int) -> Iterator[EpochStats]:
        """Learns round by round, each pass as one launch where the device can do that."""
        on_gpu = self.stack.weight.is_cuda
        step: Callable[[Sequences], Tensor] = self._pass
        recorded: object = None
        for number in range(first, stop):
            if self._change is not None:
                self._change(self.stack, number)
            now = (self.stack.threshold, self.stack.inference, self.stack.normalization)
            if on_gpu and now != recorded:  # gpu-only: what was recorded goes on with the settings of its time
                recorded, step = now, Recorded(self._pass)
            source.set_epoch(number)
            start, total, steps = time.perf_counter(), torch.zeros((), device=self.stack.weight.device), 0
            for batch in source:
                total = total + step(batch)
                steps += 1
            yield EpochStats(number, (total / steps).cpu(), steps, time.perf_counter() - start)

    def select_(self, members: Tensor) -> None:
        """Goes on with some of the networks."""
        self.stack.weight = self.stack.weight[members.to(self.stack.weight.device)]
        if self.carried is not None:
            self.carried = self.carried[members.to(self.carried.device)]

    def unstack(self) -> list[Any]:
        """The networks by themselves."""
        return self.stack.unstack()

    def state_dict(self) -> dict[str, Any]:
        """Weights, and the state that is carried on."""
        return {"weight": self.stack.weight, "carried": self.carried}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""
        self.stack.weight.copy_(state["weight"])
        if self.carried is not None:
            self.carried.copy_(state["carried"])

    def _pass(self, batch: Sequences) -> Tensor:
        state = batch.state if self.carried is None else self.carried
        losses, states = self.stack.learn_pass(batch.x, batch.target, mask=self._mask, state=state)
        if self.carried is not None:
            self.carried.copy_(states[..., -1, :])
        return losses.total


class Examined(NamedTuple):
    """What was found after a round, for each network that still learns."""

    score: Tensor
    """The higher, the better: the weights of the highest are kept."""
    stopped: Tensor
    """Whether it has learned enough, or will learn no more."""
    curves: Mapping[str, Tensor]
    """What to remember."""


@dataclass
class Found:
    """What a trained network is like."""

    metrics: dict[str, float]
    curves: dict[str, list[float]] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    sounds: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)


class RecurrentRun(ABC):
    """The training of a stack, round by round, until each network has stopped.

    Args:
        name: Of the experiment.
        jobs: The networks; they share one stack key.
        context: Where, and on what.
    """

    def __init__(self, name: str, jobs: Sequence[Job], context: Context) -> None:
        if context.precision == "bf16":  # sequences are not halved
            context = replace(context, precision="32")
        self.name, self.jobs, self.context = name, jobs, context
        self.config: Any = jobs[0].config  # for all that the jobs have in common
        self.device, self.dtype = context.fabric.device, dtype_of(context.precision)
        self.learner = self.build()
        self.members = torch.arange(len(jobs))  # those still learning
        self.kept = BestWeights(self.learner.stack)
        self.scores = torch.full((len(jobs),), -torch.inf, dtype=torch.float64)
        self.history: list[dict[str, list[float]]] = [{} for _ in jobs]
        self.seconds = [0.0 for _ in jobs]
        self.round, self.steps, self.step_seconds = 0, 0, 0.0
        context.resume(self._restore)
        self._saved = time.monotonic()

    @abstractmethod
    def build(self) -> Learner:
        """All networks as they begin."""

    def gradient_learner(
        self,
        input_size: int,
        output_size: int,
        objective: Callable[[float], Objective],
        *,
        init_high: float | None = None,
    ) -> GradientLearner:
        """All networks as they begin, where they learn by backpropagation.

        Args:
            input_size: Size of the input of a slice.
            output_size: Size of the output of a slice.
            objective: Makes the loss from what errors of reconstruction count, which is 0 where there are none.
            init_high: Width of the range that weights start from; None takes the published one.
        """
        config = self.config
        networks = [
            build_network(
                config.model,
                input_size,
                config.num_basis,
                output_size,
                bptt=config.bptt,
                nonnegative=config.nonnegative,
                iterations=config.iterations,
                init_high=init_high,
                generator=random_stream(job.seed, "weights"),
            )
            for job in self.jobs
        ]
        return GradientLearner(
            networks,
            objective(config.reconstruction_weight if config.model == "factorized" else 0.0),
            lr=config.lr,
            weight_decay=config.weight_decay,
            device=self.device,
            dtype=self.dtype,
        )

    @abstractmethod
    def num_rounds(self) -> int:
        """The most rounds to learn."""

    @abstractmethod
    def source(self, seeds: Sequence[int]) -> Source:
        """What networks with some seeds learn from."""

    @abstractmethod
    def examine(self, stats: EpochStats) -> Examined:
        """Looks at the networks that still learn, after a round."""

    @abstractmethod
    def measure(self, network: Any, job: Job) -> Found:
        """Looks at a trained network."""

    def results(self) -> Iterator[Result]:
        """Trains, then measures."""
        while len(self.members) and self.round < self.num_rounds():
            self._learn_until_one_stops()
        self.members = self.members[:0]
        self._save()
        learner = self.build()
        learner.stack.load_state_dict(self.kept.values)
        learner.stack.eval()
        for i, network in enumerate(learner.unstack()):
            with torch.no_grad():
                yield self._result(i, self.measure(network, self.jobs[i]))

    def _learn_until_one_stops(self) -> None:
        members = self.members
        source = self.source([self.jobs[i].seed for i in members.tolist()])
        for stats in self.learner.rounds(source, self.round, self.num_rounds()):
            begin = time.perf_counter()
            self.learner.stack.eval()
            with torch.no_grad():
                found = self.examine(stats)
            self.learner.stack.train()
            better = found.score > self.scores[members]
            self.scores[members[better]] = found.score[better].to(self.scores.dtype)
            self.kept.keep(self.learner.stack, better, members)
            for k, i in enumerate(members.tolist()):
                for name, values in {"train_loss": stats.loss, **found.curves}.items():
                    self.history[i].setdefault(name, []).append(values[k].item())
                self.seconds[i] += (stats.seconds + time.perf_counter() - begin) / len(members)
            self.steps, self.step_seconds = self.steps + stats.steps, self.step_seconds + stats.seconds
            self.round = stats.epoch + 1
            self.context.tick(self.round / self.num_rounds())
            if stopped := bool(found.stopped.any()):
                going = (~found.stopped).nonzero()[:, 0]
                self.members = members[going]
                if len(going):
                    self.learner.select_(going)
            if len(self.members) and time.monotonic() - self._saved >= self.context.checkpoint_seconds:
                self._save()
            if stopped:
                return

    def _result(self, i: int, found: Found) -> Result:
        job = self.jobs[i]
        taken = {
            "rounds": len(self.history[i]["train_loss"]),
            "milliseconds_per_step": 1e3 * self.step_seconds / max(self.steps, 1),
        }
        return Result(
            experiment=self.name,
            config=settings(job.config),
            seed=job.seed,
            metrics=taken | found.metrics,
            curves=self.history[i] | found.curves,
            images=found.images,
            sounds=found.sounds,
            data=found.data,
            seconds=self.seconds[i],
            **self.context.provenance(len(self.jobs)),
        )

    def _save(self) -> None:
        state = {
            "round": self.round,
            "members": self.members,
            "kept": self.kept.values,
            "scores": self.scores,
            "history": self.history,
            "seconds": self.seconds,
            "steps": self.steps,
            "step_seconds": self.step_seconds,
            "learner": self.learner.state_dict(),
        }
        if self.context.fabric.is_global_zero:
            save_checkpoint(self.context.folder, state)
        self._saved = time.monotonic()

    def _restore(self, state: dict[str, Any]) -> None:
        self.members, self.scores = state["members"], state["scores"]
        self.kept.values = {name: value.to(self.device, self.dtype) for name, value in state["kept"].items()}
        self.history, self.seconds, self.round = state["history"], state["seconds"], state["round"]
        self.steps, self.step_seconds = state["steps"], state["step_seconds"]
        if len(self.members):
            self.learner.select_(self.members)
            self.learner.load_state_dict(state["learner"])
