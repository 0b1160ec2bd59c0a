"""Trains a stack of models on one set of examples after another: tasks, fixed orders, windows that stay where they are.

Continual learning, learning in the order of labels and unlearning all train like this. They differ in what a phase is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.checkpoint import save_checkpoint
from torchpfc.data.images import ImageData, load_images
from torchpfc.nn import PFCBlock, stack_models, unstack_models
from torchpfc.nn.stack import select_models_
from torchpfc.optim.stacked_slw import StackedRMSpropSLW
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.elastic import Anchored
from torchpfc.paper.image_training import rows_at_once, solving
from torchpfc.paper.registry import Job
from torchpfc.paper.windows import columns_reached, make_optimizer, num_units
from torchpfc.progress import Ticking
from torchpfc.solvers import ConvergenceWarning, Solver
from torchpfc.training import (
    Batch,
    Batches,
    BestWeights,
    EarlyStopping,
    Evaluation,
    Objective,
    SquaredErrors,
    evaluate,
    fit,
    random_stream,
)

if TYPE_CHECKING:
    from torchpfc.paper.runner import Context


class Phase(NamedTuple):
    """What one model learns before it goes on to the next phase."""

    train: Tensor
    """Training images to learn from, in their order."""
    valid: Tensor
    """Training images that are held out."""
    test: Tensor
    """Test images of the same kind."""


@dataclass(frozen=True)
class Lessons:
    """What is particular to an experiment with phases."""

    build: Callable[[Any, ImageData, torch.Generator], nn.Module]
    """Makes an untrained model from a config, data and a source of random numbers."""
    phases: Callable[[Any, ImageData, int], Sequence[Phase]]
    """The phases of a config with a seed; all models of a stack have equally many images in each."""
    loss_weights: Callable[[Any], tuple[float, float]] = lambda config: (1.0, 0.0)
    eval_solver: Callable[[Any], Solver | None] = lambda config: None
    keep: Callable[[Any], str] = lambda config: "loss"
    """By which number on validation data the best epoch is chosen."""
    shuffles: Callable[[Any], bool] = lambda config: True
    """Whether every epoch has an order of its own."""
    resets_window: Callable[[Any], bool] = lambda config: False
    """Whether the window starts at the first column in every epoch, instead of going on."""
    looks_back: Callable[[Any], bool] = lambda config: True
    """Whether the validation images of earlier phases help to decide when to stop."""
    change: Callable[[Iterable[Batch], Sequence[Job], Optimizer], Iterable[Batch]] = lambda batches, jobs, _: batches
    """Changes the batches of an epoch on their way to the models."""
    after_phase: Callable[[PhaseRun], None] = lambda run: None
    """Called before the first phase and after each, with all models of the stack at their best."""


@dataclass
class Record:
    """What a model leaves behind."""

    curves: dict[str, list[float]] = field(
        default_factory=lambda: {"train_loss": [], "valid_loss": [], "valid_accuracy": [], "epochs_of_phase": []}
    )
    matrix: list[list[float]] = field(default_factory=list)
    """Accuracy in percent on the images of each phase: before the first, and after each."""
    columns: list[float] = field(default_factory=list)
    """Where the window has got to after each phase, in columns that it has reached."""
    seconds: float = 0.0
    frames: dict[str, list[Tensor]] = field(default_factory=dict)
    """Columns as images, by the name of the picture that they will make."""


class PhaseRun:
    """The training of a stack, phase by phase.

    Args:
        lessons: What is particular to the experiment.
        jobs: The models; they share a stack key.
        context: Where, and on what.
    """

    def __init__(self, lessons: Lessons, jobs: Sequence[Job], context: Context) -> None:
        self.lessons, self.jobs, self.context = lessons, list(jobs), context
        self.config: Any = jobs[0].config  # for all that the jobs have in common
        self.device, self.dtype = context.fabric.device, dtype_of(context.precision)
        self.data = load_images(self.config.dataset, context.data_dir)
        self.x, self.target = self._tensors(self.data.train)
        self.test_x, self.test_target = self._tensors(self.data.test)
        plans = [lessons.phases(job.config, self.data, job.seed) for job in jobs]
        self.train_rows = [torch.stack([phase.train for phase in alike]) for alike in zip(*plans, strict=True)]
        self.valid_rows = [torch.stack([phase.valid for phase in alike]) for alike in zip(*plans, strict=True)]
        self.test_rows = [phase.test for phase in plans[0]]
        self.stack = self.build([random_stream(job.seed, "weights") for job in jobs])
        self.best = BestWeights(self.stack)
        self.best_positions = [0.0 for _ in jobs]
        self.records = [Record() for _ in jobs]
        self.phase, self.epoch, self.steps, self.step_seconds = 0, 0, 0, 0.0
        self.memory: dict[str, Tensor] = {}
        """What `after_phase` keeps for the objective, by name."""
        self._begin_phase()
        if not self.context.resume(self._restore):
            self._look()
        self._saved = time.monotonic()

    def _tensors(self, images: Any) -> tuple[Tensor, Tensor]:
        target = F.one_hot(images.label, self.data.num_classes)
        return images.x.to(self.device, self.dtype), target.to(self.device, self.dtype)

    # Training

    def train(self) -> None:
        """Trains through all phases."""
        with warnings.catch_warnings(), self.context.fabric.autocast():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a tolerance that is not reached is a setting
            while self.phase < len(self.train_rows):
                while len(self.members) and self.epoch < self.config.epochs:
                    self._train_until_one_leaves()
                self._end_phase()
        self.stack.load_state_dict(self.best.values)

    def _begin_phase(self) -> None:
        """All models at their best so far, an optimizer that knows nothing, and new counters."""
        self.members = torch.arange(len(self.jobs))
        self.stack = self.build([torch.Generator() for _ in self.jobs])
        self.stack.load_state_dict(self.best.values)
        self.optimizer = make_optimizer(self.stack, self.config)
        if isinstance(self.optimizer, StackedRMSpropSLW):
            self.optimizer.move_to(self.best_positions)
        self.stopping = EarlyStopping(
            self.config.patience,
            len(self.jobs),
            watch_accuracy=self.config.watch_accuracy,
            keep=self.lessons.keep(self.config),
        )
        self.epoch = 0
        for record in self.records:
            record.curves["epochs_of_phase"].append(0.0)

    def _train_until_one_leaves(self) -> None:
        self._let_go(self._without_room())
        if not len(self.members):
            return
        members, config = self.members, self.config
        jobs = [self.jobs[i] for i in members.tolist()]
        batches = Batches(
            self.x,
            self.target,
            batch_size=config.batch_size,
            rows=self.train_rows[self.phase][members].to(self.device),
            seeds=[job.seed for job in jobs] if self.lessons.shuffles(config) else None,
            drop_last=True,
        )
        epochs = fit(
            self.stack,
            self.optimizer,
            _Changed(Ticking(batches, self._tick), lambda found: self.lessons.change(found, jobs, self.optimizer)),
            self.objective(members),
            epochs=config.epochs,
            first_epoch=self.epoch,
            capture=self.device.type == "cuda" and config.can_be_recorded(),
        )
        for stats in epochs:
            begin = time.perf_counter()
            loss, accuracy = self._validate(members)
            better = self.stopping.update(loss, accuracy)
            self.best.keep(self.stack, better, members)
            self._keep_positions(better)
            self._note(stats.loss, loss, accuracy, stats.seconds + time.perf_counter() - begin)
            self.steps, self.step_seconds = self.steps + stats.steps, self.step_seconds + stats.seconds
            self.epoch = stats.epoch + 1
            leaving = self.stopping.stopped | self._without_room()
            self._let_go(leaving)
            if len(self.members):
                self._save_if_due()
            if leaving.any():
                return

    def _tick(self, done: float) -> None:
        share = (self.phase + min(1.0, done / self.config.epochs)) / len(self.train_rows)
        self.context.tick(share)

    def _without_room(self) -> Tensor:
        """Which models have a window that would leave the matrix within an epoch."""
        if not isinstance(self.optimizer, StackedRMSpropSLW):
            return torch.zeros(len(self.members), dtype=torch.bool)
        steps = self.train_rows[self.phase].shape[1] // self.config.batch_size
        have = num_units(self.stack)
        needs = [self.optimizer.columns_after(position, steps) for position in self.optimizer.positions]
        return torch.tensor([need > have for need in needs])

    def _keep_positions(self, better: Tensor) -> None:
        if not isinstance(self.optimizer, StackedRMSpropSLW):
            return
        for i, position, is_better in zip(
            self.members.tolist(), self.optimizer.positions, better.tolist(), strict=True
        ):
            if is_better:
                self.best_positions[i] = position
        if self.lessons.resets_window(self.config):
            self.optimizer.move_to(0.0)

    def _let_go(self, leaving: Tensor) -> None:
        """Goes on without some models until the next phase."""
        if not leaving.any():
            return
        going = (~leaving).nonzero()[:, 0]
        self.members = self.members[going]
        if len(going):
            places = self.optimizer.positions if isinstance(self.optimizer, StackedRMSpropSLW) else []
            select_models_(self.stack, going, self.optimizer)
            self.stopping.select_(going)
            if isinstance(self.optimizer, StackedRMSpropSLW):
                self.optimizer.move_to([places[i] for i in going.tolist()])

    def _end_phase(self) -> None:
        self.phase += 1
        self.stack = self.build([torch.Generator() for _ in self.jobs])
        self.stack.load_state_dict(self.best.values)
        self._look()
        if self.phase < len(self.train_rows):
            self._begin_phase()
        else:
            self.members = self.members[:0]
        self._save()

    # Measuring

    def _look(self) -> None:
        """Measures all models, at their best, on the images of every phase."""
        for rows in self._images_of_phases():
            found = self.evaluate_rows(*rows)
            for record, accuracy in zip(self.records, found.accuracy.tolist(), strict=True):
                if len(record.matrix) <= self.phase:
                    record.matrix.append([])
                record.matrix[-1].append(100 * accuracy)
        for record, position in zip(self.records, self.best_positions, strict=True):
            record.columns.append(float(columns_reached(self.stack, self.config, position)))
        self.lessons.after_phase(self)

    def _images_of_phases(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        if not self.context.test:
            yield from ((self.x, self.target, rows) for rows in self.valid_rows)
        else:
            yield from ((self.test_x, self.test_target, rows) for rows in self.test_rows)

    def _validate(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy that decide: on the images of this phase, and of earlier ones for those who look back."""
        back = [self.lessons.looks_back(self.jobs[i].config) for i in members.tolist()]
        first = 0 if any(back) else self.phase
        weights, losses, accuracies = [], [], []
        for phase in range(first, self.phase + 1):
            rows = self.valid_rows[phase][members]
            found = self.evaluate_rows(self.x, self.target, rows, members)
            counted = torch.tensor(back) | (phase == self.phase)
            weights.append(rows.shape[1] * counted.double())
            losses.append(found.loss.double())
            accuracies.append(found.accuracy)
        weight = torch.stack(weights)
        mean = [(weight * torch.stack(values)).sum(0) / weight.sum(0) for values in (losses, accuracies)]
        return mean[0].to(losses[0].dtype), mean[1]

    def evaluate_rows(self, x: Tensor, target: Tensor, rows: Tensor, members: Tensor | None = None) -> Evaluation:
        """Measures the models on images, the same for all or others for each."""
        members = torch.arange(len(self.jobs)) if members is None else members
        size = min(rows_at_once(self.stack, len(members)), rows.shape[-1])
        batches = Batches(x, target, batch_size=size, rows=rows.to(self.device))
        with solving(self.stack, self.lessons.eval_solver(self.config)):
            return evaluate(self.stack, batches, self._errors(members))

    def objective(self, members: Tensor) -> Objective:
        """What the models learn by."""
        errors = self._errors(members)
        if not self.memory:
            return errors
        kept = {name: value[members.to(value.device)] for name, value in self.memory.items()}
        return Anchored(errors, kept, self.config.penalty)

    def _errors(self, members: Tensor) -> SquaredErrors:
        weights = [self.lessons.loss_weights(self.jobs[i].config) for i in members.tolist()]
        prediction, reconstruction = torch.tensor(weights, device=self.device, dtype=self.dtype).unbind(1)
        has_blocks = any(isinstance(module, PFCBlock) for module in self.stack.modules())
        return SquaredErrors(prediction, reconstruction if has_blocks and reconstruction.any() else 0.0)

    def build(self, generators: Sequence[torch.Generator]) -> nn.Module:
        """Untrained models, as a stack."""
        models = [
            self.lessons.build(job.config, self.data, generator)
            for job, generator in zip(self.jobs, generators, strict=True)
        ]
        return stack_models(models).to(self.device, self.dtype)

    def models(self) -> list[nn.Module]:
        """The trained models, one by one."""
        return unstack_models(self.stack)

    def _note(self, train_loss: Tensor, valid_loss: Tensor, valid_accuracy: Tensor, seconds: float) -> None:
        for k, i in enumerate(self.members.tolist()):
            record = self.records[i]
            record.curves["train_loss"].append(train_loss[k].item())
            record.curves["valid_loss"].append(valid_loss[k].item())
            record.curves["valid_accuracy"].append(100 * valid_accuracy[k].item())
            record.curves["epochs_of_phase"][-1] += 1
            record.seconds += seconds / len(self.members)

    # Stopping and going on

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved >= self.context.checkpoint_seconds:
            self._save()

    def _save(self) -> None:
        if self.context.fabric.is_global_zero:
            save_checkpoint(self.context.folder, self._state())
        self._saved = time.monotonic()

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "phase": self.phase,
            "epoch": self.epoch,
            "members": self.members,
            "best": self.best.values,
            "best_positions": self.best_positions,
            "records": [vars(record) for record in self.records],
            "steps": self.steps,
            "step_seconds": self.step_seconds,
            "memory": self.memory,
        }
        if len(self.members):
            state["model"], state["optimizer"] = self.stack.state_dict(), self.optimizer.state_dict()
            state["positions"] = self.optimizer.positions if isinstance(self.optimizer, StackedRMSpropSLW) else []
            state["stopping"] = self.stopping.state_dict()
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self.phase, self.epoch, self.members = state["phase"], state["epoch"], state["members"]
        self.best.load_state_dict(state["best"])
        self.best_positions = list(state["best_positions"])
        self.records = [Record(**record) for record in state["records"]]
        self.steps, self.step_seconds = state["steps"], state["step_seconds"]
        self.memory = {name: value.to(self.device, self.dtype) for name, value in state["memory"].items()}
        if not len(self.members):
            return
        select_models_(self.stack, self.members)
        self.stack.load_state_dict(state["model"])
        self.optimizer = make_optimizer(self.stack, self.config)
        self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.optimizer, StackedRMSpropSLW):
            self.optimizer.move_to(state["positions"])
        self.stopping.load_state_dict(state["stopping"])


class _Changed:
    """The batches of a stream, changed on their way."""

    def __init__(self, batches: Any, change: Callable[[Iterable[Batch]], Iterable[Batch]]) -> None:
        self._batches, self._change = batches, change

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._change(self._batches))
