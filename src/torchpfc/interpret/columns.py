"""What each column stands for, who uses it, where it comes from, and whether another seed would find it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from torchpfc.interpret.explanation import Coupled, aligned
from torchpfc.nmf.normalization import unit_columns
from torchpfc.optim.ledger import Ledger

_TOP_EXAMPLES = 5


@dataclass(frozen=True)
class Column:
    """A part, described."""

    column: int
    """The column of the weights."""
    usage: float
    """The share of examples that contain it."""
    mean_amount: float
    """How much of it an example contains, on average over all examples."""
    profile: tuple[float, ...]
    """Its column of W_y, scaled so that the magnitudes add up to 1."""
    label_shares: tuple[float, ...]
    """How its amount is divided over the classes of the examples; empty where there are no labels."""
    top_examples: tuple[int, ...]
    """The examples that contain most of it, that with most first."""
    batches: tuple[int, ...]
    """The batches that could write it; empty where there is no ledger."""
    first_step: int | None
    """The first step that could write it, counted from 0."""
    dead: bool
    """Whether it is zero, or no example contains it."""

    @property
    def output(self) -> int | None:
        """The output that it adds to most; None where it adds to none."""
        return max(range(len(self.profile)), key=lambda k: abs(self.profile[k])) if any(self.profile) else None


@dataclass(frozen=True)
class ColumnReport:
    """All columns of a block; prints as a table.

    Example:
        >>> from torchpfc import PFCBlock
        >>> block = PFCBlock(3, 2, num_basis=2)
        >>> with torch.no_grad():
        ...     _ = block.weight_x.copy_(torch.eye(3)[:, :2]), block.weight_y.copy_(torch.eye(2))
        >>> h = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0]])
        >>> print(describe_columns(block, h, labels=torch.tensor([0, 0, 1])))
        column  usage  mean amount  largest output  top examples  batches
        0         67%       1.3333        0 (100%)          1, 0
        1          0%       0.0000        1 (100%)
        Dead columns: 1.
    """

    columns: tuple[Column, ...]

    @property
    def dead(self) -> tuple[int, ...]:
        """Columns that are zero or that no example contains."""
        return tuple(column.column for column in self.columns if column.dead)

    def __str__(self) -> str:
        lines = [("column", "usage", "mean amount", "largest output", "top examples", "batches")]
        for c in self.columns:
            batches = ", ".join(map(str, c.batches[:4])) + (", ..." if len(c.batches) > 4 else "")
            examples = ", ".join(map(str, c.top_examples))
            output = "" if c.output is None else f"{c.output} ({c.profile[c.output]:.0%})"
            lines.append((str(c.column), f"{c.usage:.0%}", f"{c.mean_amount:.4f}", output, examples, batches))
        return f"{aligned(lines)}\nDead columns: {', '.join(map(str, self.dead)) or 'none'}."


@torch.no_grad()
def describe_columns(
    block: Coupled,
    h: Tensor,
    *,
    labels: Tensor | None = None,
    ledger: Ledger | None = None,
    threshold: float = 1e-3,
    top: int = _TOP_EXAMPLES,
) -> ColumnReport:
    r"""Describes every column of a block by its weights, by the examples that contain it and by the ledger.

    Args:
        block: The weights.
        h: Codes of examples, `block.couple(x).h`, on any device.
        labels: Classes of the examples, from 0 on.
        ledger: The record of the training.
        threshold: An example contains a part where its amount, times the norm of the part, is more than this share of
            the largest over all examples and parts.
        top: How many examples to name.

    Shape:
        - h: $(n, \text{num_basis})$
        - labels: $(n)$
    """
    W_x, W_y = (weight.detach().to(h.device) for weight in (block.weight_x, block.weight_y))
    if h.ndim != 2 or not len(h) or h.shape[1] != W_x.shape[1]:
        raise ValueError(f"h must have shape (n, {W_x.shape[1]}) with n at least 1, got {tuple(h.shape)}")
    if labels is not None and labels.shape != (len(h),):
        raise ValueError(f"labels must have shape ({len(h)},), got {tuple(labels.shape)}")
    used = contained(W_x, h, threshold)
    profile = W_y / W_y.abs().sum(0).clamp(min=torch.finfo(W_y.dtype).tiny)
    order = h.argsort(dim=0, descending=True, stable=True)[:top]  # (top, r)
    shares = None
    if labels is not None:
        per_class = torch.nn.functional.one_hot(labels.long()).to(h.dtype).mT @ h  # (classes, r)
        shares = per_class / per_class.sum(0).clamp(min=torch.finfo(h.dtype).tiny)
    columns = []
    writers = [[] for _ in range(W_x.shape[1])] if ledger is None else ledger.writers(W_x.shape[1])
    for r, batches in enumerate(writers):
        columns.append(
            Column(
                column=r,
                usage=float(used[:, r].double().mean()),
                mean_amount=float(h[:, r].mean()),
                profile=tuple(profile[:, r].tolist()),
                label_shares=() if shares is None else tuple(shares[:, r].tolist()),
                top_examples=tuple(i for i in order[:, r].tolist() if used[i, r]),
                batches=tuple(batches),
                first_step=None if ledger is None else ledger.first_step(batches),
                dead=not bool(used[:, r].any()),
            )
        )
    return ColumnReport(tuple(columns))


def contained(weight: Tensor, h: Tensor, threshold: float = 1e-3) -> Tensor:
    r"""Which examples contain which parts to an extent that matters.

    Args:
        weight: The parts.
        h: Codes.
        threshold: The share of the largest $\|W_r\| h_r$ of all above which a part counts.

    Shape:
        - weight: $(m, r)$
        - h and the result: $(n, r)$
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be at least 0 and less than 1, got {threshold}")
    sizes: Tensor = h * weight.detach().norm(dim=0)
    return sizes > threshold * sizes.max()


