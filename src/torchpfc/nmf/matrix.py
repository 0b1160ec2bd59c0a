r"""The matrix that a factorization explains: its products with the factors, and how far off they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# Below this share of the squared norm of the data, in units of the precision, the error is computed entry by entry: as
# a difference of sums it would have lost its leading digits.
_CANCELLED = 2e3


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

    def sample(self, stride: int) -> Matrix:
        """Every so many rows."""
        return Matrix(self.V[::stride], None if self.missing is None else self.missing[::stride])

    def right(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        r"""$W^\top W$ and $W^\top V^\top$: what the update of H needs."""
        return W @ W.T, W @ self._filled(W, H).T

    def left(self, W: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        r"""$H^\top H$ and $H^\top V$: what the update of W needs."""
        # In this order the product is up to twice as fast as H @ V: few columns at the right suit the libraries better.
        return H @ H.T, (self._filled(W, H).T @ H.T).T.contiguous()

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
