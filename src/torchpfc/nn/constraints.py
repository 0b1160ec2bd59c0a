"""Keeping non-negative weights non-negative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchpfc.nn.block import PFCBlock
from torchpfc.optim.stacked_slw import StackedRMSpropSLW


def keep_nonnegative(model: nn.Module, optimizer: Optimizer) -> RemovableHandle:
    """Projects the weights of every non-negative block after each step of an optimizer.

    Only columns that the step could change are touched: with a window those inside it, and never a column that is
    entirely zero, which was forgotten. That the step itself leaves it so is what `torchpfc.unlearning.keep_forgotten`
    sees to.

    Args:
        model: Any module that contains non-negative PFC blocks, or one itself.
        optimizer: The optimizer of its weights.

    Returns:
        A handle whose `remove()` ends this.

    Example:
        >>> block = PFCBlock(8, 3, num_basis=5)
        >>> optimizer = torch.optim.SGD(block.parameters(), lr=100.0)
        >>> handle = keep_nonnegative(block, optimizer)
        >>> block(torch.rand(4, 8)).sum().backward()
        >>> optimizer.step()
        >>> bool((block.weight_y >= 1e-5).all())
        True
    """
    blocks = [module for module in model.modules() if isinstance(module, PFCBlock) and module.nonnegative]
    if not blocks:
        raise ValueError(f"model must contain a non-negative PFCBlock, got {type(model).__name__} without one")

    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(weight) in known for block in blocks for weight in (block.weight_x, block.weight_y)):
        raise ValueError("optimizer must be that of the model, got one that has no weight of its non-negative blocks")

    def project(optimizer: Optimizer, *_: Any) -> None:
        windows = {id(p): group.get("window", (0, None)) for group in optimizer.param_groups for p in group["params"]}
        for block in blocks:
            assert block.weight_floor is not None
            for weight in (block.weight_x, block.weight_y):
                if (window := windows.get(id(weight))) is None:
                    continue
                if isinstance(optimizer, StackedRMSpropSLW):
                    project_nonnegative_(weight, block.weight_floor, optimizer.inside(weight))
                else:
                    project_nonnegative_(weight[..., slice(*window)], block.weight_floor)

    return optimizer.register_step_post_hook(project)


@torch.no_grad()
def project_nonnegative_(weight: Tensor, floor: float = 0.0, inside: Tensor | None = None) -> None:
    """Raises every entry below the floor to it, in place, except in columns that are entirely zero.

    Args:
        weight: The matrix, or a stack of them.
        floor: The smallest value an entry may take.
        inside: The columns to look at, as a mask that broadcasts to the matrix; None looks at all.
    """
    lowest = weight.abs().amax(-2, keepdim=True).sign_().mul_(floor)  # (*, 1, columns): the floor, or 0
    if inside is not None:
        lowest = lowest.where(inside, -torch.inf)
    weight.clamp_(min=lowest)
