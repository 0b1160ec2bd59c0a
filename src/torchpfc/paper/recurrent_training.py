"""Trains stacks of recurrent networks in rounds, with backpropagation or without, and goes on where it was stopped."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchpfc.checkpoint import save_checkpoint
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.recurrent_learners import GradientLearner, Learner, Source
from torchpfc.paper.recurrent_models import build_network
from torchpfc.paper.registry import Job, settings
from torchpfc.paper.results import Result
from torchpfc.training import BestWeights, EpochStats, Objective, random_stream

if TYPE_CHECKING:
    from torchpfc.paper.runner import Context


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
