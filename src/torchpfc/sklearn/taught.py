"""What an estimator has been taught batch by batch: a continual learner with labels, or sums of numbers by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.continual import ContinualPFC
from torchpfc.continual.certificate import Certificate, Content, How
from torchpfc.continual.names import name_from_plain, name_to_plain
from torchpfc.optim.ledger import Ledger
from torchpfc.sklearn.rows import MOST_HELD_OUT, Array, Rows, hold_out
from torchpfc.sklearn.saving import labels_from_json, labels_to_json

AS_NEVER_SEEN = "Parts, scales and answers are, bit for bit, those of the model that never saw these batches{but}."
HELD_OUT_TOO = "The rows of these batches that were held out are gone, and what is usual was found without them."

_MOST_OF_A_BATCH = 100
"""Rows of a batch that are held out at most."""


class Taught(ABC):
    """What was taught batch by batch, so that each batch can be taken out again."""

    @property
    @abstractmethod
    def batches(self) -> tuple[Hashable, ...]:
        """The names of the batches, in the order in which they came."""

    @property
    @abstractmethod
    def runs(self) -> list[tuple[tuple[Hashable, ...], int]]:
        """The batches that made each run of columns, none where these are forgotten, and how many columns it has."""

    @abstractmethod
    def rows(self) -> Rows:
        """Rows held out of all batches, in their order and in units of the user; evenly chosen where they are many."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All of it, as tensors and plain values."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""

    @abstractmethod
    def _take_out(self, batches: list[Hashable], *, how: How) -> Certificate:
        """Takes batches out, and changes nothing where one of them is not there."""

    def forget(self, batches: Iterable[Hashable], *, how: How) -> Certificate:
        """Takes batches out, and says what that guarantees; it is left to the caller to say of which estimator.

        Args:
            batches: Their names.
            how: `"zero"` or `"remove"`.
        """
        if how not in ("zero", "remove"):
            raise ValueError(f"how must be 'zero' or 'remove' after partial_fit, got {how!r}")
        asked = list(dict.fromkeys(batches))
        if how == "zero" and not any(count for names, count in self.runs if set(names) - set(asked)):
            raise ValueError(f"batches must leave at least one, got all {len(asked)}; how='remove' takes all of them")
        return self._take_out(asked, how=how)

    def ledger(self) -> Ledger:
        """Which batch made which parts; batches by their names where these are numbers, else by their order."""
        ledger, start = Ledger(), 0
        plain = all(isinstance(name, int | np.integer) and name >= 0 for name in self.batches)
        numbers = {name: int(name) if plain else k for k, name in enumerate(self.batches)}  # type: ignore[call-overload]
        for names, count in self.runs:
            for name in names:
                ledger.record(numbers[name], range(start, start + count))
            start += count
        return ledger


def as_names(batches: Any, known: Iterable[Hashable] = ()) -> list[Any]:
    """Names of batches from what a user gives: one, which may be a tuple, or several.

    Args:
        batches: A name or names.
        known: The names that there are.

    Example:
        >>> as_names(("tu", 1), [("tu", 1)]), as_names(("tu", 1), ["tu", 1])
        ([('tu', 1)], ['tu', 1])
    """
    one = isinstance(batches, str | bytes) or not isinstance(batches, Iterable)
    if one or (isinstance(batches, tuple) and batches in set(known)):
        return [batches]
    return list(batches)


def hold_out_of_batch(count: int, labels: Tensor | None, fraction: float, *, fewest: int) -> tuple[Array, Array]:
    """The numbers of the rows of a batch to learn from, and of those held out: the same where it is small.

    Args:
        count: How many rows there are.
        labels: Their classes, each of which keeps its share.
        fraction: What part of them to hold out.
        fewest: Of fewer rows than these, none are held out.
    """
    numbers = torch.arange(count)
    rows = Rows(torch.zeros(count, 0), numbers, numbers, numbers)
    learned, held = hold_out(rows, labels, fraction, torch.Generator().manual_seed(0))
    few = held.batch if learned is not held or count >= fewest else numbers[:0]
    return learned.batch.numpy(), few.numpy()[evenly(len(few), _MOST_OF_A_BATCH)]


def evenly(count: int, most: int) -> Array:
    """All numbers below a count, or evenly chosen ones where they are many.

    Example:
        >>> evenly(9, 3).tolist()
        [0, 4, 8]
    """
    return np.linspace(0, count - 1, min(count, most)).astype(int)


class Held(NamedTuple):
    """Rows of a batch that were held out, as they were given."""

    x: Array
    labels: Array
    weight: Array


class TaughtClasses(Taught):
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
        held: Held,
        *,
        batch: Hashable,
        content: Content,
        count: int | None,
        seed: int,
    ) -> None:
        """Learns a batch; a call that fails changes nothing."""
        before = self.labels
        self._relabel(np.unique(labels) if before is None else np.union1d(before, labels))
        try:
            numbers = np.searchsorted(self.classes, labels)
            generator = torch.Generator().manual_seed(seed)
            options: Any = {"count": count, "batch": batch, "content": content, "generator": generator}
            self.learner.learn(x, numbers, weight=torch.as_tensor(weight), **options)
        except Exception:
            self._relabel(before)
            raise
        if len(held.x):
            self.held[self.learner.batches[-1]] = held

    @property
    def batches(self) -> tuple[Hashable, ...]:
        """The names of the batches, in the order in which they came."""
        return self.learner.batches

    @property
    def runs(self) -> list[tuple[tuple[Hashable, ...], int]]:
        """The batches of each portion of the learner, and how many parts it has."""
        return [(portion.batches, portion.count) for portion in self.learner.portions]

    def _take_out(self, batches: list[Hashable], *, how: How) -> Certificate:
        certificate = self.learner.forget(batches, how=how)
        for name in certificate.batches:
            self.held.pop(name, None)
        if self.announced is None:
            seen = sorted({portion.label for portion in self.learner.portions if portion.label >= 0})
            self._relabel(self.classes[seen])
        if not certificate.exact:
            return certificate
        but = ", but for columns of zeros" if how == "zero" else ""
        return replace(certificate, guaranteed=(AS_NEVER_SEEN.format(but=but), HELD_OUT_TOO))

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
        return rows.select(torch.as_tensor(evenly(len(x), MOST_HELD_OUT)))

    def state(self) -> dict[str, Any]:
        """All of it, as tensors and plain values."""
        held = [
            (name_to_plain(name), torch.as_tensor(part.x), labels_to_json(part.labels), torch.as_tensor(part.weight))
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
            name_from_plain(name): Held(x.numpy(), labels_from_json(own), weight.numpy())
            for name, x, own, weight in state["held"]
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
