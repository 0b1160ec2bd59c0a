"""Checks of what a learner is given."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def numbers(values: Tensor | ArrayLike, name: str) -> Tensor:
    """Real numbers as a tensor.

    Args:
        values: A tensor, an array or lists.
        name: What an error calls them.
    """
    array = values if isinstance(values, Tensor) else np.asarray(values)
    if not isinstance(array, Tensor):
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{name} must hold real numbers, got {array.dtype}")
        return torch.as_tensor(array)
    if array.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {array.dtype}")
    return array


def weights(weight: Tensor | ArrayLike, x: Tensor) -> Tensor:
    """What each example counts, as a tensor.

    Args:
        weight: The weights.
        x: The examples.
    """
    found = numbers(weight, "weight").to(x)
    if found.shape != x.shape[:1]:
        raise ValueError(f"weight must have shape {tuple(x.shape[:1])} to match x, got {tuple(found.shape)}")
    if not (found.isfinite() & (found > 0)).all():
        raise ValueError(f"weight must be finite and above 0, got {float(found[~(found.isfinite() & (found > 0))][0])}")
    return found


def names(batches: Iterable[Hashable]) -> list[Hashable]:
    """The names of batches as a list.

    Args:
        batches: Several names; text is one name, and refused.
    """
    if isinstance(batches, str | bytes) or not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a list of names, got {batches!r}; for one batch say [{batches!r}]")
    return list(batches)
