"""The files that image data sets come in: IDX for MNIST and its kin, batches of records for CIFAR-10."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_CLASSES = 10
"""Classes of every set that is read here."""

IDX_SIDE = 28
CIFAR10_SHAPE = (3, 32, 32)
CIFAR10_PIXELS = math.prod(CIFAR10_SHAPE)
CIFAR10_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10_TEST = "test_batch"

# What files hold once they are unpacked, at most. A small file can unpack to more than a machine has room for.
IDX_BYTES = {1: 8 + 60_000, 3: 16 + 60_000 * IDX_SIDE**2}  # by the number of dimensions: labels, images
CIFAR10_BYTES = 32_000_000  # a batch as records has 30.7 MB, and as a pickle 31.0
CIFAR10_ARCHIVE_BYTES = 200_000_000  # all batches with what belongs to them have 184 MB, and as pickles 186


class DataError(ValueError):
    """A data set is missing, damaged or out of reach; the message names the file and says what to do."""


class Examples(NamedTuple):
    r"""Images and what they show, in bytes as the files have them.

    Shape:
        - pixels: $(n, \text{channels}, \text{rows}, \text{columns})$
        - label: $(n)$
    """

    pixels: NDArray[np.uint8]
    label: NDArray[np.uint8]


class Parts(NamedTuple):
    """A data set: what to learn from, and what to report on."""

    train: Examples
    test: Examples


def read_idx(folder: Path) -> Parts:
    """Reads the four IDX files of MNIST or Fashion-MNIST.

    Args:
        folder: Holds them, each compressed with gzip or not, as `train-images-idx3-ubyte` or `train-images.idx3-ubyte`.
    """
    return Parts(_read_idx_pair(folder, "train"), _read_idx_pair(folder, "t10k"))


def read_cifar10_binary(folder: Path) -> Parts:
    """Reads the binary layout of CIFAR-10.

    Args:
        folder: Holds `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, compressed with gzip or not.
    """
    return _join_batches(lambda name: _parse_file(folder, f"{name}.bin", _parse_binary))


def read_cifar10_pickled(folder: Path) -> Parts:
    """Reads the Python layout of CIFAR-10 without running anything that its pickles may ask for.

    Args:
        folder: Holds `data_batch_1` to `data_batch_5` and `test_batch`, compressed with gzip or not.
    """
    return _join_batches(lambda name: _parse_file(folder, name, _parse_pickled))


def read_cifar10_archive(path: Path) -> Parts:
    """Reads the archive that CIFAR-10 is published as, and leaves it packed.

    Args:
        path: `cifar-10-binary.tar.gz` or `cifar-10-python.tar.gz`.
    """
    members = _read_members(path, {*CIFAR10_TRAIN, CIFAR10_TEST})

    def read(name: str) -> Examples:
        if name not in members:
            raise DataError(f"{path} must hold {name} or {name}.bin, got neither")
        member, data = members[name]
        parse = _parse_binary if member.endswith(".bin") else _parse_pickled
        return parse(data, f"{member} in {path}")

    return _join_batches(read)


READERS: Mapping[str, Mapping[str, Callable[[Path], Parts]]] = {
    "mnist": {"mnist": read_idx},
    "fashion-mnist": {"fashion-mnist": read_idx},
    "cifar10": {
        "cifar-10-batches-bin": read_cifar10_binary,
        "cifar-10-batches-py": read_cifar10_pickled,
        "cifar-10-binary.tar.gz": read_cifar10_archive,
        "cifar-10-python.tar.gz": read_cifar10_archive,
    },
}
"""Where in a data folder each set can be, the first choice first, and what reads it there."""


def _read_idx_pair(folder: Path, part: str) -> Examples:
    images_file = _find(folder, f"{part}-images-idx3-ubyte", f"{part}-images.idx3-ubyte")
    label_file = _find(folder, f"{part}-labels-idx1-ubyte", f"{part}-labels.idx1-ubyte")
    images = _parse_idx(_read(images_file, IDX_BYTES[3]), images_file, ndim=3)
    label = _parse_idx(_read(label_file, IDX_BYTES[1]), label_file, ndim=1)
    if images.shape[1:] != (IDX_SIDE, IDX_SIDE):
        size = "x".join(map(str, images.shape[1:]))
        raise DataError(f"{images_file} must hold images of {IDX_SIDE}x{IDX_SIDE} pixels, got {size}")
    if len(label) != len(images):
        wanted = f"as many labels as {images_file.name} has images, {len(images):,}"
        raise DataError(f"{label_file} must hold {wanted}, got {len(label):,}")
    _check_labels(label, label_file)
    return Examples(images[:, np.newaxis], label)


def _parse_idx(data: bytes, source: Path, ndim: int) -> NDArray[np.uint8]:
    # The magic number: two zeros, 8 for unsigned bytes, the number of dimensions. Then each size, big-endian.
    magic, header = bytes((0, 0, 8, ndim)), 4 + 4 * ndim
    if data[:4] != magic:
        raise DataError(f"{source} must start with the bytes {magic.hex(' ')}, got {data[:4].hex(' ') or 'no bytes'}")
    if len(data) < header:
        raise DataError(f"{source} must have a header of {header} bytes, got {len(data)} bytes in all")
    shape = struct.unpack(f">{ndim}I", data[4:header])
    if shape[0] == 0:
        raise DataError(f"{source} must hold at least one item, got 0 in its header")
    size = header + math.prod(shape)
    if len(data) != size:
        raise DataError(f"{source} must be {size:,} bytes long, as its header says, got {len(data):,}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _join_batches(read: Callable[[str], Examples]) -> Parts:
    train = [read(name) for name in CIFAR10_TRAIN]
    return Parts(Examples(*(np.concatenate(arrays) for arrays in zip(*train, strict=True))), read(CIFAR10_TEST))


def _parse_file(folder: Path, name: str, parse: Callable[[bytes, str], Examples]) -> Examples:
    path = _find(folder, name)
    return parse(_read(path, CIFAR10_BYTES), str(path))


def _parse_binary(data: bytes, source: str) -> Examples:
    size = 1 + CIFAR10_PIXELS
    if not data or len(data) % size:
        wanted = f"a multiple of {size:,} bytes long (a label and {CIFAR10_PIXELS:,} pixels an image)"
        raise DataError(f"{source} must be {wanted}, got {len(data):,} bytes")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    _check_labels(records[:, 0], source)
    return Examples(records[:, 1:].reshape(-1, *CIFAR10_SHAPE), records[:, 0])


def _parse_pickled(data: bytes, source: str) -> Examples:
    try:
        # Python 2 wrote the published files: latin1 makes text of its strings, and NumPy takes text for bytes.
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
        pixels, label = batch["data"], np.asarray(batch["labels"])
    except Exception as error:  # what a damaged pickle raises can be anything
        reason = shorten(f"{type(error).__name__}: {error}", 200)  # which can have as many lines as the file likes
        raise DataError(
            f"{source} must be a pickled batch of CIFAR-10 and nothing else, got an error ({reason})"
        ) from None
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != CIFAR10_PIXELS or not len(pixels):
        got = getattr(pixels, "shape", type(pixels).__name__)
        raise DataError(f"{source} must hold an array of pixels of shape (n, {CIFAR10_PIXELS}), got {got}")
    if label.dtype.kind not in "iu" or label.shape != (len(pixels),):
        got = f"{label.dtype} of shape {label.shape}"
        raise DataError(f"{source} must hold as many labels as images, {len(pixels):,}, each an integer, got {got}")
    _check_labels(label, source)
    return Examples(pixels.reshape(-1, *CIFAR10_SHAPE), label.astype(np.uint8))


def _check_labels(label: NDArray[Any], source: Path | str) -> None:
    wrong = (label < 0) | (label >= NUM_CLASSES)
    if wrong.any():
        first = int(wrong.argmax())
        wanted = f"labels from 0 to {NUM_CLASSES - 1}"
        raise DataError(f"{source} must hold {wanted}, got {label[first]} for image {first} (counted from 0)")


def _empty_array(*_: object) -> NDArray[np.uint8]:
    return np.empty(0, np.uint8)  # its content arrives as the state that the pickle sets next


def _byte_type(code: object, *_: object) -> np.dtype[np.uint8]:
    # Not NumPy's own constructor: given the flags of old pickles, it warns.
    if code != "u1":
        raise pickle.UnpicklingError(f"its array is of type {code!r} instead of bytes")
    return np.dtype(np.uint8)


def _latin1_bytes(text: str, *_: object) -> bytes:
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain containers and arrays of bytes.

    Whatever else a pickle names is refused, and even the names that are known lead to functions of this file: nothing
    that a file can say reaches code from elsewhere.
    """

    KNOWN: Mapping[tuple[str, str], object] = {
        ("numpy.core.multiarray", "_reconstruct"): _empty_array,
        ("numpy._core.multiarray", "_reconstruct"): _empty_array,
        ("numpy", "ndarray"): None,  # an argument of the above, which has no use for it
        ("numpy", "dtype"): _byte_type,
        ("_codecs", "encode"): _latin1_bytes,  # how Python 3 writes bytes in the protocol of Python 2
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which is not allowed")
        return self.KNOWN[module_name, global_name]


def _find(folder: Path, *names: str) -> Path:
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(f"{folder} must hold {names[0]} (or {names[0]}.gz), got a folder without it")


def _read(path: Path, limit: int) -> bytes:
    """What a file holds, unpacked, which is refused where it is more than the data set has."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path} must be readable, got {error.strerror}") from None
    if data.startswith(b"\x1f\x8b"):  # gzip's magic number: the name of a file may be wrong about it
        try:
            with gzip.open(path) as unpacked:
                data = unpacked.read(limit + 1)
        except (EOFError, OSError, zlib.error) as error:
            size = path.stat().st_size
            raise DataError(
                f"{path} must be a whole gzip file, got {size:,} bytes of a damaged one ({error})"
            ) from None
    if len(data) > limit:
        raise DataError(f"{path} must hold at most {limit:,} bytes, as the data set does, got more")
    return data


class _Bounded:
    """The beginning of a stream, which raises where there is more.

    Args:
        stream: What to read.
        limit: How many bytes there may be.
        path: The file, for the message.
    """

    def __init__(self, stream: IO[bytes], limit: int, path: Path) -> None:
        self._stream, self._limit, self._left, self._path = stream, limit, limit, path

    def read(self, size: int) -> bytes:
        """Some bytes; none at the end."""
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise DataError(f"{self._path} must hold at most {self._limit:,} bytes, as the data set does, got more")
        return data


def _read_members(path: Path, stems: set[str]) -> dict[str, tuple[str, bytes]]:
    """The name and the content of some files of an archive, by their names without a suffix."""
    members = {}
    try:
        # One pass from beginning to end: to go back in a compressed archive means to decompress it again.
        with gzip.open(path) as stream:
            bounded: Any = _Bounded(cast("IO[bytes]", stream), CIFAR10_ARCHIVE_BYTES, path)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name)
                    if name.stem in stems and member.isreg():
                        members[name.stem] = (name.name, _take(archive, member, path))
    except (EOFError, OSError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} must be a whole tar.gz archive, got a damaged one ({error})") from None
    return members


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    if member.size > CIFAR10_BYTES:  # also of a file with holes, which takes no room in the archive
        limit = f"at most {CIFAR10_BYTES:,} bytes, as the data set does"
        raise DataError(f"{member.name} in {path} must hold {limit}, got {member.size:,}")
    file = archive.extractfile(member)
    assert file is not None
    return file.read()
