"""Single files: written whole or not at all, and read with care, since they may come from strangers."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_JSON = 32 * 2**20
"""Bytes of JSON that are read at most."""

MOST_BRACKETS = 2_000_000
"""Lists and objects in it at most."""

MOST_LEVELS = 50
"""Lists and objects inside each other at most."""


_LONGEST_REASON = 300


class CorruptFileError(ValueError):
    """A file is not what was written; the message names it and says what to do."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file so that whoever looks, at any moment, finds the old content or the new, and never a part.

    Args:
        path: The file; its folder is made if need be.
        content: All of it; text is written as UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the new name on an empty file
        os.replace(unfinished, path)
        remove_abandoned(path.parent, path.name)
    except OSError as error:
        raise _naming(error, path) from None  # a full disk does not say which file it was
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raises `OSError` where `write_atomically` could not begin: asked before work whose result it is to hold.

    Args:
        path: The file, which stays as it is.
    """
    unfinished = _unfinished(path)
    try:
        unfinished.touch()
        unfinished.unlink()
    except OSError as error:
        raise _naming(error, path) from None


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Removes what processes that are gone had begun to write: it may hold weights and examples.

    Args:
        folder: Which the processes of one machine write.
        name: Of the file that they had begun; by default that of any.
    """
    for path in folder.glob(".*" if name is None else f".{glob.escape(name)}.*"):
        found = re.fullmatch(r"\..+\.(\d{1,9})", path.name)
        if found and not _is_running(int(found[1])):
            path.unlink(missing_ok=True)


def read_regular(path: Path, most: int) -> bytes:
    """Reads a file that is one: no link, which may lead anywhere, no pipe and no device, which may never end.

    Args:
        path: The file.
        most: How large it may be.
    """
    try:
        number = os.open(path, os.O_RDONLY | _CAREFULLY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptFileError(
                f"{path} must be a file, got a link or a socket; put the file itself there"
            ) from None
        raise
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptFileError(f"{path} must be a file, got a folder, a pipe or a device; delete it")
        if found.st_size > most:
            raise CorruptFileError(f"{path} must have at most {most} bytes, got {found.st_size}; delete it")
        with open(number, "rb", closefd=False) as file:
            return file.read(found.st_size)
    finally:
        os.close(number)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object, and says which file is at fault where there is none.

    Args:
        path: The file.
    """
    data = read_regular(path, MOST_JSON)
    try:
        content = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} must hold JSON ({error}); delete it to have it made again") from None
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} must hold a JSON object, got a {type(content).__name__}; delete it")
    return content


def parse_json(data: bytes) -> Any:
    """What JSON says; `ValueError` or `RecursionError` where it is none, or larger or deeper than what is read.

    Args:
        data: The JSON.
    """
    if len(data) > MOST_JSON:
        raise ValueError(f"more than {MOST_JSON} bytes")
    if data.count(b"[") + data.count(b"{") > MOST_BRACKETS:  # before anything is made of them
        raise ValueError(f"more than {MOST_BRACKETS} lists and objects")
    content = json.loads(data.decode())
    _check_levels([content], MOST_LEVELS)
    return content


def _check_levels(items: Iterable[Any], levels: int) -> None:
    if not levels:
        raise ValueError(f"more than {MOST_LEVELS} lists and objects inside each other")
    for item in items:
        if isinstance(item, dict | list):
            _check_levels(item.values() if isinstance(item, dict) else item, levels - 1)


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Says in one line that a folder does not hold what it should, whatever goes wrong inside with what was read.

    Args:
        folder: Where it was read from.
        what: What the folder should hold.

    Example:
        >>> with reading(Path("models/a"), "a model"):
        ...     {}["weights"]
        Traceback (most recent call last):
        torchpfc.checkpoint.files.CorruptFileError: models/a must hold a model ('weights'); delete the folder ...
    """
    try:
        yield
    except (CorruptFileError, ImportError, MemoryError):  # the last two are no faults of the folder
        raise
    except Exception as error:  # what strangers write can make any of them
        reason, _, _ = str(error).partition("\n")  # which may repeat what was read
        raise CorruptFileError(f"{folder} must hold {what} ({reason[:_LONGEST_REASON]}); {remedy(folder)}") from None


def remedy(folder: Path) -> str:
    """What to do about a folder that is damaged."""
    return f"delete the folder {folder} to start from the beginning, or save again what it held"


# Never through a link, and never waiting for the other end of a pipe. Windows has neither name, nor such pipes.
_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return True  # signal 0 asks only here: elsewhere it ends the process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # of somebody else
    return True


def _naming(error: OSError, path: Path) -> OSError:
    return OSError(error.errno, error.strerror or str(error), str(path))
