"""RMSprop with a sliding window for a stack of models, each with a window of its own."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchpfc.optim.rmsprop import check_hyperparameters, learned_tensors, rmsprop_, settings
from torchpfc.optim.windowed import WindowedOptimizer


class StackedRMSpropSLW(WindowedOptimizer):
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
        >>> optimizer.reset_window([0, 3])
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> (weight != 1).any(1).int().tolist()
        [[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]]
        >>> optimizer.positions
        [1.0, 4.0]
    """

    moves_on_device: ClassVar[bool] = True

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
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "dim": -1}
        super().__init__(params, defaults, width=width, sweep_speed=sweep_speed)
        every = [p for group in self.param_groups for p in group["params"]]
        if len({len(p) for p in every}) != 1:
            raise ValueError(f"params must be stacks of as many models, got {[tuple(p.shape) for p in every]}")
        # In double precision, as on the host: so both agree on where a window is, whatever the speed.
        position, first, end = torch.zeros(3, len(every[0]), dtype=torch.float64, device=every[0].device)
        self._share(position=position, window=(first, end), passed_by=torch.zeros_like(position, dtype=torch.bool))

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = self.param_groups[0] if "param_groups" in self.__dict__ else None  # an optimizer that is loaded into
        super().__setstate__(state)
        if own is not None:  # a captured step goes on with the same memory
            loaded = dict(self.param_groups[0])
            self._share(**{key: own[key] for key in ("position", "window", "passed_by")})
            self._place(loaded["position"], loaded["window"])
            self.passed_by.copy_(torch.as_tensor(loaded.get("passed_by", False)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings it does not give are the optimizer's."""
        check_hyperparameters({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @property
    def passed_by(self) -> Tensor:
        """Models that the next steps leave alone, but for their windows; change it in place."""
        found: Tensor = self.param_groups[0]["passed_by"]
        return found

    @property
    def positions(self) -> list[float]:
        """Where the windows are. Asking waits for the device."""
        return [window.position for window in self.windows]

    def reset_window(self, position: Sequence[float] | float = 0.0) -> None:
        """Put the windows at positions, one for each model or one for all; by default back at the first column."""
        count = len(self.passed_by)
        positions = [position] * count if isinstance(position, int | float) else list(position)
        if len(positions) != count:
            raise ValueError(f"position must be a number or one for each of {count} models, got {len(positions)}")
        places = [self.window.reset(each).position for each in positions]
        self._place(torch.tensor(places, dtype=torch.float64), self.param_groups[0]["window"])

    def select_(self, members: Tensor) -> None:
        """Goes on with the windows of some of the models, in their new order; their parameters have followed already.

        Args:
            members: The indices of those models.

        Shape:
            - members: $(k)$
        """
        group = self.param_groups[0]
        first, end = (edge[members.to(edge.device)] for edge in group["window"])
        chosen = {key: group[key][members.to(group[key].device)] for key in ("position", "passed_by")}
        self._share(window=(first, end), **chosen)

    def columns_after(self, position: float, steps: int) -> int:
        """How many columns some steps of a window need that starts at a position.

        Args:
            position: Where it starts.
            steps: How many, at least one.
        """
        return self.window.reset(position).advance(steps - 1).columns.stop

    def inside(self, p: Tensor) -> Tensor:
        """Which columns of a parameter the last step could change, as a mask that broadcasts to it; none before it.

        Args:
            p: The parameter.
        """
        return _inside(self.param_groups[0]["window"], p, -1)

    def _next(self) -> tuple[Tensor, Tensor]:
        group = self.param_groups[0]
        first, end = group["position"].floor(), (group["position"] + group["width"]).floor()
        return first, torch.where(group["passed_by"], first, end)

    def _update(self, window: tuple[Tensor, Tensor]) -> None:
        for group in self.param_groups:
            params, grads, square_avgs = learned_tensors(self, group)
            moved, squares = ([tensor.clone() for tensor in tensors] for tensors in (params, square_avgs))
            rmsprop_(moved, grads, squares, **settings(group))
            for p, new, square_avg, square in zip(params, moved, square_avgs, squares, strict=True):
                inside = _inside(window, p, group["dim"])
                torch.where(inside, new, p, out=p)
                torch.where(inside, square, square_avg, out=square_avg)

    def _place(self, position: Tensor | float, window: tuple[Tensor | float, Tensor | float]) -> None:
        group = self.param_groups[0]
        for own, new in zip((group["position"], *group["window"]), (position, *window), strict=True):
            own.copy_(torch.as_tensor(new))

    def _share(self, **places: Any) -> None:
        for group in self.param_groups:
            group.update(places)


def _inside(window: tuple[Tensor, Tensor], p: Tensor, dim: int) -> Tensor:
    """Which columns of a parameter lie in the windows of their models, as a mask that broadcasts to it."""
    count = p.shape[dim]
    column = torch.arange(count, device=p.device)
    first, end = (edge.unsqueeze(-1) for edge in window)  # (models, 1)
    shape = [len(p)] + [1] * (p.ndim - 1)
    shape[dim] = count
    return ((column >= first) & (column < end)).view(shape)
