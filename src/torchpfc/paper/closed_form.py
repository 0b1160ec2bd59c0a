"""Learning from each example once, without looking back: the settings of such learners, and a run of them."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from torchpfc.continual import ContinualPFC, Shifts
from torchpfc.data.images import IMAGE_SETS, ImageData, load_images
from torchpfc.data.streams import SPLIT_PAIRS, class_tasks
from torchpfc.paper.continual_metrics import continual_curves, continual_metrics
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.one_pass_learners import (
    ROWS_AT_ONCE,
    FourierRidge,
    Learner,
    NearestMean,
    PartsLearner,
    StreamingLDA,
)
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import settings
from torchpfc.solvers import FISTA
from torchpfc.training import random_stream

TASKS = ("pairs", "classes")
"""Two classes at a time, as in Split MNIST, or one, as where examples are sorted by label."""

METHODS = ("nearest-mean", "lda", "fourier")
READOUTS = ("residual", "joint")


@dataclass(frozen=True, kw_only=True)
class OnePass(ABC):
    """A learner that needs no validation data to know when to stop; so it can follow the strict protocol alone."""

    dataset: str = "mnist"
    tasks: str = "pairs"
    """pairs: two classes at a time. classes: one at a time."""
    validation_share: float = 0.15
    """Left out of the training, as for all others, and used to choose settings."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.dataset not in IMAGE_SETS:
            raise ValueError(f"dataset must be one of {', '.join(IMAGE_SETS)}, got {self.dataset!r}")
        if self.tasks not in TASKS:
            raise ValueError(f"tasks must be one of {', '.join(TASKS)}, got {self.tasks!r}")
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share must be between 0 and 1, got {self.validation_share}")

    def smoke(self) -> Self:
        """On small digits."""
        return replace(self, dataset="digits", **self._smaller())

    def stack_key(self) -> object:
        """Itself: seeds are run one after another."""
        return self

    def stack_size(self) -> int:
        """Any number."""
        return 16

    def shared_batch(self) -> int:
        """None: all examples of a task are taken in at once."""
        return 1

    @abstractmethod
    def cost(self) -> float:
        """About how long a run may take."""

    @abstractmethod
    def make(self, data: ImageData, seed: int, device: torch.device, dtype: torch.dtype) -> Learner:
        """A learner that knows nothing."""

    def _smaller(self) -> dict[str, Any]:
        return {}

    def _positive(self, *names: str) -> None:
        for name in names:
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}")


@dataclass(frozen=True, kw_only=True)
class RunningSums(OnePass):
    """A classifier from sums over the examples: cheap, and hard to beat."""

    method: str = "nearest-mean"
    """nearest-mean, lda (streaming linear discriminant analysis) or fourier (random Fourier features and ridge)."""
    shrinkage: float = 1e-4
    """Share of the identity in the covariance of lda."""
    features: int = 10_000
    """How many random features there are."""
    bandwidth: float = 0.5
    """Of the random features, in median distances between examples of the first task."""
    ridge: float = 0.1

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        self._positive("shrinkage", "features", "bandwidth", "ridge")

    def cost(self) -> float:
        """About how long a run may take."""
        return 2000.0 if self.method == "fourier" else 200.0

    def make(self, data: ImageData, seed: int, device: torch.device, dtype: torch.dtype) -> Learner:
        """A learner that knows nothing."""
        size = data.train.x.shape[1]
        if self.method == "nearest-mean":
            return NearestMean(size, data.num_classes, device)
        if self.method == "lda":
            return StreamingLDA(size, data.num_classes, device, shrinkage=self.shrinkage)
        return FourierRidge(
            size,
            data.num_classes,
            device,
            random_stream(seed, "features"),
            features=self.features,
            bandwidth=self.bandwidth,
            ridge=self.ridge,
        )

    def _smaller(self) -> dict[str, Any]:
        return {"features": 50}


