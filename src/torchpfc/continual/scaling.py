"""Sketches and moments of the distributions of features, which add up over batches, and scales from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_POINTS = 33
"""Points of a sketch: quartiles and both tails are among them."""

_QUARTILES, _TAILS = 1.349, 3.290
"""How far apart the quartiles of a normal distribution of deviation 1 are, and its 5 % and 95 % quantiles."""

_FEWEST_FEATURES, _SHARE_ALIKE, _SHARE_ZERO, _LARGEST = 16, 0.75, 0.5, 100.0
"""When features are taken to have one unit."""

_FARTHEST = 1e6
"""Features further out than this many deviations count as this far."""


@dataclass(frozen=True, eq=False)
class Sketch:
    r"""How the features of some examples are distributed: a few points of each, at equal steps of probability.

    Sketches of several batches are put together by treating each point as its share of the batch's examples. A sketch
    of no more than 33 examples holds all their values, sorted feature by feature.

    Shape:
        - points: $(p, m)$, ascending; NaN where a feature was never observed
        - mass: $(p, m)$, how many examples each point stands for
    """

    points: Tensor
    mass: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor | None = None) -> Sketch:
        """A sketch of examples.

        Args:
            x: The examples; NaN where one is not observed.
            weight: What each counts.

        Example:
            >>> Sketch.of(torch.arange(101.0).unsqueeze(1)).quantiles([0.25, 0.5])
            tensor([[25.],
                    [50.]])
        """
        points, order = x.sort(0)  # NaN last
        mass = torch.ones_like(x) if weight is None else weight.to(x.dtype).unsqueeze(1).expand_as(x).gather(0, order)
        return cls(points, mass.where(~points.isnan(), 0.0)).thinned()

    @classmethod
    def merged(cls, sketches: Sequence[Sketch]) -> Sketch:
        """The sketch of all examples together.

        Args:
            sketches: Those of batches, in an order that is always the same.
        """
        points, order = torch.cat([sketch.points for sketch in sketches]).sort(stable=True, dim=0)
        return cls(points, torch.cat([sketch.mass for sketch in sketches]).gather(0, order))

    def select(self, features: slice) -> Sketch:
        """The sketch of some of the features."""
        return Sketch(self.points[:, features], self.mass[:, features])

    def quantiles(self, q: Sequence[float]) -> Tensor:
        r"""Quantiles of each feature, NaN for one that was never observed.

        Args:
            q: The probabilities, from 0 to 1.

        Shape:
            - the result: $(\text{len}(q), m)$
        """
        mass = self.mass.mT.contiguous()
        # A point stands for the middle of its mass; probabilities run from the first point to the last.
        middle = mass.cumsum(1) - mass / 2
        last = (mass > 0).to(torch.int8).cumsum(1).argmax(1, keepdim=True)  # the last that stands for anything
        start, end = middle[:, :1], middle.gather(1, last)
        wanted = start + torch.tensor(q, dtype=mass.dtype, device=mass.device) * (end - start)
        upper = torch.minimum(torch.searchsorted(middle, wanted), last)
        lower = (upper - 1).clamp(min=0)
        left, right = middle.gather(1, lower), middle.gather(1, upper)
        share = ((wanted - left) / (right - left).clamp(min=torch.finfo(mass.dtype).tiny)).clamp(0, 1)
        points = self.points.mT
        return points.gather(1, lower).lerp(points.gather(1, upper), share).mT

    def in_one_unit(self) -> bool:
        """Whether features look like pixels or counts: none negative, at least 16 that vary, and alike in size.

        Alike are features of which three in four reach half the largest value, or ones that are mostly zero and of
        which none is more than a hundred times as large as is usual.
        """
        highest, lowest = (self.points.nan_to_num(nan=fill) for fill in (-torch.inf, torch.inf))
        most, least = highest.amax(0), lowest.amin(0)
        varying = most > least
        if bool((least < 0).any()) or int(varying.sum()) < _FEWEST_FEATURES:
            return False
        most = most[varying]
        zeros = float(self.mass[self.points == 0].sum() / self.mass.sum())
        bounded = float((most >= most.max() / 2).double().mean()) >= _SHARE_ALIKE
        return bounded or (zeros >= _SHARE_ZERO and float(most.max()) <= _LARGEST * float(most.median()))

    def thinned(self) -> Sketch:
        """The same with few points."""
        if len(self.points) <= _POINTS:
            return self
        points = self.quantiles([k / (_POINTS - 1) for k in range(_POINTS)])
        return Sketch(points, (self.mass.sum(0) / _POINTS).expand(_POINTS, -1).contiguous())


@dataclass(frozen=True, eq=False)
class Moments:
    r"""The mean and the deviation of each feature of some examples, over those in which it is observed.

    Shape:
        - total: $()$, what all examples count
        - mass: $(m)$, what those count in which a feature is observed
        - mean, deviation: $(m)$; 0 where a feature was never observed
    """

    total: Tensor
    mass: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> Moments:
        """The moments of examples.

        Args:
            x: The examples; NaN where one is not observed.
            weight: What each counts.

        Example:
            >>> Moments.of(torch.tensor([[1.0], [3.0], [torch.nan]]), torch.ones(3))
            Moments(total=tensor(3.), mass=tensor([2.]), mean=tensor([2.]), deviation=tensor([1.]))
        """
        mass = weight.to(x).unsqueeze(1) * ~x.isnan()
        share = _shares(mass)
        mean = (share * x.nan_to_num(nan=0.0)).sum(0)
        return cls(weight.to(x).sum(), mass.sum(0), mean, _root_mean_square((x - mean).nan_to_num(nan=0.0), share))

    @classmethod
    def merged(cls, moments: Sequence[Moments]) -> Moments:
        """The moments of all examples together.

        Args:
            moments: Those of batches, in an order that is always the same.
        """
        mass, means = (torch.stack(part) for part in zip(*((one.mass, one.mean) for one in moments), strict=True))
        share = _shares(mass)
        mean = (share * means).sum(0)
        away = torch.hypot(torch.stack([one.deviation for one in moments]), means - mean)
        total = torch.stack([one.total for one in moments]).sum()
        return cls(total, mass.sum(0), mean, _root_mean_square(away, share))

    def select(self, features: slice) -> Moments:
        """The moments of some of the features."""
        return Moments(self.total, self.mass[features], self.mean[features], self.deviation[features])

    def around(self, center: Tensor) -> Tensor:
        """The root mean square of each feature less a center."""
        return torch.hypot(self.deviation, self.mean - center)


def _shares(mass: Tensor) -> Tensor:
    """What part of its column each entry is; 0 in columns of zeros."""
    return (mass / mass.sum(0)).nan_to_num(nan=0.0)


def _root_mean_square(x: Tensor, share: Tensor) -> Tensor:
    """Of each column, with shares that add up to 1; of numbers of any size."""
    largest = x.abs().amax(0)
    unit = largest.where(largest > 0, 1.0)
    return unit * (share * (x / unit).square()).sum(0).sqrt()


@dataclass(frozen=True, eq=False)
class Scale:
    r"""A scale for each feature: $z = (x - \text{center}) / \text{spread}$, robustly.

    The center is the median. The spread is what the deviation would be if the distribution were normal, by its
    quartiles or by its tails, whichever is larger; a feature that never varies says nothing, and becomes 0.

    Shape:
        - center, spread: $(m)$
    """

    center: Tensor
    spread: Tensor

    @classmethod
    def of(cls, sketch: Sketch) -> Scale:
        """The scale of the examples of a sketch.

        Example:
            >>> scale = Scale.of(Sketch.of(torch.tensor([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]])))
            >>> scale.encode(torch.tensor([[1.0, 9.0]]))
            tensor([[0., 0.]])
        """
        lowest, low, first, center, third, high, highest = sketch.quantiles((0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0))
        spread = torch.maximum((third - first) / _QUARTILES, (high - low) / _TAILS)
        # Of a feature that hardly ever varies the quantiles are all the same: its range is what there is.
        spread = torch.where(spread > 0, spread, (highest - lowest) / _TAILS)
        known = spread > 0  # not where all is missing either
        return cls(center.nan_to_num(nan=0.0), torch.where(known, spread, torch.inf))

    def encode(self, x: Tensor) -> Tensor:
        """Features in units of their spread, NaN where they are not observed."""
        return ((x - self.center) / self.spread).clamp(-_FARTHEST, _FARTHEST)

    def decode(self, z: Tensor) -> Tensor:
        """Features in their own units."""
        return self.center + z * self.spread.nan_to_num(posinf=0.0)
