"""Seeing every coupling of a model, counting its codes, starting it where it ended, and the loss of reconstructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.nn.block import Coupling, PFCBlock
from torchpfc.optim.column_rates import ColumnRates

Couplings = dict[str, list[Coupling]]


@contextmanager
def record_couplings(model: nn.Module) -> Iterator[Couplings]:
    """Collects the couplings of every block in a model while it runs.

    Args:
        model: Any module that contains PFC blocks, or one itself.

    Yields:
        The couplings of each block in the order of its calls, by the block's name in the model; a block that is the
        model itself has the name "".

    Example:
        >>> import torch
        >>> from torchpfc import ResidualPFC
        >>> model = ResidualPFC(8, 3, num_basis=5)
        >>> with record_couplings(model) as seen:
        ...     y = model(torch.rand(4, 8))
        >>> {name: len(couplings) for name, couplings in seen.items()}
        {'blocks.0': 1, 'blocks.1': 1}
    """
    blocks = named_blocks(model)
    seen: Couplings = {name: [] for name in blocks}
    for name, block in blocks.items():
        block.watchers.append(seen[name].append)
    try:
        yield seen
    finally:
        for name, block in blocks.items():
            block.watchers.remove(seen[name].append)


@contextmanager
def warm_couplings(model: nn.Module, starts: Mapping[str, Tensor]) -> Iterator[None]:
    """Starts the solves of blocks in a model at given codes while it runs.

    Args:
        model: Any module that contains PFC blocks, or one itself.
        starts: Where to start, by the block's name in the model, as `record_couplings` names them.

    Example:
        >>> import torch
        >>> from torchpfc import FISTA, PFCBlock
        >>> block, x = PFCBlock(8, 3, num_basis=5, solver=FISTA(max_iter=2000)), torch.rand(4, 8)
        >>> h = block.couple(x).h
        >>> block.solver = FISTA(max_iter=1)
        >>> with warm_couplings(block, {"": h}):
        ...     again = block.couple(x).h
        >>> bool((again - h).norm() < 1e-2 * h.norm())
        True
    """
    blocks = named_blocks(model)
    if unknown := set(starts) - set(blocks):
        raise ValueError(f"starts must name blocks of the model {sorted(blocks)}, got {sorted(unknown)}")
    for name, start in starts.items():
        blocks[name].warm_start = start
    try:
        yield
    finally:
        for name in starts:
            blocks[name].warm_start = None


def count_use(model: nn.Module, optimizer: ColumnRates) -> None:
    """Tells an optimizer with rates of columns of every code that a model learns from.

    Codes of a model in evaluation mode, and those found without gradients, are not counted. A copy of the model tells
    nobody: call this again for it and its optimizer.

    Args:
        model: Any module that contains PFC blocks, or one itself.
        optimizer: The optimizer of the weights of all of them.

    Example:
        >>> from torchpfc import ColumnRates, PFCBlock, RMSprop
        >>> block = PFCBlock(8, 3, num_basis=5)
        >>> optimizer = ColumnRates(RMSprop(block.parameters()))
        >>> count_use(block, optimizer)
        >>> for _ in range(3):
        ...     block(torch.rand(4, 8)).sum().backward()
        ...     optimizer.step()
        >>> round(optimizer.use(block.weight_x).mean().item(), 4)
        3.0
    """

    def watch(block: PFCBlock, coupling: Coupling) -> None:
        if block.training and torch.is_grad_enabled():
            optimizer.observe(coupling.h, (block.weight_x, block.weight_y))

    for block in named_blocks(model).values():
        block.watchers.append(partial(watch, block))


def named_blocks(model: nn.Module) -> dict[str, PFCBlock]:
    """The PFC blocks of a model by name; a model that is a block itself has the name ""."""
    blocks = {name: module for name, module in model.named_modules() if isinstance(module, PFCBlock)}
    if not blocks:
        raise ValueError(f"model must contain a PFCBlock, got {type(model).__name__} without one")
    return blocks


def reconstruction_loss(seen: Couplings, weights: float | Mapping[str, float] = 1.0) -> Tensor:
    r"""The mean squared reconstruction error of each block, averaged over its calls and summed over the blocks.

    Args:
        seen: What `record_couplings` collected.
        weights: A factor for all blocks, or one for each by name.

    Example:
        >>> import torch
        >>> from torchpfc import PFCBlock
        >>> block, x = PFCBlock(8, 3, num_basis=5), torch.rand(4, 8)
        >>> with record_couplings(block) as seen:
        ...     y = block(x)
        >>> loss = F.mse_loss(y, torch.zeros(4, 3)) + reconstruction_loss(seen)
    """
    if isinstance(weights, Mapping):
        if unknown := set(weights) - set(seen):
            raise ValueError(f"weights must name recorded blocks {sorted(seen)}, got {sorted(unknown)}")
    else:
        weights = dict.fromkeys(seen, weights)
    losses = [
        weight * F.mse_loss(coupling.x, coupling.target) / len(seen[name])
        for name, weight in weights.items()
        for coupling in seen[name]
    ]
    if not losses:
        raise RuntimeError("seen must hold at least one coupling, got none: run the model inside record_couplings")
    return sum(losses[1:], start=losses[0])
