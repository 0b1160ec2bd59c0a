"""Many models as one: the same launches for eight seeds as for one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.nn.block import PFCBlock, replace_data
from torchpfc.optim.resize import resize_state
from torchpfc.optim.stacked_slw import StackedRMSpropSLW

Model = TypeVar("Model", bound=nn.Module)


class StackedLinear(nn.Module):
    r"""A stack of independent `nn.Linear` layers, $y_s = W_s x_s + b_s$.

    Args:
        weight: The weights of all layers.
        bias: Their biases, or None.

    Shape:
        - weight: $(s, \text{out_features}, \text{in_features})$
        - bias: $(s, \text{out_features})$
        - x: $(*, s, n, \text{in_features})$, or $(n, \text{in_features})$ for the same input to all
        - y: $(*, s, n, \text{out_features})$
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Applies each layer to its own input."""
        if x.ndim == 2:
            x = x.expand(len(self.weight), *x.shape)
        if self.bias is None:
            return x @ self.weight.mT
        if x.ndim > 3:
            return x @ self.weight.mT + self.bias.unsqueeze(-2)
        return torch.baddbmm(self.bias.unsqueeze(-2), x, self.weight.mT)


class StackedLayerNorm(nn.Module):
    r"""A stack of independent `nn.LayerNorm` layers over the last dimension.

    Args:
        eps: Added to the variance.
        weight: The gains of all layers.
        bias: Their offsets, or None.

    Shape:
        - weight, bias: $(s, \text{features})$
        - x and the result: $(*, s, n, \text{features})$
    """

    def __init__(self, eps: float, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes each row, then applies the gains and offsets of its layer."""
        y = F.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight.unsqueeze(-2)
        return y if self.bias is None else y + self.bias.unsqueeze(-2)


def stack_models(models: Sequence[Model]) -> Model:
    """Makes one module out of models that differ only in their values.

    The result has the models' own class, and each of its parameters is a stack of theirs. It takes one input for all,
    $(n, m)$, or one for each, $(s, n, m)$, and returns $(s, n, k)$. Every operation runs once for the whole stack.
    Sum the models' losses, and each gets the gradient that it would have had alone; a mean over the stack, such as that
    of `reconstruction_loss`, has to be multiplied by the number of models.

    Args:
        models: Models of one architecture, made of `PFCBlock`, `nn.Linear`, `nn.LayerNorm` over one dimension, and
            modules without parameters of their own.

    Example:
        >>> from torchpfc import PFCBlock
        >>> stack = stack_models([PFCBlock(8, 3, num_basis=5) for _ in range(4)])
        >>> stack(torch.rand(6, 8)).shape
        torch.Size([4, 6, 3])
    """
    if not models:
        raise ValueError("models must hold at least one model, got none")
    first = models[0]
    for model in models:
        if type(model) is not type(first) or repr(model) != repr(first) or _layout(model) != _layout(first):
            raise ValueError(f"models must share one architecture and its settings, got {first} and {model}")
    replaced: dict[
        int, nn.Module | Tensor
    ] = {}  # by the id of the original: where deepcopy looks for copies it has made
    for path, module in first.named_modules():
        rows = zip(*(_own_tensors(model.get_submodule(path)) for model in models), strict=True)
        own = [_like(row[0], torch.stack([tensor.detach() for tensor in row])) for row in rows]
        if type(module) is nn.Linear:
            replaced[id(module)] = StackedLinear(*own).train(module.training)
        elif own and type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
            replaced[id(module)] = StackedLayerNorm(module.eps, *own).train(module.training)
        elif own and not isinstance(module, PFCBlock):
            raise TypeError(
                "models must be made of PFCBlock, nn.Linear and nn.LayerNorm over one dimension to be stacked, "
                f"got {type(module).__name__}"
            )
        replaced.update(zip(map(id, _own_tensors(module)), own, strict=True))
    return deepcopy(first, replaced)


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
    return [_member(stack, i) for i in range(_count(stack))]


def select_models_(stack: nn.Module, members: Tensor, optimizer: Optimizer | None = None) -> None:
    """Keeps some models of a stack and lets go of the others, in place.

    Args:
        stack: What `stack_models` made.
        members: The indices of those to keep, in their new order.
        optimizer: The optimizer of the stack, whose state and windows are to follow.

    Shape:
        - members: $(k)$

    Example:
        >>> from torchpfc import MLP
        >>> stack = stack_models([MLP(8, 3, hidden_features=5) for _ in range(4)])
        >>> select_models_(stack, torch.tensor([0, 3]))
        >>> stack(torch.rand(6, 8)).shape
        torch.Size([2, 6, 3])
    """
    count = _count(stack)
    if members.ndim != 1 or members.dtype != torch.int64 or not len(members):
        raise ValueError(f"members must be indices, at least one, got {members}")
    if not 0 <= members.min() <= members.max() < count:
        raise ValueError(f"members must be from 0 to {count - 1}, got {members.tolist()}")

    def select(tensor: Tensor) -> Tensor:
        return tensor.index_select(0, members.to(tensor.device))

    with torch.no_grad():
        for parameter in stack.parameters():
            if optimizer is not None:
                resize_state(optimizer, parameter, parameter.shape, select)
            replace_data(parameter, select(parameter.data))
        if isinstance(optimizer, StackedRMSpropSLW):
            optimizer.select_(members)
        for module in stack.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, select(buffer))


def _count(stack: nn.Module) -> int:
    """How many models are in a stack."""
    parts = [module for module in stack.modules() if _own_tensors(module)]
    if not parts or not all(map(_is_stacked, parts)):
        raise ValueError(f"stack must come from stack_models and have parameters, got {type(stack).__name__}")
    return len(_own_tensors(parts[0])[0])


def _is_stacked(module: nn.Module) -> bool:
    if isinstance(module, PFCBlock):
        return module.weight_x.ndim > 2
    return isinstance(module, StackedLinear | StackedLayerNorm)


def _member(stack: Model, index: int) -> Model:
    replaced: dict[int, nn.Module | Tensor] = {}
    for module in stack.modules():
        own = [_like(tensor, tensor.detach()[index].clone()) for tensor in _own_tensors(module)]
        if isinstance(module, StackedLinear):
            replaced[id(module)] = _linear(*own).train(module.training)
        if isinstance(module, StackedLayerNorm):
            replaced[id(module)] = _layer_norm(module.eps, *own).train(module.training)
        replaced.update(zip(map(id, _own_tensors(module)), own, strict=True))
    return deepcopy(stack, replaced)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return _with_parameters(linear, weight, bias)


def _layer_norm(eps: float, weight: nn.Parameter, bias: nn.Parameter | None = None) -> nn.LayerNorm:
    norm = nn.LayerNorm(len(weight), eps=eps, bias=bias is not None, device="meta")
    return _with_parameters(norm, weight, bias)


def _with_parameters(module: Model, weight: nn.Parameter, bias: nn.Parameter | None) -> Model:
    for name, parameter in (("weight", weight), ("bias", bias)):
        module.register_parameter(name, parameter)
    return module


def _own_tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _like(tensor: Tensor, data: Tensor) -> Any:
    return nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data


def _layout(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in module.state_dict().items()}
