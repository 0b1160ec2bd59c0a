"""RMSprop as the paper uses it: no momentum, and weight decay apart from the learning rate."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from torchpfc.optim.gradients import parameters_with_gradient


class RMSprop(Optimizer):
    r"""Divide each gradient by a running root mean square of its past, then let the weights decay.

    $$v \leftarrow \alpha v + (1 - \alpha) g^2, \qquad
    w \leftarrow w - \mathrm{lr} \frac{g}{\sqrt v + \epsilon}, \qquad
    w \leftarrow w - \mathrm{weight\_decay} \cdot w$$

    With `weight_decay=0` this is `torch.optim.RMSprop`, bit for bit. The decay differs from PyTorch's twice: it is not
    part of the gradient, and it is **not multiplied by the learning rate**, so 1e-4 takes a ten-thousandth of every
    weight away at every step. $v$ starts at 0 and is not corrected for it: the first step on a weight is about
    10 `lr` long.

    `optimizer.state.clear()` starts $v$ at 0 again, as the paper does for each new task. A step can be captured in a
    CUDA graph once one step has made the state.

    Args:
        params: Parameters or parameter groups, as for every PyTorch optimizer.
        lr: Learning rate. A tensor lets a captured step read a value that changes later.
        alpha: How much of $v$ a step keeps.
        eps: Keeps the division finite.
        weight_decay: Share of each weight that a step takes away.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2, 3))
        >>> optimizer = RMSprop([weight], lr=0.01)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.data[0]  # the first step is 10 lr
        tensor([0.9000, 0.9000, 0.9000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-4,
        *,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings it does not give are the optimizer's."""
        check_hyperparameters({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change every parameter that has a gradient; return what the closure returned, if there was one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rmsprop_(*learned_tensors(self, group), **settings(group))
        return loss


def learned_tensors(optimizer: Optimizer, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Parameters of a group that have a gradient, the gradients, and the running averages of their squares."""
    params, grads, square_avgs = [], [], []
    for p, grad in parameters_with_gradient(group):
        state = optimizer.state[p]
        if "square_avg" not in state:
            state["square_avg"] = torch.zeros_like(p)
        params.append(p)
        grads.append(grad)
        square_avgs.append(state["square_avg"])
    return params, grads, square_avgs


def settings(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a group that `rmsprop_` takes."""
    return {name: group[name] for name in ("lr", "alpha", "eps", "weight_decay")}


def rmsprop_(
    params: list[Tensor],
    grads: list[Tensor],
    square_avgs: list[Tensor],
    *,
    lr: float | Tensor,
    alpha: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Take one step of `RMSprop` on lists of tensors, changing `params` and `square_avgs` in place.

    A fixed number of operations over whole lists, none of which waits for the device. They are PyTorch's own in
    PyTorch's order, because the results must agree to the last bit.
    """
    if not params:
        return  # operations over lists refuse empty ones
    torch._foreach_mul_(square_avgs, alpha)
    torch._foreach_addcmul_(square_avgs, grads, grads, value=1 - alpha)
    denominators = torch._foreach_sqrt(square_avgs)
    torch._foreach_add_(denominators, eps)
    if isinstance(lr, Tensor):  # as `value`, a tensor would be read on the host
        torch._foreach_div_(denominators, -lr)
        torch._foreach_addcdiv_(params, grads, denominators)
    else:
        torch._foreach_addcdiv_(params, grads, denominators, value=-lr)
    if weight_decay:
        torch._foreach_add_(params, params, alpha=-weight_decay)


def check_hyperparameters(values: Mapping[str, Any]) -> None:
    """Raise `ValueError` for settings with which RMSprop makes no sense."""
    for name in ("lr", "eps"):
        if not values[name] >= 0:  # so that NaN does not pass
            raise ValueError(f"{name} must be non-negative, got {values[name]}")
    for name in ("alpha", "weight_decay"):
        if not 0 <= values[name] < 1:
            raise ValueError(f"{name} must be at least 0 and less than 1, got {values[name]}")
