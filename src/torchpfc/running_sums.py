"""Classifiers from sums over the examples: each is taken in once, in any order, and none has to be kept.

They are what a continual learner is compared with: cheap, and hard to beat.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.solvers.checks import check_at_least_one

ROWS_AT_ONCE = 1000
"""Examples that are turned into features together."""


class RunningSums(ABC):
    r"""For each class the number and the sum of the features $\phi$ of its examples, in double precision.

    Args:
        width: How many features there are.
        num_classes: How many classes are known of before; a class that is shown beyond these gets its place.
        products: Whether to add up $\phi \phi^\top$, too.
        device: Where the sums live.
    """

    def __init__(
        self, width: int, num_classes: int = 0, *, products: bool = False, device: torch.device | str | None = None
    ) -> None:
        self.counts = torch.zeros(num_classes, dtype=torch.float64, device=device)
        self.sums = torch.zeros(num_classes, width, dtype=torch.float64, device=device)
        self.products = torch.zeros(width if products else 0, width, dtype=torch.float64, device=device)

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples.

        Args:
            x: The examples.
            label: Their classes, from 0 on.
        """
        if not len(x):
            return
        self.make_room(int(label.max()) + 1)
        for some, own in zip(torch.split(x, ROWS_AT_ONCE), torch.split(label, ROWS_AT_ONCE), strict=True):
            features, chosen = self.features(some), F.one_hot(own, len(self.counts)).double()
            self.counts += chosen.sum(0)
            self.sums += chosen.T @ features
            if len(self.products):
                self.products += features.T @ features

    def make_room(self, num_classes: int) -> None:
        """Gives new classes a place.

        Args:
            num_classes: How many classes there are to be, with those that have one.
        """
        missing = max(0, num_classes - len(self.counts))
        self.counts, self.sums = F.pad(self.counts, (0, missing)), F.pad(self.sums, (0, 0, 0, missing))

    def features(self, x: Tensor) -> Tensor:
        """What is added up: by default, inputs as they are.

        Args:
            x: Inputs.
        """
        return x.double()

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """One number for each class; the largest is that of the answer.

        Args:
            x: Inputs.
        """

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """What it carries from one batch to the next."""
        return self.counts, self.sums, self.products

    def bytes_kept(self) -> float:
        """The size of what it keeps, in single precision."""
        return 4.0 * sum(tensor.numel() for tensor in self.kept)


class NearestMean(RunningSums):
    r"""The class whose mean is closest: the largest $\mu_c^\top x - \tfrac12 \|\mu_c\|^2$.

    Args:
        in_features: Size of the input.
        num_classes: How many classes are known of before.
        device: Where the sums live.

    Example:
        >>> model = NearestMean(1)
        >>> model.learn(torch.tensor([[0.0], [1.0], [4.0]]), torch.tensor([0, 0, 1]))
        >>> model.scores(torch.tensor([[2.0], [3.0]])).argmax(-1)
        tensor([0, 1])
    """

    def __init__(self, in_features: int, num_classes: int = 0, *, device: torch.device | str | None = None) -> None:
        super().__init__(in_features, num_classes, device=device)

    def scores(self, x: Tensor) -> Tensor:
        """How close the means are; minus infinity for a class that was never seen.

        Args:
            x: Inputs.
        """
        means = self.sums / self.counts.clamp(min=1).unsqueeze(1)
        return _closeness(x.double(), means, means.T, self.counts)


