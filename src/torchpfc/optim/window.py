"""Which columns a step may change: arithmetic alone, no tensors."""

import math
from dataclasses import dataclass, replace

from torchpfc.solvers.checks import check_at_least_one, check_nonnegative


@dataclass(frozen=True)
class SlidingWindow:
    r"""The columns that one step may change, and how they move from step to step.

    A window at position $r$ covers columns $\lfloor r \rfloor$ to $\lfloor r + \mathrm{width} \rfloor - 1$; after the
    step, $r \leftarrow r + \mathrm{sweep\_speed}$. So a column is learned for $\mathrm{width} / \mathrm{sweep\_speed}$
    steps and never again.

    Args:
        width: Number of columns in the window.
        sweep_speed: Columns that the window moves in one step. Less than 1 rests on a column for several steps, 0 never
            moves.
        position: Where the window starts. Its whole part is the first column.

    Example:
        Split MNIST in the paper: 15 columns wide, moving by a quarter of a column, so 60 steps a column.

        >>> window = SlidingWindow(width=15, sweep_speed=0.25)
        >>> window.columns
        range(0, 15)
        >>> sum(20 in window.advance(k).columns for k in range(1000))
        60

        How many columns do 1,020 steps need?

        >>> SlidingWindow(width=50, sweep_speed=2.5).advance(1019).columns.stop
        2597
    """

    width: int
    sweep_speed: float
    position: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.width, int):
            raise TypeError(f"width must be an int, got {self.width!r}")
        check_at_least_one(width=self.width)
        check_nonnegative(sweep_speed=self.sweep_speed, position=self.position)

    @property
    def columns(self) -> range:
        """The columns that a step here may change.

        `width` of them, or one more where `position + width` rounds up to a whole number (speeds such as 0.1, whose
        sums are not exact): the paper's rule, in floating point.
        """
        return range(math.floor(self.position), math.floor(self.position + self.width))

    def advance(self, steps: int = 1) -> "SlidingWindow":
        """The window a number of steps later: `advance(k).columns` are what step k, counted from 0, may change."""
        if steps < 0:
            raise ValueError(f"steps must be at least 0, got {steps}")
        position = self.position
        for _ in range(steps):  # added one by one, as an optimizer does: a product would round differently
            position += self.sweep_speed
        return self.reset(position)

    def reset(self, position: float = 0.0) -> "SlidingWindow":
        """The same window put at a position, by default back at the first column."""
        return replace(self, position=position)
