"""From scores to probabilities, and from residuals to p-values, by rows that were held out."""

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


def relative_residual(x: Tensor, reconstruction: Tensor, observed: Tensor | None = None) -> Tensor:
    r"""What a reconstruction leaves of each input, $\|x - W h\| / \|x\|$; 1 for an input of zeros.

    Args:
        x: Inputs.
        reconstruction: What the parts make of them.
        observed: True where an input is observed; None for everywhere.

    Shape:
        - x, reconstruction, observed: $(n, m)$
        - the result: $(n)$
    """
    rest = x - reconstruction
    if observed is not None:
        x, rest = x.where(observed, 0.0), rest.where(observed, 0.0)
    size = x.norm(dim=1)
    return torch.where(size > 0, rest.norm(dim=1) / size.clamp(min=torch.finfo(x.dtype).tiny), 1.0)


def p_values(statistic: Tensor, reference: Tensor, weight: Tensor) -> Tensor:
    r"""How often a row that was held out is at least as far off, $(1 + \sum_{r_i \ge r} w_i) / (1 + \sum w_i)$.

    Args:
        statistic: How far off some inputs are.
        reference: How far off the rows held out are.
        weight: What each of those counts.

    Shape:
        - statistic and the result: $(n)$
        - reference, weight: $(c)$

    Example:
        >>> p_values(torch.tensor([0.0, 0.25, 9.0]), torch.tensor([0.1, 0.2, 0.3]), torch.ones(3))
        tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    reference, order = reference.sort()
    below = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)]).double()
    reached = torch.searchsorted(reference, statistic.contiguous(), right=False)
    return (1 + below[-1] - below[reached]) / (1 + below[-1])
