"""Predicting whatever is missing of a pair (y, x) from whatever is there: the block in every direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchpfc.nn.matching import match_weight
from torchpfc.solvers import Adjoint, NonnegativeLeastSquares, Solver, solve
from torchpfc.solvers.problem import check_mask, common_shape

if TYPE_CHECKING:
    from torchpfc.nn.block import PFCBlock


@dataclass(frozen=True, eq=False)
class Completion:
    r"""Both sides of a block, predicted by one code from what was observed of them, $(y; x) = (W_y; W_x) h$.

    Shape:
        - x, filled_x: $(*, \text{in_features})$
        - y, filled_y: $(*, \text{out_features})$
        - h: $(*, \text{num_basis})$
    """

    x: Tensor
    """The prediction $W_x h$ of every input feature, observed or not."""
    y: Tensor
    """The prediction $W_y h$ of every output feature, observed or not."""
    h: Tensor
    """How much of each part there is."""
    filled_x: Tensor
    """What was observed of x, and the prediction everywhere else."""
    filled_y: Tensor
    """What was observed of y, and the prediction everywhere else."""


def complete(
    block: PFCBlock,
    x: Tensor | None = None,
    y: Tensor | None = None,
    mask_x: Tensor | None = None,
    mask_y: Tensor | None = None,
    *,
    y_weight: float = 1.0,
    l1: float | None = None,
    l2: float = 0.0,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
) -> Completion:
    r"""Finds the code that explains all that is observed of x and y, and predicts both sides from it.

    $$h = \arg\min_{h \ge 0} \tfrac12 \|\mathrm{mask}_x \cdot (x - W_x h)\|^2
    + \tfrac{w}{2} \|\mathrm{mask}_y \cdot (y - W_y h)\|^2 + l_1 \sum_r h_r + \tfrac{l_2}{2} \|h\|^2$$

    The block's equation does not say which side is the input (Section 2.4, "Future research"). With x alone this is the
    forward pass, with y alone the block runs backwards, and with parts of either it fills in the rest.

    Args:
        block: A block, or a stack of them.
        x: The input, as far as it is known; None where nothing of it is.
        y: The output, as far as it is known, one-hot for a class; None where nothing of it is.
        mask_x: True where x is observed; None for everywhere. Unobserved entries may hold anything, NaN included.
        mask_y: True where y is observed; None for everywhere.
        y_weight: What the squared error of y counts, w above, where that of x counts 1. A few outputs beside hundreds
            of inputs say little at 1.
        l1: Weight of the sum of h; makes h sparse. The block's own by default.
        l2: Weight of half the squared norm of h. Where fewer features are observed than there are parts, h is not
            unique without it.
        solver: How h is found; the block's own by default.
        adjoint: How gradients pass; by default the block's own with its own solver, and with another that solver's.

    Shape:
        - x, mask_x: $(*, \text{in_features})$; a mask may broadcast
        - y, mask_y: $(*, \text{out_features})$; the leading dimensions of x and y broadcast

    Example:
        >>> from torchpfc.nn.block import PFCBlock
        >>> block = PFCBlock(64, 10, num_basis=30).eval()
        >>> x, seen = torch.rand(5, 64), torch.rand(5, 64) < 0.5
        >>> half = complete(block, x, mask_x=seen)
        >>> half.y.shape, half.filled_x.shape
        (torch.Size([5, 10]), torch.Size([5, 64]))
        >>> complete(block, y=torch.eye(10)).x.shape
        torch.Size([10, 64])
    """
    x = _checked("x", x, mask_x, block.weight_x)
    y = _checked("y", y, mask_y, block.weight_y)
    if not 0 < y_weight < math.inf:
        raise ValueError(f"y_weight must be positive and finite, got {y_weight}")
    target, W, mask = _observed(block, x, y, mask_x, mask_y, math.sqrt(y_weight))
    problem = NonnegativeLeastSquares(target, W, block.l1 if l1 is None else l1, l2, mask)
    if solver is None:
        solver, adjoint = block.solver, block.adjoint if adjoint is None else adjoint
    h = solve(problem, solver, adjoint=adjoint).h
    predicted_x, predicted_y = h @ block.weight_x.mT, h @ block.weight_y.mT
    return Completion(
        x=predicted_x,
        y=predicted_y,
        h=h,
        filled_x=_fill(predicted_x, x, mask_x),
        filled_y=_fill(predicted_y, y, mask_y),
    )


def _observed(
    block: PFCBlock, x: Tensor | None, y: Tensor | None, mask_x: Tensor | None, mask_y: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the code has to explain, with which weights, and where: a side that is not there takes no part."""
    if x is None and y is None:
        raise ValueError("x or y must be given, got neither: there is nothing to predict from")
    if y is None:
        assert x is not None
        return x, block.weight_x, mask_x
    if x is None:
        return y, block.weight_y, mask_y
    rows = common_shape(x.shape[:-1], y.shape[:-1])
    if rows is None:
        leading = f"{tuple(x.shape[:-1])}, got {tuple(y.shape[:-1])}"
        raise ValueError(f"y must have leading dimensions that broadcast with those of x {leading}")
    x, y = x.expand(*rows, -1), y.expand(*rows, -1)
    mask = None
    if mask_x is not None or mask_y is not None:
        everywhere = torch.ones((), dtype=torch.bool, device=x.device)
        sides = ((y, mask_y), (x, mask_x))
        mask = torch.cat([(everywhere if m is None else m).expand(side.shape) for side, m in sides], dim=-1)
    # Rows scaled by a root of the weight have a squared error scaled by the weight itself.
    return torch.cat([scale * y, x], dim=-1), torch.cat([scale * block.weight_y, block.weight_x], dim=-2), mask


def _fill(predicted: Tensor, given: Tensor | None, mask: Tensor | None) -> Tensor:
    if given is None:
        return predicted
    return given.expand_as(predicted) if mask is None else torch.where(mask, given, predicted)


def _checked(name: str, given: Tensor | None, mask: Tensor | None, weight: Tensor) -> Tensor | None:
    """One side, in the precision of the weights."""
    if given is None:
        if mask is not None:
            raise ValueError(f"mask_{name} must come with {name}, got no {name}")
        return None
    stacked = weight.ndim > 2
    if given.ndim < (2 if stacked else 1) or given.shape[-1] != weight.shape[-2]:
        rows = "..., n" if stacked else "..."
        raise ValueError(f"{name} must have shape ({rows}, {weight.shape[-2]}), got {tuple(given.shape)}")
    given = match_weight(given, weight, name)
    if mask is not None:
        check_mask(mask, given, name=f"mask_{name}", of=name)
    return given
