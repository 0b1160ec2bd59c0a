"""Windows over the columns of a stack, one for each model: its optimizer, and how far a window has come."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchpfc.nn import MLP, PFCBlock, keep_nonnegative
from torchpfc.nn.constraints import project_nonnegative_
from torchpfc.optim import RMSprop
from torchpfc.optim.stacked_slw import StackedRMSpropSLW


def make_optimizer(stack: nn.Module, config: Any) -> Optimizer:
    """RMSprop for a stack, with a window for each model where the config has one."""
    options = {"lr": config.lr, "weight_decay": config.weight_decay}
    optimizer: Optimizer
    if not getattr(config, "width", 0):
        optimizer = RMSprop(stack.parameters(), **options)
    else:
        optimizer = StackedRMSpropSLW(
            window_groups(stack), width=config.width, sweep_speed=config.sweep_speed, **options
        )
    if config.nonnegative:
        _keep_nonnegative(stack, optimizer)
    return optimizer


def window_groups(stack: nn.Module) -> list[dict[str, Any]]:
    """The parameters that a window passes over, each with the dimension that counts the units.

    Those of a perceptron are its hidden units. What all of them share, the bias of the output, stays as it is.
    """
    if not isinstance(stack, MLP):
        return [{"params": list(stack.parameters())}]
    rows, columns = [stack.hidden.weight], [stack.hidden.bias, stack.output.weight]
    stack.output.bias.requires_grad_(False)
    return [{"params": rows, "dim": -2}, {"params": columns, "dim": -1}]


def columns_reached(stack: nn.Module, config: Any, position: float) -> int:
    """How many columns, or hidden units, steps could change before the window came to a position."""
    count = num_units(stack)
    if not getattr(config, "width", 0):
        return count
    return min(count, int(position - config.sweep_speed + config.width)) if position > 0 else 0


def num_units(stack: nn.Module) -> int:
    """How many columns, or hidden units, each model of a stack has."""
    return int(max(p.shape[-1] for name, p in stack.named_parameters() if name.endswith(("weight_x", "output.weight"))))


def _keep_nonnegative(stack: nn.Module, optimizer: Optimizer) -> None:
    """Holds the weights of blocks, or the matrices of a perceptron, to it."""
    if any(isinstance(module, PFCBlock) for module in stack.modules()):
        keep_nonnegative(stack, optimizer)
        return
    matrices = [parameter for name, parameter in stack.named_parameters() if name.endswith("weight")]

    def project(*_: Any) -> None:
        for matrix in matrices:
            project_nonnegative_(matrix)

    project()
    optimizer.register_step_post_hook(project)
