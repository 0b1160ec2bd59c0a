"""The problem: non-negative least squares with batch dimensions on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpfc.solvers.checks import check_nonnegative

_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class NonnegativeLeastSquares:
    r"""Find $h \ge 0$ such that $W h$ is close to $x$, row by row.

    $$\min_{h \ge 0} \tfrac12 \|\mathrm{mask} \cdot (x - W h)\|^2 + l_1 \sum_r h_r + \tfrac{l_2}{2} \|h\|^2$$

    Examples are rows of `x` and parts are columns of `W`, so that `h @ W.mT` reconstructs `x`. With a matrix `W` every
    leading dimension of `x` is a batch dimension. With a stack of matrices, `x` holds one batch per member of the
    stack; the leading dimensions broadcast.

    Args:
        x: What to explain.
        W: The parts, one per column.
        l1: Weight of the sum of h; makes h sparse. A number, or a tensor of weights for the entries of h.
        l2: Weight of the squared norm of h; makes h unique. A number, or a tensor of weights for the parts.
        mask: True where `x` is observed. Unobserved entries may hold anything, NaN included.

    Shape:
        - x: $(*, n, m)$, or $(m)$ for one example
        - W: $(m, r)$ or $(*, m, r)$
        - mask: broadcasts to the shape of x
        - h: $(*, n, r)$
        - l1 as a tensor: broadcasts to the shape of h
        - l2 as a tensor: $(r)$, or $(*, 1, r)$ for a stack of W

    Example:
        >>> problem = NonnegativeLeastSquares(torch.tensor([[2.0, 3.0]]), torch.eye(2))
        >>> problem.objective(torch.tensor([[2.0, 1.0]]))
        tensor([2.])
    """

    x: Tensor
    W: Tensor
    l1: float | Tensor = 0.0
    l2: float | Tensor = 0.0
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        """Checks shapes, types and devices; values are never looked at."""
        x, W, mask = self.x, self.W, self.mask
        for name, tensor in (("x", x), ("W", W)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
            if tensor.dtype not in _DTYPES:
                raise TypeError(f"{name} must be float32 or float64, got {tensor.dtype}")
        if W.dtype != x.dtype:
            raise TypeError(f"W must have the dtype of x ({x.dtype}), got {W.dtype}")
        if W.device != x.device:
            raise ValueError(f"W must be on the device of x ({x.device}), got {W.device}")
        if W.ndim < 2:
            raise ValueError(f"W must have shape (..., m, r), got {tuple(W.shape)}")
        if 0 in W.shape[-2:]:
            raise ValueError(f"W must have at least one row and one column, got shape {tuple(W.shape)}")
        if x.ndim < (1 if W.ndim == 2 else 2) or x.shape[-1] != W.shape[-2]:
            rows = "..." if W.ndim == 2 else "..., n"
            raise ValueError(f"x must have shape ({rows}, {W.shape[-2]}) to match W, got {tuple(x.shape)}")
        if W.ndim > 2 and common_shape(x.shape[:-2], W.shape[:-2]) is None:
            raise ValueError(
                f"x must have leading dimensions that broadcast with those of W {tuple(W.shape[:-2])}, "
                f"got {tuple(x.shape[:-2])}"
            )
        self._check_weight("l1", self.l1, self.shape)
        self._check_weight("l2", self.l2, W.shape[-1:] if W.ndim == 2 else (*W.shape[:-2], 1, W.shape[-1]))
        if mask is not None:
            check_mask(mask, x)

    def _check_weight(self, name: str, weight: object, shape: Sequence[int]) -> None:
        if not isinstance(weight, Tensor):
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise TypeError(f"{name} must be a number or a tensor, got {weight!r}")
            check_nonnegative(**{name: weight})
            return
        if weight.dtype != self.x.dtype or weight.device != self.x.device:
            raise TypeError(
                f"{name} must have the dtype and device of x ({self.x.dtype}, {self.x.device}), "
                f"got ({weight.dtype}, {weight.device})"
            )
        if common_shape(weight.shape, torch.Size(shape)) != torch.Size(shape):
            raise ValueError(f"{name} must broadcast to {tuple(shape)}, got {tuple(weight.shape)}")

    @property
    def shape(self) -> torch.Size:
        """The shape of the solution h."""
        if self.W.ndim == 2:
            return self.x.shape[:-1] + self.W.shape[-1:]
        stack = common_shape(self.x.shape[:-2], self.W.shape[:-2])
        assert stack is not None
        return torch.Size((*stack, self.x.shape[-2], self.W.shape[-1]))

    def residual(self, h: Tensor) -> Tensor:
        r"""What h leaves unexplained, $\mathrm{mask} \cdot (x - W h)$; zero where x is not observed."""
        left = self.x - h @ self.W.mT
        return left if self.mask is None else left.where(self.mask, 0.0)

    def gradient(self, h: Tensor) -> Tensor:
        r"""The gradient of the objective at h, $-W^\top \mathrm{residual} + l_1 + l_2 h$."""
        return self.l1 + self.l2 * h - self.residual(h) @ self.W

    def objective(self, h: Tensor) -> Tensor:
        """The objective, one value per row."""
        penalty = (self.l1 * h).sum(-1) + 0.5 * (self.l2 * h.square()).sum(-1)
        return 0.5 * self.residual(h).square().sum(-1) + penalty


def check_mask(mask: Tensor, x: Tensor, *, name: str = "mask", of: str = "x") -> None:
    """Raises an error where a mask does not go with what it masks.

    Args:
        mask: True where x is observed.
        x: What it masks.
        name: What a message calls the mask.
        of: What it calls x.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean (True where {of} is observed), got {mask.dtype}")
    if mask.device != x.device:
        raise ValueError(f"{name} must be on the device of {of} ({x.device}), got {mask.device}")
    if common_shape(mask.shape, x.shape) != x.shape:
        raise ValueError(f"{name} must broadcast to the shape of {of} {tuple(x.shape)}, got {tuple(mask.shape)}")


def common_shape(*shapes: torch.Size) -> torch.Size | None:
    """The shape that shapes broadcast to, or None where there is none."""
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
