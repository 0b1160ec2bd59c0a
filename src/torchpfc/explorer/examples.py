"""The examples that a model is looked at with, and how one of them is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchpfc.data.arrays import read_arrays
from torchpfc.data.formats import DataError
from torchpfc.data.images import IMAGE_SETS, load_images

MOST_EXAMPLES = 1000
"""How many examples are looked at; of larger sets these are the first."""

_SMALLEST_SIDE = 8
"""Inputs with fewer numbers than a square of this side are taken for images only when somebody says so."""

Shape = tuple[int, int, int]
"""Channels, rows and columns of an image."""


@dataclass(frozen=True, eq=False)
class Examples:
    r"""Inputs, and where they are known their classes.

    Shape:
        - x: $(n, m)$
        - labels: $(n)$
    """

    x: Tensor
    labels: Tensor | None
    """Numbers of classes, from 0."""
    source: str
    """Where they come from, in words."""
    shape: Shape | None = None
    """Of an image; None where inputs are no images."""
    features: tuple[str, ...] = ()
    """Names of the features, where they have names."""

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: Tensor | slice) -> Examples:
        """Some of them, in this order."""
        return replace(self, x=self.x[rows], labels=None if self.labels is None else self.labels[rows])


def guess_shape(num_features: int) -> Shape | None:
    """The shape of a square image with so many numbers, gray or in colour; None where there is none.

    Example:
        >>> guess_shape(784), guess_shape(3072), guess_shape(30)
        ((1, 28, 28), (3, 32, 32), None)
    """
    for channels in (1, 3):
        side = math.isqrt(num_features // channels)
        if channels * side * side == num_features and side >= _SMALLEST_SIDE:
            return channels, side, side
    return None


def read_examples(source: str, classes: tuple[str, ...], data_dir: Path | None = None) -> Examples:
    """Reads examples: the test images of a set that the library knows, or an .npz file.

    Args:
        source: The name of a set, or the path of a file with an array `x` or `X` and, for classes, `y`.
        classes: The names of the model's classes, in order; empty where it has none.
        data_dir: The folder of data sets.

    Raises:
        DataError: Where there is no such set or file, or it does not hold what it should.
    """
    if source in IMAGE_SETS:
        test = load_images(source, data_dir).test
        labels = _numbers_of_classes(test.label.numpy(), classes, source)
        return Examples(test.x, labels, f"test images of {source}", test.shape).select(slice(MOST_EXAMPLES))
    path = Path(source)
    if not path.is_file():
        raise DataError(f"--data must be one of {', '.join(IMAGE_SETS)}, or an .npz file, got {source!r}")
    arrays = read_arrays(path)
    x = next((arrays[name] for name in ("x", "X") if name in arrays), None)
    if x is None or x.ndim < 2 or not len(x) or x.dtype.kind not in "fiub":
        got = "none" if x is None else f"{x.dtype} of shape {x.shape}"
        raise DataError(f"{path} must hold numbers x of shape (n, features), one row for each example, got {got}")
    shape = {3: (1, *x.shape[1:]), 4: x.shape[1:]}.get(x.ndim)
    labels = _numbers_of_classes(arrays["y"], classes, str(path)) if "y" in arrays else None
    if labels is not None and len(labels) != len(x):
        raise DataError(f"{path} must have one y for each of the {len(x)} rows of x, got {len(labels)}")
    rows = torch.tensor(x.reshape(len(x), -1)[:MOST_EXAMPLES].astype(np.float64))
    if rows.isinf().any():
        raise DataError(f"{path} must hold finite numbers, got infinite ones")
    found = shape if shape is not None and len(shape) == 3 and shape[0] in (1, 3) else None
    return Examples(rows, labels, path.name, found).select(slice(MOST_EXAMPLES))


def _numbers_of_classes(labels: np.ndarray, classes: tuple[str, ...], source: str) -> Tensor | None:
    if not classes:
        return None
    number = {name: k for k, name in enumerate(classes)}
    names = [str(label) for label in labels.ravel().tolist()]
    if unknown := sorted(set(names).difference(number))[:3]:
        raise DataError(f"{source} must have the classes of the model, {', '.join(classes)}, got {', '.join(unknown)}")
    return torch.tensor([number[name] for name in names], dtype=torch.int64)
