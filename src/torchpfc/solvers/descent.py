"""The gradient step on a problem, in whichever of two forms costs less, and its length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from torchpfc.solvers.cuda.halves import can_be_rounded, half_of, product_over_rows
from torchpfc.solvers.problem import NonnegativeLeastSquares

# Above this many parts per feature, forming the r x r products of the weight gradient costs more than they save.
_FACTORED_GRADIENT_RATIO = 4

# Columns per feature up to which C is formed on a GPU, measured on an H200; the second for products in half precision.
_CUDA_WORTH, _HALF_WORTH = 3, 7

COLD_ITERATIONS = 40
"""Power iterations from a start that knows nothing of W."""


@dataclass(frozen=True, eq=False)
class Descent(ABC):
    r"""A gradient step of length $1 / L$ on a problem, $z = y - \nabla(y) / L = y + d - C y$.

    $C = (W^\top \mathrm{mask}\, W + l_2) / L$ is symmetric, and both the step and everything that gradients need of it
    is made of products with C. `Gram` holds C as a matrix, `Factored` applies W twice.

    Args:
        x: The input, zero where it is not observed.
        W: The parts.
        mask: True where x is observed, or None for everywhere.
        L: The Lipschitz constant of the gradient.
        offset: $d = (W^\top x - l_1) / L$.
        l1: Weight of the sum of h, or of each entry.
        l2: Weight of the squared norm of h, or of each part's share of it.

    Shape:
        - x: $(n, m)$, or $(s, n, m)$ for a stack of s problems
        - W: $(m, r)$ or $(s, m, r)$
        - L: a scalar, or $(s, 1, 1)$
        - offset, and l1 as a tensor: $(n, r)$ or $(s, n, r)$
        - l2 as a tensor: $(r)$ or $(s, 1, r)$
    """

    x: Tensor
    W: Tensor
    mask: Tensor | None
    L: Tensor
    offset: Tensor
    l1: float | Tensor
    l2: float | Tensor

    @abstractmethod
    def product(self, y: Tensor) -> Tensor:
        """Computes $C y$."""

    @abstractmethod
    def subtract_product_(self, base: Tensor, y: Tensor) -> Tensor:
        """Computes $base - C y$ in place of the base."""

    def rows(self, index: Tensor) -> Self:
        """The same step for some of the rows."""
        mask = None if self.mask is None else self.mask[index]
        l1 = self.l1[index] if isinstance(self.l1, Tensor) else self.l1
        return replace(self, x=self.x[index], offset=self.offset[index], mask=mask, l1=l1)

    def members(self) -> Iterator[Self]:
        """The steps of a stack, one after another."""
        for i in range(len(self.x)):
            values = {field.name: getattr(self, field.name) for field in fields(self)}
            member = replace(self, **{name: v[i] for name, v in values.items() if isinstance(v, Tensor)})
            l2 = member.l2.squeeze(0) if isinstance(member.l2, Tensor) else member.l2
            yield replace(member, L=member.L.squeeze(), l2=l2)

    def step(self, y: Tensor, out: Tensor | None = None) -> Tensor:
        """The step from y."""
        # Not a product with I - C: where products are rounded (TF32), only C y may be.
        return self.subtract_product_(torch.add(y, self.offset, out=out), y)

    def pull_back(self, v: Tensor) -> Tensor:
        """The gradient with respect to y, given the one with respect to z."""
        return self.subtract_product_(v.clone(), v)

    def fixed_point_residual(self, y: Tensor, h: Tensor) -> Tensor:
        r"""How far a projected step moved y, $L \|y - h\| / \|W^\top x - l_1\|$: the violation of the KKT conditions.

        The projected step is a contraction, so this also bounds the violation at h.
        """
        return row_norm(y - h) / self._scale

    @cached_property
    def _scale(self) -> Tensor:
        # Where x and W have nothing in common the gradient at zero is rounding, and must not be what counts.
        length = self.L.sqrt() if self.L.ndim == 0 else self.L.sqrt().squeeze(-1)
        finfo = torch.finfo(self.x.dtype)
        return torch.maximum(row_norm(self.offset), finfo.eps * row_norm(self.x) / length).clamp_(min=finfo.tiny)

    def reconstruct(self, h: Tensor) -> Tensor:
        """The observed part of $W h$."""
        product = h @ self.W.mT
        return product if self.mask is None else product.mul_(self.mask)

    def unrolled_gradients(self, h: Tensor, v: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        r"""Gradients with respect to x and W of a chain of steps.

        With $P = \sum_k h_k^\top v_k$ and Q the total, $dx = Q W^\top / L$ and
        $dW = (x^\top Q - W (P + P^\top)) / L$. All steps are one product over their stacked rows.

        Args:
            h: The iterates.
            v: The negated gradients with respect to $C h_k$ in each step, momentum taken into account.
            total: The gradient with respect to the offset d, summed over the steps.

        Shape:
            - h, v: $(*, K, n, r)$
            - total: $(*, n, r)$
        """
        to_x = self.reconstruct(total) / self.L
        m, r = self.W.shape[-2:]
        if self.mask is None and r <= _FACTORED_GRADIENT_RATIO * m:
            product = product_over_rows(h.flatten(-3, -2), v.flatten(-3, -2))
            moved = self.W @ (product + product.mT)
        else:
            mask = None if self.mask is None else self.mask.unsqueeze(-3)
            seen, back = (a @ self.W.mT.unsqueeze(-3) for a in (h, v))  # (*, K, n, m)
            if mask is not None:
                seen.mul_(mask)
                back.mul_(mask)
            moved = seen.flatten(-3, -2).mT @ v.flatten(-3, -2)
            moved += back.flatten(-3, -2).mT @ h.flatten(-3, -2)
        return to_x, (self.x.mT @ total - moved) / self.L

    def implicit_gradients(self, h: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        r"""Gradients with respect to x and W of a fixed point h: $dx = W u$, $dW = (x - W h) u^\top - (W u) h^\top$.

        Args:
            h: The solution.
            u: The solution of the adjoint system on the support of h.

        Shape:
            - h, u: $(*, n, r)$
        """
        to_x = self.reconstruct(u)
        return to_x, (self.x - self.reconstruct(h)).mT @ u - to_x.mT @ h


@dataclass(frozen=True, eq=False)
class Gram(Descent):
    """The step with C held as a matrix: one product of size n r r."""

    C: Tensor
    half: Tensor | None = None
    """C for products in half precision, where they may be rounded."""

    def product(self, y: Tensor) -> Tensor:
        """Computes $C y$."""
        return y @ self.C

    def subtract_product_(self, base: Tensor, y: Tensor) -> Tensor:
        """Computes $base - C y$ in place of the base."""
        return _subtract_product_(base, y, self.C)


@dataclass(frozen=True, eq=False)
class Factored(Descent):
    """The step through W twice: two products of size n m r, and the only form with a mask."""

    scaled_W: Tensor

    def product(self, y: Tensor) -> Tensor:
        """Computes $C y$."""
        product = self.reconstruct(y) @ self.scaled_W
        return product.addcmul_(y, self.l2 / self.L) if is_given(self.l2) else product

    def subtract_product_(self, base: Tensor, y: Tensor) -> Tensor:
        """Computes $base - C y$ in place of the base."""
        if is_given(self.l2):
            base.addcmul_(y, self.l2 / self.L, value=-1)
        return _subtract_product_(base, self.reconstruct(y), self.scaled_W)


def prepare(
    problem: NonnegativeLeastSquares, *, iterations: int, lipschitz: Tensor | None, needs_gram: bool = False
) -> Descent:
    """Chooses the form of the step by its cost and computes what all steps share.

    Args:
        problem: A problem with the shapes of `Descent`.
        iterations: How many steps will be taken; forming C has to pay for itself.
        lipschitz: The largest eigenvalue of $W^T W$ or a bound on it; None estimates it.
        needs_gram: Forms C whatever it costs, unless there is a mask.
    """
    x, W, mask = problem.x, problem.W, problem.mask
    if mask is not None:
        mask = mask.expand(x.shape)
        x = x.where(mask, 0.0)
    use_gram = mask is None and (needs_gram or _gram_pays(x, W, iterations))
    gram = product_over_rows(W, W) if use_gram else None
    if lipschitz is None:
        lipschitz = estimate_lipschitz(W)
    l2 = problem.l2
    largest = l2 if not isinstance(l2, Tensor) else l2.amax(-1) if W.ndim == 2 else l2.amax((-2, -1))
    L = (lipschitz + largest).clamp(min=torch.finfo(x.dtype).tiny)
    L = L if W.ndim == 2 else L[:, None, None]
    offset = (x @ W).sub_(problem.l1).div_(L)
    if gram is None:
        return Factored(x, W, mask, L, offset, problem.l1, l2, W / L)
    if is_given(l2):
        gram.diagonal(dim1=-2, dim2=-1).add_(l2.squeeze(-2) if isinstance(l2, Tensor) and W.ndim > 2 else l2)
    C = gram.div_(L)
    return Gram(x, W, mask, L, offset, problem.l1, l2, C, half_of(C))


def is_given(weight: float | Tensor) -> bool:
    """Whether a penalty counts; the values of a tensor are not looked at."""
    return isinstance(weight, Tensor) or weight != 0


def _gram_pays(x: Tensor, W: Tensor, iterations: int) -> bool:
    """Whether one product with C takes less time than two with W, if forming C is shared by all steps."""
    n, m, r = *x.shape[-2:], W.shape[-1]
    # By arithmetic, C may have up to 2 m columns. A GPU is slower at two products than at one as large as both.
    worth = 2 if not W.is_cuda else _HALF_WORTH if can_be_rounded(W) else _CUDA_WORTH
    return r * (1 + m / max(iterations * n, 1)) < worth * m


def estimate_lipschitz(W: Tensor) -> Tensor:
    """The largest eigenvalue of $W^T W$ with a margin, where nothing is known of it."""
    # Too short a step costs little, and one that is too long by up to a third is still stable: no need for a proof.
    return 1.05 * largest_eigenvalue(W, cold_start(W), COLD_ITERATIONS)[0]


def cold_start(W: Tensor) -> Tensor:
    """A fixed start for the power iteration, positive and without the symmetries of a constant vector."""
    ramp = torch.arange(W.shape[-1], device=W.device, dtype=W.dtype)
    return (1 + (ramp * 0.6180339887).frac()).expand(*W.shape[:-2], -1)


def largest_eigenvalue(W: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    r"""Estimates the largest eigenvalue of $W^\top W$ from below, by power iteration through W.

    Args:
        W: The matrix, or a stack of them.
        start: Where to start; where there are several vectors, the one with the largest estimate counts.
        iterations: How many times to multiply.

    Returns:
        The estimate and the unit vector it belongs to.

    Shape:
        - W: $(*, m, r)$
        - start: $(*, r)$, or $(*, r, k)$ for k vectors
        - the results: $(*)$ and $(*, r)$

    Example:
        >>> value, vector = largest_eigenvalue(torch.diag(torch.tensor([1.0, 3.0])), torch.ones(2), 50)
        >>> value
        tensor(9.)
    """
    vectors = start if start.ndim == W.ndim else start.unsqueeze(-1)
    for _ in range(iterations):
        vectors = W.mT @ (W @ vectors)
        length = torch.linalg.vector_norm(vectors, dim=-2, keepdim=True)
        vectors = vectors / length.clamp(min=torch.finfo(W.dtype).tiny)
    value, best = (W @ vectors).square().sum(-2).max(-1)
    return value, vectors.take_along_dim(best[..., None, None], -1).squeeze(-1)


def row_norm(rows: Tensor) -> Tensor:
    """The Euclidean norm of each row."""
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return norm


def _subtract_product_(base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return base.addmm_(a, b, alpha=-1) if b.ndim == 2 else base.baddbmm_(a, b, alpha=-1)
