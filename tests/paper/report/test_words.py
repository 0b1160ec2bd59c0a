import math

import pytest

from tests.paper.report.test_compare import sample
from torchpfc.paper.report.words import describe, deviation, number, signed, varying


def test_settings_are_said_in_words():
    config = {
        "dataset": "fashion-mnist",
        "num_basis": 300,
        "nonnegative": False,
        "prediction_weight": 0.5,
        "warm_start": False,
        "cap": True,
        "tol": None,
        "sizes": [3, 0.25],
        "iterations": 40,
        "solver_floor": 1e-5,
        "lr": 1e-4,
    }
    assert describe(config, config) == (
        "Fashion-MNIST, 300 parts, signed, λ = 0.5, no warm start, cap, no tol, sizes 3, 0.25, 40 iterations, "
        "solver floor 1e-05, learning rate 0.0001"
    )


def test_settings_that_a_config_does_not_have_are_left_out():
    assert describe({"a": 1}, ["a", "b"]) == "a 1"


def test_equal_settings_do_not_vary():
    assert varying([{"a": 1, "b": 2}] * 3) == []


def test_numbers_have_as_many_digits_as_their_metric_deserves():
    assert number(96.835, "valid_accuracy") == "96.83"
    assert number(-0.25, "loss") == "−0.2500"
    assert number(0.0, "loss") == "0"
    assert number(0.001234567, "loss") == "0.001235"
    assert number(12.3456, "milliseconds") == "12.35"
    assert number(math.nan, "test_accuracy") == "nan"


def test_a_spread_has_the_decimals_of_its_mean():
    assert deviation(sample(0.9, 0.95, metric="auroc")) == "± 0.0354"
    assert deviation(sample(1000.0, 1010.0, metric="steps")) == "± 7"
    assert deviation(sample(2.0, 2.5, metric="seconds")) == "± 0.354"
    assert deviation(sample(96.0)) is None
    assert deviation(sample(0.0, 1.0, metric="success")) is None  # a share of the runs


@pytest.mark.parametrize(
    ("value", "text"), [(0.004, "0.00"), (-0.004, "0.00"), (0.006, "+0.01"), (-0.006, "−0.01"), (math.nan, "nan")]
)
def test_a_difference_has_a_sign_unless_it_rounds_to_nothing(value, text):
    assert signed(value, "test_accuracy") == text
