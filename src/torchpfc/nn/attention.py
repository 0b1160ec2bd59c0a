"""Factorized attention: the block's search for parts, with keys and values in the place of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchpfc.solvers import FISTA, Adjoint, NonnegativeLeastSquares, Solver, solve
from torchpfc.solvers.checks import check_at_least_one
from torchpfc.solvers.problem import common_shape

ATTENTION_STEPS = 50
"""Steps of the default solver. A head has few dimensions, so codes settle sooner than those of images."""


@dataclass(frozen=True, eq=False)
class Attention:
    r"""What attention found.

    Shape:
        - output: $(*, \text{queries}, \text{value features})$
        - weights: $(*, \text{queries}, \text{keys})$
    """

    output: Tensor
    """The values, added up with the weights."""
    weights: Tensor
    """How much of each key a query contains: never negative, and of any sum."""


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    mask: Tensor | None = None,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    warm_start: Tensor | None = None,
) -> Attention:
    r"""Explains each query as a sum of keys and returns the same sum of their values.

    $$h = \arg\min_{h \ge 0} \tfrac12 \|q - K^\top h\|^2 + l_1 \sum_i h_i + \tfrac{l_2}{2} \|h\|^2,
    \qquad \mathrm{output} = V^\top h$$

    The block with other layers' keys and values in the place of $W_x$ and $W_y$ ("Future research"). Softmax attention
    scores every key by itself; here keys compete to explain the query, and one that adds nothing gets exactly zero.

    Args:
        query: What to explain.
        keys: The parts, one per row.
        values: What each key stands for.
        l1: Weight of the sum of h; makes h sparse.
        l2: Weight of half the squared norm of h. Where there are more keys than features, h is not unique without it.
        mask: True where a key may be used. Excluded keys and their values may hold anything, NaN included. One for
            each query has as many dimensions as the weights, and costs a copy of the keys per query; one with fewer
            holds for all queries.
        solver: How h is found; 50 steps of `FISTA` by default.
        adjoint: How gradients pass; `Unrolled()` by default. `Implicit()` needs less memory and a small l2.
        warm_start: Where the solver starts.

    Shape:
        - query: $(*, \text{queries}, d)$
        - keys: $(*, \text{keys}, d)$
        - values: $(*, \text{keys}, \text{value features})$
        - mask: $(*, \text{keys})$ or $(*, \text{queries}, \text{keys})$
        - warm_start: that of the weights, $(*, \text{queries}, \text{keys})$

    Leading dimensions, such as examples and heads, broadcast.

    Example:
        >>> keys, values = torch.eye(3), torch.tensor([[10.0], [20.0], [30.0]])
        >>> found = attend(torch.tensor([[1.0, 0.0, 2.0]]), keys, values)
        >>> found.weights, found.output
        (tensor([[1., 0., 2.]]), tensor([[70.]]))
    """
    shape, apart = _check(query, keys, values), False
    if mask is not None:
        mask = _check_mask(mask, query, shape)
        apart = mask.shape[-2] > 1
        if apart:  # every query has keys of its own, so each becomes an example
            query, mask = query.unsqueeze(-2), mask.unsqueeze(-2)
            keys, values = keys.unsqueeze(-3), values.unsqueeze(-3)
            warm_start = None if warm_start is None else warm_start.unsqueeze(-2)
        keys, values = keys.where(mask.mT, 0.0), values.where(mask.mT, 0.0)
        warm_start = None if warm_start is None else warm_start.where(mask, 0.0)
    problem = NonnegativeLeastSquares(query, keys.mT, l1, l2)
    solver = FISTA(max_iter=ATTENTION_STEPS) if solver is None else solver
    h = solve(problem, solver, adjoint=adjoint, warm_start=warm_start).h
    if mask is not None:
        h = h.where(mask, 0.0)  # a key of zeros stays where it starts, and a floor or a random start is not zero
    output = h @ values
    return Attention(output.squeeze(-2), h.squeeze(-2)) if apart else Attention(output, h)


class FactorizedAttention(nn.Module):
    r"""Multi-head attention that explains each query as a sum of keys.

    Projects queries, keys and values as `nn.MultiheadAttention` does and calls `attend` for each head. The batch comes
    first, and a call returns the output alone; `attend` also returns the weights of each head.

    Args:
        embed_dim: Size of the input and the output.
        num_heads: Number of heads; each gets an equal share of the features.
        bias: Whether the projections add a bias.
        l1: Weight of the sum of the attention weights; makes them sparse.
        l2: Weight of half their squared norm.
        solver: How the weights are found; the default of `attend` where None.
        adjoint: How gradients pass through the solver; the default of `attend` where None.
        device: Where the projections live.
        dtype: Their type.

    Shape:
        - query: $(*, \text{queries}, \text{embed_dim})$
        - key, value: $(*, \text{keys}, \text{embed_dim})$
        - key_padding_mask: $(*, \text{keys})$
        - mask: broadcasts to $(*, \text{queries}, \text{keys})$
        - output: $(*, \text{queries}, \text{embed_dim})$

    Example:
        >>> attention = FactorizedAttention(16, num_heads=2)
        >>> tokens = torch.rand(5, 7, 16)
        >>> attention(tokens).shape
        torch.Size([5, 7, 16])
        >>> attention.attend(tokens[:, :1], tokens).weights.shape
        torch.Size([5, 2, 1, 7])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        l1: float = 0.0,
        l2: float = 0.0,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_at_least_one(embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim must be a multiple of num_heads ({num_heads}), got {embed_dim}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.l1 = l1
        self.l2 = l2
        self.solver = solver
        self.adjoint = adjoint
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, embed_dim, **options)
        self.k_proj = nn.Linear(embed_dim, embed_dim, **options)
        self.v_proj = nn.Linear(embed_dim, embed_dim, **options)
        self.out_proj = nn.Linear(embed_dim, embed_dim, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new projections; those of queries and keys start out equal."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            projection.reset_parameters()
        # A key that points away from a query gets the weight zero and with it no gradient. With projections that have
        # nothing in common a key may never come into use; with equal ones a token at least finds itself.
        self.k_proj.load_state_dict(self.q_proj.state_dict())

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The output alone; the arguments are those of `attend`."""
        return self.attend(query, key, value, key_padding_mask=key_padding_mask, mask=mask).output

    def attend(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Attention:
        r"""The output and the weights of each head.

        Args:
            query: The tokens that ask.
            key: The tokens to find; the queries themselves where None.
            value: The tokens to return; the keys where None.
            key_padding_mask: True where a key is padding and to be ignored, as in `nn.MultiheadAttention`.
            mask: True where a query may use a key, as in `attend`. A query without any gets zero from every head.

        Returns:
            Weights of shape $(*, \text{num_heads}, \text{queries}, \text{keys})$, and the output.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value)
        q, k, v = self._split(self.q_proj(query)), self._split(self.k_proj(key)), self._split(self.v_proj(value))
        usable = _usable(query, key, key_padding_mask, mask)
        found = attend(q, k, v, l1=self.l1, l2=self.l2, mask=usable, solver=self.solver, adjoint=self.adjoint)
        output: Tensor = self.out_proj(found.output.transpose(-3, -2).flatten(-2))
        return Attention(output=output, weights=found.weights)

    def extra_repr(self) -> str:
        """The sizes and settings shown when the module is printed."""
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, l1={self.l1}, l2={self.l2}"
        return f"{text}, solver={self.solver}, adjoint={self.adjoint}"

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, tokens in (("query", query), ("key", key), ("value", value)):
            if tokens.ndim < 2 or tokens.shape[-1] != self.embed_dim:
                raise ValueError(f"{name} must have shape (..., n, {self.embed_dim}), got {tuple(tokens.shape)}")

    def _split(self, projected: Tensor) -> Tensor:
        heads = projected.reshape(*projected.shape[:-1], self.num_heads, -1).transpose(-3, -2)  # (*, num_heads, n, d)
        return heads.to(self.out_proj.weight.dtype)  # autocast may have lowered it, and a solve needs its digits


