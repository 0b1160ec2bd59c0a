"""What regressor and transformer share: batches that leave sums of their own, from which all else is computed."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpfc.continual.certificate import COPIES, HASHES, BatchRecord, Certificate, Content, How
from torchpfc.continual.names import name_from_plain, name_to_plain, new_name
from torchpfc.continual.scaling import Moments, Sketch
from torchpfc.optim.ledger import as_ranges
from torchpfc.sklearn.base import PFCEstimator
from torchpfc.sklearn.rows import MOST_HELD_OUT, Array, InputScale, Rows
from torchpfc.sklearn.taught import AS_NEVER_SEEN, HELD_OUT_TOO, Taught, evenly, hold_out_of_batch


@dataclass(frozen=True, eq=False)
class BatchSummary:
    r"""What the rows of one batch leave behind; it depends on these rows and nothing else.

    Features are followed by targets, all in units of the user.

    Shape:
        - parts: $(d, r)$, one per column
        - counts: $(r)$, what the rows of each part count
        - held: $(n, d)$, rows held out
        - weight: $(n)$, what each of those counts
    """

    parts: Tensor
    counts: Tensor
    sketch: Sketch
    moments: Moments
    held: Tensor
    weight: Tensor
    record: BatchRecord | None = None
    """What certificates say of the batch; None of one that was saved without."""

    def state(self) -> dict[str, Any]:
        """All of it, as tensors and plain values."""
        return asdict(self) | {"record": None if self.record is None else self.record.to_plain()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> BatchSummary:
        """What `state` gave."""
        record = state.get("record")
        parts = {"sketch": Sketch(**state["sketch"]), "moments": Moments(**state["moments"])}
        return cls(**state | parts | {"record": None if record is None else BatchRecord.from_plain(record)})


class TaughtNumbers(Taught):
    """Batches of rows of features, and of targets if there are any.

    Args:
        features: How many features there are.
    """

    def __init__(self, features: int) -> None:
        self.features = features
        self.summaries: dict[Hashable, BatchSummary] = {}
        self._runs: list[tuple[tuple[Hashable, ...], int]] = []

    @property
    def batches(self) -> tuple[Hashable, ...]:
        """The names of the batches, in the order in which they came."""
        return tuple(self.summaries)

    @property
    def runs(self) -> list[tuple[tuple[Hashable, ...], int]]:
        """The batches that made each run of columns, none where these are forgotten, and how many columns it has."""
        return self._runs

    def with_batch(self, name: Hashable, summary: BatchSummary) -> TaughtNumbers:
        """The same with one more batch.

        Args:
            name: The name of the batch, which is new.
            summary: What it leaves behind.
        """
        more = copy.copy(self)
        more.summaries = self.summaries | {name: summary}
        more._runs = [*self._runs, ((name,), summary.parts.shape[1])]
        return more

    def _take_out(self, batches: list[Hashable], *, how: How) -> Certificate:
        if unknown := [name for name in batches if name not in self.summaries]:
            raise ValueError(f"batches must have been learned from, got {unknown[0]!r}")
        gone, learned = set(batches), [summary.record for summary in self.summaries.values()]
        owners = [names for names, count in self._runs for _ in range(count)]
        columns = [column for column, names in enumerate(owners) if gone & set(names)]
        self.summaries = {name: summary for name, summary in self.summaries.items() if name not in gone}
        if how == "zero":
            self._runs = [((), count) if gone & set(names) else (names, count) for names, count in self._runs]
        else:
            self._runs = [(names, count) for names, count in self._runs if not gone & set(names)]
        but = ", but for columns of zeros" if how == "zero" else ""
        return Certificate(
            learner="",
            how=how,
            exact=True,
            batches=tuple(batches),
            learned=tuple(record for record in learned if record is not None),
            columns=tuple((part.start, part.stop) for part in as_ranges(columns)),
            num_columns=len(columns),
            share=len(columns) / max(len(owners), 1),
            machine={},
            sha256_before="",
            sha256_after="",
            guaranteed=(AS_NEVER_SEEN.format(but=but), HELD_OUT_TOO),
            not_guaranteed=(COPIES, HASHES),
        )

    # What follows from all batches

    @property
    def sketch(self) -> Sketch:
        """How features and targets are distributed."""
        return Sketch.merged([summary.sketch for summary in self.summaries.values()])

    @property
    def moments(self) -> Moments:
        """Means and deviations of features and targets."""
        return Moments.merged([summary.moments for summary in self.summaries.values()])

    @property
    def parts(self) -> Tensor:
        """The parts of all batches, in their order."""
        return torch.cat([summary.parts for summary in self.summaries.values()], 1)

    @property
    def known(self) -> Tensor:
        """Which columns of the block hold these parts; the others are those of batches that were forgotten."""
        return torch.cat([torch.full((count,), bool(names)) for names, count in self._runs])

    @property
    def counts(self) -> Tensor:
        """What the rows of each part count."""
        return torch.cat([summary.counts for summary in self.summaries.values()])

    def rows(self, most: int | None = MOST_HELD_OUT) -> Rows:
        """Rows held out of all batches, in their order and in units of the user.

        Args:
            most: How many at most, evenly chosen; None for all.
        """
        summaries = list(self.summaries.values())
        held = torch.cat([summary.held for summary in summaries])
        weight = torch.cat([summary.weight for summary in summaries])
        number = torch.arange(len(summaries)).repeat_interleave(torch.tensor([len(one.held) for one in summaries]))
        rows = Rows(held[:, : self.features], held[:, self.features :], weight, number)
        return rows if most is None else rows.select(torch.as_tensor(evenly(len(held), most)))

    def state(self) -> dict[str, Any]:
        """All of it, as tensors and plain values."""
        batches = [(name_to_plain(name), summary.state()) for name, summary in self.summaries.items()]
        runs = [([name_to_plain(name) for name in names], count) for names, count in self._runs]
        return {"features": self.features, "batches": batches, "runs": runs}

    def load(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.features = int(state["features"])
        self._runs = [(tuple(map(name_from_plain, names)), int(count)) for names, count in state["runs"]]
        self.summaries = {name_from_plain(name): BatchSummary.from_state(kept) for name, kept in state["batches"]}


class StagedPFC(PFCEstimator):
    """An estimator whose batches leave a `BatchSummary` each."""

    _taught: TaughtNumbers

    # What a concrete estimator says of itself

    @abstractmethod
    def _parts_of_batch(
        self, rows: Tensor, weight: Tensor, sketch: Sketch, moments: Moments, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Parts of one batch, in units of the user, and what the rows of each count.

        Args:
            rows: The rows to learn from, features and then targets.
            weight: What each counts.
            sketch: How all rows of the batch are distributed.
            moments: Their means and deviations.
            generator: Source of random numbers.
        """

    @abstractmethod
    def _weights(self, sketch: Sketch, moments: Moments) -> tuple[Tensor, Tensor, bool]:
        """Columns for inputs and outputs, made of the parts of all batches, and whether they are non-negative.

        Args:
            sketch: How the rows of all batches are distributed.
            moments: Their means and deviations.
        """

    @abstractmethod
    def _targets(self, raw: Array) -> Tensor:
        """Targets as the block should predict them."""

    # Learning

    def _teach(self, x: Array, target: Array, weight: Array, batch_id: Hashable, content: Content) -> None:
        """Keeps what a batch leaves behind, and computes all else anew."""
        taught, anew = getattr(self, "_taught", None), False
        if taught is None:
            taught, anew = TaughtNumbers(x.shape[1]), hasattr(self, "block_")
            self._draw_batch_seed()
        name = new_name(batch_id, taught.summaries)
        rows = torch.as_tensor(np.column_stack([x, target]))
        counted = torch.as_tensor(weight)
        sketch, moments = Sketch.of(rows.double(), counted), Moments.of(rows.double(), counted)
        # A row alone is its own part, and says nothing of how well parts explain rows.
        learned, held = hold_out_of_batch(len(x), None, self.validation_fraction, fewest=2)
        generator = torch.Generator().manual_seed(self.batch_seed_)
        parts, counts = self._parts_of_batch(rows[learned], counted[learned], sketch, moments, generator)
        record = BatchRecord(name, content.rows, content.sha256, self.batch_seed_, None, parts.shape[1])
        kept = parts.cpu(), counts.double().cpu(), sketch, moments, rows[held].double(), counted[held], record
        self._taught = taught.with_batch(name, BatchSummary(*kept))
        if anew:
            warnings.warn("partial_fit begins anew, without what fit had learned from all rows at once", stacklevel=3)
        self._say(f"batch {name!r}: {len(x)} rows, {parts.shape[1]} new parts, {len(self._taught.known)} in all")
        self._follow()

    def _scale_by(self, sketch: Sketch, moments: Moments, features: int) -> tuple[InputScale, bool]:
        """How inputs are seen that are distributed like these, and whether parts are non-negative."""
        own = slice(features)
        lowest = float(sketch.points[:, own].nan_to_num(nan=0.0).min())
        scale, nonnegative = self._look(sketch.select(own), lowest)
        constant = self._constant(signed=not nonnegative)
        if self.scale is None:
            return InputScale(1.0, constant), nonnegative
        return InputScale.by(moments.select(own), constant=constant, scale=scale), nonnegative

    def _follow(self) -> None:
        taught = self._taught
        if not taught.summaries:
            del self._taught, self.block_
            return
        weight_x, weight_y, nonnegative = self._weights(taught.sketch, taught.moments)
        known = taught.known.to(weight_x.device)
        columns = [weight.new_zeros(len(weight), len(known)) for weight in (weight_x, weight_y)]
        for whole, weight in zip(columns, (weight_x, weight_y), strict=True):
            whole[:, known] = weight
        self.block_ = self._new_block(columns[0], columns[1], nonnegative=nonnegative)
        self.ledger_, self.n_iter_, self._learned_from = taught.ledger(), len(taught.summaries), None
        rows = taught.rows()
        like = self.block_.weight_x
        targets, weight = self._targets(rows.target.numpy()), rows.weight
        self.held_out_ = Rows(self.encode(rows.x.to(like.device)), targets.to(like), weight.to(like), rows.batch)
        self._calibrate()
