"""Learners that take each example once and never look back, with their settings: running sums, and parts of classes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.continual import ContinualPFC, Shifts
from torchpfc.data.images import ImageData
from torchpfc.paper.column_pictures import IN_A_ROW, draw_images
from torchpfc.paper.settings import Amount, Component, Count, Natural, Positive, one_of
from torchpfc.solvers import FISTA
from torchpfc.training import random_stream

ROWS_AT_ONCE = 1000
"""Examples that are looked at together."""


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

    def measures(self) -> dict[str, float]:
        """What it uses, and carries from task to task."""
        return {"columns_used": self.columns, "bytes_kept": self.bytes_kept()}

    def pictures(self, data: ImageData) -> dict[str, str]:
        """What there is to see, as PNG files in base64."""
        return {}


class _Sums(Learner):
    """Counts and sums of each class, in double precision: the closest mean, as some covariance measures it."""

    def __init__(self, size: int, num_classes: int, device: torch.device) -> None:
        self.sums = torch.zeros(num_classes, size, dtype=torch.float64, device=device)
        self.counts = torch.zeros(num_classes, dtype=torch.float64, device=device)

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples."""
        chosen = F.one_hot(label, len(self.counts)).double()
        self.sums += chosen.T @ x.double()
        self.counts += chosen.sum(0)

    @abstractmethod
    def weight(self, means: Tensor) -> Tensor:
        """The means, over the covariance.

        Shape:
            - means: $(k, m)$, zero for a class that was never seen
            - result: $(m, k)$
        """

    def scores(self, x: Tensor) -> Tensor:
        """The logarithm of the density, less what is the same for all classes; none for what was never seen."""
        means = self.sums / self.counts.clamp(min=1).unsqueeze(1)
        weight = self.weight(means)
        return (x.double() @ weight - 0.5 * (means.T * weight).sum(0)).where(self.counts > 0, -math.inf)

    def bytes_kept(self) -> float:
        """The means, and how many examples they are of."""
        return 4.0 * (self.sums.numel() + self.counts.numel())


class NearestMean(_Sums):
    """The class whose mean is closest."""

    def weight(self, means: Tensor) -> Tensor:
        """The means themselves."""
        return means.T


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

    def weight(self, means: Tensor) -> Tensor:
        """The means, over the covariance within classes, which shrinks towards the identity."""
        within = (self.products - (means * self.counts.unsqueeze(1)).T @ means) / self.counts.sum().clamp(min=1)
        identity = torch.eye(len(within), dtype=within.dtype, device=within.device)
        weight: Tensor = torch.linalg.solve((1 - self.shrinkage) * within + self.shrinkage * identity, means.T)
        return weight

    def bytes_kept(self) -> float:
        """Also the covariance."""
        return super().bytes_kept() + 4.0 * self.products.numel()


class FourierRidge(Learner):
    """Ridge regression to one-hot targets on random Fourier features, from running sums."""

    def __init__(
        self,
        size: int,
        num_classes: int,
        device: torch.device,
        generator: torch.Generator,
        *,
        features: int,
        bandwidth: float,
        ridge: float,
    ) -> None:
        self.generator, self.columns = generator, float(features)
        self.bandwidth, self.ridge = bandwidth, ridge
        self.directions = torch.randn(size, features, generator=generator, dtype=torch.float64).to(device)
        self.offsets = (2 * math.pi * torch.rand(features, generator=generator, dtype=torch.float64)).to(device)
        self.scale: float | None = None
        self.products = torch.zeros(features, features, dtype=torch.float64, device=device)
        self.sums = torch.zeros(features, num_classes, dtype=torch.float64, device=device)
        self.weight: Tensor | None = None

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples; the first ones decide the width of the kernel."""
        if self.scale is None:
            some = x[torch.randperm(len(x), generator=self.generator)[:ROWS_AT_ONCE].to(x.device)].double()
            self.scale = float(torch.pdist(some).median()) * self.bandwidth
        target = F.one_hot(label, self.sums.shape[1]).double()
        for some, wanted in zip(torch.split(x, ROWS_AT_ONCE), torch.split(target, ROWS_AT_ONCE), strict=True):
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
            self.weight = torch.linalg.solve(self.products + self.ridge * identity, self.sums)
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
        self.likeness = 0.0

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples."""
        gained = self.model.learn(x, label, generator=self.generator)
        self.columns = float(self.model.num_basis)
        assert self.model.block is not None
        for c, columns in gained.items():
            likeness = self.model.prepare(x[label == c]) @ self.model.block.weight_x[:, columns.start : columns.stop]
            self.likeness = max(self.likeness, likeness.max().item())

    def measures(self) -> dict[str, float]:
        """Also the largest cosine of the angle between a part and an example of its class, as the parts see it."""
        return {**super().measures(), "likeness_to_an_example": self.likeness}

    def scores(self, x: Tensor) -> Tensor:
        """What each class explains, or what the block predicts."""
        y: Tensor
        if self.joint and self.model.block is not None:
            y = self.model.block.eval()(self.model.prepare(x))
        else:
            y = self.model(x)
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


class Method(Component, ABC):
    """A kind of learner."""

    @abstractmethod
    def cost(self) -> float:
        """About how long a run may take."""

    @abstractmethod
    def make(self, data: ImageData, seed: int, device: torch.device, dtype: torch.dtype) -> Learner:
        """A learner that knows nothing."""


@dataclass(frozen=True, kw_only=True)
class SumsMethod(Method):
    """A classifier from sums over the examples: cheap, and hard to beat."""

    method: Annotated[str, one_of("nearest-mean", "lda", "fourier")] = "nearest-mean"
    """nearest-mean, lda (streaming linear discriminant analysis) or fourier (random Fourier features and ridge)."""
    shrinkage: Positive = 1e-4
    """Share of the identity in the covariance of lda."""
    features: Count = 10_000
    """How many random features there are."""
    bandwidth: Positive = 0.5
    """Of the random features, in median distances between examples of the first task."""
    ridge: Positive = 0.1

    def cost(self) -> float:
        """About how long a run may take."""
        return 2000.0 if self.method == "fourier" else 200.0

    def make(self, data: ImageData, seed: int, device: torch.device, dtype: torch.dtype) -> Learner:
        """A learner that knows nothing."""
        sizes = data.train.x.shape[1], data.num_classes
        if self.method == "nearest-mean":
            return NearestMean(*sizes, device)
        if self.method == "lda":
            return StreamingLDA(*sizes, device, shrinkage=self.shrinkage)
        stream = random_stream(seed, "features")
        return FourierRidge(*sizes, device, stream, features=self.features, bandwidth=self.bandwidth, ridge=self.ridge)

    def smoke(self) -> Self:
        """A few features."""
        return replace(self, features=50)


@dataclass(frozen=True, kw_only=True)
class PartsMethod(Method):
    """`ContinualPFC`: parts of every class, made of its own examples."""

    columns_per_class: Count = 135
    l1: Amount = 0.2
    power: Positive = 0.5
    refine: Natural = 5
    """Passes that make parts of means: the best of 0, 1 and 5 on validation images of Fashion-MNIST."""
    iterations: Count = 100
    """Steps of the solver."""
    shift: Natural = 0
    """Pixels by which an image may be moved to be explained better."""
    readout: Annotated[str, one_of("residual", "joint")] = "residual"
    """residual: the class whose parts explain an input best, each by itself. joint: all parts at once, as a block."""

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

    def smoke(self) -> Self:
        """A few parts, as sparse in all rows."""
        return replace(self, columns_per_class=4, iterations=10, l1=PartsMethod.l1, refine=min(self.refine, 1))
