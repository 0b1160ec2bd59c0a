"""What an estimator learns without gradients: parts from the data, and outputs from codes."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.nmf import k_means
from torchpfc.nmf.normalization import unit_columns
from torchpfc.nmf.parts import make_parts
from torchpfc.nn.block import PFCBlock
from torchpfc.sklearn.rows import Rows
from torchpfc.solvers import ConvergenceWarning, NonnegativeLeastSquares, nnls, solve

ROWS_PER_PART = 5
"""How many rows there are for each part, where nobody says how many parts there are to be."""

MEANS_STEPS = 10
"""How often rows choose the mean they belong to."""

_RIDGES = tuple(10.0**k for k in range(-6, 2))  # relative to the mean eigenvalue
_CHUNK = 8192  # rows whose codes are found together


def class_parts(
    x: Tensor,
    labels: Tensor,
    weight: Tensor,
    count: int | None,
    generator: torch.Generator,
    *,
    fewest: int,
    most: int,
) -> tuple[Tensor, Tensor]:
    r"""Parts for each class, made of its own rows, and the class of each part.

    Args:
        x: The rows.
        labels: Their classes.
        weight: What each counts.
        count: How many parts to find in all; None finds one for every so many rows of a class.
        generator: Source of the starts.
        fewest: How many parts a class gets at least where `count` is None, if it has twice as many rows.
        most: How many parts a class gets at most where `count` is None.

    Returns:
        The parts, one per column, and their classes: -1 where there are fewer parts than classes, so that they belong
        to none.
    """
    classes, sizes = torch.unique(labels, return_counts=True)
    if count is not None and count < len(classes):
        W = make_parts(x, min(count, len(x)), weight=weight, iterations=MEANS_STEPS, generator=generator)
        return W, labels.new_full((W.shape[1],), -1)
    if count is None:
        shares = [suitable_count(size, fewest, most) for size in sizes.tolist()]
    else:
        shares = equal_shares(sizes.tolist(), count)
    found = []
    for label, share in zip(classes, shares, strict=True):
        own = labels == label
        found.append(make_parts(x[own], share, weight=weight[own], iterations=MEANS_STEPS, generator=generator))
    return torch.cat(found, 1), classes.repeat_interleave(torch.tensor(shares, device=classes.device))


def joint_means(rows: Rows, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Parts that are means of rows alike in inputs and targets, and zeros for what they predict.

    Args:
        rows: The rows.
        count: How many parts, if there are as many rows.
        generator: Source of the starts.
    """
    both = torch.cat([rows.x, rows.target], 1)
    means = k_means(both, min(count, len(both)), weight=rows.weight, iterations=MEANS_STEPS, generator=generator)
    return unit_columns(means[:, : rows.x.shape[1]].mT), rows.target.new_zeros(rows.target.shape[1], len(means))


def suitable_count(size: int, fewest: int, most: int) -> int:
    """How many parts suit a number of rows: one for every five, but not too few, if there are rows for them.

    Example:
        >>> [suitable_count(size, fewest=20, most=30) for size in (1, 30, 100, 1000)]
        [1, 15, 20, 30]
    """
    return min(most, max(-(-size // ROWS_PER_PART), min(size // 2, fewest)))


def equal_shares(sizes: list[int], total: int) -> list[int]:
    """Divides a number as equally as possible into shares that are no larger than given sizes.

    Example:
        >>> equal_shares([1, 5, 9], 9)
        [1, 4, 4]
    """
    shares = [0] * len(sizes)
    for _ in range(min(total, sum(sizes))):
        unfilled = [k for k, size in enumerate(sizes) if shares[k] < size]
        shares[min(unfilled, key=shares.__getitem__)] += 1
    return shares


@torch.no_grad()
def couple(block: PFCBlock, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, predictions and reconstructions of rows, without gradients; what is NaN in a row counts for nothing."""
    h = codes(block, x)
    return h, F.linear(h, block.weight_y), F.linear(h, block.weight_x)


@torch.no_grad()
def codes(block: PFCBlock, x: Tensor) -> Tensor:
    """Codes of rows, without gradients; what is NaN in a row counts for nothing."""
    return torch.cat([_codes(block, chunk) for chunk in torch.split(x, _CHUNK)])


def _codes(block: PFCBlock, x: Tensor) -> Tensor:
    W, gaps = block.weight_x.detach(), x.isnan()
    some = gaps.any(1)
    if not some.any():
        return solve(NonnegativeLeastSquares(x, W, block.l1), block.solver, lipschitz=block.lipschitz()).h
    h = x.new_empty(len(x), block.num_basis)
    if not some.all():
        h[~some] = _codes(block, x[~some])
    problem = NonnegativeLeastSquares(x[some].nan_to_num(nan=0.0), W, block.l1, mask=~gaps[some])
    h[some] = solve(problem, block.solver).h
    return h


@torch.no_grad()
def readout(h: Tensor, target: Tensor, weight: Tensor, *, nonnegative: bool) -> Tensor:
    r"""The weights $W_y$ with which codes predict targets best: least squares with a ridge.

    $$\min_{W_y} \sum_i w_i \|t_i - W_y h_i\|^2 + \rho \|W_y\|^2$$

    The ridge $\rho$ is the one with the smallest error when each row is left out in turn, for which there is a formula.

    Args:
        h: Codes.
        target: What they should predict.
        weight: What each row counts.
        nonnegative: Whether $W_y$ must not be negative.

    Shape:
        - h: $(n, r)$
        - target: $(n, k)$
        - weight: $(n)$
        - the result: $(k, r)$
    """
    root = weight.sqrt().unsqueeze(1)
    A, B = root * h, root * target
    values, V = torch.linalg.eigh(A.mT @ A)
    values = values.clamp(min=0)
    turned, C = A @ V, V.mT @ (A.mT @ B)
    tiny = torch.finfo(h.dtype).tiny
    best, ridge, W = torch.inf, 0.0, torch.zeros_like(C)
    for share in _RIDGES:
        tried = max(float(share * values.mean()), tiny)
        found = C / (values + tried).unsqueeze(1)
        leverage = (turned.square() / (values + tried)).sum(1, keepdim=True)
        error = float(((B - turned @ found) / (1 - leverage).clamp(min=1e-3)).square().sum())
        if error < best:
            best, ridge, W = error, tried, V @ found
    if not nonnegative:
        return W.mT.contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return nnls(B.mT.contiguous(), A, l2=ridge, tol=1e-6, max_iter=1000).h
