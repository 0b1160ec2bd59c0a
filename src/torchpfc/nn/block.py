"""The Predictive Factorized Coupling block (Section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.nn.completion import Completion, complete
from torchpfc.nn.matching import match_weight
from torchpfc.optim.resize import resize_state
from torchpfc.optim.windowed import WindowedOptimizer
from torchpfc.solvers import (
    FISTA,
    Adjoint,
    NonnegativeLeastSquares,
    Solver,
    default_adjoint,
    largest_eigenvalue,
    solve,
)
from torchpfc.solvers.checks import check_at_least_one
from torchpfc.solvers.descent import COLD_ITERATIONS, cold_start

INIT_RANGE = (0.0, 1e-2)
"""Range of the uniform distribution that weights are drawn from, in NMF and semi-NMF alike."""


@dataclass(frozen=True, eq=False)
class Coupling:
    r"""What a block makes of an input: one code h that predicts both sides, $(y; x) = (W_y; W_x) h$.

    Shape:
        - y: $(*, \text{out_features})$
        - x, target: $(*, \text{in_features})$
        - h: $(*, \text{num_basis})$
    """

    y: Tensor
    """The prediction $W_y h$."""
    x: Tensor
    """The reconstruction $W_x h$."""
    h: Tensor
    """How much of each part the input contains."""
    target: Tensor
    """The input that the reconstruction should equal."""


class PFCBlock(nn.Module):
    r"""Explains its input as a sum of parts and predicts its output from the amounts.

    $$h = \arg\min_{h \ge 0} \|x - W_x h\|^2, \qquad y = W_y h$$

    A drop-in replacement for an MLP with `num_basis` hidden units. The columns of `weight_x` are the parts, and those
    of `weight_y` say what each part stands for.

    Args:
        in_features: Size of the input.
        out_features: Size of the output.
        num_basis: Number of parts.
        nonnegative: Whether the weights are meant to be non-negative (NMF) or free (semi-NMF). `keep_nonnegative`
            holds an optimizer to it.
        l1: Weight of the sum of h in what h minimizes; makes codes sparse.
        solver: How h is found; `FISTA.paper()` by default. Its floor is also that of non-negative weights.
        adjoint: How gradients pass through the solver; `Unrolled()` by default where the solver has it.
        init_range: Range of the uniform distribution that the weights start from.
        generator: Source of the initial weights.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, \text{in_features})$
        - y: $(*, \text{out_features})$

    Example:
        >>> block = PFCBlock(64, 10, num_basis=30)
        >>> x = torch.rand(5, 64)
        >>> block(x).shape
        torch.Size([5, 10])
        >>> out = block.couple(x)
        >>> loss = F.mse_loss(out.y, torch.zeros(5, 10)) + F.mse_loss(out.x, x)
    """

    weight_x: nn.Parameter
    weight_y: nn.Parameter
    power_vector: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_basis: int,
        *,
        nonnegative: bool = True,
        l1: float = 0.0,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        init_range: tuple[float, float] = INIT_RANGE,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_at_least_one(in_features=in_features, out_features=out_features, num_basis=num_basis)
        low, high = init_range
        if not low < high:
            raise ValueError(f"init_range must be (low, high) with low < high, got {init_range}")
        if nonnegative and low < 0:
            raise ValueError(f"init_range must be non-negative for non-negative weights, got {init_range}")
        if not l1 >= 0:
            raise ValueError(f"l1 must be non-negative, got {l1}")
        self.nonnegative = nonnegative
        self.l1 = l1
        self.solver = FISTA.paper() if solver is None else solver
        self.adjoint = default_adjoint(self.solver) if adjoint is None else adjoint
        self.init_range = init_range
        empty: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight_x = nn.Parameter(torch.empty(in_features, num_basis, **empty))
        self.weight_y = nn.Parameter(torch.empty(out_features, num_basis, **empty))
        # The direction of the largest eigenvalue of W_x^T W_x, which sets the solver's step; follows the weights in
        # training.
        self.register_buffer("power_vector", torch.empty(num_basis, **empty))
        self._settled: _Settled | None = None
        self.watchers: list[Callable[[Coupling], None]] = []  # shown every coupling
        self.warm_start: Tensor | None = None  # where solves start that are given no other start
        self.resizable = True  # not where the input has as many entries as there are parts, as inside an RNN
        self.reset_parameters(generator)

    @classmethod
    def from_examples(cls, x: Tensor, y: Tensor, *, num_classes: int | None = None, **options: Any) -> Self:
        r"""A block whose parts are examples: column i of the weights is the pair (x[i], y[i]).

        Args:
            x: The inputs.
            y: The targets, or class labels as integers, which become one-hot columns.
            num_classes: How many classes the labels have; by default one more than the largest.
            options: Passed on to the constructor. The solver is `FISTA()` by default, without floor and cap: whole
                examples need no guard, and the cap would forbid an amount of 1 for an input darker than 1.

        Shape:
            - x: $(n, \text{in_features})$
            - y: $(n, \text{out_features})$, or $(n)$ labels
        """
        if x.ndim != 2 or not len(x):
            raise ValueError(f"x must have shape (n, in_features) with n at least 1, got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"x must be float32 or float64, got {x.dtype}")
        labels = not y.is_floating_point()
        if y.ndim != (1 if labels else 2) or len(y) != len(x):
            shape = f"({len(x)},) for labels" if labels else f"({len(x)}, out_features)"
            raise ValueError(f"y must have shape {shape} to match x, got {tuple(y.shape)}")
        if labels:
            if y.min() < 0:
                raise ValueError(f"y must hold labels from 0 on, got {int(y.min())}")
            if num_classes is not None and num_classes <= y.max():
                raise ValueError(f"num_classes must exceed the largest label ({int(y.max())}), got {num_classes}")
            y = F.one_hot(y.long(), -1 if num_classes is None else num_classes).to(x.dtype)
        for name, tensor in (("x", x), ("y", y)):
            if not tensor.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or infinity")
        defaults = {"solver": FISTA(), "device": x.device, "dtype": x.dtype}
        block = cls(x.shape[1], y.shape[1], len(x), **{**defaults, **options})
        if block.nonnegative and (x.min() < 0 or y.min() < 0):
            raise ValueError(
                f"x and y must be non-negative for non-negative weights, got a minimum of {min(x.min(), y.min()):.3g}; "
                "pass nonnegative=False for semi-NMF"
            )
        if (floor := block.weight_floor) is not None:
            x, y = x.clamp(min=floor), y.clamp(min=floor)
        block.set_parts_(x.T, y.T)
        return block

    @property
    def in_features(self) -> int:
        """Size of the input."""
        return self.weight_x.shape[-2]

    @property
    def out_features(self) -> int:
        """Size of the output."""
        return self.weight_y.shape[-2]

    @property
    def num_basis(self) -> int:
        """Number of parts."""
        return self.weight_x.shape[-1]

    @property
    def weight_floor(self) -> float | None:
        """The smallest value that a weight may take; None where weights are free."""
        return self.solver.floor if self.nonnegative else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights."""
        with torch.no_grad():
            for weight in (self.weight_x, self.weight_y):
                self.draw_(weight, generator)
        self.reset_step_size()

    @torch.no_grad()
    def set_parts_(self, weight_x: Tensor, weight_y: Tensor, first: int = 0) -> None:
        r"""Puts parts in the place of those from a column on, and finds the solver's step size for them.

        Args:
            weight_x: The inputs that the parts stand for.
            weight_y: What they predict.
            first: The column that the first of them becomes.

        Shape:
            - weight_x: $(\text{in_features}, \text{num_basis} - \text{first})$
            - weight_y: $(\text{out_features}, \text{num_basis} - \text{first})$
        """
        self.weight_x[..., first:].copy_(weight_x)
        self.weight_y[..., first:].copy_(weight_y)
        self.reset_step_size()

    def reset_step_size(self) -> None:
        """Finds the solver's step size from scratch: call it after replacing `weight_x` by hand in training mode."""
        self._settled = None
        with torch.no_grad():
            weight = self.weight_x
            self.power_vector.copy_(largest_eigenvalue(weight, cold_start(weight), _settling_iterations(self))[1])

    def train(self, mode: bool = True) -> Self:
        """Switches between training and evaluation; the step size for evaluation is found anew."""
        self._settled = None  # a step that is replayed from a CUDA graph changes weights without a new version
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        """Predicts y."""
        return self.couple(x).y

    def couple(self, x: Tensor, warm_start: Tensor | None = None) -> Coupling:
        r"""Predicts y and everything on the way: the code h and the reconstruction of x.

        Args:
            x: The input.
            warm_start: Where the solver starts instead of its own start; a code of the same input saves most steps.
                By default what `warm_couplings` gives.

        Shape:
            - x: $(*, \text{in_features})$
            - warm_start: $(*, \text{num_basis})$
        """
        if not x.ndim or x.shape[-1] != self.in_features:
            raise ValueError(f"x must have shape (..., {self.in_features}), got {tuple(x.shape)}")
        x = match_weight(x, self.weight_x)
        problem = NonnegativeLeastSquares(x, self.weight_x, l1=self.l1)
        lipschitz = self.lipschitz()
        if warm_start is None:
            warm_start = self.warm_start
        h = solve(problem, self.solver, adjoint=self.adjoint, warm_start=warm_start, lipschitz=lipschitz).h
        reconstruction = h @ self.weight_x.mT
        coupling = Coupling(y=h @ self.weight_y.mT, x=reconstruction, h=h, target=x.expand_as(reconstruction))
        for watch in self.watchers:
            watch(coupling)
        return coupling

    def complete(
        self,
        x: Tensor | None = None,
        y: Tensor | None = None,
        mask_x: Tensor | None = None,
        mask_y: Tensor | None = None,
        **options: Any,
    ) -> Completion:
        r"""Predicts whatever is unobserved of x and y from whatever is observed; y alone runs the block backwards.

        Args:
            x: The input; None where all of it is unobserved.
            y: The output; None where all of it is unobserved.
            mask_x: True where x is observed.
            mask_y: True where y is observed.
            options: Passed on to `torchpfc.nn.completion.complete`: `y_weight`, `l1`, `l2`, `solver`, `adjoint`.

        Shape:
            - x, mask_x: $(*, \text{in_features})$
            - y, mask_y: $(*, \text{out_features})$
        """
        return complete(self, x, y, mask_x, mask_y, **options)

    def add_basis(
        self, count: int, *, optimizer: Optimizer | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Appends parts with fresh random weights; nothing outside the block changes.

        Args:
            count: How many.
            optimizer: The optimizer of the weights, whose state is to grow with them.
            generator: Source of the new weights.
        """
        check_at_least_one(count=count)

        def widen(weight: Tensor) -> Tensor:
            fresh = weight.new_empty((*weight.shape[:-1], count))
            self.draw_(fresh, generator)
            return torch.cat([weight, fresh], dim=-1)

        self._resize(widen, optimizer, lambda state: F.pad(state, (0, count)))

    def remove_basis(self, columns: Iterable[int], *, optimizer: Optimizer | None = None) -> None:
        """Removes parts; nothing outside the block changes.

        Args:
            columns: Which.
            optimizer: The optimizer of the weights, whose state is to shrink with them.
        """
        if isinstance(columns, Tensor) and columns.dtype == torch.bool:
            raise TypeError("columns must be indices, got a boolean mask; use mask.nonzero().flatten()")
        removed = sorted({index(column) for column in columns})
        if removed and not 0 <= removed[0] <= removed[-1] < self.num_basis:
            raise ValueError(f"columns must lie in [0, {self.num_basis}), got {removed[0]} to {removed[-1]}")
        if len(removed) == self.num_basis:
            raise ValueError(f"columns must leave at least one of the {self.num_basis} parts, got all of them")
        kept = torch.tensor(sorted(set(range(self.num_basis)).difference(removed)), device=self.weight_x.device)

        def select(tensor: Tensor) -> Tensor:
            return tensor.index_select(-1, kept)

        self._resize(select, optimizer, select)
        # One window covers the columns of all blocks: it follows once the last of them has lost these columns.
        if isinstance(optimizer, WindowedOptimizer):
            counts = {p.shape[-1] for group in optimizer.param_groups for p in group["params"]}
            if counts == {self.num_basis}:
                optimizer.columns_removed(removed)

    def extra_repr(self) -> str:
        """The sizes and settings shown when a block is printed."""
        text = f"in_features={self.in_features}, out_features={self.out_features}, num_basis={self.num_basis}"
        if self.l1:
            text += f", l1={self.l1}"
        return f"{text}, nonnegative={self.nonnegative}, solver={self.solver}, adjoint={self.adjoint}"

    def __getstate__(self) -> dict[str, Any]:
        # Neither what is cached for this block's memory nor who watches or warms this block belongs to a copy.
        return {**self.__dict__, "_settled": None, "watchers": [], "warm_start": None}

    def draw_(self, weight: Tensor, generator: torch.Generator | None = None) -> None:
        """Fills columns of a weight with what a new block starts from.

        Args:
            weight: The columns.
            generator: Source of the values.
        """
        weight.uniform_(*self.init_range, generator=generator)
        if self.weight_floor is not None:
            weight.clamp_(min=self.weight_floor)

    def _resize(
        self,
        change: Callable[[Tensor], Tensor],
        optimizer: Optimizer | None,
        change_state: Callable[[Tensor], Tensor],
    ) -> None:
        if not self.resizable:
            raise RuntimeError(
                "add_basis and remove_basis need a block outside of an RNN, got one whose parts are also its state; "
                "make a new network of the size you need"
            )
        with torch.no_grad():
            for weight in (self.weight_x, self.weight_y):
                if optimizer is not None:
                    resize_state(optimizer, weight, weight.shape, change_state)
                replace_data(weight, change(weight.data))
            self.power_vector = self.power_vector.new_empty((*self.weight_x.shape[:-2], self.num_basis))
        self.reset_step_size()

    def lipschitz(self) -> Tensor:
        """A bound on the largest eigenvalue of W_x^T W_x."""
        # Random signs bring the two largest eigenvalues close together, and the estimate from below converges slowly.
        margin = 1.02 if self.nonnegative else 1.05
        weight = self.weight_x
        with torch.no_grad():
            # A little of every part: a direction that had shrunk to nothing in the vector could never grow again.
            start = self.power_vector + 1e-2 / math.sqrt(self.num_basis)
            if self.training:
                # A step adds multiples of codes, which are not negative, to the rows of W. While weights are small,
                # one step can so make a new direction the largest: one near to that in which all parts are alike.
                start = torch.stack([start, torch.ones_like(start)], dim=-1)
                value, vector = largest_eigenvalue(weight, start, 2)
                self.power_vector.copy_(vector)
                return margin * value
            if torch.compiler.is_compiling() or weight.is_inference():  # both without a version to go by
                return margin * largest_eigenvalue(weight, start, _settling_iterations(self))[0]
            if self._settled is None or not self._settled.belongs_to(weight):
                value = largest_eigenvalue(weight, start, _settling_iterations(self))[0]
                self._settled = _Settled(weight.detach(), weight._version, value)
            return margin * self._settled.value


class _Settled(NamedTuple):
    """The largest eigenvalue of one version of a weight."""

    weight: Tensor
    """Kept so that no other weight can come to lie at the same address."""
    version: int
    value: Tensor

    def belongs_to(self, weight: Tensor) -> bool:
        return self.weight.data_ptr() == weight.data_ptr() and self.version == weight._version


def replace_data(parameter: nn.Parameter, data: Tensor) -> None:
    """Gives a parameter another shape; it stays the same object, so that optimizers go on with it."""
    # A loss that is still alive also keeps the node that accumulates the gradient, with the old shape. PyTorch lets go
    # of that node only where the data change their type.
    parameter.grad = None
    parameter.data = data.new_empty(0, dtype=torch.float64 if data.dtype == torch.float32 else torch.float32)
    parameter.data = data


def _settling_iterations(block: PFCBlock) -> int:
    return COLD_ITERATIONS if block.nonnegative else 100
