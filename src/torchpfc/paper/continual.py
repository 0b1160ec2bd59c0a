"""Learning classes one task after another, and in the order of their labels (Sections 5.3 and 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from torchpfc.data.images import ImageData
from torchpfc.data.streams import SPLIT_PAIRS
from torchpfc.nn import MLP, PFCBlock
from torchpfc.paper.column_pictures import learned_last, spread_out
from torchpfc.paper.components import (
    ImageConfig,
    ImageModel,
    MLPModel,
    Optimizer,
    Order,
    PFCModel,
    Phase,
    RatedOptimizer,
    Schedule,
    Window,
    solving,
)
from torchpfc.paper.continual_metrics import measure_tasks
from torchpfc.paper.elastic import Anchored, ElasticMLP, importance
from torchpfc.paper.image_run import ImageRun
from torchpfc.paper.learners import GradientLearner
from torchpfc.paper.probes import columns_in_codes, unused_columns
from torchpfc.paper.settings import all_settings_but, change, one_of
from torchpfc.paper.stack_run import Found
from torchpfc.training import Evaluation, Objective

FLOAT_BYTES = 4

C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class SplitMNIST(ImageConfig):
    """Classes in tasks of two, learned one after another; by default by a PFC block."""

    schedule: Schedule = Schedule(patience=5)
    model: ImageModel = PFCModel(num_basis=2000)
    window: Window = Window(width=15, sweep_speed=0.25)
    keep: str = "loss"
    """By which number on validation data the best epoch is chosen: loss, or accuracy, which then also stops alone."""
    protocol: Annotated[str, one_of("paper", "strict")] = "paper"
    """paper: the validation images of all tasks so far decide when a task ends. strict: those of this task alone."""
    joint: bool = False
    """Whether all classes are one task, as a bound on what can be hoped for."""

    def stack_key(self) -> object:
        """Everything but the protocol."""
        return all_settings_but(self, "protocol")

    def phases(self, data: ImageData, seed: int) -> Sequence[Phase]:
        """A phase for each task."""
        return self.images.tasks(data, [range(data.num_classes)] if self.joint else SPLIT_PAIRS, seed)


@dataclass(frozen=True, kw_only=True)
class OrderedMNIST(ImageConfig):
    """All classes, in the same order in every epoch; by default by a PFC block, whose window starts anew in each."""

    optimizer: Optimizer = Optimizer(lr=2e-3)
    schedule: Schedule = Schedule(batch_size=50, epochs=100, patience=5)
    model: ImageModel = PFCModel(num_basis=3000)
    window: Window = Window(width=50, sweep_speed=2.5)
    keep: str = "loss"
    """As in `SplitMNIST`."""
    order: Order = Order()

    def stack_key(self) -> object:
        """Everything but the order."""
        return all_settings_but(self, "order")


SPLIT_MLP = SplitMNIST(optimizer=Optimizer(lr=2e-6), model=ElasticMLP(), window=Window())
"""A perceptron that learns one task after another."""

ORDERED_MLP = change(
    OrderedMNIST(model=MLPModel(hidden_features=2600), window=Window()), lr=5e-7, weight_decay=0.0, epochs=200
)
"""A perceptron that sees the same order in every epoch."""


class TasksRun(ImageRun):
    """The training of learners on one task after another."""

    config: SplitMNIST

    def prepare(self) -> None:
        """Loads the images."""
        super().prepare()
        self.memory: dict[str, Tensor] = {}  # what holds weights, by name
        self.best_use: list[Tensor] = []  # of columns, where they have rates: a tensor for each parameter
        model = self.config.model
        self.penalty = model.penalty if isinstance(model, ElasticMLP) else 0.0

    def build(self) -> GradientLearner:
        """All models as they begin, but with columns as used as they were when models were at their best."""
        learner = super().build()
        counts = _use(learner.optimizer)
        for own, best in zip(counts, self.best_use, strict=bool(self.best_use)):
            own.copy_(best)
        self.best_use = self.best_use or [use.cpu() for use in counts]
        return learner

    def keep(self, better: Tensor) -> None:
        """Remembers how much columns have been used, too."""
        super().keep(better)
        for best, use in zip(self.best_use, _use(self.learner.optimizer), strict=True):
            best[self.members[better]] = use.cpu()[better]

    def validate(self) -> Evaluation:
        """Loss and accuracy that decide: under the protocol of the paper those on the images of earlier tasks too."""
        back = torch.tensor([self.jobs[i].config.protocol == "paper" for i in self.members.tolist()])
        if not (self.phase and back.any()):
            return super().validate()
        weights, found = [], []
        for phase, rows in enumerate(self.sets.valid[: self.phase + 1]):
            weights.append(rows.shape[1] * (back | (phase == self.phase)).double())
            found.append(self.evaluate_rows(self.sets.x, self.sets.target, rows[self.members], self.members))
        weight = torch.stack(weights)
        loss, accuracy = (torch.stack(values) for values in zip(*found, strict=True))
        return Evaluation((weight * loss).sum(0) / weight.sum(0), (weight * accuracy).sum(0) / weight.sum(0))

    def objective(self, members: Tensor) -> Objective:
        """The errors of some models and what holds the weights that earlier tasks need, where there are such tasks."""
        errors = self.errors(members)
        if not self.memory:
            return errors
        kept = {name: value[members.to(value.device)] for name, value in self.memory.items()}
        return Anchored(errors, self.stack, kept, self.penalty)

    def look(self) -> None:
        """Measures on all tasks, keeps pictures of the columns, and what elastic weights need."""
        super().look()
        if self.penalty and self.phase:
            self.remember_importance()
        for i, job in enumerate(self.jobs):
            if job.seed == 0 and isinstance(self.stack, PFCBlock):
                weight = self.stack.weight_x[i].detach()
                frames = self.records[i].frames
                frames.setdefault("window_film", []).append(spread_out(weight))
                if self.phase:
                    frames.setdefault("weights_by_task", []).append(learned_last(weight, self.best_positions[i]))

    def remember_importance(self) -> None:
        """Adds what the task that has just ended needs to what those before it need."""
        assert isinstance(self.stack, MLP)
        found = importance(self.stack, self.sets.x, self.sets.train[self.phase - 1].to(self.device))
        for name, p in self.stack.named_parameters():
            for kept, value in ((f"importance.{name}", found[name]), (f"anchor.{name}", found[name] * p.detach())):
                self.memory[kept] = self.memory.get(kept, torch.zeros_like(p)) + value

    def own_state(self) -> dict[str, Any]:
        """Also what holds weights, and how much columns have been used."""
        return {**super().own_state(), "memory": self.memory, "best_use": self.best_use}

    def restore_own(self, state: dict[str, Any]) -> None:
        """Takes over what was saved."""
        super().restore_own(state)
        self.best_use = state["best_use"]
        self.memory = {name: value.to(self.device, self.dtype) for name, value in state["memory"].items()}

    @cached_property
    def valid_accuracies(self) -> Tensor:
        """The accuracy in percent of each model, at its end, on the held-out images of all tasks."""
        hits = torch.zeros(len(self.jobs), dtype=torch.float64)
        for rows in self.sets.valid:
            hits += self.evaluate_rows(self.sets.x, self.sets.target, rows).accuracy * rows.shape[1]
        return 100 * hits / sum(rows.shape[1] for rows in self.sets.valid)

    def measure(self, model: nn.Module, i: int) -> Found:
        """What papers on continual learning give, and what the learner uses."""
        record, sizes = self.records[i], [rows.shape[-1] for rows in self.sets.measured[2]]
        found = self.measure_phases(i)
        found |= measure_tasks(record.matrix, sizes, self.valid_accuracies[i].item(), self.context.test)
        found.metrics |= {"columns_used": record.columns[-1], "bytes_kept": self.bytes_kept(model, i)}
        found.curves["columns_after_task"] = record.columns[1:]
        found.metrics |= measure_columns(self, model, i)
        return found

    def bytes_kept(self, model: nn.Module, i: int) -> float:
        """What a learner carries from task to task: learned weights, and images or numbers kept for later."""
        config, pixels = self.jobs[i].config, self.data.train.x.shape[1]
        if isinstance(model, PFCBlock):
            rates = isinstance(config.optimizer, RatedOptimizer)  # with a number a column, how much it has been used
            weights = int(self.records[i].columns[-1]) * (pixels + self.data.num_classes + rates)
        else:
            weights = sum(p.numel() for p in model.parameters())
        kept = weights * FLOAT_BYTES * (3 if self.penalty else 1)
        if config.protocol == "paper" and not config.joint:
            kept += sum(rows.shape[1] for rows in self.sets.valid[:-1]) * pixels  # one byte a pixel
        return float(kept)


def _use(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """How much the columns of each parameter have been used; none where they have no rates."""
    return [use for group in optimizer.param_groups for use in group.get("use", ())]


class OrderedRun(ImageRun):
    """The training of learners in an order that never changes."""

    def measure(self, model: nn.Module, i: int) -> Found:
        """How good a learner is, and what it uses."""
        found, record = self.measure_phases(i), self.records[i]
        found.metrics["columns_used"] = record.columns[-1]
        if self.context.test:
            found.metrics["test_accuracy"] = record.matrix[-1][0]
        found.metrics |= measure_columns(self, model, i)
        return found


def measure_columns(run: ImageRun, model: nn.Module, i: int) -> dict[str, float]:
    """What the columns of a block do on held-out images, and those of them that no window has reached."""
    if not isinstance(model, PFCBlock):
        return {}
    used = int(run.records[i].columns[-1])
    held_out = run.data.train.select(torch.cat([rows[i] for rows in run.sets.valid])).to(run.device)
    with solving(model.eval().float(), run.config.model.eval_solver()):
        found = {"columns_in_codes": columns_in_codes(model, held_out)}
        return found | (unused_columns(model, held_out, used) if 0 < used < model.num_basis else {})


def fast(config: C) -> C:
    """The gradient of the optimum after fewer steps, instead of that of all steps; other learners stay as they are."""
    if not isinstance(config, ImageConfig) or config.model.inference is None:
        return config
    return change(config, gradient="implicit", gradient_steps=15, damping=1e-3, iterations=40)
