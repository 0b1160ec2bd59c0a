"""RMSprop with a sliding window for a stack of models, each with a window of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchpfc.optim.rmsprop import check_hyperparameters, learned_tensors, settings
from torchpfc.optim.window import SlidingWindow
from torchpfc.optim.windowed import ColumnsExhausted


class StackedRMSpropSLW(Optimizer):
    r"""`RMSpropSLW` for a stack of models whose windows may be in different places.

    Every model learns as it would with an `RMSpropSLW` of its own, bit for bit. The windows are tensors and move on the
    device, so a step can be captured in a CUDA graph. The price is that a step reads and writes whole matrices, not
    only the columns in the window, and that a window which has left the matrix does so in silence: ask `columns_after`
    before an epoch.

    What a window covers are columns, the last dimension of a parameter. A parameter group may name another one with
    `dim`: -2 for the matrix of an `nn.Linear` whose outputs are the units that the window passes over.

    Args:
        params: Parameters of a stack, or groups of them; their first dimension counts the models.
        lr: Learning rate.
        width: Number of columns in a window.
        sweep_speed: Columns that a window moves in one step.
        alpha: How much of the running average a step keeps.
        eps: Keeps the division finite.
        weight_decay: Share of each weight inside the window that a step takes away, whatever the learning rate.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2, 3, 6))
        >>> optimizer = StackedRMSpropSLW([weight], width=2, sweep_speed=1)
        >>> optimizer.move_to([0, 3])
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> (weight != 1).any(1).int().tolist()
        [[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]]
        >>> optimizer.positions
        [1.0, 4.0]
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-4,
        *,
        width: int,
        sweep_speed: float,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self._window = SlidingWindow(width, sweep_speed)
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "dim": -1}
        super().__init__(params, defaults)
        every = [p for group in self.param_groups for p in group["params"]]
        first = every[0]
        if len({len(p) for p in every}) != 1:
            raise ValueError(f"params must be stacks of as many models, got {[tuple(p.shape) for p in every]}")
        # In double precision, as on the host: so both agree on where a window is, whatever the speed.
        self._places = torch.zeros(len(first), dtype=torch.float64, device=first.device)
        self.passed_by = torch.zeros(len(first), dtype=torch.bool, device=first.device)
        """Models that the next steps leave alone, but for their windows; change it in place."""
        self._changed = self._places.new_zeros(len(first), 2)  # the columns of the last step: from the first to the end

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings it does not give are the optimizer's."""
        check_hyperparameters({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @property
    def positions(self) -> list[float]:
        """Where the windows are. Asking waits for the device."""
        found: list[float] = self._places.tolist()
        return found

    def move_to(self, positions: Sequence[float] | float = 0.0) -> None:
        """Puts the windows at positions, one for each model or one for all; by default back at the first column.

        Args:
            positions: Where. As many as there are models from now on, in the order of the stack.
        """
        if isinstance(positions, int | float):
            self._places.fill_(positions)
            return
        places = torch.tensor(list(positions), dtype=torch.float64, device=self._places.device)
        if places.shape == self._places.shape:
            self._places.copy_(places)  # a captured step goes on with the same memory
        else:
            self._places, self.passed_by = places, torch.zeros_like(places, dtype=torch.bool)
            self._changed = places.new_zeros(len(places), 2)

    def columns_after(self, position: float, steps: int) -> int:
        """How many columns some steps of a window need that starts at a position.

        Args:
            position: Where it starts.
            steps: How many, at least one.
        """
        return self._window.reset(position).advance(steps - 1).columns.stop

    def check_room(self, steps: int) -> None:
        """Raises `ColumnsExhausted` where some window would leave the matrix.

        Args:
            steps: How many steps are to be taken.
        """
        group = self.param_groups[0]
        have = group["params"][0].shape[group["dim"]]
        for model, position in enumerate(self.positions):
            if (need := self.columns_after(position, steps)) > have:
                raise ColumnsExhausted(f"{steps} steps of model {model} must end within {have} columns, got {need}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change the columns inside the windows, then move these; return what the closure returned, if there was one.

        Args:
            closure: Computes the loss anew.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first, end = self._places.floor(), (self._places + self._window.width).floor()
        self._changed.copy_(torch.stack([first, torch.where(self.passed_by, first, end)], dim=1))
        for group in self.param_groups:
            for p, grad, square_avg in zip(*learned_tensors(self, group), strict=True):
                _rmsprop_inside_(p, grad, square_avg, self.inside(p, group["dim"]), **settings(group))
        self._places += self._window.sweep_speed
        return loss

    def inside(self, p: Tensor, dim: int = -1) -> Tensor:
        """Which columns of a parameter the last step could change, as a mask that broadcasts to it; none before it.

        Args:
            p: The parameter.
            dim: The dimension that counts its columns.
        """
        count = p.shape[dim]
        column = torch.arange(count, device=p.device)
        first, end = self._changed.unsqueeze(-1).unbind(1)  # (models, 1)
        shape = [len(p)] + [1] * (p.ndim - 1)
        shape[dim] = count
        return ((column >= first) & (column < end)).view(shape)


def _rmsprop_inside_(
    p: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    inside: Tensor,
    *,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`rmsprop_` where a mask is true: the same operations in the same order, so the same bits."""
    squares = (square_avg * alpha).addcmul_(grad, grad, value=1 - alpha)
    moved = p.addcdiv(grad, squares.sqrt().add_(eps), value=-lr)
    if weight_decay:
        moved.add_(moved, alpha=-weight_decay)
    square_avg.copy_(torch.where(inside, squares, square_avg))
    p.copy_(torch.where(inside, moved, p))
