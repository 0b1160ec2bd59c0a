"""Image data sets as tensors: MNIST, Fashion-MNIST, CIFAR-10 and scikit-learn's digits."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchpfc.data.formats import NUM_CLASSES, READERS, DataError, Examples, Parts

IMAGE_SETS: tuple[str, ...] = ("digits", *READERS)
"""What `load_images` knows by name."""

DATA_VARIABLE = "TORCHPFC_DATA"
"""The environment variable that names a folder of data sets."""

PUBLISHED = ""
JPEG = "The pixels went through JPEG compression, so they differ slightly from the published ones."
UNKNOWN = "These are not known to be the published images."

# What is known about a set, by its fingerprint.
REMARKS: Mapping[str, str] = {
    "52ee9c9b8f89da26054b8eade8639a97c7d42133a29482b1441795981b9b23d0": PUBLISHED,  # digits
    "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16": PUBLISHED,  # mnist
    "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f": PUBLISHED,  # fashion-mnist
    "3ce5488f5102983c929137922eb5080925b5a0b7f59ae470d6d08c6e47dc9227": JPEG,  # cifar10, as JPEG files
}

# MD5 checksums of the published binary batches of CIFAR-10, in order, the test batch last: what their publisher gives.
# They tell whether to add a remark. A download is checked by its SHA-256.
CIFAR10_BATCHES = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
    "803d5f7f4d78ea53de84dbe85f74fb6d",
)


@dataclass(frozen=True, eq=False)
class Images:
    r"""Images and what they show.

    Args:
        x: Pixels from 0 to 1, flattened from channel, row, column.
        label: The class of each image, from 0.
        shape: Channels, rows and columns of an image.

    Shape:
        - x: $(n, m)$ with $m$ the product of `shape`, float32
        - label: $(n)$, int64
    """

    x: Tensor
    label: Tensor
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.label)

    def to(self, device: torch.device | str) -> Images:
        """The same images on a device."""
        return Images(self.x.to(device), self.label.to(device), self.shape)

    def select(self, rows: Tensor) -> Images:
        """Some of the images.

        Args:
            rows: Their numbers, or a mask.
        """
        return Images(self.x[rows], self.label[rows], self.shape)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set of images.

    Args:
        name: One of `IMAGE_SETS`.
        train: What to learn from.
        test: What to report on.
        num_classes: How many classes there are.
        fingerprint: SHA-256 over the bytes of pixels and labels of `train`, then those of `test`. It does not depend on
            the kind of files that they were read from.
        remark: Empty for the images as published. Otherwise a sentence for reports, on how these differ from them.
    """

    name: str
    train: Images
    test: Images
    num_classes: int
    fingerprint: str
    remark: str


def load_images(name: str, data_dir: Path | None = None) -> ImageData:
    """Loads a data set of images, all of it at once.

    The digits come with scikit-learn: 1,797 images of 8x8 pixels, of which 360 are for tests, the same share of each
    class and the same ones every time. The other sets are read from a data folder:

    - `mnist` and `fashion-mnist`: the four IDX files in `mnist/` and `fashion-mnist/`;
    - `cifar10`: the batches in `cifar-10-batches-bin/` or `cifar-10-batches-py/`, or else the archive that holds them,
      `cifar-10-binary.tar.gz` or `cifar-10-python.tar.gz`, as it was downloaded.

    Files may be compressed with gzip or not.

    Args:
        name: One of `IMAGE_SETS`.
        data_dir: The data folder. `None` looks into the one that the environment variable `TORCHPFC_DATA` names, then
            into the one that `download_images` fills.

    Raises:
        DataError: Where the set is not found, or a file of it is not what it should be.

    Example:
        >>> digits = load_images("digits")
        >>> digits.train.x.shape, len(digits.test), digits.train.shape
        (torch.Size([1437, 64]), 360, (1, 8, 8))
    """
    if name not in IMAGE_SETS:
        raise DataError(f"name must be one of {', '.join(IMAGE_SETS)}, got {name!r}")
    if name == "digits":
        return _to_tensors(name, _read_digits(), brightest=16)
    folder, place = _find(name, data_dir)
    try:
        parts = READERS[name][place](folder / place)
    except DataError as error:
        raise DataError(f"{error}; replace it, or delete it and run `{download_command(name, folder)}`") from None
    return _to_tensors(name, parts, brightest=255)