def _usable(query: Tensor, key: Tensor, key_padding_mask: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """One mask for all heads, True where a key may be used."""
    usable = None
    for name, given in (("key_padding_mask", key_padding_mask), ("mask", mask)):
        if given is not None and given.dtype != torch.bool:
            raise TypeError(f"{name} must be boolean, got {given.dtype}")
    if key_padding_mask is not None:
        if key_padding_mask.shape != key.shape[:-1]:
            shape = tuple(key.shape[:-1])
            raise ValueError(f"key_padding_mask must have shape {shape}, got {tuple(key_padding_mask.shape)}")
        usable = ~key_padding_mask[..., None, None, :]  # (*, 1, 1, keys)
    if mask is not None:
        wanted = (*query.shape[:-1], key.shape[-2])
        try:
            allowed = mask.expand(wanted).unsqueeze(-3)  # (*, 1, queries, keys)
        except RuntimeError:
            raise ValueError(f"mask must broadcast to shape {wanted}, got {tuple(mask.shape)}") from None
        usable = allowed if usable is None else usable & allowed
    return usable


def _check(query: Tensor, keys: Tensor, values: Tensor) -> torch.Size:
    """The shape of the weights."""
    for name, tensor in (("query", query), ("keys", keys), ("values", values)):
        if tensor.ndim < 2:
            raise ValueError(f"{name} must have at least two dimensions, got shape {tuple(tensor.shape)}")
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name} must have the dtype of query ({query.dtype}), got {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(f"{name} must be on the device of query ({query.device}), got {tensor.device}")
    if query.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"query must be float32 or float64, got {query.dtype}")
    count, features = keys.shape[-2:]
    if not count:
        raise ValueError(f"keys must hold at least one key, got shape {tuple(keys.shape)}")
    if query.shape[-1] != features:
        raise ValueError(f"query must have shape (..., queries, {features}) to match keys, got {tuple(query.shape)}")
    if values.shape[-2] != count:
        raise ValueError(f"values must have shape (..., {count}, features) to match keys, got {tuple(values.shape)}")
    leading = [tensor.shape[:-2] for tensor in (query, keys, values)]
    stack = common_shape(*leading[:2])
    if stack is None or common_shape(*leading) is None:
        given = ", ".join(str(tuple(shape)) for shape in leading)
        raise ValueError(f"query, keys and values must have leading dimensions that broadcast, got {given}")
    return torch.Size((*stack, query.shape[-2], count))


def _check_mask(mask: Tensor, query: Tensor, shape: torch.Size) -> Tensor:
    """The mask with a dimension for queries, of size 1 where it holds for all of them."""
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True where a key may be used), got {mask.dtype}")
    if mask.device != query.device:
        raise ValueError(f"mask must be on the device of query ({query.device}), got {mask.device}")
    try:
        full = mask if mask.ndim >= len(shape) else mask.unsqueeze(-2)
        full.expand(shape)
    except (IndexError, RuntimeError):
        every = (*shape[:-2], shape[-1])
        raise ValueError(f"mask must broadcast to shape {tuple(shape)} or {every}, got {tuple(mask.shape)}") from None
    return full
