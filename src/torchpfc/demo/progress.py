"""A bar that says what the demo is doing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

Tick = Callable[[float], None]
"""Told the share of a stage that is done, from 0 to 1."""


class Progress:
    """A progress bar over stages.

    Args:
        stages: What will be done, in a few words, and the seconds that each is expected to take.

    Example:
        >>> with Progress({"Counting": 3.0}) as progress, progress.stage("Counting") as tick:
        ...     tick(0.5)
    """

    def __init__(self, stages: Mapping[str, float]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
        self._bar = Bar(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("Starting", total=sum(stages.values()))
        self._stages = stages
        self._done = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._bar.update(self._task, description="Done" if error is None else "Stopped")
        self._bar.stop()

    @contextmanager
    def stage(self, name: str) -> Iterator[Tick]:
        """Shows what is being done.

        Args:
            name: One of the stages.

        Yields:
            What to call now and then with the share that is done. The stage may also end early.
        """
        start, seconds = self._done, self._stages[name]

        def tick(share: float) -> None:
            self._bar.update(self._task, completed=start + share * seconds)

        self._bar.update(self._task, description=name)
        yield tick
        self._done = start + seconds
        tick(1)
