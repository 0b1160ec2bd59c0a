"""How parts are made of the examples of a class, and what follows from the parts of all batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.continual.encoding import Encoding
from torchpfc.continual.portion import Portion, mean_parts
from torchpfc.continual.readout import RidgeReadout
from torchpfc.continual.scaling import Scale, Sketch
from torchpfc.nmf.parts import make_parts
from torchpfc.solvers import Solver

_SAME = 1e-6
"""Parts of norm 1 that differ from an example by no more than this are copies of it."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """What `ContinualPFC` was told about parts; its arguments have the same names there.

    Args:
        in_features: Size of the input.
        scale: Whether features have scales of their own.
        power: What sizes are raised to.
        l1: Weight of the sum of h.
        refine: Passes of the factorization.
        solver: Of these.
        read_out: What keeps sums beside parts.
        dtype: The type of encoded inputs.
    """

    in_features: int
    scale: Literal["common", "features", "auto"]
    power: float
    l1: float
    refine: int
    solver: Solver
    read_out: RidgeReadout | None
    dtype: torch.dtype

    def portion(
        self, x: Tensor, label: int, weight: Tensor | None, count: int, batches: tuple[Hashable, ...], seed: int
    ) -> Portion:
        """What the examples of one class leave behind.

        Args:
            x: The examples.
            label: Their class.
            weight: What each counts.
            count: How many parts to make, at most one for every two examples.
            batches: Where they came from.
            seed: Decides where k-means starts.
        """
        generator = torch.Generator().manual_seed(seed)
        count = min(count, max(1, len(x) // 2))
        sketch: Sketch | None = None
        if self.scale == "common":
            encoding = self._encoding(None, signed=bool((x < 0).any()))
            seen = encoding.encode(_filled(x))
            parts = make_parts(
                seen,
                count,
                weight=None if weight is None else weight.to(seen),
                copies=False,
                refine=self.refine if len(x) > 1 else 0,
                l1=self.l1,
                solver=self.solver,
                generator=generator,
            )
            counts = parts.new_full((count,), float(len(x) if weight is None else weight.sum()) / count)
            columns = parts
        else:
            sketch = Sketch.of(x, weight)
            encoding = self._encoding(self._scale_by(sketch), signed=True)
            seen = encoding.encode(x)
            parts, counts = mean_parts(x, seen, count, weight=weight, generator=generator)
            columns = encoding.encode(parts.mT).mT
        copies = (seen @ columns).amax(0) >= 1 - _SAME
        factor = sums = None
        if self.read_out is not None:
            given = x.nan_to_num(nan=0.0)
            factor, sums = self.read_out.factor(given, weight), self.read_out.sums(given, weight)
        return Portion(batches, label, parts, counts, copies, sketch, factor, sums)

    def waiting(self, x: Tensor, label: int, batches: tuple[Hashable, ...]) -> Portion:
        """A portion without parts, of an example that waits for a second one."""
        nothing = x.new_empty(0)
        return Portion(batches, label, x.new_empty(self.in_features, 0), nothing, nothing.bool(), waiting=x)

    def encoding(self, portions: Sequence[Portion]) -> Encoding:
        """How inputs are seen, by all that was learned."""
        sketches = [portion.sketch for portion in portions if portion.sketch is not None]
        if not sketches:
            return self._encoding(None, signed=any(len(portion.parts) > self.in_features for portion in portions))
        scale = self._scale_by(Sketch.merged(sketches))
        signed = scale is not None or any(bool((sketch.points < 0).any()) for sketch in sketches)
        return self._encoding(scale, signed=signed)

    def columns(self, portions: Sequence[Portion], encoding: Encoding) -> Tensor:
        """The parts of portions as columns of norm 1; zeros for those that were forgotten."""
        if self.scale == "common":
            rows = (1 + encoding.signed) * self.in_features
            return torch.cat([F.pad(portion.parts, (0, 0, 0, rows - len(portion.parts))) for portion in portions], 1)
        W = torch.cat([portion.parts for portion in portions], 1)
        return encoding.encode(W.mT).mT * (torch.cat([p.counts for p in portions]) > 0)

    def fewer(self, portions: list[Portion], most: int) -> list[Portion]:
        """Portions with no more parts than that: the two most alike of the class with most become one, and so on.

        Args:
            portions: All portions.
            most: How many parts there may be, but one for each class.
        """
        counts: dict[int, int] = {}
        for portion in portions:
            counts[portion.label] = counts.get(portion.label, 0) + portion.count
        encoding = self.encoding(portions)
        while sum(counts.values()) > most:
            largest = max(counts, key=lambda c: (counts[c], -c))
            if counts[largest] < 2:
                break
            places = [place for place, portion in enumerate(portions) if portion.label == largest and portion.count]
            W = self.columns([portions[place] for place in places], encoding)
            likeness = (W.mT @ W).masked_fill_(torch.ones_like(W.mT @ W, dtype=torch.bool).tril(), -torch.inf)
            pair = divmod(int(likeness.argmax()), W.shape[1])
            column = [(place, k) for place in places for k in range(portions[place].count)]
            (place, one), (later, two) = column[pair[0]], column[pair[1]]
            if later != place:
                two += portions[place].count
                portions[place] = portions[place].merged(portions.pop(later))
            portions[place] = portions[place].joined(one, two, unit=self.scale == "common")
            counts[largest] -= 1
        return portions

    def _encoding(self, scale: Scale | None, *, signed: bool) -> Encoding:
        return Encoding(self.power, scale, signed, self.dtype)

    def _scale_by(self, sketch: Sketch) -> Scale | None:
        return None if self.scale == "auto" and sketch.in_one_unit() else Scale.of(sketch)


def _filled(x: Tensor) -> Tensor:
    """Examples with the means of features in the place of what is not observed."""
    gaps = x.isnan()
    return x.where(~gaps, x.nanmean(0).nan_to_num(nan=0.0)) if gaps.any() else x
