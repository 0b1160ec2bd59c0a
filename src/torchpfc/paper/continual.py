"""Learning classes one task after another, and in the order of their labels (Sections 5.3 and 5.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchpfc.data.images import ImageData
from torchpfc.data.streams import SPLIT_PAIRS, class_tasks, fixed_shuffle, label_ordered
from torchpfc.nn import MLP, PFCBlock
from torchpfc.paper.column_pictures import draw_lines, learned_last, spread_out
from torchpfc.paper.continual_metrics import continual_curves, continual_metrics
from torchpfc.paper.elastic import hold_weights, remember_importance
from torchpfc.paper.image_run import ImageRun, Phase, Recipe, split
from torchpfc.paper.images import MLPImage, PFCImage, build_block, build_mlp
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import all_settings_but
from torchpfc.paper.stack_run import Found
from torchpfc.training import KEEPS

PROTOCOLS = ("paper", "strict")
"""Whose validation images decide when a task ends: those of all tasks so far, or of this task alone."""

ORDERS = ("sorted", "fixed")
"""By label, or in one random order; the same in every epoch."""

SHUFFLE_SEED = 42
"""Of the one random order, which all models share."""

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class _Window:
    """A window that slides over columns, or hidden units, and which epoch is kept when it has moved on."""

    width: int = 0
    """Columns in the window; 0 learns all of them at every step."""
    sweep_speed: float = 0.0
    """Columns that the window moves in one step."""
    keep: str = "loss"
    """By which number on validation data the best epoch is chosen: loss, or accuracy, which then also stops alone."""

    def _check_window(self, units: int) -> None:
        if self.width < 0 or not 0 <= self.sweep_speed < math.inf:
            raise ValueError(f"width and sweep_speed must not be negative, got {self.width} and {self.sweep_speed}")
        if self.width > units:
            raise ValueError(f"width must be at most the number of units, {units}, got {self.width}")
        if self.keep not in KEEPS:
            raise ValueError(f"keep must be one of {', '.join(KEEPS)}, got {self.keep!r}")

    def _smaller_window(self) -> dict[str, Any]:
        return {"width": min(self.width, 4), "sweep_speed": min(self.sweep_speed, 0.25)}


@dataclass(frozen=True, kw_only=True)
class _Tasks(_Window):
    """Classes in tasks of two."""

    protocol: str = "paper"
    """paper: the validation images of all tasks so far decide when a task ends. strict: those of this task alone."""
    joint: bool = False
    """Whether all classes are one task, as a bound on what can be hoped for."""

    def _check_tasks(self, units: int) -> None:
        self._check_window(units)
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}")

    def stack_key(self) -> object:
        """Everything but the protocol."""
        return all_settings_but(self, "protocol")


@dataclass(frozen=True, kw_only=True)
class SplitPFC(_Tasks, PFCImage):
    """A PFC block that learns one task after another."""

    num_basis: int = 2000
    width: int = 15
    sweep_speed: float = 0.25
    patience: int = 5

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        self._check_tasks(self._units())

    def _smaller(self) -> dict[str, Any]:
        return {**super()._smaller(), **self._smaller_window()}


@dataclass(frozen=True, kw_only=True)
class SplitMLP(_Tasks, MLPImage):
    """A perceptron that learns one task after another."""

    hidden_features: int = 1357
    lr: float = 2e-6
    patience: int = 5
    penalty: float = 0.0
    """What it costs to move weights that earlier tasks need (elastic weight consolidation); 0 lets them move."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        self._check_tasks(self._units())
        self._check(0, math.inf, "penalty")

    def _smaller(self) -> dict[str, Any]:
        return {**super()._smaller(), **self._smaller_window()}


@dataclass(frozen=True, kw_only=True)
class _Ordered(_Window):
    """All classes, in the same order in every epoch."""

    order: str = "sorted"
    """sorted: by label. fixed: in one random order."""

    def _check_order(self, units: int) -> None:
        self._check_window(units)
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")

    def stack_key(self) -> object:
        """Everything but the order."""
        return all_settings_but(self, "order")