class StreamingLDA(RunningSums):
    r"""Normal distributions with one covariance for all classes: linear discriminant analysis (Hayes and Kanan, 2020).

    The covariance within classes is $\Sigma = \tfrac1n (\sum_i x_i x_i^\top - \sum_c n_c \mu_c \mu_c^\top)$. The answer
    is the class with the largest $\mu_c^\top S^{-1} x - \tfrac12 \mu_c^\top S^{-1} \mu_c$, where
    $S = (1 - s) \Sigma + s I$: all classes count the same.

    Args:
        in_features: Size of the input.
        num_classes: How many classes are known of before.
        shrinkage: The share s of the identity, from 0 to 1.
        device: Where the sums live.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int = 0,
        *,
        shrinkage: float = 1e-4,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, products=True, device=device)
        if not 0 < shrinkage <= 1:
            raise ValueError(f"shrinkage must be greater than 0 and at most 1, got {shrinkage}")
        self.shrinkage = shrinkage

    def scores(self, x: Tensor) -> Tensor:
        """How close the means are; minus infinity for a class that was never seen.

        Args:
            x: Inputs.
        """
        means = self.sums / self.counts.clamp(min=1).unsqueeze(1)
        within = (self.products - self.sums.T @ means) / self.counts.sum().clamp(min=1)
        within = (1 - self.shrinkage) * within
        within.diagonal().add_(self.shrinkage)
        return _closeness(x.double(), means, torch.linalg.solve(within, means.T), self.counts)


class FourierRidge(RunningSums):
    r"""Ridge regression to one-hot targets on random Fourier features.

    With $\phi(x) = \sqrt{2/D} \cos(\Omega^\top x / \sigma + b)$, which stand for a normal kernel (Rahimi and Recht,
    2007), the scores are $\phi(x)^\top (\sum_i \phi_i \phi_i^\top + \rho I)^{-1} \sum_i \phi_i t_i^\top$.

    Args:
        in_features: Size of the input.
        num_classes: How many classes are known of before.
        num_features: How many random features there are.
        bandwidth: The width $\sigma$ of the kernel, in median distances between examples of the first batch. That of a
            single example is taken to be the root of 2 times its norm.
        ridge: The penalty $\rho$.
        generator: Source of the features.
        device: Where the sums live.
    """

    scale: float | None = None
    """The width of the kernel, once there is a batch to tell it by."""

    def __init__(
        self,
        in_features: int,
        num_classes: int = 0,
        *,
        num_features: int = 1000,
        bandwidth: float = 0.5,
        ridge: float = 0.1,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_at_least_one(num_features=num_features)
        super().__init__(num_features, num_classes, products=True, device=device)
        if not bandwidth > 0 or not ridge > 0:
            raise ValueError(f"bandwidth and ridge must be positive, got {bandwidth} and {ridge}")
        self.generator, self.bandwidth, self.ridge = generator, bandwidth, ridge
        self.directions = torch.randn(in_features, num_features, generator=generator, dtype=torch.float64).to(device)
        self.offsets = (2 * math.pi * torch.rand(num_features, generator=generator, dtype=torch.float64)).to(device)
        self._solved: tuple[float, Tensor] | None = None

    def learn(self, x: Tensor, label: Tensor) -> None:
        """Takes in examples; the first ones decide the width of the kernel.

        Args:
            x: The examples.
            label: Their classes, from 0 on.
        """
        if self.scale is None and len(x):
            some = x[torch.randperm(len(x), generator=self.generator)[:ROWS_AT_ONCE].to(x.device)].double()
            distance = torch.pdist(some).median() if len(some) > 1 else math.sqrt(2) * some.norm()
            self.scale = (float(distance) or 1.0) * self.bandwidth
        super().learn(x, label)
        self._solved = None

    def features(self, x: Tensor) -> Tensor:
        """The random features of inputs.

        Args:
            x: Inputs.
        """
        assert self.scale is not None
        return math.sqrt(2 / len(self.offsets)) * torch.cos(x.double() @ self.directions / self.scale + self.offsets)

    def scores(self, x: Tensor) -> Tensor:
        """The predictions of the regression; 0 for a class that was never seen.

        Args:
            x: Inputs.
        """
        if self.scale is None:
            return x.new_zeros(len(x), len(self.counts))
        if self._solved is None or self._solved[0] != self.ridge:
            penalized = self.products.clone()
            penalized.diagonal().add_(self.ridge)
            self._solved = self.ridge, torch.linalg.solve(penalized, self.sums.T)
        return self.features(x) @ self._solved[1]

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """The sums, and the random directions."""
        return self.sums, self.products, self.directions, self.offsets


def _closeness(x: Tensor, means: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """The logarithm of normal densities, less what is the same for all classes.

    Shape:
        - means: $(k, m)$
        - weight: $(m, k)$, the means over the covariance
    """
    return (x @ weight - 0.5 * (means.T * weight).sum(0)).where(counts > 0, -math.inf)
