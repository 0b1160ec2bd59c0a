"""Runs that are stopped, and go on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.paper.made import numbers
from torchpfc.paper.results import Result
from torchpfc.paper.stack_run import StackRun


class Killed(BaseException):
    """Ends a run."""


def stop_at(share: float) -> Callable[[float], None]:
    """Ends a run that tells how far it is once more than a share is done."""

    def tick(done: float) -> None:
        if done > share:
            raise Killed

    return tick


def assert_same_bits_when_stopped(
    kind: type[StackRun], number: int, run: Callable[[Path], list[Result]], folder: Path
) -> None:
    """Runs once as a whole, and once with a stop after a round of that number, before anything of it is saved."""
    whole = [numbers(result) for result in run(folder / "whole")]
    examine = kind.examine

    def stopping(self: StackRun, stats: Any) -> Any:
        if stats.epoch == number:
            raise Killed
        return examine(self, stats)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "examine", stopping)
        with pytest.raises(Killed):
            run(folder / "stopped")
    assert [numbers(result) for result in run(folder / "stopped")] == whole
