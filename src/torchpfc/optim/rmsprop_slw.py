"""The paper's optimizer for continual learning: RMSprop inside a sliding learnable window."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchpfc.optim.rmsprop import check_hyperparameters, learned_tensors, rmsprop_, settings
from torchpfc.optim.windowed import WindowedOptimizer


class RMSpropSLW(WindowedOptimizer):
    r"""RMSprop that learns only the columns inside a window, which slides to the right step by step.

    With the window at position $r$ (0 at first), a step takes $a = \lfloor r \rfloor$ and
    $b = \lfloor r + \mathrm{width} \rfloor$, applies `RMSprop` with its weight decay to columns $a$ to $b - 1$ of every
    parameter, then adds `sweep_speed` to $r$. What was learned left of the window stays as it is, so old data needs no
    replay; the running averages there stay too, frozen. A window over all columns makes it `RMSprop`, bit for bit.

    `optimizer.state.clear()` starts the averages at 0 again for a new task, `reset_window()` puts the window back to
    the first column for a new epoch, `skip()` passes columns by. The window moves on the host: a CUDA graph that
    captured a step would change the same columns at every replay.

    Args:
        params: Parameters or parameter groups: matrices with the same number of columns, or stacks of them.
        lr: Learning rate.
        width: Number of columns in the window.
        sweep_speed: Columns that the window moves in one step.
        alpha: How much of the running average a step keeps.
        eps: Keeps the division finite.
        weight_decay: Share of each weight inside the window that a step takes away, whatever the learning rate.
        grow: Called with the number of missing columns when they run out; see `WindowedOptimizer`.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(4, 10))
        >>> optimizer = RMSpropSLW([weight], width=3, sweep_speed=0.5)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     weight.sum().backward()
        ...     optimizer.step()
        >>> (weight != 1).any(0).nonzero().flatten().tolist()
        [0, 1, 2]
        >>> optimizer.window.columns
        range(1, 4)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-4,
        *,
        width: int,
        sweep_speed: float,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grow: Callable[[int], None] | None = None,
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, width=width, sweep_speed=sweep_speed, grow=grow)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, which the window of the other groups also covers."""
        check_hyperparameters({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _update(self, window: tuple[int, int]) -> None:
        for group in self.param_groups:
            inside = [[tensor[..., slice(*window)] for tensor in tensors] for tensors in learned_tensors(self, group)]
            rmsprop_(*inside, **settings(group))
