"""Trains stacks of image classifiers to the paper's protocol, in one phase or in several, whatever they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.data.images import ImageData, Images, load_images
from torchpfc.nn import PFCBlock, stack_models
from torchpfc.optim.stacked_slw import StackedRMSpropSLW
from torchpfc.paper.learners import GradientLearner
from torchpfc.paper.registry import Job
from torchpfc.paper.stack_run import Examined, Found, StackRun
from torchpfc.paper.windows import columns_reached, make_optimizer, num_units
from torchpfc.solvers import Solver
from torchpfc.training import (
    Batch,
    Batches,
    EarlyStopping,
    EpochStats,
    Evaluation,
    Objective,
    SquaredErrors,
    WarmCodes,
    evaluate,
    random_stream,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from torchpfc.paper.images import ImageConfig
    from torchpfc.paper.runner import Context

# Numbers of a code that are solved for at once when measuring; more would only cost memory.
_ENTRIES_AT_ONCE = 30_000_000


class Phase(NamedTuple):
    """What one model learns before it goes on to the next phase."""

    train: Tensor
    """Training images to learn from, in their order."""
    valid: Tensor
    """Training images that are held out."""
    test: Tensor
    """Test images of the same kind."""


def one_phase(config: ImageConfig, data: ImageData, seed: int) -> Sequence[Phase]:
    """All images at once, a random part of them held out."""
    train, valid = split(len(data.train), config, seed)
    return [Phase(train, valid, torch.arange(len(data.test)))]


@dataclass(frozen=True)
class Recipe:
    """What is particular to a kind of classifier, and to what it learns."""

    name: str
    """Of the experiment."""
    build: Callable[[Any, ImageData, torch.Generator], nn.Module]
    """Makes an untrained model from a config, data and a source of random numbers."""
    phases: Callable[[Any, ImageData, int], Sequence[Phase]] = one_phase
    """The phases of a config with a seed; all models of a stack have equally many images in each."""
    loss_weights: Callable[[Any], tuple[float, float]] = lambda config: (1.0, 0.0)
    """What the errors of prediction and reconstruction count."""
    objective: Callable[[Any, Any], Objective] = SquaredErrors
    """Makes the loss of a stack from both, as one weight for each model; the second is 0 where none counts."""
    eval_solver: Callable[[Any], Solver | None] = lambda config: None
    """The solver of all blocks when measuring, if not that of the training."""
    keep: Callable[[Any], str] = lambda config: "loss"
    """By which number on validation data the best epoch is chosen."""
    shuffles: bool = True
    """Whether every epoch has an order of its own."""
    resets_window: Callable[[Any], bool] = lambda config: False
    """Whether the window starts at the first column in every epoch, instead of going on."""
    looks_back: Callable[[Any], bool] = lambda config: True
    """Whether the validation images of earlier phases help to decide when to stop."""
    change: Callable[[Iterable[Batch], Sequence[Job], Optimizer], Iterable[Batch]] = lambda batches, jobs, _: batches
    """Changes the batches of an epoch on their way to the models."""
    hold: Callable[[ImageRun, Objective, Tensor], Objective] = lambda run, errors, members: errors
    """Adds to the errors, of some of all models, what holds weights where they are needed."""
    look: Callable[[ImageRun], None] = lambda run: None
    """Called before the first phase and after each, with all models of the stack at their best."""
    measure: Callable[[ImageRun, Any, int], Found] | None = None
    """Measures a trained model, the i-th; by default `measure_classifier`."""
    look_further: Callable[[Any, Any, ImageData, Context], Found] | None = None
    """Measures a trained model further, in float32."""


class Sets:
    """The images of all models of a stack, as one set, and which of them each model learns from in each phase."""

    def __init__(self, recipe: Recipe, jobs: Sequence[Job], context: Context, dtype: torch.dtype) -> None:
        self._device, self._dtype = context.fabric.device, dtype
        self.data = {name: load_images(name, context.data_dir) for name in {job.config.dataset: None for job in jobs}}
        self.x, self.target, starts = self._join([data.train for data in self.data.values()])
        plans = []
        for job in jobs:
            first, data = starts[job.config.dataset], self.data[job.config.dataset]
            plans.append(
                [
                    phase._replace(train=phase.train + first, valid=phase.valid + first)
                    for phase in recipe.phases(job.config, data, job.seed)
                ]
            )
        self.train = [torch.stack([phase.train for phase in alike]) for alike in zip(*plans, strict=True)]
        self.valid = [torch.stack([phase.valid for phase in alike]) for alike in zip(*plans, strict=True)]
        self._test = [[phase.test for phase in alike] for alike in zip(*plans, strict=True)]
        self._names = [job.config.dataset for job in jobs]

    @cached_property
    def test(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Test images, targets, and the rows of each phase: the same for all models, or others for each."""
        x, target, starts = self._join([data.test for data in self.data.values()])
        if len(self.data) == 1:
            return x, target, [rows[0] for rows in self._test]
        places = [starts[name] for name in self._names]
        return x, target, [torch.stack([r + s for r, s in zip(rows, places, strict=True)]) for rows in self._test]

    def _join(self, parts: Sequence[Images]) -> tuple[Tensor, Tensor, dict[str, int]]:
        """All images, their targets, and where those of each set start."""
        x = torch.cat([images.x for images in parts])
        classes = max(data.num_classes for data in self.data.values())
        target = F.one_hot(torch.cat([images.label for images in parts]), classes)
        starts = accumulate((len(images) for images in parts[:-1]), initial=0)
        return (
            x.to(self._device, self._dtype),
            target.to(self._device, self._dtype),
            dict(zip(self.data, starts, strict=True)),
        )


