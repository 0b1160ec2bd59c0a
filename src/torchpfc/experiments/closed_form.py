"""Learners that take each example once and never look back: running sums, and parts of every class."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.data.images import IMAGE_SETS, ImageData, load_images
from torchpfc.data.streams import SPLIT_PAIRS, class_tasks
from torchpfc.experiments.column_pictures import IN_A_ROW, draw_images
from torchpfc.experiments.continual_metrics import continual_curves, continual_metrics
from torchpfc.experiments.devices import dtype_of
from torchpfc.experiments.registry import Job, settings
from torchpfc.experiments.results import Result
from torchpfc.experiments.runner import Context
from torchpfc.nn.continual import ContinualPFC, Shifts
from torchpfc.solvers import FISTA
from torchpfc.training import random_stream

TASKS = ("pairs", "classes")
"""Two classes at a time, as in Split MNIST, or one, as where examples are sorted by label."""

METHODS = ("nearest-mean", "lda", "fourier")
READOUTS = ("residual", "joint")

_ROWS_AT_ONCE = 1000


class Learner(ABC):
    """Something that learns from examples of some classes, and then from those of others."""

    columns: float = 0.0
    """Parts, or features, that it uses."""

    @abstractmethod
    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples."""

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """One number for each class; the largest is that of the answer."""

    @abstractmethod
    def bytes_kept(self) -> float:
        """What it carries from task to task."""

    def pictures(self, data: ImageData) -> dict[str, str]:
        """What there is to see, as PNG files in base64."""
        return {}


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
        return FourierRidge(self, size, data.num_classes, device, random_stream(seed, "features"))

    def _smaller(self) -> dict[str, Any]:
        return {"features": 50}


@dataclass(frozen=True, kw_only=True)
class Parts(OnePass):
    """`ContinualPFC`: parts of every class, made of its own examples."""

    columns_per_class: int = 135
    l1: float = 0.2
    power: float = 0.5
    refine: int = 0
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


class _Sums(Learner):
    """Counts and sums of each class, in double precision."""

    def __init__(self, size: int, num_classes: int, device: torch.device) -> None:
        self.sums = torch.zeros(num_classes, size, dtype=torch.float64, device=device)
        self.counts = torch.zeros(num_classes, dtype=torch.float64, device=device)

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples."""
        chosen = F.one_hot(label, len(self.counts)).double()
        self.sums += chosen.T @ x.double()
        self.counts += chosen.sum(0)

    @property
    def means(self) -> Tensor:
        """Of each class; of one that was never seen, zero."""
        return self.sums / self.counts.clamp(min=1).unsqueeze(1)

    def of_seen(self, scores: Tensor) -> Tensor:
        """Scores that leave out classes which were never seen."""
        return scores.where(self.counts > 0, -math.inf)


class NearestMean(_Sums):
    """The class whose mean is closest."""

    def scores(self, x: Tensor) -> Tensor:
        """Minus the squared distance, less what is the same for all classes."""
        means = self.means
        return self.of_seen(2 * x.double() @ means.T - means.square().sum(1))

    def bytes_kept(self) -> float:
        """The means, and how many examples they are of."""
        return 4.0 * (self.sums.numel() + self.counts.numel())


class StreamingLDA(_Sums):
    """Normal distributions with one covariance for all classes, from running sums."""

    def __init__(self, size: int, num_classes: int, device: torch.device, *, shrinkage: float) -> None:
        super().__init__(size, num_classes, device)
        self.products = torch.zeros(size, size, dtype=torch.float64, device=device)
        self.shrinkage = shrinkage

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples."""
        super().learn(x, label)
        self.products += x.double().T @ x.double()

    def scores(self, x: Tensor) -> Tensor:
        """The logarithm of the density, less what is the same for all classes."""
        means, total = self.means, self.counts.sum().clamp(min=1)
        within = (self.products - (means * self.counts.unsqueeze(1)).T @ means) / total
        identity = torch.eye(len(within), dtype=within.dtype, device=within.device)
        within = (1 - self.shrinkage) * within + self.shrinkage * identity
        weight = torch.linalg.solve(within, means.T)  # (size, classes)
        return self.of_seen(x.double() @ weight - 0.5 * (means.T * weight).sum(0))

    def bytes_kept(self) -> float:
        """The means and the covariance."""
        return 4.0 * (self.sums.numel() + self.counts.numel() + self.products.numel())


