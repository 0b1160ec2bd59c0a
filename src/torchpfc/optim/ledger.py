"""Which batch, and so which examples, could write which columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchpfc.data.streams import Stream, StreamBatch
from torchpfc.optim.windowed import WindowedOptimizer

Ranges = tuple[range, ...]
"""Columns as ranges: not empty, ascending, and with a gap between any two."""


class Ledger:
    """A record of training that says which columns each batch could write, and which batches could write a column.

    A step with a window changes the columns inside it and no others, so what was learned from a batch lies in the
    columns that the window covered at its steps (Section 4). For an optimizer without a window that is every column,
    and the ledger says so.

    The ledger has one entry for each batch, however many steps it was learned in: the columns as ranges, the examples,
    and the number of its first step. A batch that was passed by (`skip`) has none. What an entry says of columns holds
    for the weights, and for the state that the optimizer keeps for each of them.

    Example:
        >>> import torch
        >>> from torchpfc.optim import RMSpropSLW
        >>> weight = torch.nn.Parameter(torch.ones(4, 12))
        >>> optimizer = RMSpropSLW([weight], width=3, sweep_speed=1)
        >>> ledger = Ledger()
        >>> handle = ledger.watch(optimizer)
        >>> for id in range(8):
        ...     optimizer.zero_grad()
        ...     weight.square().sum().backward()
        ...     with ledger.batch(id, rows=[2 * id, 2 * id + 1]):
        ...         optimizer.step()
        >>> ledger.columns_of([4, 5])
        (range(4, 8),)
        >>> ledger.columns_of_examples([11])
        (range(5, 8),)
        >>> ledger.batches_of([6])
        [4, 5, 6]
    """

    def __init__(self) -> None:
        self._columns: dict[int, Ranges] = {}
        self._rows: dict[int, list[int] | None] = {}
        self._first_steps: dict[int, int] = {}
        self._steps = 0
        self._num_columns = 0
        self._current: tuple[int, list[int] | None] | None = None
        self._watched: WeakKeyDictionary[Optimizer, RemovableHandle] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()  # whom this ledger watches does not belong to a copy, nor to a pickle

    def __setstate__(self, state: dict[str, Any]) -> None:
        Ledger.__init__(self)
        self.load_state_dict(state)

    # Recording

    def watch(self, optimizer: Optimizer) -> RemovableHandle:
        """Enters every step of an optimizer from now on. The ledger must be told the batch before each, or it refuses.

        Args:
            optimizer: With a window or without. One that is watched already is not watched twice.

        Returns:
            A handle whose `remove()` ends this; that of an earlier call does nothing any more.
        """
        if (earlier := self._watched.get(optimizer)) is not None:
            earlier.remove()
        self._watched[optimizer] = handle = optimizer.register_step_pre_hook(self._enter)
        return handle

    @contextmanager
    def batch(self, id: int, rows: Iterable[int] | Tensor | None = None) -> Iterator[None]:
        """Says which batch the steps inside learn from.

        Args:
            id: The number of the batch.
            rows: Its examples. A batch that has been here before must have the same. None where they do not matter:
                the ledger can then answer for batches only.
        """
        id, examples = index(id), None if rows is None else whole_numbers(rows, "rows")
        if self._current is not None:
            raise RuntimeError(f"batch {self._current[0]} must end before batch {id} begins")
        if id in self._rows and self._rows[id] != examples:
            raise ValueError(f"rows must be those that batch {id} had before, got others; give it another number")
        self._current = id, examples
        try:
            yield
        finally:
            self._current = None

    @contextmanager
    def expect(self, id: int, rows: Iterable[int] | Tensor | None = None) -> Iterator[None]:
        """Says which batch the steps inside learn from, and raises where the ledger has seen no step at the end.

        Args:
            id: The number of the batch.
            rows: Its examples.
        """
        before = self._steps
        with self.batch(id, rows):
            yield
        if self._steps == before:  # nobody watches, or a CUDA graph took the step without calling hooks
            raise RuntimeError(f"the ledger must see a step of batch {id}: use ledger.watch(), and fit(capture=False)")

    def record(self, id: int, columns: Iterable[int], rows: Iterable[int] | Tensor | None = None) -> None:
        """Enters a step that was taken without an optimizer: columns that were computed from a batch.

        Args:
            id: The number of the batch.
            columns: Those that it could write.
            rows: Its examples; see `batch`.
        """
        with self.batch(id, rows):
            self._write(as_ranges(columns))

    def follow(self, stream: Stream) -> Following:
        """The batches of a stream, for `torchpfc.training.fit`; the ledger is told of each before its step.

        On a CUDA device call `fit` with `capture=False`: a recorded step calls no hooks, and moves no window.

        Args:
            stream: Where the batches come from.
        """
        return Following(self, stream)

    # Asking

    @property
    def steps(self) -> int:
        """How many steps have been entered."""
        return self._steps

    @property
    def next_id(self) -> int:
        """The lowest number above those of all batches."""
        return max(self._columns, default=-1) + 1

    @property
    def batches(self) -> list[int]:
        """The batches that were learned from, in ascending order."""
        return sorted(self._columns)

    def columns_of(self, batches: Iterable[int]) -> Ranges:
        """The columns that any of these batches could write.

        Args:
            batches: Their numbers. One that was never learned from adds nothing.
        """
        return merged(part for id in set(batches) for part in self._columns.get(id, ()))

    def columns_of_examples(self, rows: Iterable[int] | Tensor) -> Ranges:
        """The columns that any batch with one of these examples could write.

        Args:
            rows: The numbers of the examples.
        """
        return self.columns_of(self.batches_with(rows))

    def batches_of(self, columns: Iterable[int]) -> list[int]:
        """The batches that could write any of these columns, in ascending order.

        Args:
            columns: Their numbers.
        """
        asked = as_ranges(columns)
        return [id for id in self.batches if any(_overlap(a, b) for a in self._columns[id] for b in asked)]

    def writers(self, num_columns: int) -> list[list[int]]:
        """For each of the first columns the batches that could write it, as `batches_of` says, but all at once.

        Args:
            num_columns: How many columns.
        """
        found: list[list[int]] = [[] for _ in range(num_columns)]
        for id in self.batches:
            for part in self._columns[id]:
                for batches in found[part.start : part.stop]:
                    batches.append(id)
        return found

    def batches_with(self, rows: Iterable[int] | Tensor) -> list[int]:
        """The batches that hold any of these examples, in ascending order.

        Args:
            rows: The numbers of the examples.
        """
        asked = set(whole_numbers(rows, "rows"))
        return [id for id in self.batches if not asked.isdisjoint(self.rows_of(id))]

    def has_rows(self, id: int) -> bool:
        """Whether the ledger knows the examples of a batch.

        Args:
            id: The number of the batch.
        """
        return self._rows.get(id) is not None

    def rows_of(self, id: int) -> list[int]:
        """The examples of a batch.

        Args:
            id: The number of the batch.
        """
        if id not in self._rows:
            raise ValueError(f"id must be a batch that was learned from, got {id}")
        rows = self._rows[id]
        if rows is None:
            raise RuntimeError(f"batch {id} must be entered with its rows before the ledger can say which they are")
        return list(rows)

    def first_step(self, batches: Iterable[int]) -> int | None:
        """The first step that learned from any of these batches, counted from 0; None where there was none.

        Args:
            batches: Their numbers.
        """
        return min((self._first_steps[id] for id in set(batches) if id in self._first_steps), default=None)

    # Following changes of the columns

    def erase(self, columns: Iterable[int]) -> None:
        """Takes note that columns hold nothing of any batch any more.

        Args:
            columns: Their numbers.
        """
        erased = as_ranges(columns)
        self._columns = {id: _without(ranges, erased) for id, ranges in self._columns.items()}

    def columns_removed(self, columns: Iterable[int]) -> None:
        """Follows a removal of columns: those to their right have other numbers from then on.

        Columns that are added on the right need no such call.

        Args:
            columns: The numbers that the columns had before.
        """
        removed = as_ranges(columns)

        def shifted(edge: int) -> int:
            return edge - sum(len(range(gone.start, min(edge, gone.stop))) for gone in removed)

        self._columns = {
            id: merged(range(shifted(part.start), shifted(part.stop)) for part in ranges)
            for id, ranges in self._columns.items()
        }
        self._num_columns = shifted(self._num_columns)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """All that the ledger knows, as plain values for JSON."""
        return {
            "steps": self._steps,
            "num_columns": self._num_columns,
            "batches": [
                {
                    "id": id,
                    "first_step": self._first_steps[id],
                    "columns": [[part.start, part.stop] for part in ranges],
                    "rows": None if (rows := self._rows[id]) is None else list(rows),
                }
                for id, ranges in self._columns.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what was saved, in the place of what the ledger knew.

        Args:
            state: What `state_dict` gave.
        """
        batches = state["batches"]
        self._steps, self._num_columns, self._current = state["steps"], state["num_columns"], None
        self._columns = {batch["id"]: merged(range(*pair) for pair in batch["columns"]) for batch in batches}
        self._rows = {batch["id"]: None if batch["rows"] is None else list(batch["rows"]) for batch in batches}
        self._first_steps = {batch["id"]: batch["first_step"] for batch in batches}

    def _enter(self, optimizer: Optimizer, *_: Any) -> None:
        """Enters a step before it is taken: one that fails halfway is in the ledger too."""
        if self._current is None:
            raise RuntimeError(
                "the ledger must be told of a batch before a step: use ledger.batch() or ledger.follow()"
            )
        num_columns = _count_columns(optimizer)
        if num_columns < self._num_columns:
            raise RuntimeError(
                f"the ledger must be told when columns are removed ({self._num_columns} before, now {num_columns}): "
                "use ledger.columns_removed()"
            )
        reached: Ranges = (range(num_columns),)
        if isinstance(optimizer, WindowedOptimizer):
            reached = merged(reached[0][w.columns.start : w.columns.stop] for w in optimizer.windows)
        self._num_columns = num_columns
        self._write(reached)

    def _write(self, reached: Ranges) -> None:
        """Enters a step of the current batch."""
        assert self._current is not None
        id, rows = self._current
        self._columns[id] = merged((*self._columns.get(id, ()), *reached))
        self._rows[id] = rows
        self._first_steps.setdefault(id, self._steps)
        self._num_columns = max(self._num_columns, *(part.stop for part in reached), 0)
        self._steps += 1


