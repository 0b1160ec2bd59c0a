"""Orders of a data set for learning that is not i.i.d.: tasks, sorted labels, one fixed shuffle, corrupted batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np
import torch
from torch import Tensor

SPLIT_PAIRS: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
"""The classes of the five tasks of Split MNIST."""

StreamBatch = tuple[Tensor, Tensor, Tensor]
Corruption = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Stream:
    r"""A data set in numbered batches: the batch of a number always holds the same examples.

    A stream can be handed to `torchpfc.training.fit`: it yields triples (x, target, rows) with `rows` counted in the
    whole of `x`, also where the stream has only some of it. The numbers of the batches stand apart, in `ids`, in the
    order of the batches: `zip(stream.ids, stream)`.

    Without `seed` every epoch has the order of `rows`, and so the same numbers. With it the order is new in every epoch
    and depends on the seed and the epoch alone. Those are other batches, so their numbers go on from epoch to epoch.

    Args:
        x: All inputs.
        target: All targets.
        rows: Which examples the stream has, in its order; all of them by default.
        batch_size: Examples in a batch.
        seed: Of the order within each epoch; None keeps the order of `rows`.
        drop_last: Whether to leave out the rest that does not fill a batch.
        first_id: The number of the first batch. Streams that are learned one after another need different numbers.

    Shape:
        - x: $(N, m)$
        - target: $(N, k)$
        - rows: $(n)$

    Example:
        >>> x, target = torch.rand(10, 3), torch.eye(5).repeat(2, 1)
        >>> stream = Stream(x, target, fixed_shuffle(10, seed=0), batch_size=4)
        >>> tuple((id, len(rows)) for id, (_, _, rows) in zip(stream.ids, stream))
        ((0, 4), (1, 4), (2, 2))
    """

    def __init__(
        self,
        x: Tensor,
        target: Tensor,
        rows: Tensor | None = None,
        *,
        batch_size: int,
        seed: int | None = None,
        drop_last: bool = False,
        first_id: int = 0,
    ) -> None:
        check_batches(x, target, batch_size)
        if first_id < 0:
            raise ValueError(f"first_id must be at least 0, got {first_id}")
        # On the host too: who keeps a record of examples must not wait for the device at every batch.
        self.rows = torch.arange(len(x)) if rows is None else rows.cpu()
        if self.rows.ndim != 1 or self.rows.dtype != torch.int64:
            raise ValueError(f"rows must be numbers of examples in one dimension, got {rows}")
        if len(self.rows) and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < len(x):
            raise ValueError(f"rows must lie in [0, {len(x)}), got {int(self.rows.min())} to {int(self.rows.max())}")
        if (self.rows.bincount() > 1).any():
            raise ValueError("rows must name each example once, got some that occur twice")
        self.x, self.target, self.batch_size = x, target, batch_size
        self.seed, self.drop_last, self.first_id = seed, drop_last, first_id
        self.set_epoch(0)

    def __len__(self) -> int:
        return count_batches(len(self.rows), self.batch_size, drop_last=self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self.epoch = epoch
        self._order = self.rows if self.seed is None else fixed_shuffle(self.rows, seed=_seed(self.seed, epoch))
        self._order_there = self._order.to(self.x.device)

    @property
    def ids(self) -> range:
        """The numbers of this epoch's batches, in their order."""
        first = self.first_id + (0 if self.seed is None else self.epoch * len(self))
        return range(first, first + len(self))

    def __iter__(self) -> Iterator[StreamBatch]:
        for id in self.ids:
            yield self.take(self._order_there[self._places(id)])

    def rows_of(self, id: int) -> Tensor:
        """The examples of a batch of this epoch, on the CPU.

        Args:
            id: The number of the batch.
        """
        if id not in self.ids:
            raise ValueError(f"id must be a batch of epoch {self.epoch}, {_in_words(self.ids)}, got {id}")
        return self._order[self._places(id)]

    def take(self, rows: Tensor) -> StreamBatch:
        """Any examples of the data set as a batch.

        Args:
            rows: Their numbers.
        """
        rows = rows.to(self.x.device)
        return self.x[rows], self.target[rows], rows

    def _places(self, id: int) -> slice:
        start = (id - self.ids.start) * self.batch_size
        return slice(start, start + self.batch_size)


def check_batches(x: Tensor, target: Tensor, batch_size: int) -> None:
    """Raises `ValueError` where a data set cannot be cut into batches of a size."""
    if len(x) != len(target):
        raise ValueError(f"target must have as many rows as x ({len(x)}), got {len(target)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")


def count_batches(examples: int, batch_size: int, *, drop_last: bool) -> int:
    """How many batches so many examples make, with the rest that does not fill one or without."""
    return examples // batch_size if drop_last else -(-examples // batch_size)


def fixed_shuffle(rows: int | Tensor, *, seed: int) -> Tensor:
    """Examples in an order that the seed decides once and for all.

    Args:
        rows: How many examples there are, or which.
        seed: Of the order.

    Example:
        >>> torch.equal(fixed_shuffle(100, seed=42), fixed_shuffle(100, seed=42))
        True
    """
    if isinstance(rows, int):
        rows = torch.arange(rows)
    return rows.cpu()[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]


