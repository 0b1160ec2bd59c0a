"""Many models as one: the same launches for eight seeds as for one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from torchpfc.nn.block import PFCBlock

Model = TypeVar("Model", bound=nn.Module)


class StackedLinear(nn.Module):
    r"""A stack of independent `nn.Linear` layers, $y_s = W_s x_s + b_s$.

    Args:
        weight: The weights of all layers.
        bias: Their biases, or None.

    Shape:
        - weight: $(s, \text{out_features}, \text{in_features})$
        - bias: $(s, \text{out_features})$
        - x: $(s, n, \text{in_features})$, or $(n, \text{in_features})$ for the same input to all
        - y: $(s, n, \text{out_features})$
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Applies each layer to its own input."""
        if x.ndim == 2:
            x = x.expand(len(self.weight), *x.shape)
        if self.bias is None:
            return torch.bmm(x, self.weight.mT)
        return torch.baddbmm(self.bias.unsqueeze(-2), x, self.weight.mT)


def stack_models(models: Sequence[Model]) -> Model:
    """Makes one module out of models that differ only in their values.

    The result has the models' own class, and each of its parameters is a stack of theirs. It takes one input for all,
    $(n, m)$, or one for each, $(s, n, m)$, and returns $(s, n, k)$. Every operation runs once for the whole stack.
    Sum the models' losses, and each gets the gradient that it would have had alone.

    Args:
        models: Models of one architecture, made of `PFCBlock`, `nn.Linear` and modules without parameters of their own.

    Example:
        >>> from torchpfc import PFCBlock
        >>> stack = stack_models([PFCBlock(8, 3, num_basis=5) for _ in range(4)])
        >>> stack(torch.rand(6, 8)).shape
        torch.Size([4, 6, 3])
    """
    if not models:
        raise ValueError("models must hold at least one model, got none")
    return _stack(list(models))


def unstack_models(stack: Model) -> list[Model]:
    """Takes a stack apart into models of their own, with copies of its values.

    Args:
        stack: What `stack_models` made.

    Example:
        >>> from torchpfc import MLP
        >>> models = unstack_models(stack_models([MLP(8, 3, hidden_features=5) for _ in range(4)]))
        >>> len(models), type(models[0]).__name__
        (4, 'MLP')
    """
    sizes = {len(value) for value in stack.state_dict().values()}
    if len(sizes) != 1:
        raise ValueError(f"stack must come from stack_models, got {type(stack).__name__} with leading sizes {sizes}")
    return [_member(stack, i) for i in range(sizes.pop())]


def _stack(models: list[Model]) -> Model:
    first = models[0]
    for model in models:
        if type(model) is not type(first) or _shapes(model) != _shapes(first):
            raise ValueError(f"models must share one architecture, got {first} and {model}")
    own = _own_tensors(first)
    if isinstance(first, nn.Linear):
        stacks = {name: torch.stack([getattr(model, name).detach() for model in models]) for name in own}
        return StackedLinear(stacks["weight"], stacks.get("bias"))  # type: ignore[return-value]
    if own and not isinstance(first, PFCBlock):
        raise TypeError(f"models must be made of PFCBlock and nn.Linear to be stacked, got {type(first).__name__}")
    stacked = deepcopy(first)
    for name in own:
        getattr(stacked, name).data = torch.stack([getattr(model, name).detach() for model in models])
    for name, _ in first.named_children():
        stacked.register_module(name, _stack([model.get_submodule(name) for model in models]))
    return stacked


def _member(stack: Model, index: int) -> Model:
    if isinstance(stack, StackedLinear):
        out_features, in_features = stack.weight.shape[-2:]
        linear = nn.Linear(in_features, out_features, stack.bias is not None, stack.weight.device, stack.weight.dtype)
        linear.load_state_dict({name: value[index] for name, value in stack.state_dict().items()})
        return linear  # type: ignore[return-value]
    member = deepcopy(stack)
    for name in _own_tensors(stack):
        getattr(member, name).data = getattr(stack, name).detach()[index].clone()
    for name, child in stack.named_children():
        member.register_module(name, _member(child, index))
    return member


def _own_tensors(module: nn.Module) -> list[str]:
    return [name for name, _ in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]]


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in module.state_dict().items()}
