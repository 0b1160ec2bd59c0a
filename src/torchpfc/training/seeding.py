"""Random numbers for one purpose each."""

from __future__ import annotations

import hashlib

import torch


def random_stream(seed: int, *purpose: object) -> torch.Generator:
    """A generator for one purpose: other purposes and other seeds get numbers that have nothing to do with these.

    Args:
        seed: Of the run.
        purpose: What the numbers are for.

    Example:
        >>> first, second = (torch.rand(1, generator=random_stream(0, "weights")) for _ in range(2))
        >>> torch.equal(first, second)
        True
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