@dataclass(frozen=True, kw_only=True)
class OrderedPFC(_Ordered, PFCImage):
    """A PFC block that sees the same order in every epoch; its window starts anew in each."""

    num_basis: int = 3000
    lr: float = 2e-3
    batch_size: int = 50
    epochs: int = 100
    patience: int = 5
    width: int = 50
    sweep_speed: float = 2.5

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        self._check_order(self._units())

    def _smaller(self) -> dict[str, Any]:
        return {**super()._smaller(), **self._smaller_window()}


@dataclass(frozen=True, kw_only=True)
class OrderedMLP(_Ordered, MLPImage):
    """A perceptron that sees the same order in every epoch."""

    hidden_features: int = 2600
    lr: float = 5e-7
    weight_decay: float = 0.0
    batch_size: int = 50
    epochs: int = 200
    patience: int = 5

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        self._check_order(self._units())

    def _smaller(self) -> dict[str, Any]:
        return {**super()._smaller(), **self._smaller_window()}


def build(config: Any, data: ImageData, generator: torch.Generator) -> nn.Module:
    """An untrained block or perceptron."""
    return (build_mlp if isinstance(config, MLPImage) else build_block)(config, data, generator)


def loss_weights(config: Any) -> tuple[float, float]:
    """What the errors of prediction and reconstruction count."""
    return (1.0, 0.0) if isinstance(config, MLPImage) else (config.prediction_weight, 1 - config.prediction_weight)


def eval_solver(config: Any) -> Any:
    """The solver when measuring."""
    return None if isinstance(config, MLPImage) else config.make_solver(config.eval_iterations)


def task_phases(config: Any, data: ImageData, seed: int) -> Sequence[Phase]:
    """A phase for each task."""
    groups = task_groups(config, data)
    tasks = class_tasks(data.train.label, groups, seed=seed, validation_share=config.validation_share)
    return [Phase(task.train, task.validation, rows_of_classes(data.test.label, task.classes)) for task in tasks]


def task_groups(config: Any, data: ImageData) -> Sequence[Sequence[int]]:
    """The classes of each task."""
    return [list(range(data.num_classes))] if config.joint else SPLIT_PAIRS


def rows_of_classes(label: Tensor, classes: Sequence[int]) -> Tensor:
    """Which images show one of some classes."""
    return torch.isin(label, torch.tensor(list(classes))).nonzero()[:, 0]


def ordered_phase(config: Any, data: ImageData, seed: int) -> Sequence[Phase]:
    """One phase, in an order that never changes."""
    train, valid = split(len(data.train), config, seed)
    if config.order == "sorted":
        train = label_ordered(data.train.label, rows=train)
    else:
        train = train[fixed_shuffle(len(train), seed=SHUFFLE_SEED)]
    return [Phase(train, valid, torch.arange(len(data.test)))]


def look_at_task(run: ImageRun) -> None:
    """Measures on all tasks, keeps pictures of the columns, and what elastic weights need, after each task."""
    run.look_at_phases()
    if getattr(run.config, "penalty", 0.0) and run.phase:
        remember_importance(run)
    for i, job in enumerate(run.jobs):
        if job.seed == 0 and isinstance(run.stack, PFCBlock):
            weight = run.stack.weight_x[i].detach()
            frames = run.records[i].frames
            frames.setdefault("window_film", []).append(spread_out(weight))
            if run.phase:
                frames.setdefault("weights_by_task", []).append(learned_last(weight, run.best_positions[i]))


TASKS = Recipe(
    "split-mnist",
    build,
    task_phases,
    loss_weights=loss_weights,
    eval_solver=eval_solver,
    keep=lambda config: config.keep,
    looks_back=lambda config: config.protocol == "paper",
    hold=hold_weights,
    look=look_at_task,
)
ORDERED = Recipe(
    "ordered-mnist",
    build,
    ordered_phase,
    loss_weights=loss_weights,
    eval_solver=eval_solver,
    keep=lambda config: config.keep,
    shuffles=False,
    resets_window=lambda config: bool(config.width),
    look=ImageRun.look_at_phases,
)