def label_ordered(labels: Tensor, *, rows: Tensor | None = None, seed: int | None = None) -> Tensor:
    """Examples sorted by class, the classes in ascending order (Section 5.4).

    Args:
        labels: The class of every example.
        rows: Which examples to sort, by default all. Within a class they stay in this order.
        seed: Shuffles the examples within each class instead.

    Shape:
        - labels: $(N)$
        - rows: $(n)$

    Example:
        >>> label_ordered(torch.tensor([1, 0, 1, 0]))
        tensor([1, 3, 0, 2])
    """
    rows = torch.arange(len(labels)) if rows is None else rows.cpu()
    if seed is not None:
        rows = fixed_shuffle(rows, seed=seed)
    return rows[labels.cpu()[rows].argsort(stable=True)]


@dataclass(frozen=True, eq=False)
class ClassTask:
    """The examples of some classes, to be learned before or after those of others.

    Args:
        classes: Which classes.
        train: The examples to learn from, in random order.
        validation: The examples that decide when to stop.
    """

    classes: tuple[int, ...]
    train: Tensor
    validation: Tensor


def class_tasks(
    labels: Tensor,
    groups: Sequence[Sequence[int]] = SPLIT_PAIRS,
    *,
    seed: int,
    validation_share: float = 0.15,
    rows: Tensor | None = None,
) -> tuple[ClassTask, ...]:
    """Splits a data set into tasks by class, and each task into training and validation (Section 5.3).

    Args:
        labels: The class of every example.
        groups: The classes of each task; those in none are left out.
        seed: Decides what is for validation, and the order of the rest.
        validation_share: Share of each task's examples for validation.
        rows: Which examples to use, by default all.

    Shape:
        - labels: $(N)$
        - rows: $(n)$

    Example:
        >>> first, second = class_tasks(torch.arange(4).repeat(20), ((0, 1), (2, 3)), seed=0)
        >>> second.classes, len(second.train), len(second.validation)
        ((2, 3), 34, 6)
    """
    every = [label for group in groups for label in group]
    if len(set(every)) < len(every):
        raise ValueError(f"groups must have no class in common, got {groups}")
    if not 0 <= validation_share < 1:
        raise ValueError(f"validation_share must be at least 0 and less than 1, got {validation_share}")
    labels = labels.cpu()
    rows = torch.arange(len(labels)) if rows is None else rows.cpu()
    tasks = []
    for number, group in enumerate(groups):
        own = rows[torch.isin(labels[rows], torch.tensor(list(group), dtype=labels.dtype))]
        if not len(own):
            raise ValueError(f"groups must name classes that have examples, got {tuple(group)}")
        own = fixed_shuffle(own, seed=_seed(seed, number))
        held_out = round(validation_share * len(own))
        tasks.append(ClassTask(tuple(group), train=own[held_out:], validation=own[:held_out]))
    return tuple(tasks)


def next_label(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    r"""The paper's wrong labels: class c is taken for $c + 1$, the last class for the first (Section 5.5).

    Args:
        x: Inputs, which stay as they are.
        target: One-hot targets.

    Example:
        >>> next_label(torch.rand(3, 2), torch.eye(3))[1].argmax(-1)
        tensor([1, 2, 0])
    """
    return x, target.roll(1, -1)


@dataclass(frozen=True)
class UniformNoise:
    """Inputs replaced by uniform random numbers from 0 to 1; the targets stay.

    Args:
        seed: Of the numbers.
    """

    seed: int

    def __call__(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Replaces the inputs."""
        noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(self.seed), dtype=x.dtype)
        return noise.to(x.device), target


def corrupt(stream: Stream, batches: Iterable[int], change: Corruption = next_label) -> Stream:
    """The same stream with some of its batches spoiled, in every epoch alike; the data that it was made of stay whole.

    Args:
        stream: A stream with one order for all epochs.
        batches: The numbers of the batches to spoil; the paper's are `range(500, 800)`.
        change: What becomes of their inputs and targets: `next_label`, `UniformNoise(seed)`, or any function of both.

    Example:
        >>> stream = Stream(torch.rand(6, 2), torch.eye(3).repeat(2, 1), batch_size=2)
        >>> tuple(tuple(target.argmax(-1).tolist()) for _, target, _ in corrupt(stream, range(1, 2)))
        ((0, 1), (0, 1), (1, 2))
    """
    if stream.seed is not None:
        raise ValueError(f"stream must have one order for all epochs (seed=None), got seed={stream.seed}")
    ids = sorted({index(id) for id in batches})
    if unknown := [id for id in ids if id not in stream.ids]:
        raise ValueError(f"batches must lie in {_in_words(stream.ids)}, got {unknown[0]}")
    x, target = stream.x, stream.target
    if ids:
        rows = torch.cat([stream.rows_of(id) for id in ids]).to(x.device)
        before = x[rows], target[rows]
        after = change(*before)
        x, target = (
            whole if new is old else whole.index_put((rows,), new)
            for whole, old, new in zip((x, target), before, after, strict=True)
        )
    return Stream(
        x, target, stream.rows, batch_size=stream.batch_size, drop_last=stream.drop_last, first_id=stream.first_id
    )


def _seed(*parts: int) -> int:
    """A seed of its own for each combination of numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _in_words(ids: range) -> str:
    return f"[{ids.start}, {ids.stop})"
