"""What can happen to a process while it writes: it is killed, the disk is full, the folder cannot be written to.

Nothing here knows the library: it listens to what the interpreter tells about files, so that code under test needs no
hook. A boundary is the moment before something on the disk changes.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "os.symlink"}
NEEDS_ROOM = {"open", "fsync", "os.mkdir", "os.link", "os.symlink"}

Harm = Callable[[int, str], None]
"""Called at each boundary with its number, from 1, and with what is about to happen; may raise, or not come back."""


class Boundaries:
    """Counts the boundaries of this process inside a folder, and does harm at one of them.

    Args:
        folder: Changes elsewhere do not count.
        harm: What to do at each.
    """

    def __init__(self, folder: Path, harm: Harm) -> None:
        self.count = 0
        self._folder, self._harm, self._fsync = str(folder), harm, os.fsync
        sys.addaudithook(self._hear)
        os.fsync = self._pass_on  # which is no event

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(self._folder):
                self._meet(event)
        elif event in CHANGES and (not str(arguments[0]).startswith("/") or self._folder in str(arguments[0])):
            self._meet(event)

    def _pass_on(self, number: Any) -> None:
        self._meet("fsync")
        self._fsync(number)

    def _meet(self, event: str) -> None:
        self.count += 1
        self._harm(self.count, event)


def undisturbed(act: Callable[[Path], int], folder: Path, *_: object) -> int:
    """Acts, and leaves a note of how many boundaries there were."""
    boundaries = Boundaries(folder, lambda number, event: None)
    status = act(folder)
    folder.with_suffix(".count").write_text(str(boundaries.count))
    return status


def killed_at(act: Callable[[Path], int], folder: Path, number: int) -> int:
    """Acts, and is killed at a boundary."""

    def kill(at: int, event: str) -> None:
        if at == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Boundaries(folder, kill)
    return act(folder)


def full_from(act: Callable[[Path], int], folder: Path, number: int) -> int:
    """Acts, and finds no room from a boundary on."""

    def refuse(at: int, event: str) -> None:
        if at >= number and event in NEEDS_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Boundaries(folder, refuse)
    return act(folder)


def read_only_from(act: Callable[[Path], int], folder: Path, number: int) -> int:
    """Acts, in a folder in which nothing can be changed from a boundary on."""

    def refuse(at: int, event: str) -> None:
        if at >= number:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    Boundaries(folder, refuse)
    return act(folder)


def small_files(act: Callable[[Path], int], folder: Path, size: int) -> int:
    """Acts, and no file can have more than some bytes: what is too large ends halfway."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return act(folder)
