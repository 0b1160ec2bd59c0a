"""Powers of two that bring a problem to the size of one: what a solve to a tolerance works in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchpfc.solvers.problem import NonnegativeLeastSquares

_BITS = {torch.float32: (23, torch.int32), torch.float64: (52, torch.int64)}  # of the fraction, and of all


@dataclass(frozen=True, eq=False)
class Units:
    r"""The size of each row of x and of each column of W, as exponents of two.

    In these units, $x = 2^t x'$ and $W = W' 2^s$, rows of $x'$ and columns of $W'$ have norms between a half and one,
    and $h = h' 2^{t - s}$. Nothing is rounded on the way, so that $f(a x, b W)$ follows exactly for powers of two.

    Shape:
        - rows: $(*, n, 1)$
        - columns: $(r)$, or $(*, 1, r)$ for a stack of W
    """

    rows: Tensor
    columns: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, problem: NonnegativeLeastSquares) -> Units:
        """The units of a problem."""
        x = problem.x if problem.mask is None else problem.x.where(problem.mask, 0.0)
        columns = _exponents(problem.W, -2)
        return cls(_exponents(x, -1), columns.squeeze(-2) if problem.W.ndim == 2 else columns)

    def into(self, problem: NonnegativeLeastSquares) -> NonnegativeLeastSquares:
        """The same problem in these units."""
        x, W, l1, l2 = shift(problem.x, -self.rows), shift(problem.W, -self.columns), problem.l1, problem.l2
        if isinstance(l1, Tensor) or l1:
            l1 = shift(torch.as_tensor(l1, dtype=x.dtype, device=x.device), -self.rows - self.columns)
        if isinstance(l2, Tensor) or l2:
            l2 = shift(torch.as_tensor(l2, dtype=x.dtype, device=x.device), -2 * self.columns)
        return replace(problem, x=x, W=W, l1=l1, l2=l2)

    def codes(self, h: Tensor) -> Tensor:
        """Brings h into these units."""
        return shift(h, self.columns - self.rows)

    def back(self, h: Tensor) -> Tensor:
        """Brings h back."""
        return shift(h, self.rows - self.columns)


def shift(values: Tensor, exponents: Tensor) -> Tensor:
    """Values times powers of two, without a detour through a power that does not exist."""
    half = exponents.div(2, rounding_mode="floor")
    return values * _power(half, values.dtype) * _power(exponents - half, values.dtype)


def _power(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Two to the power of integers, to the bit, which `exp2` does not promise."""
    fraction, kind = _BITS[dtype]
    bias = int(torch.tensor(1.0, dtype=dtype).view(kind)) >> fraction
    limited = exponents.clamp(1 - bias, bias)
    return ((limited.to(torch.int64) + bias) << fraction).to(kind).view(dtype)


def _exponents(values: Tensor, dim: int) -> Tensor:
    """The exponents of the norms along a dimension, which is kept; the squares of large and small values exist not."""
    first = torch.frexp(values.abs().amax(dim, keepdim=True)).exponent
    norm = torch.linalg.vector_norm(shift(values, -first), dim=dim, keepdim=True)
    return first + torch.frexp(norm).exponent