@dataclass(frozen=True, kw_only=True)
class Parts(OnePass):
    """`ContinualPFC`: parts of every class, made of its own examples."""

    columns_per_class: int = 135
    l1: float = 0.2
    power: float = 0.5
    refine: int = 5
    """Passes that make parts of means: the best of 0, 1 and 5 on validation images of Fashion-MNIST."""
    iterations: int = 100
    """Steps of the solver."""
    shift: int = 0
    """Pixels by which an image may be moved to be explained better."""
    readout: str = "residual"
    """residual: the class whose parts explain an input best, each by itself. joint: all parts at once, as a block."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.readout not in READOUTS:
            raise ValueError(f"readout must be one of {', '.join(READOUTS)}, got {self.readout!r}")
        self._positive("columns_per_class", "power", "iterations")
        if not self.l1 >= 0 or min(self.refine, self.shift) < 0:
            values = f"{self.l1}, {self.refine} and {self.shift}"
            raise ValueError(f"l1, refine and shift must not be negative, got {values}")

    def cost(self) -> float:
        """About how long a run may take."""
        return 5.0 * self.columns_per_class * (5 if self.shift else 1)

    def make(self, data: ImageData, seed: int, device: torch.device, dtype: torch.dtype) -> Learner:
        """A learner that knows nothing."""
        model = ContinualPFC(
            data.train.x.shape[1],
            data.num_classes,
            columns_per_class=self.columns_per_class,
            l1=self.l1,
            power=self.power,
            refine=self.refine,
            views=Shifts(data.train.shape, self.shift) if self.shift else None,
            solver=FISTA(max_iter=self.iterations),
            device=device,
            dtype=dtype,
        )
        return PartsLearner(model, random_stream(seed, "parts"), joint=self.readout == "joint")

    def _smaller(self) -> dict[str, Any]:
        return {"columns_per_class": 4, "iterations": 10, "refine": min(self.refine, 1)}


@torch.no_grad()
def run_one_pass(experiment: str, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Lets each learner take in one task after another, and measures it after each."""
    device, dtype = context.fabric.device, dtype_of(context.precision)
    for number, job in enumerate(jobs):
        yield _run_one(experiment, job, context, device, dtype)
        context.tick((number + 1) / len(jobs))


def _run_one(experiment: str, job: Job, context: Context, device: torch.device, dtype: torch.dtype) -> Result:
    config: Any = job.config
    data = load_images(config.dataset, context.data_dir)
    groups = SPLIT_PAIRS if config.tasks == "pairs" else [[c] for c in range(data.num_classes)]
    tasks = class_tasks(data.train.label, groups, seed=job.seed, validation_share=config.validation_share)
    x, label = data.train.x.to(device, dtype), data.train.label.to(device)
    test_x, test_label = data.test.x.to(device, dtype), data.test.label.to(device)
    valid = [(x[task.validation.to(device)], label[task.validation.to(device)]) for task in tasks]
    kinds = [torch.isin(test_label, torch.tensor(task.classes, device=device)) for task in tasks]
    measured = [(test_x[kind], test_label[kind]) for kind in kinds] if context.test else valid
    learner = config.make(data, job.seed, device, dtype)
    matrix, seconds = [_accuracies(learner, measured)], 0.0
    for task in tasks:
        begin = time.perf_counter()
        learner.learn(x[task.train.to(device)], label[task.train.to(device)])
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # gpu-only: so that the time is that of the work
        seconds += time.perf_counter() - begin
        matrix.append(_accuracies(learner, measured))
    sizes = [len(found) for _, found in measured]
    metrics = continual_metrics(matrix, sizes)
    final = metrics.pop("accuracy_of_all")
    valid_sizes, valid_found = [len(found) for _, found in valid], _accuracies(learner, valid)
    metrics["valid_accuracy"] = sum(a * n for a, n in zip(valid_found, valid_sizes, strict=True)) / sum(valid_sizes)
    if context.test:
        metrics["test_accuracy"] = final
    metrics |= {**learner.measures(), "epochs": 1.0}
    return Result(
        experiment=experiment,
        config=settings(config),
        seed=job.seed,
        metrics=metrics,
        curves=continual_curves(matrix, sizes),
        images=learner.pictures(data) if job.seed == 0 else {},
        data={data.name: data.fingerprint},
        seconds=seconds,
        **context.provenance(),
    )


def _accuracies(learner: Learner, sets: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """The accuracy in percent on each of some sets."""
    found = []
    for x, label in sets:
        answers = torch.cat([learner.scores(some).argmax(-1) for some in torch.split(x, ROWS_AT_ONCE)])
        found.append(100 * (answers == label).double().mean().item())
    return found
