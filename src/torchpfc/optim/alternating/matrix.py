r"""The matrix that a factorization explains: its products with the factors, and how far off they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# Below this share of the squared norm of the data, in units of the precision, the error is computed entry by entry: as
# a difference of sums it would have lost its leading digits.
_CANCELLED = 1e4


@dataclass(frozen=True, eq=False)
class Matrix:
    r"""A matrix V of which some entries may be unobserved.

    Factors are transposed, W $(r, m)$ and H $(r, n)$. Where entries are unobserved, products are those of V with
    $H W^\top$ filled in: a least-squares problem that lies above the masked one and touches it at W and H.

    Args:
        V: The data, zero where it is not observed.
        missing: 1 where V is not observed and 0 elsewhere, or None where all of it is.

    Shape:
        - V, missing: $(n, m)$
    """

    V: Tensor
    missing: Tensor | None = None

    @classmethod
    def of(cls, V: Tensor, mask: Tensor | None) -> Matrix:
        """The matrix V, observed where the mask is True."""
        if mask is None:
            return cls(V)
        mask = mask.expand(V.shape)
        # As numbers: on a CPU, operations with booleans take several times as long.
        return cls(V.where(mask, 0.0), (~mask).to(V.dtype))

    def batches(self, size: int) -> list[Matrix]:
        """The rows, in batches."""
        rows = [slice(k, k + size) for k in range(0, len(self.V), size)]
        return [Matrix(self.V[k], None if self.missing is None else self.missing[k]) for k in rows]

    def right(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        r"""$W^\top W$ and $W^\top V^\top$: what the update of H needs."""
        return W @ W.T, W @ self._filled(W, H).T

    def left(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        r"""$H^\top H$ and $H^\top V$: what the update of W needs."""
        return H @ H.T, H @ self._filled(W, H)

    def half_squared_error(self, W: Tensor, H: Tensor, A: Tensor, C: Tensor) -> float:
        r"""$\tfrac12 \|V - H W^\top\|^2$ over observed entries, the cheapest way that is accurate."""
        error = self.error_from_sums(W, A, C)
        return self.error_from_entries(W, H) if error is None else error

    def error_from_sums(self, W: Tensor, A: Tensor, C: Tensor) -> float | None:
        r"""$\tfrac12 \|V\|^2 - \langle C, W \rangle + \tfrac12 \langle A, W^\top W \rangle$: no pass over the data.

        Args:
            W: The parts.
            A: $H^\top H$.
            C: $H^\top V$.

        Returns:
            The error, or None where the sums cannot tell: they nearly cancel, or some entries are unobserved.
        """
        if self.missing is not None:
            return None
        inner, square = (torch.sum(a * b, dtype=torch.float64) for a, b in ((C, W), (A, W @ W.T)))
        error = float(square / 2 - inner) + self._half_squared_norm
        cancelled = error < _CANCELLED * torch.finfo(self.V.dtype).eps * self._half_squared_norm
        return None if cancelled else error

    def error_from_entries(self, W: Tensor, H: Tensor) -> float:
        r"""$\tfrac12 \|V - H W^\top\|^2$ as it is written."""
        residual = H.T @ W
        if self.missing is not None:
            residual.addcmul_(residual, self.missing, value=-1)
        return _half_squared_norm(residual.sub_(self.V))

    @cached_property
    def _half_squared_norm(self) -> float:
        return _half_squared_norm(self.V)

    def _filled(self, W: Tensor, H: Tensor) -> Tensor:
        return self.V if self.missing is None else torch.addcmul(self.V, H.T @ W, self.missing)


def _half_squared_norm(V: Tensor) -> float:
    # Row by row, then in float64: converting all of V would double its memory.
    return float(torch.linalg.vector_norm(V, dim=1).double().square().sum()) / 2


def error_change(before: Tensor, after: Tensor, G: Tensor, B: Tensor) -> float:
    r"""How much $\tfrac12 \|V - H W^\top\|^2$ changes when one factor does, accurate however small the change.

    Args:
        before: The factor before.
        after: The factor after.
        G: The Gram matrix of the other factor.
        B: The product of the other factor with the data.

    Shape:
        - before, after, B: $(r, n)$ or $(r, m)$
        - G: $(r, r)$
    """
    gradient = torch.addmm(B, G, before + after, beta=-1, alpha=0.5)  # halfway between the two
    return float(torch.sum(gradient.mul_(after - before), dtype=torch.float64))
