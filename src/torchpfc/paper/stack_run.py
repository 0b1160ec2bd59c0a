"""Trains a stack of models, phase by phase, until each has stopped, and goes on where a run was stopped."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from torchpfc.checkpoint import CorruptFileError, load_checkpoint, reading, save_checkpoint
from torchpfc.machine import describe_hardware, describe_versions
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.learners import Learner, Source, share
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.settings import settings
from torchpfc.progress import Ticking
from torchpfc.solvers import ConvergenceWarning
from torchpfc.training import BestWeights, EarlyStopping, EpochStats

if TYPE_CHECKING:
    from torchpfc.paper.runner import Context

# At most one part in so many of the time goes into checkpoints, however large they are.
_CHECKPOINT_SHARE = 20

# What checkpoints of this trainer say of themselves; those of 0.1.0 say nothing.
_FORMAT = 3

# Attributes of a run that checkpoints hold as they are.
_KEPT = ("phase", "epoch", "members", "history", "seconds", "steps", "step_seconds")


class Examined(NamedTuple):
    """What was found after an epoch, for each model that still learns."""

    loss: Tensor
    """The lower, the better."""
    accuracy: Tensor
    """The higher, the better; any score will do. What `EarlyStopping` makes of both decides which weights are kept."""
    curves: Mapping[str, Tensor]
    """What to remember."""
    done: Tensor | None = None
    """Which models have learned enough; None where only `EarlyStopping` decides."""


@dataclass
class Found:
    """What a trained model is like."""

    metrics: dict[str, float]
    curves: dict[str, list[float]] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    sounds: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)

    def __or__(self, other: Found) -> Found:
        """Both, as of dictionaries."""
        return Found(**{name: own | getattr(other, name) for name, own in vars(self).items()})


def make_result(experiment: str, job: Job, found: Found, context: Context, seconds: float, stack: int = 1) -> Result:
    """What is known of a model, as it is kept.

    Args:
        experiment: The name of the experiment.
        job: What was trained.
        found: What it is like.
        context: Where it was trained.
        seconds: How long that took.
        stack: How many models were trained at once.
    """
    how = {"precision": context.precision, "processes": context.fabric.world_size, "stack": stack}
    return Result(
        experiment=experiment,
        config=settings(job.config),
        seed=job.seed,
        seconds=seconds,
        **vars(found),
        versions=describe_versions(),
        hardware=describe_hardware(context.fabric.device) | how,
    )


class StackRun(ABC):
    """The training of a stack: what changes while it goes on, and what it leaves behind.

    Most runs have one phase. At the end of a phase all models are put back to their best, and those that had stopped
    go on with the others.

    Args:
        name: Of the experiment.
        jobs: The models; they share one stack key.
        context: Where, and on what.
    """

    def __init__(self, name: str, jobs: Sequence[Job], context: Context) -> None:
        if context.precision == "bf16" and not self.can_be_halved:
            context = replace(context, precision="32")
        self.name, self.jobs, self.context, self.fabric = name, list(jobs), context, context.fabric
        self.config: Any = jobs[0].config  # for all that the jobs have in common
        self.device, self.dtype = context.fabric.device, dtype_of(context.precision)
        self.prepare()
        self.phase, self.epoch, self.steps, self.step_seconds = 0, 0, 0, 0.0
        self.history: list[dict[str, list[float]]] = [{} for _ in jobs]
        self.seconds = [0.0 for _ in jobs]
        self.members = torch.arange(len(jobs))  # those still learning
        self.learner = self.build()
        self.best = BestWeights(self.learner.stack)
        self.stopping = self.make_stopping()
        state = load_checkpoint(context.folder)
        if state is None:
            self.look()
        else:
            with reading(context.folder, "a checkpoint of these models"):
                self._restore(state)
        self._saved, self._save_seconds = time.monotonic(), 0.0

    can_be_halved = False
    """Whether products may be taken in half precision."""

    # What is particular to an experiment

    def prepare(self) -> None:  # noqa: B027 - most runs need none
        """Loads the data."""

    @abstractmethod
    def build(self) -> Learner:
        """All models as they begin; where they are at their best, their weights are put into it."""

    def num_phases(self) -> int:
        """How many phases there are."""
        return 1

    @abstractmethod
    def num_epochs(self) -> int:
        """The most epochs, or rounds, of a phase."""

    @abstractmethod
    def source(self) -> Source:
        """What the models that still learn are to learn from."""

    def make_stopping(self) -> EarlyStopping:
        """What decides when a model is at its best, and when it stops; by default the highest score, and never."""
        return EarlyStopping(self.num_epochs() + 1, len(self.jobs), keep="accuracy")

    @abstractmethod
    def examine(self, stats: EpochStats) -> Examined:
        """Looks at the models that still learn, after an epoch."""

    def keep(self, better: Tensor) -> None:  # noqa: B027 - most runs need none
        """Called when the weights of those models that are better than before have been kept."""

    def without_room(self) -> Tensor:
        """Which of the models that still learn cannot go on for another epoch."""
        return torch.zeros(len(self.members), dtype=torch.bool)

    def look(self) -> None:  # noqa: B027 - most runs need none
        """Called before the first phase and after each, with all models of the stack at their best."""

    @abstractmethod
    def measure(self, model: Any, i: int) -> Found:
        """Looks at a trained model, the i-th."""

    def own_state(self) -> dict[str, Any]:
        """What an experiment needs beside the rest to go on."""
        return {}

    def restore_own(self, state: dict[str, Any]) -> None:  # noqa: B027 - most runs need none
        """Takes over what `own_state` gave."""

    # Training

    def results(self) -> Iterator[Result]:
        """Trains, then measures."""
        self.train()
        for i, model in enumerate(self.learner.unstack()):
            with torch.no_grad():
                found = self.measure(model, i)
            yield self.result(i, found)

    def train(self) -> None:
        """Trains through all phases; all models are at their best then."""
        with warnings.catch_warnings():
            # Where there is a tolerance, that some rows do not reach it in all steps is part of the setting.
            warnings.simplefilter("ignore", ConvergenceWarning)
            while self.phase < self.num_phases():
                while len(self.members) and self.epoch < self.num_epochs():
                    self._learn_until_one_leaves()
                self._end_phase()
        self._take_the_best()
        self.learner.stack.eval()

    def _learn_until_one_leaves(self) -> None:
        self._let_go(self.without_room())
        if not len(self.members):
            return
        source = Ticking(share(self.source(), self.fabric.global_rank, self.fabric.world_size), self._tick)
        for stats in self.learner.rounds(source, self.members, self.epoch, self.num_epochs()):
            begin = time.perf_counter()
            self.learner.stack.eval()
            with torch.no_grad():
                found = self.fabric.broadcast(self.examine(stats))  # or processes might disagree on when to stop
            self.learner.stack.train()
            better = self.stopping.update(found.loss, found.accuracy)
            self.best.keep(self.learner.stack, better, self.members)
            self.keep(better)
            # The mean over processes, each of which has seen an equal part of every batch.
            train_loss = cast("Tensor", self.fabric.all_reduce(stats.loss.to(self.device))).cpu()
            self._note({"train_loss": train_loss, **found.curves}, stats.seconds, begin)
            self.steps, self.step_seconds = self.steps + stats.steps, self.step_seconds + stats.seconds
            self.epoch = stats.epoch + 1
            leaving = self.stopping.stopped | self.without_room()
            leaving = leaving if found.done is None else leaving | found.done
            self._let_go(leaving)
            if len(self.members):
                self._save_if_due()
            if leaving.any():
                return

    def _tick(self, epochs: float) -> None:
        self.context.tick((self.phase + min(1.0, epochs / self.num_epochs())) / self.num_phases())

    def _note(self, curves: Mapping[str, Tensor], seconds: float, begin: float) -> None:
        seconds += time.perf_counter() - begin
        for k, i in enumerate(self.members.tolist()):
            for name, values in curves.items():
                self.history[i].setdefault(name, []).append(values[k].item())
            self.seconds[i] += seconds / len(self.members)

    def _let_go(self, leaving: Tensor) -> None:
        """Goes on without some models until the next phase."""
        if not leaving.any():
            return
        going = (~leaving).nonzero()[:, 0]
        self.members = self.members[going]
        if len(going):
            self.learner.select_(going)
            self.stopping.select_(going)

    def _end_phase(self) -> None:
        self.phase += 1
        self._take_the_best()
        self.look()
        if self.phase < self.num_phases():
            self.members, self.epoch = torch.arange(len(self.jobs)), 0
            self.stopping = self.make_stopping()
        else:
            self.members = self.members[:0]
        self._save()

    def _take_the_best(self) -> None:
        """All models at their best, with an optimizer that knows nothing."""
        self.learner = self.build()
        self.learner.stack.load_state_dict(self.best.values)

    def result(self, i: int, found: Found) -> Result:
        """What is known of a model, as it is kept."""
        taken = {"milliseconds_per_step": 1e3 * self.step_seconds / max(self.steps, 1)}
        found = Found(taken, self.history[i]) | found
        return make_result(self.name, self.jobs[i], found, self.context, self.seconds[i], len(self.jobs))

    # Stopping and going on

    def _save_if_due(self) -> None:
        wait = self.context.checkpoint_seconds
        if time.monotonic() - self._saved >= (max(wait, _CHECKPOINT_SHARE * self._save_seconds) if wait else 0.0):
            self._save()

    def _save(self) -> None:
        begin = time.monotonic()
        if self.fabric.is_global_zero:  # the others need not wait: they do at the next step
            save_checkpoint(self.context.folder, self._state())
        self._saved = time.monotonic()
        self._save_seconds = self._saved - begin

    def _state(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            **{name: getattr(self, name) for name in _KEPT},
            "best": self.best.values,
            "own": self.own_state(),
            "learner": self.learner.state_dict() if len(self.members) else {},
            "stopping": self.stopping.state_dict() if len(self.members) else {},
        }

    def _restore(self, state: dict[str, Any]) -> None:
        if state.get("format") != _FORMAT:
            remedy = f"delete the folder {self.context.folder} to start from the beginning, or finish with that version"
            raise CorruptFileError(
                f"{self.context.folder} must hold a checkpoint of this version, got one of another; {remedy}"
            )
        for name in _KEPT:
            setattr(self, name, state[name])
        self.best.load_state_dict(state["best"])
        self.restore_own(state["own"])
        if len(self.members):
            self.learner.select_(self.members)
            self.learner.load_state_dict(state["learner"])
            self.stopping.load_state_dict(state["stopping"])
