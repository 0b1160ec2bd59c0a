"""What a batch leaves behind of one class: parts, and sums from which all else is computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.continual.readout import triangular
from torchpfc.continual.scaling import Sketch
from torchpfc.nmf import k_means
from torchpfc.nmf.k_means import closest
from torchpfc.nmf.normalization import unit_columns

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Portion:
    r"""What the examples of one class in one batch leave behind; it depends on these examples and nothing else.

    Shape:
        - parts: $(m, r)$, one per column
        - counts, copies: $(r)$
        - factor: $(p, d)$
        - sums: $(d)$
    """

    batches: tuple[Hashable, ...]
    """The batch; several where parts of them became one, and none of a portion that was forgotten."""
    label: int
    """The class; -1 where it was forgotten."""
    parts: Tensor
    """In units of the input where features have scales of their own, else as the model sees them."""
    counts: Tensor
    """How many examples each part is made of."""
    copies: Tensor
    """Which parts are the same as an example."""
    sketch: Sketch | None = None
    """How the features are distributed, where they have scales of their own."""
    factor: Tensor | None = None
    sums: Tensor | None = None
    """What a `RidgeReadout` keeps."""
    waiting: Tensor | None = None
    """A single example that waits for a second one of its class."""

    @property
    def count(self) -> int:
        """How many parts there are."""
        return self.parts.shape[1]

    def emptied(self) -> Portion:
        """The same columns with nothing in them."""
        nothing = torch.zeros_like(self.counts)
        return Portion((), -1, torch.zeros_like(self.parts), nothing, nothing.bool())

    def select(self, columns: Tensor) -> Portion:
        """Some of the parts, with the same sums."""
        chosen = self.parts[:, columns], self.counts[columns], self.copies[columns]
        return replace(self, parts=chosen[0], counts=chosen[1], copies=chosen[2])

    def joined(self, one: int, two: int, *, unit: bool) -> Portion:
        """The same with one part in the place of two: their mean, by how many examples each is made of.

        Args:
            one: The column that it takes.
            two: A later column, which goes.
            unit: Whether parts have norm 1.
        """
        pair = torch.tensor([one, two], device=self.parts.device)
        count, columns = self.counts[pair].sum(), self.parts[:, pair]
        mean = weighted_mean(columns.mT, self.counts[pair])
        same = (columns[:, 0].nan_to_num() == columns[:, 1].nan_to_num()).all()
        kept = torch.arange(self.count, device=pair.device) != two
        parts, counts, copies = self.parts.clone(), self.counts.clone(), self.copies.clone()
        parts[:, one] = unit_columns(mean.unsqueeze(1)).squeeze(1) if unit else mean
        counts[one], copies[one] = count, copies[one] & copies[two] & same
        return replace(self, parts=parts, counts=counts, copies=copies).select(kept)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Portion:
        """The same with a function applied to every tensor, as `nn.Module.to` does."""
        return Portion.from_tensors(
            self.batches, self.label, {name: fn(value) for name, value in self.tensors().items()}
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        named = {"parts": self.parts, "counts": self.counts, "copies": self.copies, "factor": self.factor}
        named |= {"sums": self.sums, "waiting": self.waiting}
        if self.sketch is not None:
            named |= {"sketch.points": self.sketch.points, "sketch.mass": self.sketch.mass}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_tensors(cls, batches: tuple[Hashable, ...], label: int, tensors: dict[str, Tensor]) -> Portion:
        """What `tensors` took apart."""
        rest = dict(tensors)
        points, mass = rest.pop("sketch.points", None), rest.pop("sketch.mass", None)
        sketch = None if points is None or mass is None else Sketch(points, mass)
        return cls(batches, label, sketch=sketch, **rest)

    def merged(self, other: Portion) -> Portion:
        """This portion and a later one of the same class as one."""
        rows = max(len(self.parts), len(other.parts))  # only some of them may have signs
        parts = [F.pad(portion.parts, (0, 0, 0, rows - len(portion.parts))) for portion in (self, other)]
        return Portion(
            self.batches + other.batches,
            self.label,
            torch.cat(parts, 1),
            torch.cat([self.counts, other.counts]),
            torch.cat([self.copies, other.copies]),
            _both(self.sketch, other.sketch, lambda one, two: Sketch.merged([one, two]).thinned()),
            _both(self.factor, other.factor, lambda one, two: triangular(torch.cat([one, two]))),
            _both(self.sums, other.sums, torch.add),
        )


def _both(one: T | None, two: T | None, together: Callable[[T, T], T]) -> T | None:
    return None if one is None or two is None else together(one, two)


def mean_parts(
    x: Tensor, seen: Tensor, count: int, *, weight: Tensor | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    r"""Means of similar examples, of two of them at least where there are two, and how many each is of.

    Args:
        x: The examples, in units of the user; NaN where one is not observed.
        seen: The same as they are compared.
        count: How many parts.
        weight: What each example counts.
        generator: Decides where k-means starts.

    Shape:
        - x: $(n, m)$
        - seen: $(n, p)$
        - the results: $(m, \text{count})$ and $(\text{count})$
    """
    means = k_means(seen, count, weight=None if weight is None else weight.to(seen), generator=generator)
    nearest = closest(seen, means)
    sizes = nearest.bincount(minlength=count)
    amount = torch.ones(len(x), dtype=x.dtype, device=x.device) if weight is None else weight.to(x)
    found, counts = [], []
    for group in range(count):
        members = (nearest == group).nonzero()[:, 0]
        if sizes[group] < 2 <= len(x):
            members = (seen - means[group]).square().sum(1).topk(2, largest=False).indices
        found.append(weighted_mean(x[members], amount[members]))
        counts.append(amount[members].sum())
    return torch.stack(found, 1), torch.stack(counts)


def weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """The mean of rows, feature by feature of those in which it is observed; NaN where in none.

    Args:
        x: The rows.
        weight: What each counts.

    Example:
        >>> weighted_mean(torch.tensor([[1.0, torch.nan], [4.0, 2.0]]), torch.tensor([2.0, 1.0]))
        tensor([2., 2.])
    """
    mass = weight.unsqueeze(1) * ~x.isnan()
    return (mass / mass.sum(0) * x.nan_to_num(nan=0.0)).sum(0)
