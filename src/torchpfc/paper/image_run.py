"""Trains stacks of image classifiers to the paper's protocol, in one phase or in several, whatever they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.checkpoint import CorruptFileError
from torchpfc.data.images import ImageData, Images
from torchpfc.nn import stack_models
from torchpfc.optim.stacked_slw import StackedRMSpropSLW
from torchpfc.paper.column_pictures import draw_lines
from torchpfc.paper.components import ImageConfig, solving
from torchpfc.paper.learners import GradientLearner, Source
from torchpfc.paper.registry import Job
from torchpfc.paper.stack_run import Examined, Found, StackRun
from torchpfc.paper.windows import make_optimizer
from torchpfc.training import (
    Batches,
    EarlyStopping,
    EpochStats,
    Evaluation,
    Objective,
    WarmCodes,
    evaluate,
    random_stream,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from torchpfc.paper.runner import Context

# Numbers of a code that are solved for at once when measuring; more would only cost memory.
_ENTRIES_AT_ONCE = 30_000_000


class Sets:
    """The images of all models of a stack, as one set, and which of them each model learns from in each phase."""

    def __init__(self, jobs: Sequence[Job], context: Context, dtype: torch.dtype) -> None:
        self._context, self._dtype = context, dtype
        self._names = [job.config.images.dataset for job in jobs]
        images = {name: job.config.images for name, job in zip(self._names, jobs, strict=True)}
        self.data: dict[str, ImageData] = {name: chosen.load(context.data_dir) for name, chosen in images.items()}
        self.x, self.target, starts = self._join([data.train for data in self.data.values()])
        plans = [
            [
                phase._replace(train=phase.train + starts[name], valid=phase.valid + starts[name])
                for phase in job.config.phases(self.data[name], job.seed)
            ]
            for name, job in zip(self._names, jobs, strict=True)
        ]
        self.train = [torch.stack([phase.train for phase in alike]) for alike in zip(*plans, strict=True)]
        self.valid = [torch.stack([phase.valid for phase in alike]) for alike in zip(*plans, strict=True)]
        self._test = [[phase.test for phase in alike] for alike in zip(*plans, strict=True)]

    @cached_property
    def test(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Test images, targets, and the rows of each phase: the same for all models, or others for each."""
        x, target, starts = self._join([data.test for data in self.data.values()])
        if len(self.data) == 1:
            return x, target, [rows[0] for rows in self._test]
        places = [starts[name] for name in self._names]
        return x, target, [torch.stack([r + s for r, s in zip(rows, places, strict=True)]) for rows in self._test]

    @property
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of the pixels of each set, by its name."""
        return {name: data.fingerprint for name, data in self.data.items()}

    @property
    def measured(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The same of what models are measured on: test images, or those held out where tests are for later."""
        return self.test if self._context.test else (self.x, self.target, self.valid)

    def _join(self, parts: Sequence[Images]) -> tuple[Tensor, Tensor, dict[str, int]]:
        """All images, their targets, and where those of each set start."""
        device, classes = self._context.fabric.device, max(data.num_classes for data in self.data.values())
        x = torch.cat([images.x for images in parts]).to(device, self._dtype)
        target = F.one_hot(torch.cat([images.label for images in parts]), classes).to(device, self._dtype)
        starts = accumulate((len(images) for images in parts[:-1]), initial=0)
        return x, target, dict(zip(self.data, starts, strict=True))


@dataclass
class Record:
    """What a model leaves behind beside its curves."""

    matrix: list[list[float]] = field(default_factory=list)
    """Accuracy in percent on the images of each phase: before the first, and after each."""
    columns: list[float] = field(default_factory=list)
    """Where the window has got to after each phase, in columns that it has reached."""
    epochs: list[int] = field(default_factory=list)
    """How many epochs there had been: before the first phase, and after each."""
    frames: dict[str, list[Tensor]] = field(default_factory=dict)
    """Columns as images, by the name of the picture that they will make."""


