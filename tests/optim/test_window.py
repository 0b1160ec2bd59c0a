import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpfc.optim import SlidingWindow

widths = st.integers(1, 100)
speeds = st.floats(0, 50)
counts = st.integers(0, 200)


def test_first_step_is_at_position_0() -> None:
    assert SlidingWindow(width=15, sweep_speed=0.25).columns == range(15)


def test_split_mnist_learns_each_column_for_60_steps() -> None:
    window = SlidingWindow(width=15, sweep_speed=0.25)
    steps = [k for k in range(200) if 14 in window.advance(k).columns]
    assert steps == list(range(60))


def test_label_ordered_epoch_touches_2597_columns() -> None:
    window = SlidingWindow(width=50, sweep_speed=2.5)
    touched = {column for k in range(1020) for column in window.advance(k).columns}
    assert touched == set(range(2597))


def test_unlearning_finds_columns_1250_to_2050() -> None:
    window = SlidingWindow(width=50, sweep_speed=2.5)
    assert window.advance(500).columns.start == 1250
    assert window.advance(800).columns.stop == 2050


@given(widths, speeds, counts)
def test_columns_follow_the_rule_step_by_step(width: int, speed: float, steps: int) -> None:
    r = 0.0
    for _ in range(steps):
        r += speed
    window = SlidingWindow(width, speed).advance(steps)
    assert window.position == r
    assert window.columns == range(math.floor(r), math.floor(r + width))


def test_positions_are_sums_not_products() -> None:
    window = SlidingWindow(width=3, sweep_speed=0.1).advance(10)
    assert window.position == 0.9999999999999999  # ten times 0.1, added up
    assert window.columns == range(4)  # and 0.9999999999999999 + 3 is 4: the rule gives a column more


@given(widths, speeds, counts, counts)
def test_advances_add_up(width: int, speed: float, first: int, second: int) -> None:
    window = SlidingWindow(width, speed, position=3.5)
    assert window.advance(first).advance(second) == window.advance(first + second)


def test_advance_leaves_the_window_alone() -> None:
    window = SlidingWindow(2, 1.0)
    assert window.advance() == SlidingWindow(2, 1.0, position=1.0)
    assert window.position == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        window.position = 2.0


def test_reset() -> None:
    window = SlidingWindow(2, 1.0, position=7.5)
    assert window.reset() == SlidingWindow(2, 1.0)
    assert window.reset(4.25) == SlidingWindow(2, 1.0, position=4.25)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 1.0), ValueError, "width must be at least 1, got 0"),
        ((2.5, 1.0), TypeError, "width must be an int, got 2.5"),
        ((3, -0.5), ValueError, "sweep_speed must be non-negative and finite, got -0.5"),
        ((3, math.inf), ValueError, "sweep_speed must be non-negative and finite, got inf"),
        ((3, math.nan), ValueError, "sweep_speed must be non-negative and finite, got nan"),
        ((3, 1.0, -1.0), ValueError, "position must be non-negative and finite, got -1.0"),
        ((3, 1.0, math.inf), ValueError, "position must be non-negative and finite, got inf"),
    ],
)
def test_bad_windows(arguments: tuple[float, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        SlidingWindow(*arguments)


def test_no_steps_back() -> None:
    with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
        SlidingWindow(2, 1.0).advance(-1)
