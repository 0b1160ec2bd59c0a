import sys
from collections.abc import Iterator
from typing import Any

import pytest

from torchpfc import progress
from torchpfc.progress import Progress, Ticking


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_without_a_terminal_there_is_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(200.0, lines=True) as shown:
        shown.at(10.0, "learning")
        assert capsys.readouterr().err == ""
        clock.now = 31.0
        shown.part(50.0, 100.0)(0.5)
        shown.at(101.0)
        assert capsys.readouterr().err == " 50 %  learning\n"
        clock.now = 62.0
        shown.at(200.0)
        shown.note("a result")
    assert capsys.readouterr() == ("", "100 %  learning\na result\n")


def test_other_processes_are_quiet(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(0.0, show=False, lines=False) as shown:
        clock.now = 99.0
        shown.at(0.0, "learning")
        shown.note("a result")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_after_two_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Progress(2.0) as shown:
        shown.at(0.0, "learning")
        assert capsys.readouterr().err == ""  # it may be over in a moment
        clock.now = 2.5
        shown.at(1.0)
        shown.note("a [result]")
        shown.at(2.0)
        bar: Any = shown._bar
        assert bar.tasks[0].finished
    written = capsys.readouterr()
    assert "a [result]" in written.err and "learning" in written.err and "100%" in written.err and written.out == ""


def test_ticking_says_after_each_batch_how_far_it_is() -> None:
    class Three:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[str]:
            return iter("abcd")

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    told: list[float] = []
    inner = Three()
    ticking = Ticking(inner, told.append)
    ticking.set_epoch(2)
    for k, letter in enumerate(ticking):
        assert letter == "abcd"[k] and len(told) == k  # told when a batch has been used, not before
    assert told == [2.25, 2.5, 2.75, 3.0]
    assert inner.epochs == [2]