def split(count: int, config: ImageConfig, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to learn from, and rows to validate on: as published, without those that do not fill a batch."""
    order = torch.randperm(count, generator=random_stream(seed, "split"))
    size = round(config.validation_share * count)
    whole = size - size % config.batch_size or size
    return order[size:], order[:whole]


@dataclass
class Record:
    """What a model leaves behind beside its curves."""

    matrix: list[list[float]] = field(default_factory=list)
    """Accuracy in percent on the images of each phase: before the first, and after each."""
    columns: list[float] = field(default_factory=list)
    """Where the window has got to after each phase, in columns that it has reached."""
    frames: dict[str, list[Tensor]] = field(default_factory=dict)
    """Columns as images, by the name of the picture that they will make."""


class ImageRun(StackRun):
    """The training of a stack of classifiers.

    Args:
        recipe: What they are made of, and what they learn.
        jobs: The models; they share one stack key.
        context: Where, and on what.
    """

    can_be_halved = True
    learner: GradientLearner

    def __init__(self, recipe: Recipe, jobs: Sequence[Job], context: Context) -> None:
        self.recipe = recipe
        self.records = [Record() for _ in jobs]
        self.best_positions = [0.0 for _ in jobs]
        self.memory: dict[str, Tensor] = {}
        """What `look` keeps for the objective, by name."""
        super().__init__(recipe.name, jobs, context)

    def prepare(self) -> None:
        """Loads the images."""
        self.sets = Sets(self.recipe, self.jobs, self.context, self.dtype)

    @property
    def data(self) -> ImageData:
        """The images of the first model."""
        return self.sets.data[self.config.dataset]

    @property
    def stack(self) -> nn.Module:
        """The models, as they are now."""
        return self.learner.stack

    def build(self) -> GradientLearner:
        """All models as they begin."""
        models = [
            self.recipe.build(job.config, self.sets.data[job.config.dataset], random_stream(job.seed, "weights"))
            for job in self.jobs
        ]
        stack = stack_models(models).to(self.device, self.dtype)
        optimizer = make_optimizer(stack, self.config)
        codes = None
        if getattr(self.config, "warm_codes", False):
            codes = WarmCodes(stack, self.sets.train[0].shape[1], gather=_gather(self.fabric))
        return GradientLearner(
            stack,
            optimizer,
            self.objective,
            self.fabric,
            capture=self.config.can_be_recorded(),
            codes=codes,
            lr_decay=getattr(self.config, "lr_decay", 1.0),
        )

    def num_phases(self) -> int:
        """As many as the recipe has."""
        return len(self.sets.train)

    def num_epochs(self) -> int:
        """At most."""
        return int(self.config.epochs)

    def make_stopping(self) -> EarlyStopping:
        """Stops by the loss and the accuracy on validation images, as published."""
        config = self.config
        keep = self.recipe.keep(config)
        return EarlyStopping(config.patience, len(self.jobs), watch_accuracy=config.watch_accuracy, keep=keep)

    def source(self) -> Any:
        """The images of the models that still learn, each in an order of its own."""
        jobs = [self.jobs[i] for i in self.members.tolist()]
        batches = Batches(
            self.sets.x,
            self.sets.target,
            batch_size=self.config.batch_size,
            rows=self.sets.train[self.phase][self.members].to(self.device),
            seeds=[job.seed for job in jobs] if self.recipe.shuffles else None,
            drop_last=True,
        )
        return _Changed(batches, lambda found: self.recipe.change(found, jobs, self.learner.optimizer))

    def begin_phase(self) -> None:
        """Puts the windows where they were when models were at their best."""
        if isinstance(self.learner.optimizer, StackedRMSpropSLW):
            self.learner.optimizer.reset_window(self.best_positions)
        if self.recipe.phases is not one_phase:
            for curves in self.history:
                curves.setdefault("epochs_of_phase", []).append(0.0)

    def examine(self, stats: EpochStats) -> Examined:
        """Measures on validation images: those of this phase, and of earlier ones for those who look back."""
        loss, accuracy = self._validate()
        return Examined(loss, accuracy, {"valid_loss": loss, "valid_accuracy": 100 * accuracy})

    def keep(self, better: Tensor) -> None:
        """Remembers where windows are, and counts the epochs of the phase."""
        for i in self.members.tolist():
            if "epochs_of_phase" in self.history[i]:
                self.history[i]["epochs_of_phase"][-1] += 1
        optimizer = self.learner.optimizer
        if not isinstance(optimizer, StackedRMSpropSLW):
            return
        for i, position, is_better in zip(self.members.tolist(), optimizer.positions, better.tolist(), strict=True):
            if is_better:
                self.best_positions[i] = position
        if self.recipe.resets_window(self.config):
            optimizer.reset_window(0.0)

    def without_room(self) -> Tensor:
        """Which models have a window that would leave the matrix within an epoch."""
        optimizer = self.learner.optimizer
        if not isinstance(optimizer, StackedRMSpropSLW):
            return super().without_room()
        steps = self.sets.train[self.phase].shape[1] // self.config.batch_size
        have = num_units(self.stack)
        return torch.tensor([optimizer.columns_after(position, steps) > have for position in optimizer.positions])

    def look(self) -> None:
        """Looks at all models as the recipe says."""
        self.recipe.look(self)

    def measure(self, model: Any, i: int) -> Found:
        """Looks at a trained model."""
        return (self.recipe.measure or measure_classifier)(self, model, i)

    def own_state(self) -> dict[str, Any]:
        """Records, where windows were, and what was kept for the objective."""
        records = [vars(record) for record in self.records]
        return {"records": records, "best_positions": self.best_positions, "memory": self.memory}

    def restore_own(self, state: dict[str, Any]) -> None:
        """Takes over what was saved."""
        self.records = [Record(**record) for record in state["records"]]
        self.best_positions = list(state["best_positions"])
        self.memory = {name: value.to(self.device, self.dtype) for name, value in state["memory"].items()}

    def look_at_phases(self) -> None:
        """Measures all models on the images of every phase, and how far their windows have come."""
        if self.context.test:
            x, target, rows_of_phases = self.sets.test
        else:
            x, target, rows_of_phases = self.sets.x, self.sets.target, self.sets.valid
        found = [100 * self.evaluate_rows(x, target, rows).accuracy for rows in rows_of_phases]
        for i, record in enumerate(self.records):
            record.matrix.append([accuracy[i].item() for accuracy in found])
            record.columns.append(float(columns_reached(self.stack, self.config, self.best_positions[i])))

    def _validate(self) -> tuple[Tensor, Tensor]:
        """Loss and accuracy that decide."""
        back = [self.recipe.looks_back(self.jobs[i].config) for i in self.members.tolist()]
        first = 0 if any(back) else self.phase
        weights, losses, accuracies = [], [], []
        for phase in range(first, self.phase + 1):
            rows = self.sets.valid[phase][self.members]
            found = self.evaluate_rows(self.sets.x, self.sets.target, rows, self.members)
            if first == self.phase:
                return found.loss, found.accuracy
            counted = torch.tensor(back) | (phase == self.phase)
            weights.append(rows.shape[1] * counted.double())
            losses.append(found.loss.double())
            accuracies.append(found.accuracy)
        weight = torch.stack(weights)
        loss, accuracy = ((weight * torch.stack(values)).sum(0) / weight.sum(0) for values in (losses, accuracies))
        return loss, accuracy

    def evaluate_rows(self, x: Tensor, target: Tensor, rows: Tensor, members: Tensor | None = None) -> Evaluation:
        """Measures the models on images, the same for all or others for each."""
        members = torch.arange(len(self.jobs)) if members is None else members
        size = min(rows_at_once(self.stack, len(members)), rows.shape[-1])
        batches = Batches(x, target, batch_size=size, rows=rows.to(self.device))
        with solving(self.stack, self.recipe.eval_solver(self.config)):
            return evaluate(self.stack, batches, self.errors(members))

    def objective(self, members: Tensor) -> Objective:
        """What the models learn by."""
        return self.recipe.hold(self, self.errors(members), members)

    @cached_property
    def at_best(self) -> tuple[Evaluation, Evaluation | None]:
        """How good all models are on validation images and, if these may be looked at, on test images."""
        valid = self.evaluate_rows(self.sets.x, self.sets.target, self.sets.valid[-1])
        if not self.context.test:
            return valid, None
        x, target, rows = self.sets.test
        return valid, self.evaluate_rows(x, target, rows[-1])

    def errors(self, members: Tensor) -> Objective:
        """What the models are measured by."""
        weights = [self.recipe.loss_weights(self.jobs[i].config) for i in members.tolist()]
        prediction, reconstruction = torch.tensor(weights, device=self.device, dtype=self.dtype).unbind(1)
        return self.recipe.objective(prediction, reconstruction if reconstruction.any() else 0.0)


def measure_classifier(run: ImageRun, model: nn.Module, i: int) -> Found:
    """How good a classifier is at its best, and when that was."""
    job, history, context = run.jobs[i], run.history[i], run.context
    data, valid, test = run.sets.data[job.config.dataset], *run.at_best
    metrics = {
        "valid_accuracy": 100 * valid.accuracy[i].item(),
        "valid_loss": valid.loss[i].item(),
        "best_epoch": _best_epoch(history["valid_loss"]),
        "epochs": len(history["valid_loss"]),
    }
    if test is not None:
        metrics |= {"test_accuracy": 100 * test.accuracy[i].item(), "test_loss": test.loss[i].item()}
    found = Found(metrics, data={data.name: data.fingerprint})
    if run.recipe.look_further is not None and context.test:
        with solving(model.eval().float(), run.recipe.eval_solver(job.config)):
            more = run.recipe.look_further(model, job.config, data, context)
        found.metrics |= more.metrics
        found.curves |= more.curves
        found.images |= more.images
        found.data |= more.data
    return found


class _Changed:
    """The batches of a stream, changed on their way."""

    def __init__(self, batches: Batches, change: Callable[[Iterable[Batch]], Iterable[Batch]]) -> None:
        self._batches, self._change = batches, change

    def __len__(self) -> int:
        return len(self._batches)

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._change(self._batches))


def _best_epoch(losses: Sequence[float]) -> int:
    """The epoch of the lowest loss, counted from 1; 0, before the first, where none was finite."""
    finite = [(loss, epoch) for epoch, loss in enumerate(losses, start=1) if math.isfinite(loss)]
    return min(finite)[1] if finite else 0


def _gather(fabric: Fabric) -> Callable[[Tensor], Tensor] | None:
    """Collects a tensor from all processes, where there are several."""
    if fabric.world_size == 1:
        return None
    return lambda tensor: cast("Tensor", fabric.all_gather(tensor))


def rows_at_once(stack: nn.Module, count: int) -> int:
    """How many images to measure a stack of some models on at a time."""
    return max(1, _ENTRIES_AT_ONCE // (count * max(p.shape[-1] for p in stack.parameters())))


@contextmanager
def solving(model: nn.Module, solver: Solver | None) -> Iterator[None]:
    """Lets all blocks of a model use another solver meanwhile."""
    blocks = [module for module in model.modules() if isinstance(module, PFCBlock)] if solver is not None else []
    before = [block.solver for block in blocks]
    for block in blocks:
        assert solver is not None
        block.solver = solver
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            block.solver = own
