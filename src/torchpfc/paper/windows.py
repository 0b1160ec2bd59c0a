"""The optimizer of a stack, with a window over the columns of each model, or rates of their own."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchpfc.nn import MLP, PFCBlock, count_use, keep_nonnegative
from torchpfc.nn.constraints import project_nonnegative_
from torchpfc.optim import ColumnRates, RMSprop
from torchpfc.optim.stacked_slw import StackedRMSpropSLW
from torchpfc.paper.components import ImageConfig, RatedOptimizer, Window
from torchpfc.paper.settings import settings


def make_optimizer(stack: nn.Module, config: ImageConfig, window: Window) -> Optimizer:
    """RMSprop that keeps weights non-negative where it has to.

    Args:
        stack: The models; without a window also one by itself.
        config: The other settings.
        window: The window of each model; one of no width is none.
    """
    optimizer: Optimizer
    chosen = config.optimizer
    rule: dict[str, Any] = {"lr": chosen.lr, "weight_decay": chosen.weight_decay}
    if window.width:
        optimizer = StackedRMSpropSLW(window_groups(stack), **rule, **settings(window))
    else:
        optimizer = RMSprop(stack.parameters(), **rule)
    if isinstance(chosen, RatedOptimizer):
        optimizer = ColumnRates(optimizer, half_after=chosen.half_after, measure=chosen.measure)
        count_use(stack, optimizer)
    if config.model.nonnegative:
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
