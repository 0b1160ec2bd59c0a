"""How an estimator learns: parts from the data, outputs from codes, and both together by gradients."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpfc.nmf import k_means
from torchpfc.nn.block import PFCBlock
from torchpfc.nn.constraints import keep_nonnegative
from torchpfc.sklearn.rows import Rows
from torchpfc.solvers import ConvergenceWarning, nnls

ROWS_PER_PART = 5
"""How many rows there are for each part, where nobody says how many parts there are to be."""

MEANS_STEPS = 10
"""How often rows choose the mean they belong to."""

_RIDGES = tuple(10.0**k for k in range(-6, 2))  # relative to the mean eigenvalue
_CHUNK = 8192  # rows whose codes are found together


def class_prototypes(
    x: Tensor,
    labels: Tensor,
    weight: Tensor,
    count: int | None,
    generator: torch.Generator,
    *,
    fewest: int,
    most: int,
) -> tuple[Tensor, Tensor]:
    r"""Means of similar rows of the same class, and the class of each mean.

    Args:
        x: The rows.
        labels: Their classes.
        weight: What each counts.
        count: How many means to find in all; None finds one for every so many rows of a class.
        generator: Source of the starts.
        fewest: How many means a class gets at least where `count` is None, if it has twice as many rows.
        most: How many means a class gets at most where `count` is None.

    Returns:
        The means, and their classes: -1 where there are fewer means than classes, so that they belong to none.
    """
    classes, sizes = torch.unique(labels, return_counts=True)
    if count is not None and count < len(classes):
        means = k_means(x, min(count, len(x)), weight=weight, iterations=MEANS_STEPS, generator=generator)
        return means, labels.new_full((len(means),), -1)
    if count is None:
        shares = [suitable_count(size, fewest, most) for size in sizes.tolist()]
    else:
        shares = equal_shares(sizes.tolist(), count)
    found = []
    for label, share in zip(classes.tolist(), shares, strict=True):
        chosen = labels == label
        found.append(k_means(x[chosen], share, weight=weight[chosen], iterations=MEANS_STEPS, generator=generator))
    owners = [labels.new_full((len(means),), label) for label, means in zip(classes.tolist(), found, strict=True)]
    return torch.cat(found), torch.cat(owners)


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
    left = min(total, sum(sizes))
    while left:
        unfilled = [k for k, size in enumerate(sizes) if shares[k] < size]
        share = max(left // len(unfilled), 1)
        for k in unfilled:
            added = min(share, sizes[k] - shares[k], left)
            shares[k] += added
            left -= added
    return shares


def unit_columns(means: Tensor) -> Tensor:
    """Rows as columns of norm 1; a row of zeros stays zero."""
    norms = means.norm(dim=1)
    return (means / torch.where(norms > 0, norms, 1.0).unsqueeze(1)).mT


@torch.no_grad()
def couple(block: PFCBlock, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, predictions and reconstructions of rows, without gradients and not too many at a time."""
    if not len(x):
        return x.new_zeros(0, block.num_basis), x.new_zeros(0, block.out_features), x
    parts = [block.couple(chunk) for chunk in x.split(_CHUNK)]  # type: ignore[no-untyped-call]
    return tuple(torch.cat([getattr(part, name) for part in parts]) for name in ("h", "y", "x"))  # type: ignore[return-value]


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


@dataclass(frozen=True)
class Refinement:
    """How parts and outputs are learned together, by gradients.

    Args:
        epochs: Passes over the rows, at most.
        batch_size: Rows in a step.
        lr: Learning rate.
        reconstruction: What the error of the reconstruction counts; that of the prediction counts 1.
        patience: Passes without a smaller error on the rows held out after which to stop; None never stops.
        tol: How much smaller it must be, relatively.
    """

    epochs: int
    batch_size: int
    lr: float
    reconstruction: float
    patience: int | None
    tol: float

    def learn(
        self, block: PFCBlock, train: Rows, held: Rows, generator: torch.Generator, say: Callable[[str], None]
    ) -> int:
        """Trains a block in place, and leaves it where the error on the rows held out was smallest.

        Returns:
            How many passes were made.
        """
        optimizer = torch.optim.Adam(block.parameters(), lr=self.lr)
        if block.nonnegative:
            keep_nonnegative(block, optimizer)
        lowest = self.error(block, held)
        kept, waited, epoch = copy.deepcopy(block.state_dict()), 0, 0
        for epoch in range(1, self.epochs + 1):
            start = time.perf_counter()
            self._pass(block, optimizer, train, generator)
            error = self.error(block, held)
            say(f"epoch {epoch}: held-out error {error:.5f} ({time.perf_counter() - start:.2f} s)")
            waited = 0 if error < lowest * (1 - self.tol) else waited + 1
            if error < lowest:
                lowest, kept = error, copy.deepcopy(block.state_dict())
            if self.patience is not None and waited >= self.patience:
                break
        if self.patience is not None:
            block.load_state_dict(kept)
        return epoch

    def error(self, block: PFCBlock, rows: Rows) -> float:
        """The mean error of rows."""
        block.eval()
        _, y, x = couple(block, rows.x)
        return float(self._loss(y, x, rows))

    def _pass(self, block: PFCBlock, optimizer: torch.optim.Optimizer, train: Rows, generator: torch.Generator) -> None:
        block.train()
        for chosen in torch.randperm(len(train.x), generator=generator).split(self.batch_size):  # type: ignore[no-untyped-call]
            batch = train.select(chosen)
            out = block.couple(batch.x)
            optimizer.zero_grad()
            self._loss(out.y, out.x, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def _loss(self, y: Tensor, x: Tensor, rows: Rows) -> Tensor:
        errors = (y - rows.target).square().sum(1)
        if self.reconstruction:
            errors = errors + self.reconstruction * (x - rows.x).square().sum(1)
        return (rows.weight * errors).sum() / rows.weight.sum()
