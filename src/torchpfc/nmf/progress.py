"""A progress bar for whoever waits."""

from __future__ import annotations

import importlib.util
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress

_SECONDS_BEFORE_BAR = 2.0


class ProgressBar:
    """Shows how many iterations are done, and the objective, on stderr.

    Args:
        total: Iterations at most.
        wanted: True shows a bar at once, False never, None on a terminal after two seconds. Without rich there is none.
    """

    def __init__(self, total: int, wanted: bool | None) -> None:
        self.finished = 0
        self._total = total
        self._possible = wanted or (wanted is None and sys.stderr.isatty())
        self._possible = self._possible and importlib.util.find_spec("rich") is not None
        self._shown_from = time.perf_counter() + (0.0 if wanted else _SECONDS_BEFORE_BAR)
        self._show: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def update(self, iteration: int, objective: float) -> None:
        """Moves the bar, `finished` iterations further on, and opens it when it is time."""
        if not self._possible or time.perf_counter() < self._shown_from:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        if self._show is None:
            columns = (BarColumn(), TextColumn("{task.completed} of {task.total}"), TimeElapsedColumn())
            text = TextColumn("objective {task.description}")
            self._show = Progress(*columns, text, console=Console(stderr=True))
            self._show.add_task("", total=self._total)
            self._show.start()
        self._show.update(self._show.task_ids[0], completed=self.finished + iteration, description=f"{objective:.6g}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._show is not None:
            self._show.stop()
