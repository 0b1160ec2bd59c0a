"""Downloads of data sets from their public addresses."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchpfc.data.formats import DataError
from torchpfc.data.images import cache_folder
from torchpfc.data.songs import EXCERPTS, has_sound_excerpts, unpack_excerpts
from torchpfc.locks import HeldError, held
from torchpfc.progress import Progress

TIMEOUT_SECONDS = 30.0
"""How long a server may stay silent."""

MAX_ATTEMPTS = 50
"""How often one address is asked for one file, as long as every attempt brings more of it."""

CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class RemoteFile:
    """A file to download.

    Args:
        path: Where in the data folder it belongs.
        sha256: Its checksum; None for an archive of files that are checked one by one.
        urls: Addresses that have it, tried in this order.
        unpack: Puts what it holds in its place and deletes it, or deletes it and raises a `DataError`.
    """

    path: str
    sha256: str | None
    urls: tuple[str, ...]
    unpack: Callable[[Path], None] | None = None


def _idx_files(folder: str, mirrors: tuple[str, ...], checksums: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{folder}/{name}", sha256, tuple(mirror + name for mirror in mirrors))
        for name, sha256 in checksums.items()
    )


# The checksums are those that TensorFlow Datasets lists for these files.
DOWNLOADS: Mapping[str, tuple[RemoteFile, ...]] = {
    "mnist": _idx_files(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": _idx_files(
        "fashion-mnist",
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
            "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",  # as Keras
        ),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": (
        RemoteFile(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        ),
    ),
}
"""What each set of images consists of."""

EXCERPTS_ARCHIVE = RemoteFile(
    "MUSDB18-7-STEMS.zip",
    None,
    (
        "https://github.com/sigsep/sigsep-mus-db/releases/download/v0.4.0/MUSDB18-7-STEMS.zip",  # as the package musdb
        "https://zenodo.org/records/3270814/files/MUSDB18-7-STEMS.zip",
    ),
    unpack_excerpts,
)
"""The seven-second excerpts of MUSDB18."""


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
        HeldError: Where another process downloads the same file at the moment.
    """
    if name not in DOWNLOADS:
        raise DataError(f"name must be one of {', '.join(DOWNLOADS)}, got {name!r}")
    folder = cache_folder() if folder is None else folder
    for file in DOWNLOADS[name]:
        _fetch(file, folder / file.path)
    return folder / Path(DOWNLOADS[name][0].path).parts[0]


def download_songs(folder: Path | None = None) -> Path:
    """Downloads the seven-second excerpts of MUSDB18, which are for research only, unless they are there already.

    The folder appears when all of it has arrived and the checksum of each song is right. Until then the archive grows
    as a `.part` beside, from where a download that was interrupted goes on. Of a folder that is there, songs that are
    missing or damaged are replaced, and all other files stay.

    Args:
        folder: The data folder to put them into, made if need be. `None` takes the cache folder.

    Returns:
        The folder `musdb18-7s`, with the songs in `train` and `test`.

    Raises:
        DataError: As `download_images` does.
    """
    folder = cache_folder() if folder is None else folder
    if not has_sound_excerpts(folder / EXCERPTS):
        _fetch(EXCERPTS_ARCHIVE, folder / EXCERPTS_ARCHIVE.path)
    return folder / EXCERPTS


class _Trouble(Exception):
    """Why an address did not give a file.

    Args:
        reason: For the message.
        again: Whether to ask the same address once more.
    """

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


def _fetch(file: RemoteFile, target: Path) -> None:
    lock = target.with_name(f".{target.name}.lock")
    if file.sha256 and _sha256(target) == file.sha256:
        if lock.exists():  # of a process that was killed, or of one that is about to end
            with suppress(HeldError, OSError), held(lock, str(target)):
                pass
        return
    troubles = []
    try:
        with held(lock, str(target)), Progress(1.0, target.name) as progress:
            for url in file.urls:
                try:
                    return _try_address(url, file, target, progress)
                except _Trouble as trouble:
                    troubles.append(f"{url}: {trouble}")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "make room and run the command again, which goes on where it stopped"
            raise DataError(f"{target.parent} must have room for {target.name}, got a full disk; {advice}") from None
        reason = error.strerror or error
        raise DataError(f"{target.parent} must be a folder that can be written to, got {reason}") from None
    advice = "check the connection and run the command again, which goes on where it stopped"
    raise DataError(f"{target} must be downloaded, got no good file ({'; '.join(troubles)}); {advice}")


def _try_address(url: str, file: RemoteFile, target: Path, progress: Progress) -> None:
    """Asks one address for a file, again and again while that helps."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return _retrieve(url, file, target, progress)
        except _Trouble as trouble:
            if not trouble.again or attempt == MAX_ATTEMPTS:
                raise


def _retrieve(url: str, file: RemoteFile, target: Path, progress: Progress) -> None:
    part = target.with_name(f"{target.name}.part")
    unpacked_before = target.exists() and not file.sha256  # an archive that an earlier call could not unpack
    goes_on = part.exists() or unpacked_before
    try:
        if not unpacked_before:
            _receive(url, part, progress)
            _name(part, file, target)
        if file.unpack is not None:
            file.unpack(target)
    except ValueError as error:
        # Where it went on from an earlier part, that may have been the wrong one: start from nothing.
        raise _Trouble(f"{error}, so it was deleted", again=goes_on) from None


def _name(part: Path, file: RemoteFile, target: Path) -> None:
    """Gives what has arrived its name, if it is what was wanted, and deletes it otherwise."""
    got = _sha256(part)
    if file.sha256 and got != file.sha256:
        part.unlink()
        raise DataError(f"{target.name} must have the SHA-256 {file.sha256}, got {got}")
    os.replace(part, target)


def _sha256(path: Path) -> str | None:
    """The checksum of a file; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receive(url: str, part: Path, progress: Progress) -> None:
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
                    progress.at(done / total if total else 0.0, f"{part.stem}, {done / 1e6:,.1f} MB")
                file.flush()
                os.fsync(file.fileno())  # or a power cut could leave the name on an empty file
    except requests.Timeout:
        raise _Trouble(f"no answer within {TIMEOUT_SECONDS:g} seconds", again=False) from None
    except requests.RequestException as error:
        raise _Trouble(f"no connection ({type(error).__name__})", again=False) from None
    except BrokenConnection:
        size = part.stat().st_size
        raise _Trouble(f"the connection was lost after {size:,} bytes", again=size > start) from None
