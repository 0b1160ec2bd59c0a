"""Optimizer state that follows a parameter when the parameter gains or loses columns."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchpfc.optim.column_rates import ColumnRates


def resize_state(
    optimizer: Optimizer, parameter: Tensor, old_shape: torch.Size, resize: Callable[[Tensor], Tensor]
) -> None:
    """Apply a change of shape to all state that an optimizer keeps for each weight or column of a parameter.

    State of any other shape (Adam's step count, say) stays as it is, and so does a parameter without state.

    Args:
        optimizer: Any PyTorch optimizer.
        parameter: The parameter that changes; whether it has already changed does not matter.
        old_shape: The shape of the parameter before.
        resize: Gives the new tensor for the old one.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2, 3))
        >>> optimizer = torch.optim.Adam([weight])
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> old_shape, weight.data, weight.grad = weight.shape, torch.ones(2, 5), None
        >>> resize_state(optimizer, weight, old_shape, lambda tensor: torch.nn.functional.pad(tensor, (0, 2)))
        >>> optimizer.state[weight]["exp_avg"][0]
        tensor([0.1000, 0.1000, 0.1000, 0.0000, 0.0000])
    """
    state = optimizer.state.get(parameter, {})
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == old_shape:
            state[key] = resize(value)
    if isinstance(optimizer, ColumnRates):
        optimizer.resize_use(parameter, resize)
