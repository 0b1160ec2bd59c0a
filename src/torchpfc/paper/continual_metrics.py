"""What continual learning is measured by, from one matrix of accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from torchpfc.paper.stack_run import Found

Matrix = Sequence[Sequence[float]]
"""Accuracies in percent: row i after i tasks, so row 0 is the untrained model; column j on the images of task j."""


def continual_metrics(matrix: Matrix, sizes: Sequence[int]) -> dict[str, float]:
    r"""The numbers that papers on continual learning give.

    With $a_{ij}$ the accuracy on task j after i of T tasks: average accuracy is the mean of $a_{Tj}$; forgetting the
    mean over the tasks before the last of $\max_i a_{ij} - a_{Tj}$; backward transfer that of $a_{Tj} - a_{jj}$;
    forward transfer the mean over the tasks after the first of what was known before learning them, $a_{j-1,j}$, less
    what the untrained model knew. With one task there is nothing to forget or to transfer.

    Args:
        matrix: All accuracies.
        sizes: How many images each task has.

    Example:
        >>> found = continual_metrics([[10, 20], [90, 30], [70, 80]], [100, 100])
        >>> found["average_accuracy"], found["forgetting"], found["backward_transfer"], found["forward_transfer"]
        (75.0, 20.0, -20.0, 10.0)
    """
    count, last = len(sizes), matrix[-1]
    if len(matrix) != count + 1 or any(len(row) != count for row in matrix):
        raise ValueError(f"matrix must have {count + 1} rows of {count}, got rows of {[len(row) for row in matrix]}")
    found = {
        "accuracy_of_all": math.fsum(a * n for a, n in zip(last, sizes, strict=True)) / sum(sizes),
        "average_accuracy": fmean(last),
    }
    if count > 1:
        before, later = range(count - 1), range(1, count)
        found |= {
            "forgetting": fmean(max(row[j] for row in matrix[1:]) - last[j] for j in before),
            "backward_transfer": fmean(last[j] - matrix[j + 1][j] for j in before),
            "forward_transfer": fmean(matrix[j][j] - matrix[0][j] for j in later),
        }
    return found


def continual_curves(matrix: Matrix, sizes: Sequence[int]) -> dict[str, list[float]]:
    """The matrix, row after row, and the accuracy on all images of the tasks seen so far.

    Args:
        matrix: All accuracies.
        sizes: How many images each task has.

    Example:
        >>> continual_curves([[10, 20], [90, 30], [70, 80]], [100, 300])["accuracy_after_task"]
        [90.0, 77.5]
    """
    so_far = [math.fsum(row[j] * sizes[j] for j in range(i)) / sum(sizes[:i]) for i, row in enumerate(matrix) if i]
    flat = [float(value) for value in chain.from_iterable(matrix)]
    return {"accuracy_matrix": flat, "accuracy_after_task": so_far}


def measure_tasks(matrix: Matrix, sizes: Sequence[int], valid_accuracy: float, tested: bool) -> Found:
    """All of these numbers of a learner, with its accuracy on all images.

    Args:
        matrix: All accuracies.
        sizes: How many images each task has.
        valid_accuracy: That on the held-out images of all tasks.
        tested: Whether the matrix is of test images.
    """
    metrics = {**continual_metrics(matrix, sizes), "valid_accuracy": valid_accuracy}
    final = metrics.pop("accuracy_of_all")
    return Found(metrics | ({"test_accuracy": final} if tested else {}), continual_curves(matrix, sizes))
