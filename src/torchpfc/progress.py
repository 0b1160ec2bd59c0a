"""How far something is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

_SECONDS_BEFORE_BAR = 2.0
_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """What is going on, how much of it is done, and how long the rest may take.

    Args:
        total: The amount of work, in any unit.
        label: What is going on.
        show: True shows a bar at once, False nothing ever, None a bar on a terminal after two seconds. Without rich
            there is none.
        lines: Whether to print a line now and then where there is no bar.

    Example:
        >>> with Progress(3.0, "Counting") as progress:
        ...     progress.at(1.5)
    """

    def __init__(self, total: float, label: str = "", *, show: bool | None = None, lines: bool = False) -> None:
        self._total, self._label = max(total, 1e-9), label
        self._quiet = show is False
        has_bar = (sys.stderr.isatty() if show is None else show) and importlib.util.find_spec("rich") is not None
        self._bar_from = time.monotonic() + (0.0 if show else _SECONDS_BEFORE_BAR) if has_bar else math.inf
        self._line_from = time.monotonic() + _SECONDS_BETWEEN_LINES if lines and not has_bar else math.inf
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, done: float, label: str | None = None) -> None:
        """Says how much of the work is done by now, and what is going on if that is something else than before."""
        self._label = self._label if label is None else label
        now = time.monotonic()
        if now >= self._bar_from:
            if self._bar is None:
                self._bar = _make_bar(self._total)
                self._bar.start()
            self._bar.update(self._bar.task_ids[0], completed=done, description=self._label)
        elif now >= self._line_from:
            self._line_from = now + _SECONDS_BETWEEN_LINES
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


class Ticking:
    """The same batches, telling after each how many epochs are done, as a fraction.

    Args:
        batches: To go through; with a length, and a method `set_epoch`.
        tick: Told.
    """

    def __init__(self, batches: Any, tick: Callable[[float], None]) -> None:
        self._batches, self._tick, self._epoch = batches, tick, 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self._epoch = epoch
        self._batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        for k, batch in enumerate(self._batches, start=1):
            yield batch
            self._tick(self._epoch + k / len(self._batches))


def _make_bar(total: float) -> Any:
    from rich import progress as rich
    from rich.console import Console

    columns = rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn()
    bar = rich.Progress(rich.TextColumn("{task.description}"), *columns, console=Console(stderr=True))
    bar.add_task("", total=total)
    return bar
