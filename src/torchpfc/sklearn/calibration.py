"""From scores to probabilities, by rows that were held out."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST, _LARGEST = 1e-3, 1e4
_HALVINGS = 60


@torch.no_grad()
def fit_sharpness(scores: Tensor, target: Tensor, weight: Tensor) -> float:
    r"""The factor $\beta$ with which $\mathrm{softmax}(\beta y)$ has the smallest log loss: temperature scaling.

    One number for all classes: the order of the scores, and so every answer, stays as it is. Targets are smoothed by
    $1 / (n + 2)$, as Platt does: a few rows that are all right must not make probabilities of 1.

    Args:
        scores: The scores y of rows that the model has not learned from.
        target: Their classes, one-hot.
        weight: What each row counts.

    Shape:
        - scores, target: $(n, k)$
        - weight: $(n)$

    Example:
        >>> fit_sharpness(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.eye(2), torch.ones(2)) < 0.01  # even odds
        True
    """
    n, k = scores.shape
    scores, weight = scores.double(), weight.double().unsqueeze(1)
    smoothing = 1 / (n + 2)
    target = (1 - smoothing) * target.double() + smoothing / k
    low, high = (torch.tensor(value, dtype=torch.float64).log() for value in (_SMALLEST, _LARGEST))
    for _ in range(_HALVINGS):  # the loss is convex in the factor, so its slope changes sign once
        middle = (low + high) / 2
        slope = (weight * (torch.softmax(middle.exp() * scores, 1) - target) * scores).sum()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(((low + high) / 2).exp())
