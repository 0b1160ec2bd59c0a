import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpfc.paper.report.charts.axes import Scale

numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 4))


@given(st.lists(numbers, min_size=1), st.integers(1, 12))
def test_ticks_are_few_round_in_order_and_on_the_scale(values, about):
    scale = Scale.over(values, 0, 100)
    ticks = scale.ticks(about)
    places = [scale(value) for value, _ in ticks]
    assert len(ticks) <= about + 1
    assert places == sorted(places)
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)
    assert all(float(text) == pytest.approx(value, abs=1e-9) for value, text in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


@given(st.lists(numbers, min_size=1))
def test_every_value_has_a_place_inside(values):
    scale = Scale.over(values, 10, 20)
    assert all(10 - 1e-9 <= scale(value) <= 20 + 1e-9 for value in values)


def test_a_scale_without_margin_ends_at_the_outermost_values():
    scale = Scale.over([3, 1, 2], 0, 10, exact=True)
    assert [scale(1), scale(2), scale(3)] == [0, 5, 10]


def test_a_scale_leaves_some_room_beyond_the_outermost_values():
    scale = Scale.over([1, 2], 0, 100)
    assert 2 < scale(1) < 10
    assert 90 < scale(2) < 98


def test_ticks_of_a_percentage():
    assert Scale(96.2, 97.1, 0, 1).ticks(5) == [(pytest.approx(96.2), "96.2")] + [
        (pytest.approx(value), f"{value:.1f}") for value in (96.4, 96.6, 96.8, 97.0)
    ]


def test_equal_ratios_are_equally_far_apart_on_a_logarithmic_scale():
    scale = Scale.over([1, 10, 100], 0, 100, log=True, exact=True)
    assert [scale(1), scale(10), scale(100)] == pytest.approx([0, 50, 100])
    assert Scale.over([5], 0, 100, log=True)(5) == pytest.approx(50)


def test_a_logarithmic_scale_has_the_ticks_that_there_is_room_for():
    scale = Scale(1, 200, 0, 1, log=True)
    assert [text for _, text in scale.ticks(8)] == ["1", "2", "5", "10", "20", "50", "100", "200"]
    assert [text for _, text in scale.ticks(5)] == ["1", "10", "100"]
    assert [text for _, text in scale.ticks(2)] == ["1", "100"]
    assert Scale(2.1, 2.2, 0, 1, log=True).ticks(5) == []
    assert math.isfinite(scale(0.001))
