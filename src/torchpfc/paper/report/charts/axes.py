"""From numbers to places on paper: linear and logarithmic scales, and ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MARGIN = 0.06
"""Free space beyond the outermost values, as a share of their range."""


@dataclass(frozen=True)
class Scale:
    """Maps an interval of numbers to an interval of places; these may run backwards.

    Example:
        >>> Scale(0, 10, start=100, stop=0)(2.5)
        75.0
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, stop: float, *, log: bool = False, exact: bool = False
    ) -> Scale:
        """A scale that has room for some values.

        Args:
            values: At least one; none below or at zero where the scale is logarithmic.
            start: Where it begins.
            stop: Where it ends.
            log: Equal ratios, not equal differences, are equally far apart.
            exact: End at the outermost values, without a margin.
        """
        places = [math.log(value) if log else value for value in values]
        low, high = min(places), max(places)
        margin = (0.0 if exact else MARGIN * (high - low)) if high > low else 0.5
        low, high = low - margin, high + margin
        return cls(math.exp(low), math.exp(high), start, stop, log) if log else cls(low, high, start, stop)

    def __call__(self, value: float) -> float:
        """The place of a number."""
        low, high, place = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (place - low) / (high - low) * (self.stop - self.start)

    def ticks(self, about: int, *, whole: bool = False) -> list[tuple[float, str]]:
        """Round numbers on the scale, and how to write them.

        Args:
            about: How many there should be; there are fewer rather than more.
            whole: Only whole numbers; a logarithmic scale has others too.
        """
        return self._log_ticks(about) if self.log else self._linear_ticks(about, 1.0 if whole else 0.0)

    def _linear_ticks(self, about: int, least_step: float) -> list[tuple[float, str]]:
        step = max(_round_up((self.high - self.low) / about), least_step)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(i * step, f"{i * step:.{decimals}f}") for i in range(first, last + 1)]

    def _log_ticks(self, about: int) -> list[tuple[float, str]]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        low, high = self.low * (1 - 1e-9), self.high * (1 + 1e-9)
        for multiples in ((1, 2, 5), (1,)):
            ticks = [m * 10.0**k for k in decades for m in multiples if low <= m * 10.0**k <= high]
            if len(ticks) <= about:
                break
        every = math.ceil(len(ticks) / about) or 1
        return [(tick, f"{tick:g}") for tick in ticks[::every]]


def _round_up(value: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9))
