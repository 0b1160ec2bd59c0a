"""Runs of recurrent networks that are stopped, and go on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.made import numbers
from torchpfc.experiments.recurrent_training import RecurrentRun
from torchpfc.experiments.results import Result


def assert_same_bits_when_stopped(
    kind: type[RecurrentRun], number: int, run: Callable[[Path], list[Result]], folder: Path
) -> None:
    """Runs once as a whole, and once with a stop after a round of that number, before anything of it is saved."""
    whole = [numbers(result) for result in run(folder / "whole")]
    examine = kind.examine

    def stopping(self: RecurrentRun, stats: Any) -> Any:
        if stats.epoch == number:
            raise KeyboardInterrupt
        return examine(self, stats)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "examine", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(folder / "stopped")
    assert [numbers(result) for result in run(folder / "stopped")] == whole
