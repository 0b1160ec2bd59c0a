"""How far an experiment is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

_SECONDS_BETWEEN_LINES = 30.0

T = TypeVar("T", covariant=True)


class Progress:
    """What is going on, how much of it is done, and how long the rest may take.

    Args:
        total: The amount of work, in any unit.
        quiet: Show nothing, as all processes but the first do.
    """

    def __init__(self, total: float, *, quiet: bool = False) -> None:
        self._total, self._quiet, self._label = max(total, 1e-9), quiet, ""
        self._last_line = time.monotonic()
        self._bar = None if quiet or not sys.stderr.isatty() else _make_bar(self._total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def describe(self, label: str) -> None:
        """Says what is going on."""
        self._label = label
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=label)

    def at(self, done: float) -> None:
        """Says how much of the work is done by now."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
        elif not self._quiet and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(f"{100 * done / self._total:3.0f} %  {self._label}", file=sys.stderr, flush=True)

    def part(self, start: float, amount: float) -> Callable[[float], None]:
        """What to tell the share of a part of the work to."""
        return lambda share: self.at(start + share * amount)

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)


class _Epochs(Protocol[T]):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T]: ...
    def set_epoch(self, epoch: int) -> None: ...


class Ticking(Generic[T]):
    """The same batches, telling after each how many epochs are done, as a fraction.

    Args:
        batches: To go through.
        tick: Told.
    """

    def __init__(self, batches: _Epochs[T], tick: Callable[[float], None]) -> None:
        self._batches, self._tick, self._epoch = batches, tick, 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self._epoch = epoch
        self._batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[T]:
        for k, batch in enumerate(self._batches, start=1):
            yield batch
            self._tick(self._epoch + k / len(self._batches))


def _make_bar(total: float) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    bar = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True))
    bar.add_task("Starting", total=total)
    return bar
