"""The seven-second excerpts of MUSDB18: which files they are, whether they are all there, and how they are unpacked."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from torchpfc.data.formats import DataError
from torchpfc.data.images import download_command

EXCERPTS = "musdb18-7s"
"""What the excerpts and their folder are called."""

STEM_FILE = ".stem.mp4"
"""How the name of a file of MUSDB18 ends."""

EXCERPT_BYTES = 1_121_973
"""The size of the largest excerpt."""


@cache
def excerpt_checksums() -> Mapping[str, str]:
    """SHA-256 of each excerpt, by its path in the folder: 94 in `train` and 50 in `test`."""
    lines = files("torchpfc.data").joinpath(f"{EXCERPTS}.sha256").read_text(encoding="utf-8").splitlines()
    return {path: sha256 for sha256, path in (line.split("  ", 1) for line in lines)}


def check_excerpts(folder: Path) -> None:
    """Refuses a copy of the excerpts that lacks songs, be they stem files or folders of WAV files.

    Args:
        folder: Should have all of them in `train` and `test`.

    Raises:
        DataError: Names a song that is missing, and says how many others are.
    """
    paths = excerpt_checksums()
    missing = [path for path in paths if not any((folder / p).exists() for p in (path, path.removesuffix(STEM_FILE)))]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        wanted = f"the {len(paths)} excerpts of MUSDB18, got no {missing[0]}{others}"
        raise DataError(f"{folder} must have {wanted}; run `{download_command(EXCERPTS, folder.parent)}`")


def has_sound_excerpts(folder: Path) -> bool:
    """Whether all excerpts are there as they were published."""
    return all(
        (folder / path).is_file() and hashlib.sha256((folder / path).read_bytes()).hexdigest() == sha256
        for path, sha256 in excerpt_checksums().items()
    )


def unpack_excerpts(archive: Path) -> None:
    """Unpacks the excerpts into the folder `musdb18-7s` beside the archive, all of them or none.

    What else is in that folder stays there.

    Args:
        archive: The ZIP file that they are published as. It is deleted, also where it is no good.

    Raises:
        DataError: Where an excerpt is missing, or is not the published one.
    """
    with TemporaryDirectory(prefix=f".{EXCERPTS}.", dir=archive.parent) as scratch:
        unpacked = Path(scratch) / EXCERPTS
        try:
            _unpack(archive, unpacked)
        except DataError:
            archive.unlink()
            raise
        folder = archive.parent / EXCERPTS
        if folder.exists():
            for path in excerpt_checksums():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(unpacked / path, folder / path)
        else:
            os.replace(unpacked, folder)
    archive.unlink()


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with ZipFile(archive) as packed:
            for path, sha256 in excerpt_checksums().items():
                if (size := packed.getinfo(path).file_size) > EXCERPT_BYTES:  # a few bytes can unpack to any number
                    wanted = f"at most {EXCERPT_BYTES:,} bytes, as every excerpt has"
                    raise DataError(f"{path} in {archive.name} must hold {wanted}, got {size:,}")
                content = packed.read(path)
                if hashlib.sha256(content).hexdigest() != sha256:
                    raise DataError(f"{path} in {archive.name} must have the SHA-256 {sha256}, got another")
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
    except KeyError as error:
        raise DataError(f"{archive.name} must hold the excerpts of MUSDB18 ({error.args[0]})") from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataError(f"{archive.name} must be a ZIP file that can be read to its end ({error})") from None
