"""Learning rates of their own for columns: what has been used a lot moves less."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchpfc.optim.gradients import parameters_with_gradient

_COUNTS = ("use", "seen")  # in every group, a list with a tensor for each parameter


@dataclass(frozen=True)
class CodeUse:
    r"""Use by codes: each step adds to a column its share of the codes, $u_r / \mathrm{mean}_s(u_s)$.

    $u_r$ is the mean of $h_r$, or of a power of it, over the examples of the step. A column of average use so gains 1
    in a step, however large codes are and however many columns there are.

    Args:
        power: 1 counts the code, 2 its square, which tells columns apart that carry much from many that carry little.
        keep: How much of the use before a step keeps. With 1 use adds up and never fades; with less it becomes
            $1 / (1 - \mathrm{keep})$ times a running mean, and a column that is used no more is free again.
    """

    power: int = 1
    keep: float = 1.0

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise ValueError(f"power must be 1 or 2, got {self.power}")
        if not 0 <= self.keep <= 1:
            raise ValueError(f"keep must be from 0 to 1, got {self.keep}")


@dataclass(frozen=True)
class Age:
    """Use by age: each step that changes a column counts as one, whatever the codes are.

    Where no column is younger than others, as without `add_basis`, all have the same rate, and it falls as $1/t$.
    """


class _Columns(NamedTuple):
    """What is known of the columns of a parameter; use and codes have a row for each model of a stack."""

    p: Tensor
    use: Tensor
    seen: Tensor
    """Mean codes since the last step."""
    half_after: float


class ColumnRates(Optimizer):
    r"""Gives any PyTorch optimizer a learning rate for each column, which falls as the column is used.

    Of the step $\Delta$ that the wrapped optimizer would take, column r takes a share (the paper's future research):

    $$w_r \leftarrow w_r + \rho_r \Delta_r, \qquad \rho_r = \frac{1}{1 + N_r / \mathrm{half\_after}}$$

    $N_r$ is how much the column had been used before this step, in steps of average use (see `CodeUse`). It falls as in
    sequential k-means, where a mean that has taken n examples moves a share of about 1/n towards the next.

    The step is multiplied, not the gradient: RMSprop and Adam divide a gradient by its own size, and a factor would
    cancel. So is the weight decay that is part of the step: a column that hardly learns hardly fades either. Averages
    that the optimizer keeps are those of whole gradients. A constraint on the weights belongs on this optimizer, which
    takes over parameter groups and state of the wrapped one, as do schedulers, `state_dict` and hooks.

    No rate is 0: any step can change any column, so a `Ledger` says that every batch could write every column. Which
    task holds which column is a matter of degree here, and nothing can be removed exactly, as a window allows.

    Use stands in `param_groups`, so `state_dict` saves it, and `optimizer.state.clear()` between tasks leaves it. It
    follows `add_basis` (new columns begin unused), `remove_basis`, and models that leave a stack, where each model has
    its own. Processes that share a batch must count the same codes, or their weights drift apart.

    Args:
        optimizer: The optimizer to wrap, without a window: columns left of one do not move at all.
        half_after: Use after which a column moves half as far; 3 is the best found on held-out handwritten digits,
            whatever was measured, with a learning rate that is 10 to 100 times the usual one. It stands in each group.
        measure: What counts as use. `CodeUse` has to be told of codes: `torchpfc.count_use` does that.

    Example:
        >>> from torchpfc import PFCBlock, count_use
        >>> block = PFCBlock(8, 3, num_basis=5)
        >>> optimizer = ColumnRates(torch.optim.RMSprop(block.parameters(), lr=1e-3), half_after=100)
        >>> count_use(block, optimizer)
        >>> block(torch.rand(20, 8)).sum().backward()
        >>> optimizer.step()
        >>> round(optimizer.use(block.weight_x).mean().item(), 4)
        1.0
        >>> bool((optimizer.rates(block.weight_x) < 1).any())
        True
    """

    def __init__(self, optimizer: Optimizer, *, half_after: float = 3.0, measure: CodeUse | Age | None = None) -> None:
        _check_wrappable(optimizer)
        self.measure = CodeUse() if measure is None else measure
        self._told = False
        groups = [{key: group[key] for key in group if key not in _COUNTS} for group in optimizer.param_groups]
        super().__init__(groups, {**optimizer.defaults, "half_after": half_after})
        self.optimizer = optimizer
        self.state = optimizer.state
        optimizer.param_groups = self.param_groups

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizer": self.optimizer, "measure": self.measure, "_told": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = self.param_groups if "param_groups" in self.__dict__ else None  # an optimizer that is loaded into
        super().__setstate__(state)
        self.optimizer.__setstate__({"state": self.state, "param_groups": self.param_groups})
        for group, before in zip(self.param_groups, own or (), strict=own is not None):
            group.setdefault("half_after", self.defaults["half_after"])
            for key in _COUNTS:
                saved = group.get(key, [torch.zeros_like(count) for count in before[key]])  # others count no use
                group[key] = [_loaded(count, value) for count, value in zip(before[key], saved, strict=True)]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, whose columns are unused."""
        if not (half := param_group.get("half_after", self.defaults["half_after"])) > 0:  # so that NaN does not pass
            raise ValueError(f"half_after must be positive, got {half}")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if shapes := [tuple(p.shape) for p in group["params"] if p.ndim < 2]:
            self.param_groups.pop()
            raise ValueError(f"params must be matrices, whose columns are parts, got shapes {shapes}")
        for key in _COUNTS:
            group[key] = [_zeros(p) for p in group["params"]]

    def use(self, p: Tensor) -> Tensor:
        r"""How much each column of a parameter has been used, in steps of average use.

        Args:
            p: The parameter.

        Shape:
            - the result: $(\text{num_basis})$, or $(s, \text{num_basis})$ in a stack
        """
        return self._of(p).use.squeeze(-2).clone()

    def rates(self, p: Tensor) -> Tensor:
        """What the next step of each column of a parameter is multiplied by; shaped as `use`.

        Args:
            p: The parameter.
        """
        found = self._of(p)
        return _rates(found.use, found.half_after).squeeze(-2)

    @torch.no_grad()
    def observe(self, h: Tensor, params: Iterable[Tensor]) -> None:
        r"""Counts codes that the next step learns from; `torchpfc.count_use` calls this.

        Args:
            h: The codes.
            params: The parameters whose columns these are the codes of.

        Shape:
            - h: $(*, \text{num_basis})$, or $(*, s, n, \text{num_basis})$ for a stack
        """
        self._told = True
        if isinstance(self.measure, Age):
            return
        for p in params:
            models = p.shape[:-2]
            if h.shape[-1:] != p.shape[-1:] or (models and h.shape[-3:-2] != models):
                wanted = f"{models[0]}, n, {p.shape[-1]}" if models else p.shape[-1]
                raise ValueError(f"h must have shape (..., {wanted}), got {tuple(h.shape)}")
            seen = self._of(p).seen
            amounts = h.to(seen.dtype).pow(self.measure.power)
            if models:
                amounts = amounts.mean(-2)  # (*, s, num_basis)
            seen += amounts.reshape(-1, *models, p.shape[-1]).mean(0).unsqueeze(-2)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of the wrapped optimizer, each column as far as its rate says, then count what was used."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if isinstance(self.measure, CodeUse) and not self._told:
            raise RuntimeError("codes must be counted before a step, got none: call count_use(model, optimizer) once")
        starts = {p: p.clone() for group in self.param_groups for p, _ in parameters_with_gradient(group)}
        self.optimizer.step()
        for p, use, seen, half in self._columns():
            changed = torch.zeros_like(use)
            if (start := starts.get(p)) is not None:
                changed = (p != start).any(-2, keepdim=True)
                p.lerp_(start, (1 - _rates(use, half)).to(p.dtype))  # with a rate of 1 the whole step, bit for bit
            self._count(use, seen, changed)
        self._told = False
        return loss

    def counts(self, p: Tensor) -> list[Tensor]:
        """What is kept of the columns of a parameter, with one row, or one for each model; nothing of other tensors.

        Args:
            p: The parameter.
        """
        return [count for found in self._columns() if found.p is p for count in (found.use, found.seen)]

    def resize_use(self, p: Tensor, resize: Callable[[Tensor], Tensor]) -> None:
        """Follows a change of the columns of a parameter, or of the models in a stack.

        Args:
            p: The parameter.
            resize: Gives the new tensor for the old one.
        """
        for group in self.param_groups:
            for i, q in enumerate(group["params"]):
                for key in _COUNTS if q is p else ():
                    group[key][i] = resize(group[key][i])

    def _columns(self) -> Iterator[_Columns]:
        for group in self.param_groups:
            for p, use, seen in zip(group["params"], group["use"], group["seen"], strict=True):
                yield _Columns(p, use, seen, group["half_after"])

    def _of(self, p: Tensor) -> _Columns:
        for found in self._columns():
            if found.p is p:
                return found
        raise ValueError(f"p must be a parameter of this optimizer, got another of shape {tuple(p.shape)}")

    def _count(self, use: Tensor, seen: Tensor, changed: Tensor) -> None:
        """Add to the use of columns what they have seen since the last step, or that this one has changed them."""
        if isinstance(self.measure, Age):
            use.add_(changed)
            return
        mean = seen.mean(-1, keepdim=True)
        use.mul_(self.measure.keep).add_(seen / mean.clamp_min(torch.finfo(mean.dtype).tiny))
        seen.zero_()


def _rates(use: Tensor, half_after: float) -> Tensor:
    return (1 + use / half_after).reciprocal()


def _loaded(own: Tensor, saved: Tensor) -> Tensor:
    """What was saved, where a captured step goes on with it; in new memory where columns have come or gone since."""
    return own.copy_(saved) if own.shape == saved.shape else saved.to(own.device)


def _zeros(p: Tensor) -> Tensor:
    """A row for each model, in single precision at least: half of it cannot count on from 2048."""
    return p.new_zeros((*p.shape[:-2], 1, p.shape[-1]), dtype=torch.promote_types(p.dtype, torch.float32))


def _check_wrappable(optimizer: Optimizer) -> None:
    if isinstance(optimizer, ColumnRates):
        raise TypeError("optimizer must not have rates of columns already, got ColumnRates")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer must take its step from one gradient, got LBFGS")
    if any("window" in group for group in optimizer.param_groups):
        name = type(optimizer).__name__
        raise TypeError(f"optimizer must not have a window, left of which no column moves at all, got {name}")