class ImageRun(StackRun):
    """The training of a stack of classifiers.

    Args:
        name: Of the experiment.
        jobs: The models; they share one stack key.
        context: Where, and on what.
    """

    can_be_halved = True

    config: ImageConfig
    learner: GradientLearner

    def __init__(self, name: str, jobs: Sequence[Job], context: Context) -> None:
        self.records = [Record() for _ in jobs]
        self.best_positions = [0.0 for _ in jobs]
        super().__init__(name, jobs, context)

    def prepare(self) -> None:
        """Loads the images."""
        self.sets = Sets(self.jobs, self.context, self.dtype)

    @property
    def data(self) -> ImageData:
        """The images of the first model."""
        return self.sets.data[self.config.images.dataset]

    @property
    def stack(self) -> nn.Module:
        """The models, as they are now."""
        return self.learner.stack

    def build(self) -> GradientLearner:
        """All models as they begin, but with windows where they were when models were at their best."""
        models = [
            job.config.model.build(self.sets.data[job.config.images.dataset], random_stream(job.seed, "weights"))
            for job in self.jobs
        ]
        stack, inference = stack_models(models).to(self.device, self.dtype), self.config.model.inference
        codes = None
        if inference is not None and inference.warm_codes:
            codes = WarmCodes(stack, self.sets.train[0].shape[1], gather=_gather(self.fabric))
        optimizer = make_optimizer(stack, self.config, self.config.window)
        if isinstance(optimizer, StackedRMSpropSLW):
            optimizer.reset_window(self.best_positions)
        return GradientLearner(
            stack,
            optimizer,
            self.objective,
            self.fabric,
            capture=inference is None or not inference.waits,
            codes=codes,
            lr_decay=self.config.lr_decay,
            halved=self.context.precision == "bf16",
        )

    def num_phases(self) -> int:
        """As many as the config has."""
        return len(self.sets.train)

    def num_epochs(self) -> int:
        """At most."""
        return self.config.schedule.epochs

    def make_stopping(self) -> EarlyStopping:
        """Stops as the config says."""
        return self.config.make_stopping(len(self.jobs))

    def source(self) -> Source:
        """The images of the models that still learn, for each in a new order unless its config has one."""
        return Batches(
            self.sets.x,
            self.sets.target,
            batch_size=self.config.schedule.batch_size,
            rows=self.sets.train[self.phase][self.members].to(self.device),
            seeds=[self.jobs[i].seed for i in self.members.tolist()] if self.config.order is None else None,
            drop_last=True,
        )

    def examine(self, stats: EpochStats) -> Examined:
        """Measures on validation images."""
        loss, accuracy = self.validate()
        return Examined(loss, accuracy, {"valid_loss": loss, "valid_accuracy": 100 * accuracy})

    def keep(self, better: Tensor) -> None:
        """Remembers where windows are, which start anew in every epoch where all have one order."""
        optimizer = self.learner.optimizer
        if not isinstance(optimizer, StackedRMSpropSLW):
            return
        for i, position, is_better in zip(self.members.tolist(), optimizer.positions, better.tolist(), strict=True):
            if is_better:
                self.best_positions[i] = position
        if self.config.order is not None:
            optimizer.reset_window(0.0)

    def without_room(self) -> Tensor:
        """Which models have a window that would leave the matrix within an epoch."""
        optimizer = self.learner.optimizer
        if not isinstance(optimizer, StackedRMSpropSLW):
            return super().without_room()
        steps = self.sets.train[self.phase].shape[1] // self.config.schedule.batch_size
        have = self.config.model.units
        return torch.tensor([optimizer.columns_after(position, steps) > have for position in optimizer.positions])

    def own_state(self) -> dict[str, Any]:
        """Records, where windows were, and on what images."""
        records = [vars(record) for record in self.records]
        return {"records": records, "best_positions": self.best_positions, "data": self.sets.fingerprints}

    def restore_own(self, state: dict[str, Any]) -> None:
        """Takes over what was saved."""
        if state["data"] != self.sets.fingerprints:
            wanted = f"a checkpoint of a training on the images that are there now, {', '.join(self.sets.data)}"
            raise CorruptFileError(f"{self.context.folder} must hold {wanted}, got one on others; delete it")
        self.records = [Record(**record) for record in state["records"]]
        self.best_positions = list(state["best_positions"])

    def evaluate_rows(self, x: Tensor, target: Tensor, rows: Tensor, members: Tensor | None = None) -> Evaluation:
        """Measures the models on images, the same for all or others for each."""
        members = torch.arange(len(self.jobs)) if members is None else members
        entries = len(members) * max(p.shape[-1] for p in self.stack.parameters())
        size = max(1, min(_ENTRIES_AT_ONCE // entries, rows.shape[-1]))
        batches = Batches(x, target, batch_size=size, rows=rows.to(self.device))
        with solving(self.stack, self.config.model.eval_solver()):
            return evaluate(self.stack, batches, self.errors(members))

    def objective(self, members: Tensor) -> Objective:
        """What the models learn by."""
        return self.errors(members)

    def errors(self, members: Tensor) -> Objective:
        """What the models are measured by."""
        weights = [self.jobs[i].config.model.loss_weights() for i in members.tolist()]
        prediction, reconstruction = torch.tensor(weights, device=self.device, dtype=self.dtype).unbind(1)
        return self.config.model.errors(prediction, reconstruction if reconstruction.any() else 0.0)

    def validate(self) -> Evaluation:
        """Loss and accuracy that decide: those on the held-out images of this phase."""
        rows = self.sets.valid[self.phase][self.members]
        return self.evaluate_rows(self.sets.x, self.sets.target, rows, self.members)

    # For runs with several phases, or one in an order that never changes

    def look(self) -> None:
        """Measures all models on the images of every phase, and how far their windows have come."""
        x, target, rows_of_phases = self.sets.measured
        found = [100 * self.evaluate_rows(x, target, rows).accuracy for rows in rows_of_phases]
        window, units = self.config.window, self.config.model.units
        for i, record in enumerate(self.records):
            record.matrix.append([accuracy[i].item() for accuracy in found])
            record.columns.append(float(window.columns_reached(self.best_positions[i], units)))
            record.epochs.append(len(self.history[i].get("valid_loss", ())))

    def measure_phases(self, i: int) -> Found:
        """What is known of the phases of the i-th model, and how good it was at its best in the last."""
        record, curves = self.records[i], self.history[i]
        epochs = [float(after - before) for before, after in pairwise(record.epochs)]
        metrics = {"epochs": sum(epochs)}
        if count := int(epochs[-1]):  # none where there was no column left
            losses, accuracies = (curves[name][-count:] for name in ("valid_loss", "valid_accuracy"))
            best = max(_best_epoch(losses if self.config.keep == "loss" else [-value for value in accuracies]), 1) - 1
            metrics |= {"valid_loss": losses[best], "valid_accuracy": accuracies[best]}
        images = draw_lines(record.frames, self.data.train.shape)
        return Found(metrics, {"epochs_of_phase": epochs}, images, data={self.data.name: self.data.fingerprint})


class ClassifierRun(ImageRun):
    """The training of classifiers from all images at once."""

    def look(self) -> None:
        """Waits until the end, when everything is measured."""

    @cached_property
    def at_best(self) -> tuple[Evaluation, Evaluation | None]:
        """How good all models are on validation images and, if these may be looked at, on test images."""
        valid = self.evaluate_rows(self.sets.x, self.sets.target, self.sets.valid[-1])
        if not self.context.test:
            return valid, None
        x, target, rows = self.sets.test
        return valid, self.evaluate_rows(x, target, rows[-1])

    def measure(self, model: nn.Module, i: int) -> Found:
        """How good a classifier is at its best, when that was, and what its config makes of it."""
        config, losses, (valid, test) = self.jobs[i].config, self.history[i]["valid_loss"], self.at_best
        data = self.sets.data[config.images.dataset]
        metrics = {
            "valid_accuracy": 100 * valid.accuracy[i].item(),
            "valid_loss": valid.loss[i].item(),
            "best_epoch": _best_epoch(losses),
            "epochs": len(losses),
        }
        found = Found(metrics, data={data.name: data.fingerprint})
        if test is not None:
            metrics |= {"test_accuracy": 100 * test.accuracy[i].item(), "test_loss": test.loss[i].item()}
            with solving(model.eval().float(), config.model.eval_solver()):
                config.look_further(found, model, data, self.context)
        return found


def _best_epoch(losses: Sequence[float]) -> int:
    """The epoch of the lowest loss, counted from 1; 0, before the first, where none was finite."""
    finite = [(loss, epoch) for epoch, loss in enumerate(losses, start=1) if math.isfinite(loss)]
    return min(finite)[1] if finite else 0


def _gather(fabric: Fabric) -> Callable[[Tensor], Tensor] | None:
    """Collects a tensor from all processes, where there are several."""
    if fabric.world_size == 1:
        return None
    return lambda tensor: cast("Tensor", fabric.all_gather(tensor))
