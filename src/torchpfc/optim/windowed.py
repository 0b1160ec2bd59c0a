"""Learning through a window: what every optimizer with a window shares, and a window for any PyTorch optimizer."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from torchpfc.optim.column_rates import ColumnRates
from torchpfc.optim.gradients import parameters_with_gradient
from torchpfc.optim.window import SlidingWindow

_WINDOW_KEYS = ("width", "sweep_speed", "position", "window")  # in every group, equal in all of them

# One needs several looks at the loss, one starts its state at lr, one sums it over rows and columns, one wants sparse
# gradients.
_UNFIT = (torch.optim.LBFGS, torch.optim.Rprop, torch.optim.Adafactor, torch.optim.SparseAdam)


class ColumnsExhausted(RuntimeError):
    """The window has moved past the last column, so there is nothing left to learn with."""


class WindowedOptimizer(Optimizer, ABC):
    """An optimizer whose step changes only the columns inside a `SlidingWindow`, and moves the window.

    Columns are the last dimension of every parameter, so all parameters need the same number of them. Outside the
    window neither weights nor optimizer state change by a single bit: state there is frozen, not decayed.

    There is one window for all parameters, or in a stack of models one for each model. What it needs stands in each of
    `param_groups`, so that `state_dict` saves it: `width`, `sweep_speed`, `position`, and `window`, the pair (a, b) of
    the last step, which could change columns a to b - 1. The pair is empty (a = b) before the first step and after a
    `skip`, so code that runs after a step and touches `p[..., a:b]` alone keeps to the window too. In a stack the
    position, a and b are tensors with an entry for each model.

    Args:
        params: Parameters or parameter groups.
        defaults: Settings of the update rule.
        width: Number of columns in the window.
        sweep_speed: Columns that the window moves in one step.
        grow: Called with the number of missing columns whenever the window has moved to where there are none. It must
            give every parameter at least that many more, and the state too (`resize_state`). `None` raises
            `ColumnsExhausted` at the next step instead. Neither `state_dict` nor a copy of the optimizer holds it: it
            belongs to these parameters.
    """

    moves_on_device: ClassVar[bool] = False
    """Whether the window moves where the parameters are, so that a step can be captured in a CUDA graph."""
    grow: Callable[[int], None] | None = None

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        width: int,
        sweep_speed: float,
        grow: Callable[[int], None] | None = None,
    ) -> None:
        self.grow = grow
        placed = {"width": width, "sweep_speed": sweep_speed, "position": 0.0, "window": (0, 0)}
        super().__init__(params, {**defaults, **placed})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # saved by an optimizer without a window: ours starts at the first column
            for key in _WINDOW_KEYS:
                group.setdefault(key, self.defaults[key])

    @abstractmethod
    def _update(self, window: tuple[Any, Any]) -> None:
        """Apply the update rule to the columns of a pair (a, b), of every parameter that has a gradient."""

    @property
    def windows(self) -> list[SlidingWindow]:
        """The window of the next step of each model. Asking for those of a stack waits for the device."""
        group = self.param_groups[0]
        place = group["position"]
        positions = place.tolist() if isinstance(place, Tensor) else [place]
        return [SlidingWindow(group["width"], group["sweep_speed"], position) for position in positions]

    @property
    def window(self) -> SlidingWindow:
        """The window of the next step; in a stack that of the first model."""
        return self.windows[0]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change the columns inside the window, then move it; return what the closure returned, if there was one.

        Raises:
            ColumnsExhausted: The window reaches past the last column. Nothing has changed then. Windows that move on
                the device pass the last column in silence.
        """
        window = self._next()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update(window)
        self._advance(window)
        return loss

    def skip(self) -> None:
        """Move the window as a step would, and leave weights and state alone."""
        start, _ = self._next()
        self._advance((start, start))

    def reset_window(self, position: float = 0.0) -> None:
        """Put the window at a position, by default back at the first column."""
        self._place(self.window.reset(position).position, self.param_groups[0]["window"])

    def columns_removed(self, columns: Iterable[int]) -> None:
        """Follow a removal of columns, so that the window stays on the columns it was on.

        Call it once, after every parameter and its state have lost those columns.

        Args:
            columns: Indices that the columns had before.
        """
        removed = {int(column) for column in columns}
        if min(removed, default=0) < 0:
            raise ValueError(f"columns must be non-negative, got {min(removed)}")

        def left_of(edge: Any) -> Any:
            return sum(edge > column for column in removed)

        group = self.param_groups[0]
        position, (start, stop) = group["position"], group["window"]
        self._place(position - left_of(position // 1), (start - left_of(start), stop - left_of(stop)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, which the window of the other groups also covers."""
        shared = self.param_groups[0] if self.param_groups else self.defaults
        for key in _WINDOW_KEYS:
            value = shared[key]
            given = param_group.setdefault(key, value)
            if given is not value and given != value:
                raise ValueError(f"{key} must be the same in every group ({value}), got {given}")
        super().add_param_group(param_group)
        try:
            width, num_columns = SlidingWindow(param_group["width"], param_group["sweep_speed"]).width, self.num_columns
            if width > num_columns:
                raise ValueError(f"width must be at most the number of columns ({num_columns}), got {width}")
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @property
    def num_columns(self) -> int:
        """How many columns every parameter has."""
        every = [(p, group.get("dim", -1)) for group in self.param_groups for p in group["params"]]
        counts = {p.shape[dim] if p.ndim > 1 else None for p, dim in every}
        count = counts.pop()
        if counts or count is None:
            shapes = [tuple(p.shape) for p, _ in every]
            raise ValueError(f"params must be matrices with the same number of columns, got shapes {shapes}")
        return int(count)

    def _next(self) -> tuple[Any, Any]:
        """The pair (a, b) of the next step, of columns that are known to be there."""
        columns, num_columns = self.window.columns, self.num_columns
        if columns.stop > num_columns:
            raise ColumnsExhausted(
                f"the window must end at or before the last of {num_columns} columns, "
                f"got columns {columns.start} to {columns.stop - 1}; start with more columns, sweep more slowly, "
                "call reset_window(), or pass grow= to add columns on the way"
            )
        return columns.start, columns.stop

    def _place(self, position: Any, window: tuple[Any, Any]) -> None:
        """Put the window at a position, and say which columns the last step could change."""
        for group in self.param_groups:
            group["position"], group["window"] = position, window
        needed = self.window.columns.stop
        missing = needed - self.num_columns
        if missing > 0 and self.grow is not None:
            self.grow(missing)
            if (num_columns := self.num_columns) < needed:
                raise ColumnsExhausted(f"grow({missing}) must leave at least {needed} columns, got {num_columns}")

    def _advance(self, changed: tuple[Any, Any]) -> None:
        group = self.param_groups[0]
        self._place(group["position"] + group["sweep_speed"], changed)


class Windowed(WindowedOptimizer):
    """Gives any PyTorch optimizer a sliding window, by letting it step on views of the window's columns.

    With a window over all columns it is the optimizer it wraps, bit for bit. It takes over parameter groups and state,
    so schedulers, `state_dict` and hooks belong to the wrapper from then on.

    State that has the shape of its parameter is windowed; anything else (Adam's step count, say) is shared by all
    columns. A column that the window reaches late therefore starts with averages of 0 and Adam's corrections for that
    already faded: its first steps are longer than `lr`.

    Args:
        optimizer: The optimizer to wrap. It must treat each weight on its own and start its state at zero, as SGD, Adam
            and RMSprop do, and must not be `fused`.
        width: Number of columns in the window.
        sweep_speed: Columns that the window moves in one step.
        grow: Called with the number of missing columns when they run out; see `WindowedOptimizer`.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1, 6))
        >>> optimizer = Windowed(torch.optim.SGD([weight], lr=1.0), width=2, sweep_speed=1)
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     weight.sum().backward()
        ...     optimizer.step()
        >>> weight.data
        tensor([[-1., -2., -2., -1.,  0.,  0.]])
        >>> optimizer.window.columns
        range(3, 5)
    """

    def __init__(
        self, optimizer: Optimizer, *, width: int, sweep_speed: float, grow: Callable[[int], None] | None = None
    ) -> None:
        _check_wrappable(optimizer)
        groups = [{key: group[key] for key in group if key not in _WINDOW_KEYS} for group in optimizer.param_groups]
        super().__init__(groups, optimizer.defaults, width=width, sweep_speed=sweep_speed, grow=grow)
        self.optimizer = optimizer
        self.state = optimizer.state
        optimizer.param_groups = self.param_groups

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizer": self.optimizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.optimizer.__setstate__({"state": self.state, "param_groups": self.param_groups})

    def _update(self, window: tuple[int, int]) -> None:
        columns = slice(*window)
        groups = [(group, group["params"], parameters_with_gradient(group)) for group in self.param_groups]
        leaves = {p: _leaf(p, grad, columns) for _, _, pairs in groups for p, grad in pairs}
        views = {leaf: _views(self.state[p], p, columns) for p, leaf in leaves.items() if p in self.state}
        inner = self.optimizer
        inner.state = defaultdict(dict, {leaf: dict(state) for leaf, state in views.items()})
        try:
            for group, _, pairs in groups:
                _check_not_fused(group)
                group["params"] = [leaves[p] for p, _ in pairs]
            inner.step()
            stepped = inner.state
        finally:
            for group, params, _ in groups:
                group["params"] = params
            inner.state = self.state
        for p, leaf in leaves.items():
            for key, value in stepped.get(leaf, {}).items():
                if value is not views.get(leaf, {}).get(key):
                    _write_back(self.state[p], key, value, p, columns)


def _leaf(p: Tensor, grad: Tensor, columns: slice) -> Tensor:
    """A parameter for the wrapped optimizer that shares its memory with the window's columns of p."""
    leaf = p.detach()[..., columns]
    leaf.grad = grad[..., columns]
    return leaf


def _views(state: dict[str, Any], p: Tensor, columns: slice) -> dict[str, Any]:
    return {
        key: value[..., columns] if isinstance(value, Tensor) and value.shape == p.shape else value
        for key, value in state.items()
    }


def _write_back(state: dict[str, Any], key: str, value: Any, p: Tensor, columns: slice) -> None:
    """Keep what the wrapped optimizer has made anew; what it changed in place is in the full state already."""
    if isinstance(value, Tensor) and value.shape == p[..., columns].shape:
        full = state.get(key)
        if not isinstance(full, Tensor) or full.shape != p.shape:
            full = state[key] = torch.zeros_like(p, dtype=value.dtype)
        full[..., columns] = value
    else:
        state[key] = value


def _check_wrappable(optimizer: Optimizer) -> None:
    if isinstance(optimizer, WindowedOptimizer):
        raise TypeError(f"optimizer must not have a window already, got {type(optimizer).__name__}")
    if isinstance(optimizer, ColumnRates):
        raise TypeError("optimizer must not have rates of columns, got ColumnRates")
    if isinstance(optimizer, _UNFIT):
        raise TypeError(
            "optimizer must change each weight by its own gradient and by state that starts at zero, "
            f"as Adam, SGD and RMSprop do, got {type(optimizer).__name__}"
        )
    for group in optimizer.param_groups:
        _check_not_fused(group)


def _check_not_fused(group: dict[str, Any]) -> None:
    if group.get("fused"):  # fused kernels take a view for contiguous memory and write into its neighbours
        raise ValueError("fused must be False for an optimizer with a window, got True")