def dead_columns(weight: Tensor, h: Tensor, threshold: float = 1e-3) -> list[int]:
    """Columns that are zero, or that none of the examples contains.

    Args:
        weight: The parts.
        h: Codes of examples.
        threshold: As for `contained`.

    Example:
        >>> dead_columns(torch.eye(3), torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.0, 0.0]]))
        [1]
    """
    return (~contained(weight, h, threshold).any(0)).nonzero().flatten().tolist()


def duplicate_columns(weight: Tensor, similarity: float = 0.99) -> list[tuple[int, ...]]:
    """Groups of columns that point in the same direction; each is linked to another of its group, if not to all.

    Args:
        weight: The parts, one per column. Columns of zeros belong to no group.
        similarity: The cosine from which on two columns count as the same.

    Example:
        >>> duplicate_columns(torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 2.0]]))
        [(0, 2)]
    """
    if not 0 < similarity <= 1:
        raise ValueError(f"similarity must be greater than 0 and at most 1, got {similarity}")
    unit = unit_columns(weight.detach())
    cosines = unit.mT @ unit
    linked = cosines >= similarity - 4 * torch.finfo(cosines.dtype).eps  # rounding must not part equal columns
    groups: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for first in range(len(linked)):
        if first in seen or not linked[first, first]:
            continue
        group, waiting = {first}, [first]
        while waiting:
            near = set(linked[waiting.pop()].nonzero().flatten().tolist()) - group
            group |= near
            waiting += near
        seen |= group
        if len(group) > 1:
            groups.append(tuple(sorted(group)))
    return groups


@dataclass(frozen=True, eq=False)
class Matching:
    """Which parts of two models are the same: pairs with the largest sum of cosines.

    Shape:
        - first, second, similarity: $(p)$, one entry for each pair
    """

    first: Tensor
    second: Tensor
    similarity: Tensor
    """The cosine of each pair."""


def match_parts(first: Tensor, second: Tensor) -> Matching:
    r"""Pairs the parts of two models one to one so that the sum of their cosines is largest (Hungarian method).

    Needs scipy. Where one model has more parts than the other, the rest has no partner.

    Args:
        first: The parts of one model.
        second: The parts of the other.

    Shape:
        - first: $(m, r)$
        - second: $(m, s)$

    Example:
        >>> W = torch.eye(3)
        >>> match_parts(W, 2 * W[:, [2, 0, 1]]).second
        tensor([1, 2, 0])
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    for name, weight in (("first", first), ("second", second)):
        if weight.ndim != 2 or weight.shape[0] != first.shape[0]:
            raise ValueError(f"{name} must have shape ({first.shape[0]}, r), got {tuple(weight.shape)}")
    cosines = (unit_columns(first.detach()).mT @ unit_columns(second.detach())).double().cpu()
    rows, columns = linear_sum_assignment(cosines.numpy(), maximize=True)
    pairs = torch.as_tensor(rows), torch.as_tensor(columns)
    return Matching(*pairs, cosines[pairs])


@dataclass(frozen=True, eq=False)
class Stability:
    """Whether models that differ in their seed alone have the same parts.

    Shape:
        - similarity: $(r)$
    """

    similarity: Tensor
    """For each part of the first model, the mean cosine with its partners in the others; 0 for none."""
    mean: float
    """The mean cosine over all pairs of models and all their pairs of parts."""

    def unstable(self, threshold: float = 0.8) -> list[int]:
        """The parts of the first model that the others do not have.

        Args:
            threshold: The mean cosine below which a part counts as unstable.
        """
        return (self.similarity < threshold).nonzero().flatten().tolist()


def stability(weights: Sequence[Tensor]) -> Stability:
    r"""Compares the parts of models that were trained with different seeds. Needs scipy.

    Args:
        weights: The parts of each model, at least two.

    Shape:
        - weights: each $(m, r)$, with any number of parts

    Example:
        >>> W = torch.eye(3)
        >>> found = stability([W, W[:, [1, 0, 2]], W[:, [2, 1]]])
        >>> found.similarity  # the third model does not have the first part
        tensor([0.5000, 1.0000, 1.0000], dtype=torch.float64)
        >>> found.unstable()
        [0]
    """
    if len(weights) < 2:
        raise ValueError(f"weights must be those of at least two models, got {len(weights)}")
    total, cosines = torch.zeros(weights[0].shape[1], dtype=torch.float64), []
    for a, b in combinations(range(len(weights)), 2):
        matching = match_parts(weights[a], weights[b])
        cosines.append(matching.similarity)
        if a == 0:
            total[matching.first] += matching.similarity
    return Stability(total / (len(weights) - 1), float(torch.cat(cosines).mean()))
