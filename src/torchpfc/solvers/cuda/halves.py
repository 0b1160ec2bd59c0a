"""Products in half precision, where products may be rounded to TF32.

TF32 rounds what it multiplies to eleven significant bits. Half precision has as many, at half the memory and up to
twice the speed. What it lacks is range, so whatever is multiplied here is brought near 1 first. Sums are in float32, as
with TF32.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

FEW_PARTS = 512
"""With up to so many, a product is not what takes the time of a step."""

KEPT_PARTS = 320
"""With up to so many, C in half precision has room in the memory of one processor."""

C_SCALE = 4096.0
"""C is multiplied by this: its entries are at most about 1, and half precision is rough below 6e-5."""

_MULTIPLE = 8  # of columns: what the matrix units take at a time


def may_be_rounded(matrix: Tensor) -> bool:
    """Whether products with this may be rounded to eleven bits."""
    return (
        matrix.is_cuda
        and matrix.dtype == torch.float32
        and torch.backends.cuda.matmul.fp32_precision == "tf32"
        and not torch.compiler.is_compiling()
    )


def can_be_rounded(rows: Tensor) -> bool:
    """Whether products with these rows may be rounded, and would gain from both factors being in half precision."""
    return rows.shape[-1] > FEW_PARTS and rows.shape[-1] % _MULTIPLE == 0 and may_be_rounded(rows)


class Halves(NamedTuple):
    r"""What the next product with C is made of: each row divided by the power of two at or below its largest entry.

    Kernels write the rows and their factors in place.

    Shape:
        - C: $(*, r, r)$
        - rows: $(*, n, r)$
        - factors: $(*, n)$
    """

    C: Tensor
    rows: Tensor
    factors: Tensor
    """What a row of the product has to be multiplied by."""

    @classmethod
    def of(cls, C: Tensor | None, like: Tensor) -> Self | None:
        """Room for rows like these, to be multiplied with what `half_of` made; None where nothing would be gained."""
        if C is None or not can_be_rounded(like):
            return None
        rows = like.new_empty(like.shape, dtype=torch.half)  # gpu-only: for kernels alone
        return cls(C, rows, like.new_empty(like.shape[:-1]))  # gpu-only: as above

    def product(self) -> Tensor:  # gpu-only: the CPU has no such product
        """The product, before its rows are multiplied by the factors."""
        return _multiply(self.rows, self.C.mT)


def half_of(C: Tensor) -> Tensor | None:
    """The matrix of a step times `C_SCALE`, for `Halves` and for kernels that keep it; None where neither is to be."""
    if not may_be_rounded(C) or not (C.shape[-1] <= KEPT_PARTS or can_be_rounded(C)):
        return None
    return torch.mul(C, C_SCALE, out=torch.empty_like(C, dtype=torch.half))  # gpu-only: as said


def product_over_rows(a: Tensor, b: Tensor) -> Tensor:
    """Computes $a^T b$ over very many rows.

    Where the product may be rounded, entries that are tiny beside the largest of their matrix count as zero.

    Shape:
        - a: $(*, n, r)$
        - b: $(*, n, r)$
        - the result: $(*, r, r)$
    """
    if not can_be_rounded(a):
        return a.mT @ b
    half_a, size_a = _scaled(a)  # gpu-only: the CPU has no such product
    half_b, size_b = (half_a, size_a) if a is b else _scaled(b)  # gpu-only: as above
    return _multiply(half_a.mT, half_b).mul_(size_a * size_b)  # gpu-only: as above


def _scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:  # gpu-only: for the product above
    """The matrix in half precision, divided by its largest entry, and that entry."""
    size = torch.linalg.vector_norm(matrix, math.inf, (-2, -1), keepdim=True)
    size = size.clamp_(min=torch.finfo(matrix.dtype).tiny)
    return torch.div(matrix, size, out=torch.empty_like(matrix, dtype=torch.half)), size


def _multiply(a: Tensor, b: Tensor) -> Tensor:  # gpu-only: the CPU has no such product
    multiply = torch.mm if a.ndim == 2 else torch.bmm
    return multiply(a, b, out_dtype=torch.float32)
