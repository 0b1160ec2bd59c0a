"""Which parameters a step changes."""

from typing import Any

import torch
from torch import Tensor


def parameters_with_gradient(group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Pair each parameter of a group with its gradient, leaving out those that have none.

    Raises:
        TypeError: A gradient is sparse.
    """
    pairs = [(p, p.grad) for p in group["params"] if p.grad is not None]
    for p, grad in pairs:
        if grad.layout is not torch.strided:
            raise TypeError(f"gradients must be dense, got {grad.layout} for a parameter of shape {tuple(p.shape)}")
    return pairs
