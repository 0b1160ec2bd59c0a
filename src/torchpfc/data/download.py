"""Downloads of the image data sets from their public addresses."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchpfc.data.formats import DataError
from torchpfc.data.images import cache_folder

TIMEOUT_SECONDS = 30.0
"""How long a server may stay silent."""

MAX_ATTEMPTS = 50
"""How often one address is asked for one file, as long as every attempt brings more of it."""

CHUNK_BYTES = 1 << 16

Report = Callable[[int, int | None], None]
"""Told the bytes that have arrived, and how many there will be where that is known."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to download.

    Args:
        path: Where in the data folder it belongs.
        md5: Its checksum.
        urls: Addresses that have it, tried in this order.
    """

    path: str
    md5: str
    urls: tuple[str, ...]


def _idx_files(folder: str, mirrors: tuple[str, ...], checksums: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{folder}/{name}", md5, tuple(mirror + name for mirror in mirrors))
        for name, md5 in checksums.items()
    )


DOWNLOADS: Mapping[str, tuple[RemoteFile, ...]] = {
    "mnist": _idx_files(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": _idx_files(
        "fashion-mnist",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": (
        RemoteFile(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        ),
    ),
}
"""What each data set consists of."""


def download_images(name: str, folder: Path | None = None) -> Path:
    """Downloads a data set for `load_images`, unless it is there already.

    A file appears under its name when all of it has arrived and its checksum is right. Until then it grows as a `.part`
    beside, and a download that was interrupted, even by the end of the process, goes on from there. A file of that name
    with another checksum is replaced.

    Args:
        name: `mnist`, `fashion-mnist` or `cifar10`.
        folder: The data folder to put it into, made if need be. `None` takes the cache folder, where `load_images`
            finds it by itself.

    Returns:
        What was downloaded: the folder that holds the files of MNIST and Fashion-MNIST, or the archive of CIFAR-10.

    Raises:
        DataError: Where no address has the file, the checksum is wrong, the network is out of reach or the disk full.
    """
    if name not in DOWNLOADS:
        raise DataError(f"name must be one of {', '.join(DOWNLOADS)}, got {name!r}")
    folder = cache_folder() if folder is None else folder
    with _progress() as add_file:
        for file in DOWNLOADS[name]:
            _fetch(file, folder / file.path, add_file(Path(file.path).name))
    return folder / Path(DOWNLOADS[name][0].path).parts[0]


class _Trouble(Exception):
    """Why an address did not give a file.

    Args:
        reason: For the message.
        again: Whether to ask the same address once more.
    """

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


def _fetch(file: RemoteFile, target: Path, report: Report) -> None:
    troubles = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in file.urls:
            trouble = _try_address(url, file.md5, target, report)
            if trouble is None:
                return
            troubles.append(f"{url}: {trouble}")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "make room and run the command again, which goes on where it stopped"
            raise DataError(f"{target.parent} must have room for {target.name}, got a full disk; {advice}") from None
        reason = error.strerror or error
        raise DataError(f"{target.parent} must be a folder that can be written to, got {reason}") from None
    advice = "check the connection and run the command again, which goes on where it stopped"
    raise DataError(f"{target} must be downloaded, got no good file ({'; '.join(troubles)}); {advice}")


def _try_address(url: str, md5: str, target: Path, report: Report) -> _Trouble | None:
    """Asks one address for a file, again and again while that helps, and returns why it gave up."""
    trouble = None
    for _ in range(MAX_ATTEMPTS):
        try:
            _retrieve(url, md5, target, report)
        except _Trouble as error:
            trouble = error
            if not trouble.again:
                break
        else:
            return None
    return trouble


def _retrieve(url: str, md5: str, target: Path, report: Report) -> None:
    import pooch

    part = target.with_name(f"{target.name}.part")
    goes_on = part.exists()

    def download(url: str, output_file: str, _: object) -> None:
        _receive(url, part, report)
        os.replace(part, output_file)  # pooch checks it there, and gives it its name or deletes it

    with _quiet(pooch.get_logger()):
        try:
            pooch.retrieve(url, f"md5:{md5}", fname=target.name, path=target.parent, downloader=download)
        except ValueError as error:
            reason, _, _ = str(error).partition(". Deleted")
            # Where it went on from an earlier part, that may have been the wrong one: start from nothing.
            raise _Trouble(f"{reason}, so it was deleted", again=goes_on) from None


def _receive(url: str, part: Path, report: Report) -> None:
    """Appends to a file what it still lacks, or writes all of it where the server cannot send the rest alone."""
    import requests
    from urllib3.exceptions import HTTPError as BrokenConnection

    start = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            if start and response.status_code == requests.codes.requested_range_not_satisfiable:
                return  # there is no more of it, so the checksum shall say what this is
            if not response.ok:
                raise _Trouble(f"status {response.status_code} {response.reason}", again=False)
            done = start if response.status_code == requests.codes.partial_content else 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            with part.open("ab" if done else "wb") as file:
                # Undecoded: the checksum is that of the gzip file, also where a server offers to unpack it on the way.
                for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                    file.write(chunk)
                    done += len(chunk)
                    report(done, total)
    except requests.Timeout:
        raise _Trouble(f"no answer within {TIMEOUT_SECONDS:g} seconds", again=False) from None
    except requests.RequestException as error:
        raise _Trouble(f"no connection ({type(error).__name__})", again=False) from None
    except BrokenConnection:
        size = part.stat().st_size
        raise _Trouble(f"the connection was lost after {size:,} bytes", again=size > start) from None


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _progress() -> Iterator[Callable[[str], Report]]:
    """A bar for each file, where there is a terminal to show it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()

    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:

        def add_file(name: str) -> Report:
            task = bars.add_task(name, visible=False, total=None)  # seen once there is something to wait for

            def report(done: int, total: int | None) -> None:
                bars.update(task, completed=done, total=total, visible=True)

            return report

        yield add_file
