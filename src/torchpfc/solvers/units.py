"""Powers of two that bring a problem to the size of one: what a solve to a tolerance works in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchpfc.solvers.problem import NonnegativeLeastSquares

_SMALL = 100  # exponents below this have powers in every precision
_BITS = {torch.float32: (23, torch.int32), torch.float64: (52, torch.int64)}  # of the fraction, and of all


@dataclass(frozen=True, eq=False)
class Units:
    r"""The size of each row of x and of each column of W, as exponents of two.

    In these units, $x = 2^t x'$ and $W = W' 2^s$, the largest entries of rows of $x'$ and the norms of columns of $W'$
    are between a half and one, and $h = h' 2^{t - s}$. Nothing is rounded on the way, so that $f(a x, b W)$ follows
    exactly for powers of two.

    Shape:
        - rows: $(*, n, 1)$
        - columns: $(r)$, or $(*, 1, r)$ for a stack of W
    """

    rows: Tensor
    columns: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, problem: NonnegativeLeastSquares) -> Units:
        """The units of a problem, whose values are looked at on this occasion.

        Raises:
            ValueError: W, or x where it is observed, has entries that are not finite: a NaN would spread, and an
                infinity has no answer.
        """
        x, W = problem.x if problem.mask is None else problem.x.where(problem.mask, 0.0), problem.W
        rows, columns = _largest(x, -1), _largest(W, -2)
        for name, largest in (("x", rows), ("W", columns)):
            if not bool(largest.isfinite().all()):
                where = " where it is observed" if name == "x" and problem.mask is not None else ""
                raise ValueError(f"{name} must be finite{where}, got NaN or infinite entries")
        # The squares of large and small values do not exist: norms are those of columns that are one at their largest.
        exponents = torch.frexp(columns).exponent
        exponents += torch.frexp(torch.linalg.vector_norm(shift(W, -exponents), dim=-2, keepdim=True)).exponent
        return cls(torch.frexp(rows).exponent, exponents.squeeze(-2) if W.ndim == 2 else exponents)

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
    if bool((exponents.abs() < _SMALL).all()):
        return values * _power(exponents, values.dtype)
    half = exponents.div(2, rounding_mode="floor")
    return (values * _power(half, values.dtype)).mul_(_power(exponents - half, values.dtype))


def _power(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Two to the power of integers, to the bit, which `exp2` does not promise."""
    fraction, kind = _BITS[dtype]
    bias = int(torch.tensor(1.0, dtype=dtype).view(kind)) >> fraction
    limited = exponents.clamp(1 - bias, bias)
    return ((limited.to(torch.int64) + bias) << fraction).to(kind).view(dtype)


def _largest(values: Tensor, dim: int) -> Tensor:
    """The largest magnitude along a dimension, which is kept; NaN where there is one."""
    if not values.numel():
        return values.sum(dim, keepdim=True)
    lowest, highest = torch.aminmax(values, dim=dim, keepdim=True)
    return torch.maximum(-lowest, highest)
