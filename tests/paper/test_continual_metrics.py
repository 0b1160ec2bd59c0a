import math

import pytest

from torchpfc.paper.continual_metrics import continual_curves, continual_metrics

MATRIX = [
    [10.0, 12.0, 8.0],  # before anything was learned
    [99.0, 11.0, 9.0],
    [90.0, 95.0, 20.0],
    [60.0, 97.0, 98.0],
]
SIZES = [100, 200, 100]


def test_metrics_are_those_of_the_definitions() -> None:
    found = continual_metrics(MATRIX, SIZES)
    assert found["average_accuracy"] == pytest.approx((60 + 97 + 98) / 3)
    assert found["accuracy_of_all"] == pytest.approx((60 + 2 * 97 + 98) / 4)
    assert found["forgetting"] == pytest.approx(((99 - 60) + (97 - 97)) / 2)
    assert found["backward_transfer"] == pytest.approx(((60 - 99) + (97 - 95)) / 2)
    assert found["forward_transfer"] == pytest.approx(((11 - 12) + (20 - 8)) / 2)


def test_with_one_task_nothing_is_forgotten_and_nothing_transferred() -> None:
    assert continual_metrics([[10.0], [97.0]], [5]) == {"accuracy_of_all": 97.0, "average_accuracy": 97.0}


def test_curves_are_the_matrix_and_what_is_known_of_the_tasks_so_far() -> None:
    curves = continual_curves(MATRIX, SIZES)
    assert curves["accuracy_matrix"] == [value for row in MATRIX for value in row]
    expected = [99, (90 + 2 * 95) / 3, (60 + 2 * 97 + 98) / 4]
    assert all(math.isclose(a, b) for a, b in zip(curves["accuracy_after_task"], expected, strict=True))


def test_a_matrix_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"matrix must have 3 rows of 2, got rows of \[3, 3, 3, 3\]"):
        continual_metrics(MATRIX, [1, 2])