def run_tasks(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains learners with one stack key on one task after another, and measures them."""
    run = ImageRun(TASKS, jobs, context)
    run.train()
    sizes = [len(rows) for rows in run.sets.test[2]] if context.test else [rows.shape[1] for rows in run.sets.valid]
    valid = _validation_accuracies(run)
    for i in range(len(jobs)):
        record = run.records[i]
        metrics = continual_metrics(record.matrix, sizes)
        final = metrics.pop("accuracy_of_all")
        metrics |= {"valid_accuracy": valid[i], **({"test_accuracy": final} if context.test else {})}
        metrics |= {"columns_used": record.columns[-1], "bytes_kept": bytes_kept(run, i)}
        curves = continual_curves(record.matrix, sizes) | {"columns_after_task": record.columns[1:]}
        yield phase_result(run, i, Found(metrics, curves))


def _validation_accuracies(run: ImageRun) -> list[float]:
    """The accuracy in percent of each model, at its end, on the held-out images of all tasks."""
    hits = torch.zeros(len(run.jobs), dtype=torch.float64)
    for rows in run.sets.valid:
        hits += run.evaluate_rows(run.sets.x, run.sets.target, rows).accuracy * rows.shape[1]
    found: list[float] = (100 * hits / sum(rows.shape[1] for rows in run.sets.valid)).tolist()
    return found


def run_ordered(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains learners with one stack key in a fixed order, and measures them."""
    run = ImageRun(ORDERED, jobs, context)
    run.train()
    for i in range(len(jobs)):
        record = run.records[i]
        metrics = {"columns_used": record.columns[-1]}
        metrics |= {"test_accuracy": record.matrix[-1][0]} if context.test else {}
        yield phase_result(run, i, Found(metrics))


def phase_result(run: ImageRun, i: int, found: Found) -> Result:
    """The result of one model of a run with phases, or with a fixed order."""
    curves, data = run.history[i], run.data
    epochs = curves["epochs_of_phase"]
    own: dict[str, float] = {"epochs": float(sum(epochs))}
    if count := int(epochs[-1]):  # none where there was no column left
        losses, accuracies = (curves[name][-count:] for name in ("valid_loss", "valid_accuracy"))
        badness = losses if run.recipe.keep(run.jobs[i].config) == "loss" else [-value for value in accuracies]
        best = min(range(count), key=lambda epoch: badness[epoch] if math.isfinite(badness[epoch]) else math.inf)
        own["valid_loss"], own["valid_accuracy"] = losses[best], accuracies[best]
    images = draw_lines(run.records[i].frames, data.train.shape)
    return run.result(i, Found(own | found.metrics, found.curves, images, data={data.name: data.fingerprint}))


def bytes_kept(run: ImageRun, i: int) -> float:
    """What a learner carries from task to task: weights that were learned, and images or numbers kept for later."""
    model, config = run.stack, run.jobs[i].config
    if isinstance(model, MLP):
        weights = sum(p[0].numel() for p in model.parameters())
    else:
        weights = int(run.records[i].columns[-1]) * (run.data.train.x.shape[1] + run.data.num_classes)
    kept = weights * FLOAT_BYTES * (3 if getattr(config, "penalty", 0.0) else 1)
    if config.protocol == "paper" and not config.joint:
        kept += sum(rows.shape[1] for rows in run.sets.valid[:-1]) * run.data.train.x.shape[1]  # one byte a pixel
    return float(kept)


def fast(config: Any) -> Any:
    """The gradient of the optimum after fewer steps, instead of that of all steps; a perceptron stays as it is."""
    if not isinstance(config, PFCImage):
        return config
    return replace(config, gradient="implicit", gradient_steps=15, damping=1e-3, iterations=40)