class Following:
    """The batches of a stream, each announced to a ledger; what `Ledger.follow` gives."""

    def __init__(self, ledger: Ledger, stream: Stream) -> None:
        self._ledger, self._stream = ledger, stream

    def __len__(self) -> int:
        return len(self._stream)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self._stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[StreamBatch]:
        for id, batch in zip(self._stream.ids, self._stream, strict=True):
            with self._ledger.expect(id, self._stream.rows_of(id)):
                yield batch


def merged(ranges: Iterable[range]) -> Ranges:
    """The union of ranges, as few as possible, in ascending order."""
    result: list[range] = []
    for part in sorted((part for part in ranges if part), key=lambda part: part.start):
        if result and part.start <= result[-1].stop:
            result[-1] = range(result[-1].start, max(result[-1].stop, part.stop))
        else:
            result.append(part)
    return tuple(result)


def as_ranges(columns: Iterable[int]) -> Ranges:
    """Numbers of columns as ranges.

    Example:
        >>> as_ranges([7, 3, 4])
        (range(3, 5), range(7, 8))
    """
    found = sorted({index(column) for column in columns})
    if found and found[0] < 0:
        raise ValueError(f"columns must be non-negative, got {found[0]}")
    return merged(range(column, column + 1) for column in found)


def _without(ranges: Ranges, erased: Ranges) -> Ranges:
    for gone in erased:
        ranges = tuple(
            rest
            for part in ranges
            for rest in (range(part.start, min(part.stop, gone.start)), range(max(part.start, gone.stop), part.stop))
            if rest
        )
    return ranges


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def whole_numbers(numbers: Iterable[int] | Tensor, name: str) -> list[int]:
    """Numbers as ints; `TypeError` for one that is not whole by its type, which would be another when cut off.

    Args:
        numbers: The numbers.
        name: What they are called.
    """
    found = []
    for number in numbers.tolist() if isinstance(numbers, Tensor) else numbers:
        try:
            found.append(index(number))
        except TypeError:
            raise TypeError(f"{name} must be whole numbers, got {number!r}") from None
    return found


def _count_columns(optimizer: Optimizer) -> int:
    shapes: list[tuple[int, ...]] = [tuple(p.shape) for group in optimizer.param_groups for p in group["params"]]
    return max(shape[-1] for shape in shapes if shape)
