"""Locks: what one process works on no other touches, and who comes second is told who it is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path


class HeldError(RuntimeError):
    """Another process works on it; the message says which, on what machine, and since when."""


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Holds a lock inside, which ends with the process that holds it, however that ends.

    Args:
        path: The file of the lock; its folder is made if need be. The file goes when the lock does; one that was left
            behind by a process that is gone is taken over. A file beside it, which ends in `.owner`, says who holds it.
        what: What it is about, for the message.

    Raises:
        HeldError: Where another process holds it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, held(Path(folder) / "a.lock", "a"):
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['a.lock', 'a.lock.owner']
    """
    from filelock import FileLock, Timeout

    owner = path.with_name(f"{path.name}.owner")
    lock = FileLock(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except FileNotFoundError:  # who was the last to hold a lock in it has just removed the folder
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
    except Timeout:
        raise HeldError(f"{what} must be free, got held by {_read(owner)}; wait for that, or end it") from None
    try:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):  # while it is held: who opens the file meanwhile finds it without a name, and makes one
            owner.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        lock.release()


def _read(owner: Path) -> str:
    try:
        return " ".join(owner.read_text(encoding="utf-8").split()) or "another process"
    except (OSError, ValueError):  # it has only just been taken
        return "another process"