def cache_folder() -> Path:
    """The folder that downloads go to, where the platform keeps what can be had again."""
    usual = {"win32": "AppData/Local/torchpfc/torchpfc/Cache", "darwin": "Library/Caches/torchpfc"}
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return Path(base) / "torchpfc" if base else Path.home() / usual.get(sys.platform, ".cache/torchpfc")


def _find(name: str, data_dir: Path | None) -> tuple[Path, str]:
    folders = data_folders(data_dir)
    for folder in folders:
        for place in READERS[name]:
            if (folder / place).exists():
                return folder, place
    tried = ", ".join(str(folder / place) for folder in folders for place in READERS[name])
    command = download_command(name, folders[-1])
    raise DataError(f"{name} must be in a data folder, got nothing at {tried}; run `{command}` to download it")


def data_folders(data_dir: Path | None) -> list[Path]:
    """Where to look for data sets: in the folder that was named, or the one of the environment, then the cache."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise DataError(f"data_dir must be a folder that exists, got {data_dir}")
        return [data_dir]
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        return [cache_folder()]
    if not Path(named).is_dir():
        raise DataError(f"{DATA_VARIABLE} must name a folder that exists, got {named}")
    return [Path(named), cache_folder()]


def download_command(name: str, folder: Path) -> str:
    """What to type to download a data set into a data folder."""
    return f"torchpfc data get {name}" + ("" if folder == cache_folder() else f" --data-dir {folder}")


def _read_digits() -> Parts:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels, label = digits.images[:, np.newaxis].astype(np.uint8), digits.target.astype(np.uint8)
    # The test digits of the demo: a setting that was chosen there has not seen them either.
    train, test = train_test_split(np.arange(len(label)), test_size=0.2, stratify=label, random_state=0)
    return Parts(*(Examples(pixels[rows], label[rows]) for rows in (np.sort(train), np.sort(test))))


def _to_tensors(name: str, parts: Parts, *, brightest: int) -> ImageData:
    train, test = (_to_images(part, brightest) for part in parts)
    fingerprint = _fingerprint(parts)
    return ImageData(name, train, test, NUM_CLASSES, fingerprint, _remark(name, parts, fingerprint))


def _to_images(part: Examples, brightest: int) -> Images:
    count, channels, rows, columns = part.pixels.shape
    x = torch.from_numpy(part.pixels.reshape(count, -1).astype(np.float32)).div_(brightest)
    return Images(x, torch.from_numpy(part.label.astype(np.int64)), (channels, rows, columns))


def _fingerprint(parts: Parts) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part.pixels).data)
        digest.update(np.ascontiguousarray(part.label).data)
    return digest.hexdigest()


def _remark(name: str, parts: Parts, fingerprint: str) -> str:
    known = REMARKS.get(fingerprint)
    if known is not None:
        return known
    return PUBLISHED if name == "cifar10" and _batch_checksums(parts) == CIFAR10_BATCHES else UNKNOWN


def _batch_checksums(parts: Parts) -> tuple[str, ...]:
    """MD5 checksums of a set as binary batches of CIFAR-10, whatever it was read from."""
    batches = (*zip(*(np.array_split(array, 5) for array in parts.train), strict=True), parts.test)
    return tuple(
        hashlib.md5(np.column_stack((label, pixels.reshape(len(pixels), -1))).data, usedforsecurity=False).hexdigest()
        for pixels, label in batches
    )
