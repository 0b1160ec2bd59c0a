"""Checks of numbers that people pass in."""

from __future__ import annotations

import math


def check_at_least_one(**counts: int | None) -> None:
    """Raises `ValueError` for a count below 1, by its name; None stands for one that was not given."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def check_nonnegative(**values: float) -> None:
    """Raises `ValueError` for a number that is negative, infinite or NaN, by its name."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be non-negative and finite, got {value}")
