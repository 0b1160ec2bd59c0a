"""A block that learns classes one after another, from their own examples alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.nmf.parts import make_parts
from torchpfc.nn.block import PFCBlock
from torchpfc.optim.ledger import Ledger
from torchpfc.solvers import FISTA, NonnegativeLeastSquares, Solver, solve
from torchpfc.solvers.checks import check_at_least_one
from torchpfc.solvers.descent import estimate_lipschitz


@dataclass(frozen=True)
class Shifts:
    r"""Several looks at an image: as it is, and moved up, down, left and right, with zeros where it was.

    Args:
        shape: Channels, rows and columns of an image.
        pixels: How far to move it.

    Shape:
        - x: $(n, m)$ with $m$ the product of `shape`
        - the result: $(5, n, m)$

    Example:
        >>> Shifts((1, 1, 3))(torch.tensor([[1.0, 2.0, 3.0]]))[-1]
        tensor([[0., 1., 2.]])
    """

    shape: tuple[int, int, int]
    pixels: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        """All looks, the first of which is the image as it is."""
        (_, height, width), by = self.shape, self.pixels
        padded = F.pad(x.reshape(-1, *self.shape), (by, by, by, by))
        starts = ((by, by), (2 * by, by), (0, by), (by, 2 * by), (by, 0))
        moved = [padded[..., top : top + height, left : left + width] for top, left in starts]
        return torch.stack(moved).flatten(2)


class ContinualPFC(nn.Module):
    r"""Learns classes one after another: each gets parts of its own, and what is there never changes again.

    The parts of a class are means of similar examples of it (k-means), refined by a few passes of a factorization of
    them all, and scaled to norm 1. None is a copy of an example: it is no closer to one than the mean of two would be.
    An input belongs to the class whose parts explain it best, each class by itself:

    $$\hat c = \arg\min_c \min_{h \ge 0} \tfrac12 \|x - W_c h\|^2 + l_1 \sum_r h_r$$

    So nothing has to be seen twice: no example is kept, no step changes an old column, and the number of classes need
    not be known to learn one. All parts together are the columns of one `PFCBlock`, with one-hot columns of `weight_y`:
    they can be looked at, a `Ledger` knows which examples each one was made of, and `torchpfc.forget` removes them.

    Args:
        in_features: Size of the input, which must not be negative.
        num_classes: How many classes there may be.
        columns_per_class: Parts that `learn` adds for each class it is shown, unless told otherwise.
        l1: Weight of the sum of h, for inputs of norm 1.
        power: Inputs are raised to this power first; less than 1 makes bright pixels count less.
        refine: Passes of the factorization, with the same `l1`; 0 keeps the means.
        views: Gives several looks at inputs, such as `Shifts`. A class explains an input as well as the look that it
            explains best. Parts are made of the inputs as they are.
        solver: How h is found.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, \text{in_features})$
        - y: $(*, \text{num_classes})$, for each class the share of the input that its parts explain, from 0 to 1

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> model = ContinualPFC(8, 2, columns_per_class=3)
        >>> zeros, ones = torch.rand(20, 8, generator=generator).chunk(2)
        >>> zeros[:, :4], ones[:, 4:] = 0, 0
        >>> model.learn(zeros, torch.zeros(10).long(), generator=generator)
        {0: range(0, 3)}
        >>> model.learn(ones, torch.ones(10).long(), generator=generator)
        {1: range(3, 6)}
        >>> model(torch.cat([zeros, ones])).argmax(-1).tolist() == [0] * 10 + [1] * 10
        True
    """

    block: PFCBlock | None
    _anchor: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        columns_per_class: int = 135,
        l1: float = 0.2,
        power: float = 0.5,
        refine: int = 5,
        views: Callable[[Tensor], Tensor] | None = None,
        solver: Solver | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_at_least_one(in_features=in_features, num_classes=num_classes, columns_per_class=columns_per_class)
        if not l1 >= 0:
            raise ValueError(f"l1 must be non-negative, got {l1}")
        if not power > 0:
            raise ValueError(f"power must be positive, got {power}")
        if refine < 0:
            raise ValueError(f"refine must be at least 0, got {refine}")
        self.in_features, self.num_classes, self.columns_per_class = in_features, num_classes, columns_per_class
        self.l1, self.power, self.refine, self.views = l1, power, refine, views
        self.solver = FISTA(max_iter=100) if solver is None else solver
        self.block = None
        # Says where the model lives while there is no part yet.
        self.register_buffer("_anchor", torch.empty(0, device=device, dtype=dtype), persistent=False)

    @property
    def num_basis(self) -> int:
        """Number of parts of all classes together."""
        return 0 if self.block is None else self.block.num_basis

    @property
    def owners(self) -> Tensor:
        """The class of each part; -1 for parts that were forgotten."""
        if self.block is None:
            return torch.empty(0, dtype=torch.int64)
        used = self.block.weight_x.detach().any(0)
        return torch.where(used, self.block.weight_y.detach().argmax(0), -1)

    @torch.no_grad()
    def learn(
        self,
        x: Tensor,
        label: Tensor,
        *,
        count: int | None = None,
        ledger: Ledger | None = None,
        rows: Iterable[int] | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[int, range]:
        """Adds parts for every class of some examples; those that are there stay as they are.

        Call it once for all examples of a class, or for each portion of them that arrives: then parts are added for
        each portion, and depend on that portion alone.

        Args:
            x: The examples.
            label: Their classes.
            count: Parts for each class, by default `columns_per_class`; at most one for every two examples.
            ledger: Is told which parts were made of which examples, as one batch for each class.
            rows: The numbers of the examples, for the ledger.
            generator: Source of random numbers, which decide where k-means starts.

        Returns:
            The columns that each class has gained.
        """
        self._check(x)
        if label.shape != x.shape[:1]:
            raise ValueError(f"label must have shape {tuple(x.shape[:1])} to match x, got {tuple(label.shape)}")
        check_at_least_one(count=count)
        numbers = None if rows is None else torch.as_tensor(rows if isinstance(rows, Tensor) else list(rows)).cpu()
        gained = {}
        for c in sorted(set(label.tolist())):
            if not 0 <= c < self.num_classes:
                raise ValueError(f"label must be from 0 to {self.num_classes - 1}, got {c}")
            own = label == c
            prepared = self.prepare(x[own])
            parts = make_parts(
                prepared,
                min(count or self.columns_per_class, max(1, len(prepared) // 2)),
                copies=False,
                refine=self.refine,
                l1=self.l1,
                solver=self.solver,
                generator=generator,
            )
            gained[c] = self._append(parts, c)
            if ledger is not None:
                ledger.record(ledger.next_id, gained[c], None if numbers is None else numbers[own.cpu()])
        return gained

    def forward(self, x: Tensor) -> Tensor:
        """The share of each input that the parts of each class explain."""
        self._check(x)
        flat = x.reshape(-1, self.in_features)
        y = flat.new_zeros(len(flat), self.num_classes)
        owners = self.owners
        known = [c for c in torch.unique(owners).tolist() if c >= 0]
        if known:
            W = self._stack(owners, known)
            L = estimate_lipschitz(W)
            looks = [flat] if self.views is None else self.views(flat).unbind()
            y[:, known] = torch.stack([self._explained(self.prepare(look), W, L) for look in looks]).amax(0)
        return y.view(*x.shape[:-1], self.num_classes)

    def _explained(self, x: Tensor, W: Tensor, L: Tensor) -> Tensor:
        """The shares for each class of a stack of parts, given the largest eigenvalues of their Gram matrices."""
        problem = NonnegativeLeastSquares(x.expand(len(W), *x.shape), W, l1=self.l1)
        objective = problem.objective(solve(problem, self.solver, lipschitz=L).h)  # (classes, n)
        return (1 - 2 * objective.T) * x.any(-1, keepdim=True)  # half the squared norm is 1/2, or 0

    def parts_of(self, c: int) -> Tensor:
        """The parts of a class, one per column.

        Args:
            c: The class.
        """
        if self.block is None:
            return self._anchor.new_empty(self.in_features, 0)
        return self.block.weight_x.detach()[:, self.owners == c]

    def extra_repr(self) -> str:
        """The sizes and settings shown when a model is printed."""
        sizes = f"in_features={self.in_features}, num_classes={self.num_classes}, num_basis={self.num_basis}"
        return f"{sizes}, l1={self.l1}, power={self.power}, solver={self.solver}"

    def _check(self, x: Tensor) -> None:
        if not x.ndim or x.shape[-1] != self.in_features:
            raise ValueError(f"x must have shape (..., {self.in_features}), got {tuple(x.shape)}")

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs as the parts see them: raised to a power, and of norm 1, so that l1 means the same for all."""
        x = x if self.power == 1 else x.pow(self.power)
        return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)

    def _append(self, parts: Tensor, c: int) -> range:
        start, count = self.num_basis, parts.shape[1]
        if self.block is None:
            self.block = self._make_block(count)
        else:
            self.block.add_basis(count)
        outputs = parts.new_zeros(self.num_classes, count)
        outputs[c] = 1
        self.block.set_parts_(parts, outputs, start)
        return range(start, start + count)

    def _make_block(self, num_basis: int) -> PFCBlock:
        options: dict[str, Any] = {"device": self._anchor.device, "dtype": self._anchor.dtype}
        sizes = self.in_features, self.num_classes, num_basis
        return PFCBlock(*sizes, solver=self.solver, l1=self.l1, **options).train(self.training)

    def _stack(self, owners: Tensor, classes: list[int]) -> Tensor:
        """The parts of some classes as one stack; zeros where a class has fewer than another."""
        assert self.block is not None
        parts = [self.block.weight_x.detach()[:, owners == c] for c in classes]
        widest = max(part.shape[1] for part in parts)
        return torch.stack([F.pad(part, (0, widest - part.shape[1])) for part in parts])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Makes room for as many parts as were saved."""
        saved = state_dict.get(f"{prefix}block.weight_x")
        if saved is None:
            self.block = None
        elif saved.shape[-1] != self.num_basis:
            self.block = self._make_block(saved.shape[-1])
        super()._load_from_state_dict(state_dict, prefix, *args)
