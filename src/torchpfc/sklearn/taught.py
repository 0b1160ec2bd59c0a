"""What a classifier has been taught batch by batch: a continual learner, labels, and a few rows held out by batch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.continual import ContinualPFC
from torchpfc.optim.ledger import Ledger, as_ranges
from torchpfc.sklearn.rows import MOST_HELD_OUT, Array, Rows
from torchpfc.sklearn.saving import labels_from_json, labels_to_json
from torchpfc.unlearning.report import ForgetReport, How, fingerprint

MOST_OF_A_BATCH = 100
"""Rows of a batch that are held out at most."""


class Held(NamedTuple):
    """Rows of a batch that were held out, as they were given."""

    x: Array
    labels: Array
    weight: Array


class Taught:
    """A continual learner whose classes have labels of any type that can be sorted.

    The classes of the learner are the places of the labels in `classes`, whatever the order in which they came.

    Args:
        learner: The learner, which knows nothing yet.
        announced: The labels that there will ever be; None for those that come.
    """

    def __init__(self, learner: ContinualPFC, announced: Array | None) -> None:
        self.learner, self.announced = learner, announced
        self.labels: Array | None = announced
        self.held: dict[Hashable, Held] = {}
        if announced is not None:
            learner.relabel([], len(announced))

    @property
    def classes(self) -> Array:
        """All labels, sorted."""
        assert self.labels is not None
        return self.labels

    def teach(
        self,
        x: Array,
        labels: Array,
        weight: Array,
        held: Held | None,
        *,
        batch: Hashable,
        count: int | None,
        seed: int,
    ) -> None:
        """Learns a batch; a call that fails changes nothing."""
        before = self.labels
        self._relabel(np.unique(labels) if before is None else np.union1d(before, labels))
        try:
            numbers = np.searchsorted(self.classes, labels)
            generator = torch.Generator().manual_seed(seed)
            self.learner.learn(
                x, numbers, weight=torch.as_tensor(weight), count=count, batch=batch, generator=generator
            )
        except Exception:
            self._relabel(before)
            raise
        if held is not None and len(held.x):
            self.held[self.learner.batches[-1]] = held

    def forget(self, batches: Iterable[Hashable], *, how: How) -> ForgetReport:
        """Takes batches out, and says what that guarantees."""
        if how not in ("zero", "remove"):
            raise ValueError(f"how must be 'zero' or 'remove' after partial_fit, got {how!r}")
        asked = list(batches)
        columns: list[int] = []
        start = 0
        for portion in self.learner.portions:
            if set(portion.batches) & set(asked):
                columns += range(start, start + portion.count)
            start += portion.count
        if how == "zero" and not set(self.learner.batches) - set(asked):
            raise ValueError(f"batches must leave at least one, got all {len(asked)}; how='remove' takes all of them")
        before = self._fingerprint()
        gone = self.learner.forget(asked, keep_columns=how == "zero")
        for name in gone.batches:
            self.held.pop(name, None)
        if self.announced is None:
            seen = sorted({portion.label for portion in self.learner.portions if portion.label >= 0})
            self._relabel(self.classes[seen])
        return ForgetReport(
            how=how,
            batches=gone.batches,  # type: ignore[arg-type]
            unrecorded=(),
            columns=tuple((part.start, part.stop) for part in as_ranges(columns)),
            num_columns=gone.num_columns,
            share=gone.num_columns / max(start, 1),
            others_affected=(),
            sha256_before=before,
            sha256_after=self._fingerprint(),
            guaranteed=(
                "Parts, scales, read-out and answers are, bit for bit, those of the model that never saw these batches"
                + (", but for columns of zeros." if how == "zero" else "."),
                "The rows of these batches that were held out are gone, and probabilities were calibrated without.",
            ),
            not_guaranteed=("Copies made before (files, pickles) still hold what is forgotten here.",),
        )

    def scores(self, y: Tensor) -> Tensor:
        """Scores with -inf for classes of which nothing is known."""
        known = sorted({portion.label for portion in self.learner.portions if portion.count and portion.label >= 0})
        return y.where(
            torch.isin(torch.arange(y.shape[1], device=y.device), torch.tensor(known, device=y.device)), -torch.inf
        )

    def rows(self) -> Rows:
        """Rows held out of all batches, in their order; evenly chosen where they are many."""
        names = [name for name in self.learner.batches if name in self.held]
        held = [self.held[name] for name in names]
        features, classes = self.learner.in_features, self.classes
        x = np.concatenate([np.zeros((0, features)), *(part.x for part in held)])
        labels = [np.searchsorted(classes, part.labels) for part in held]
        target = torch.as_tensor(np.concatenate([np.zeros(0, dtype=np.int64), *labels]))
        number = np.repeat(np.arange(len(held)), [len(part.x) for part in held])
        weight = np.concatenate([np.zeros(0), *(part.weight for part in held)])
        rows = Rows(
            torch.as_tensor(x),
            F.one_hot(target, len(classes)).double(),
            torch.as_tensor(weight),
            torch.as_tensor(number, dtype=torch.int64),
        )
        return rows if len(x) <= MOST_HELD_OUT else rows.select(torch.linspace(0, len(x) - 1, MOST_HELD_OUT).long())

    def ledger(self) -> Ledger:
        """Which batch made which parts; batches by their names where these are numbers, else by their order."""
        names, ledger, start = self.learner.batches, Ledger(), 0
        plain = all(isinstance(name, int | np.integer) and name >= 0 for name in names)
        numbers = {name: int(name) if plain else k for k, name in enumerate(names)}  # type: ignore[call-overload]
        for portion in self.learner.portions:
            for name in portion.batches:
                ledger.record(numbers[name], range(start, start + portion.count))
            start += portion.count
        return ledger

    def _fingerprint(self) -> str:
        return "" if self.learner.block is None else fingerprint(self.learner.block)

    def state(self) -> dict[str, Any]:
        """All of it, as tensors and plain values."""
        held = [
            (name, torch.as_tensor(part.x), labels_to_json(part.labels), torch.as_tensor(part.weight))
            for name, part in self.held.items()
        ]
        announced, labels = (None if part is None else labels_to_json(part) for part in (self.announced, self.labels))
        return {"announced": announced, "labels": labels, "held": held, "learner": dict(self.learner.state_dict())}

    def load(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        announced, labels = (
            None if part is None else labels_from_json(part) for part in (state["announced"], state["labels"])
        )
        self.announced, self.labels = announced, labels
        self.learner.relabel([], None if labels is None else len(labels) or None)
        self.learner.load_state_dict(state["learner"])
        self.held = {
            name: Held(x.numpy(), labels_from_json(own), weight.numpy()) for name, x, own, weight in state["held"]
        }

    def _relabel(self, labels: Array | None) -> None:
        """Takes over labels: sorted, all that the learner knows among them, or none at all."""
        if labels is not None and self.labels is not None and not np.array_equal(labels, self.labels):
            places = np.searchsorted(labels, self.labels) if len(labels) else np.zeros(len(self.labels), dtype=int)
            self.learner.relabel(places.tolist(), len(labels) or None)
        elif self.labels is None and labels is not None:
            self.learner.relabel([], len(labels))
        self.labels = labels


def names_of_features(names: Sequence[str], width: int) -> tuple[str, ...]:
    """The names of features as the learner sees them: each of them once, or above and below its usual value."""
    if not names or width == len(names):
        return tuple(names)
    constant = ["constant"] if width > 2 * len(names) else []
    return tuple(f"{name}{suffix}" for suffix in (" high", " low") for name in [*names, *constant])
