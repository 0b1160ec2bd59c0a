"""Learners that take each example once and never look back, with their settings: running sums, and parts of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor

from torchpfc.continual import ContinualPFC, Shifts
from torchpfc.data.images import ImageData
from torchpfc.paper.column_pictures import IN_A_ROW, draw_images
from torchpfc.paper.settings import Amount, Component, Count, Natural, Positive, one_of
from torchpfc.running_sums import FourierRidge, NearestMean, RunningSums, StreamingLDA
from torchpfc.solvers import FISTA
from torchpfc.training import random_stream


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


class SumsLearner(Learner):
    """A classifier from running sums."""

    def __init__(self, sums: RunningSums) -> None:
        self.sums = sums
        self.columns = float(sums.directions.shape[1]) if isinstance(sums, FourierRidge) else 0.0

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples."""
        self.sums.learn(x, label)

    def scores(self, x: Tensor) -> Tensor:
        """One number for each class; the largest is that of the answer."""
        return self.sums.scores(x)

    def bytes_kept(self) -> float:
        """What it carries from task to task."""
        return self.sums.bytes_kept()


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
            return SumsLearner(NearestMean(*sizes, device=device))
        if self.method == "lda":
            return SumsLearner(StreamingLDA(*sizes, shrinkage=self.shrinkage, device=device))
        return SumsLearner(
            FourierRidge(
                *sizes,
                num_features=self.features,
                bandwidth=self.bandwidth,
                ridge=self.ridge,
                generator=random_stream(seed, "features"),
                device=device,
            )
        )

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
