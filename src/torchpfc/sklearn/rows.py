"""Examples on their way into an estimator: each once, with a weight, some of them held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchpfc.continual.scaling import Moments, Scale, Sketch

Array = NDArray[Any]

FEWEST_HELD_OUT = 5
"""Fewer rows than these say nothing of a distribution, so none are held out."""

ENOUGH_HELD_OUT = 100
"""Where fewer are held out, rows that were learned from help to say what is usual."""

MOST_HELD_OUT = 1000
"""How many rows an estimator keeps for calibration at most."""

_SKETCHED = 4000
"""Rows by which features are scaled."""


class Rows(NamedTuple):
    r"""Examples with weights.

    Shape:
        - x: $(n, m)$
        - target: $(n, k)$
        - weight, batch: $(n)$
    """

    x: Tensor
    target: Tensor
    weight: Tensor
    batch: Tensor
    """The number of the batch that each example came with."""

    def select(self, rows: Tensor) -> Rows:
        """Some of the examples, by number or by a mask."""
        return Rows(*(part[rows.to(part.device)] for part in self))

    def filled(self, guess: Tensor | None = None) -> Rows:
        """The same without gaps: with a guess, or with the mean of each feature, where an entry is not observed."""
        gaps = self.x.isnan()
        if not gaps.any():
            return self
        means = self.x.nanmean(0).nan_to_num(nan=0.0)
        return self._replace(x=self.x.where(~gaps, means if guess is None else guess))


@dataclass(frozen=True, eq=False)
class InputScale:
    """How inputs are seen by a block: in units in which their size is about 1, and where asked for with a constant.

    Features that have scales of their own are seen around their centers, in units of their spread. A code is
    proportional to its input. The constant, one more feature with the value 1, lets it know how large the input is.

    Args:
        size: The root mean square of the norms of the examples.
        constant: Whether there is a constant.
        center: Of each feature; None for a common scale.
        spread: Of each feature.
    """

    size: float
    constant: bool
    center: Tensor | None = None
    spread: Tensor | None = None

    @classmethod
    def of(cls, x: Array, weight: Array, *, constant: bool, scale: Scale | None = None) -> InputScale:
        """The scale of examples with weights; unobserved features (NaN) count as nothing.

        Args:
            x: The examples.
            weight: What each counts.
            constant: Whether there is a constant.
            scale: Of each feature.
        """
        seen = x if scale is None else scale.encode(torch.tensor(x)).numpy()
        largest = float(np.nanmax(np.abs(seen), initial=0.0)) or 1.0
        squares = np.square(np.nan_to_num(seen, nan=0.0) / largest, dtype=np.float64).sum(1)
        size = largest * float(np.sqrt(np.average(squares, weights=weight)))
        parts = (None, None) if scale is None else (scale.center, scale.spread)
        return cls(size if size > 0 else 1.0, constant, *parts)

    @classmethod
    def by(cls, moments: Moments, *, constant: bool, scale: Scale | None = None) -> InputScale:
        """The scale of examples of which moments are known; unobserved features count as nothing.

        Args:
            moments: Of the examples, in units of the user.
            constant: Whether there is a constant.
            scale: Of each feature.
        """
        center = torch.zeros_like(moments.mean) if scale is None else scale.center
        around = moments.around(center)
        seen = around if scale is None else scale.encode(center + around)
        largest = float(seen.max()) or 1.0
        size = largest * float((moments.mass / moments.total * (seen / largest).square()).sum().sqrt())
        parts = (None, None) if scale is None else (scale.center, scale.spread)
        return cls(size if size > 0 else 1.0, constant, *parts)

    def encode(self, x: Tensor) -> Tensor:
        """Inputs as the block sees them."""
        if self.center is not None and self.spread is not None:
            x = Scale(self.center.to(x), self.spread.to(x)).encode(x)
        x = x / self.size
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1) if self.constant else x

    def decode(self, x: Tensor) -> Tensor:
        """Rows, or columns turned to rows, in the units of the user, around the centers and without the constant."""
        x = (x[:, :-1] if self.constant else x).double() * self.size
        return x if self.spread is None else x * self.spread.to(x).nan_to_num(posinf=0.0)

    def around_center(self, x: Tensor) -> Tensor:
        """Inputs in units of the user less the centers, as `decode` gives them."""
        return x if self.center is None else x - self.center.to(x)

    def restored(self, x: Tensor) -> Tensor:
        """What `decode` gives, with the centers again."""
        return x if self.center is None else x + self.center.to(x)


def dense(x: Any) -> Array:
    """An array, also of a sparse one."""
    array: Array = x.toarray() if hasattr(x, "toarray") else x
    return array


def sketched(x: Array) -> Sketch:
    """How the features of examples are distributed, by some thousands of these.

    Args:
        x: The examples, one per row.
    """
    return Sketch.of(torch.tensor(x[:: -(-len(x) // _SKETCHED)], dtype=torch.float64))


def feature_scale(sketch: Sketch, how: str | None, *, around_zero: bool) -> Scale | None:
    """The scale of each feature that a parameter asks for; None for a common one.

    Args:
        sketch: How the features are distributed.
        how: `"features"`, or `"auto"` for this unless features look like pixels or counts; else none.
        around_zero: Whether the center is 0, so that nothing becomes negative.
    """
    if how not in ("auto", "features") or (how == "auto" and sketch.in_one_unit()):
        return None
    scale = Scale.of(sketch)
    return Scale(torch.zeros_like(scale.center), scale.spread) if around_zero else scale


def distinct(x: Array, target: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Each pair of input and target once, with the sum of its weights; those of weight 0 are left out.

    Sorted by the first feature, then by the second, and so on. So an example with weight 2 is the same as two examples,
    whatever comes after, and neither the order of the data nor the units of its features matter.

    Args:
        x: Inputs, one per row.
        target: Targets, one per row.
        weight: Weights.

    Example:
        >>> x = np.array([[3.0], [1.0], [3.0], [2.0]])
        >>> x, target, weight = distinct(x, np.zeros((4, 1)), np.array([1.0, 1.0, 1.0, 0.0]))
        >>> x.ravel().tolist(), weight.tolist()
        ([1.0, 3.0], [1.0, 2.0])
    """
    used = weight > 0
    x, target, weight = x[used], target[used], weight[used]
    pairs = np.ascontiguousarray(np.column_stack([x, target.astype(x.dtype)]) + 0.0)  # + 0.0: one zero, not two
    # As unsigned numbers with the first byte first, floats compare byte by byte as they do by value.
    bits = pairs.view(f"u{pairs.itemsize}")
    sign = bits.dtype.type(1 << (8 * pairs.itemsize - 1))
    ordered = np.where(bits & sign, ~bits, bits | sign).astype(f">u{pairs.itemsize}")
    keys = ordered.view(np.dtype((np.void, pairs.itemsize * pairs.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return x[first], target[first], np.bincount(inverse.ravel(), weights=weight)


def hold_out(rows: Rows, labels: Tensor | None, fraction: float, generator: torch.Generator) -> tuple[Rows, Rows]:
    """The rows to learn from, and those held out to calibrate with: the same where these would be too few.

    Args:
        rows: All of them.
        labels: Their classes, each of which keeps its share, and one row at least to learn from.
        fraction: Of the rows, to hold out.
        generator: Source of the choice.
    """
    count = len(rows.x)
    order = torch.randperm(count, generator=generator)
    if not fraction or round(count * fraction) < FEWEST_HELD_OUT:
        return rows, rows
    first = torch.zeros(count, dtype=torch.bool)
    if labels is not None:
        order = order[labels.cpu()[order].argsort(stable=True)]
        sorted_labels = labels.cpu()[order]
        first = torch.cat([torch.ones(1, dtype=torch.bool), sorted_labels[1:] != sorted_labels[:-1]])
    # Places at equal distances in the order of the classes: each class gives its share, to within one row.
    chosen = (torch.arange(1, count + 1) * fraction).floor() > (torch.arange(count) * fraction).floor()
    chosen &= ~first
    return rows.select(order[~chosen].sort().values), rows.select(order[chosen].sort().values)


def check_weights(sample_weight: Any, count: int) -> Array:
    """The weights of examples as an array, ones where none are given."""
    if sample_weight is None:
        return np.ones(count)
    weight = np.array(sample_weight, dtype=np.float64)
    if weight.ndim == 0:
        weight = np.full(count, float(weight))
    if weight.shape != (count,):
        raise ValueError(f"sample_weight must have shape ({count},), got {weight.shape}")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError("sample_weight must be finite and non-negative, got NaN, infinite or negative entries")
    if not weight.any():
        raise ValueError("sample_weight must hold a weight that is not zero, got zeros only")
    return weight