class FourierRidge(Learner):
    """Ridge regression to one-hot targets on random Fourier features, from running sums."""

    def __init__(
        self, config: RunningSums, size: int, num_classes: int, device: torch.device, generator: torch.Generator
    ) -> None:
        self.config, self.generator, self.columns = config, generator, float(config.features)
        count = config.features
        self.directions = torch.randn(size, count, generator=generator, dtype=torch.float64).to(device)
        self.offsets = (2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64)).to(device)
        self.scale: float | None = None
        self.products = torch.zeros(count, count, dtype=torch.float64, device=device)
        self.sums = torch.zeros(count, num_classes, dtype=torch.float64, device=device)
        self.weight: Tensor | None = None

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples; the first ones decide the width of the kernel."""
        if self.scale is None:
            some = x[torch.randperm(len(x), generator=self.generator)[:_ROWS_AT_ONCE].to(x.device)].double()
            self.scale = float(torch.pdist(some).median()) * self.config.bandwidth
        target = F.one_hot(label, self.sums.shape[1]).double()
        for some, wanted in zip(torch.split(x, _ROWS_AT_ONCE), torch.split(target, _ROWS_AT_ONCE), strict=True):
            features = self._features(some)
            self.products += features.T @ features
            self.sums += features.T @ wanted
        self.weight = None

    def scores(self, x: Tensor) -> Tensor:
        """The predictions of the regression."""
        if self.scale is None:
            return torch.zeros(len(x), self.sums.shape[1], device=x.device)
        if self.weight is None:
            identity = torch.eye(len(self.products), dtype=torch.float64, device=x.device)
            self.weight = torch.linalg.solve(self.products + self.config.ridge * identity, self.sums)
        return self._features(x) @ self.weight

    def bytes_kept(self) -> float:
        """The running sums, and the random directions."""
        kept = (self.products, self.sums, self.directions, self.offsets)
        return 4.0 * sum(tensor.numel() for tensor in kept)

    def _features(self, x: Tensor) -> Tensor:
        assert self.scale is not None
        return math.sqrt(2 / len(self.offsets)) * torch.cos(x.double() @ self.directions / self.scale + self.offsets)


class PartsLearner(Learner):
    """`ContinualPFC`, with its own read-out or that of a block."""

    def __init__(self, model: ContinualPFC, generator: torch.Generator, *, joint: bool = False) -> None:
        self.model, self.generator, self.joint = model, generator, joint

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples."""
        self.model.learn(x, label, generator=self.generator)
        self.columns = float(self.model.num_basis)

    def scores(self, x: Tensor) -> Tensor:
        """What each class explains, or what the block predicts."""
        y: Tensor
        if not self.joint:
            y = self.model(x)
            return y
        if self.model.block is None:
            return x.new_zeros(len(x), self.model.num_classes)
        y = self.model.block.eval()(self.model.prepare(x))
        return y

    def bytes_kept(self) -> float:
        """The parts, and the class of each."""
        return 4.0 * self.model.num_basis * self.model.in_features + self.model.num_basis

    def pictures(self, data: ImageData) -> dict[str, str]:
        """The first parts of every class, a line each."""
        lines = [self.model.parts_of(c)[:, :IN_A_ROW].T for c in range(data.num_classes)]
        fewest = min(len(line) for line in lines)
        if fewest < 1:
            return {}
        parts = torch.cat([line[:fewest] for line in lines])
        return {"parts_by_class": draw_images(parts / parts.amax(1, keepdim=True), data.train.shape, columns=fewest)}


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
    metrics |= {"columns_used": learner.columns, "bytes_kept": learner.bytes_kept(), "epochs": 1.0}
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
        answers = torch.cat([learner.scores(some).argmax(-1) for some in torch.split(x, _ROWS_AT_ONCE)])
        found.append(100 * (answers == label).double().mean().item())
    return found
