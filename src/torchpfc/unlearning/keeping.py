"""Keeping forgotten columns from coming back when training goes on."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.nn.recording import named_blocks
from torchpfc.optim import ColumnRates


def keep_forgotten(model: nn.Module, optimizer: Optimizer) -> Keeper:
    """Keeps columns of zeros at zero through every step of an optimizer, with the optimizer's state for them.

    A column counts as forgotten where it is zero in both weights of a block. Optimizers would fill it again: where the
    solver has a floor, its gradient is small but not zero, and RMSprop makes long steps of small gradients.

    `forget` calls this. Call it again for an optimizer that was made or copied later. It may be called any number of
    times.

    Args:
        model: Any module that contains PFC blocks, or one itself.
        optimizer: The optimizer of its weights.

    Returns:
        A handle whose `remove()` ends this.

    Example:
        >>> from torchpfc import PFCBlock, RMSprop, keep_nonnegative
        >>> block = PFCBlock(8, 3, num_basis=5)
        >>> with torch.no_grad():
        ...     for weight in block.parameters():
        ...         weight[:, 2] = 0
        >>> optimizer = RMSprop(block.parameters())
        >>> handles = keep_nonnegative(block, optimizer), keep_forgotten(block, optimizer)
        >>> block(torch.rand(4, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> block.weight_y[:, 2].tolist()
        [0.0, 0.0, 0.0]
    """
    keeper = _KEEPERS.get(optimizer)
    if keeper is None or keeper.model is not model:
        keeper = _KEEPERS[optimizer] = Keeper(model, optimizer)
    return keeper


class Keeper:
    """Keeps forgotten columns at zero; what `keep_forgotten` gives."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self._blocks = list(named_blocks(model).values())
        self._forgotten: list[Tensor] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._look),
            optimizer.register_step_post_hook(self._restore),
        ]

    def remove(self) -> None:
        """Ends it."""
        for handle in self._handles:
            handle.remove()
        for optimizer in [optimizer for optimizer, keeper in _KEEPERS.items() if keeper is self]:
            del _KEEPERS[optimizer]

    @torch.no_grad()
    def _look(self, *_: Any) -> None:
        self._forgotten = [
            ~(block.weight_x.any(-2, keepdim=True) | block.weight_y.any(-2, keepdim=True)) for block in self._blocks
        ]

    @torch.no_grad()
    def _restore(self, optimizer: Optimizer, *_: Any) -> None:
        for block, forgotten in zip(self._blocks, self._forgotten, strict=True):
            count = forgotten.shape[-1]  # the step may have added columns on the right
            for weight in (block.weight_x, block.weight_y):
                for tensor in (weight, *state_of_columns(optimizer, weight)):
                    tensor[..., :count].masked_fill_(forgotten, 0)


_KEEPERS: WeakKeyDictionary[Optimizer, Keeper] = WeakKeyDictionary()


def state_of_columns(optimizer: Optimizer, weight: Tensor) -> list[Tensor]:
    """All state that an optimizer keeps for each weight, or for each column."""
    state = optimizer.state.get(weight, {})
    counts = optimizer.counts(weight) if isinstance(optimizer, ColumnRates) else []
    return [value for value in state.values() if isinstance(value, Tensor) and value.shape == weight.shape] + counts
