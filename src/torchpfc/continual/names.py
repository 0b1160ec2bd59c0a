"""Names of batches: anything that can be a key of a dict."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sized
from typing import Any, Protocol

import numpy as np


class _Used(Container[Hashable], Sized, Protocol):
    """Names that can be asked for quickly, as the keys of a dict."""


def new_name(batch: Hashable, used: _Used) -> Hashable:
    """A name that no batch has: the one that is given, or a free number for None.

    Args:
        batch: The name, or None.
        used: The names that there are.

    Example:
        >>> new_name(None, {0: "a", 2: "b"})
        3
    """
    if batch is None:
        number = len(used)
        while number in used:
            number += 1
        return number
    try:
        known = batch in used
    except TypeError:
        raise TypeError(f"batch must be hashable, got {batch!r}") from None
    if known:
        raise ValueError(f"batch must be a new name, got {batch!r}, which was learned from; forget it first")
    return batch


def name_to_plain(name: Hashable) -> Any:
    """A name as JSON; a tuple becomes a list."""
    if isinstance(name, tuple):
        return [name_to_plain(part) for part in name]
    if isinstance(name, np.generic):
        name = name.item()
    if not isinstance(name, str | int | float | None):
        raise TypeError(f"batch must be text, a number or a tuple of these to be saved, got {name!r}")
    return name


def name_from_plain(name: Any) -> Hashable:
    """What `name_to_plain` made plain."""
    return tuple(map(name_from_plain, name)) if isinstance(name, list) else name
