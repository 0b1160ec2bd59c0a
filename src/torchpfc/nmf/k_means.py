"""Means of groups of similar examples: parts before anything is learned."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def k_means(
    x: Tensor,
    count: int,
    *,
    weight: Tensor | None = None,
    iterations: int = 20,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Means of groups of similar examples, by Lloyd's algorithm from random examples.

    A group that is left without examples keeps its mean. With as many means as examples, these are the means.

    Args:
        x: The examples.
        count: How many means.
        weight: What each example counts; None counts all alike.
        iterations: How often examples choose their group.
        generator: Source of random numbers.

    Shape:
        - x: $(n, m)$
        - weight: $(n)$
        - the result: $(\text{count}, m)$

    Example:
        >>> k_means(torch.tensor([[0.0], [0.2], [1.0], [1.2]]), 2).sort(0).values
        tensor([[0.1000],
                [1.1000]])
    """
    if not 1 <= count <= len(x):
        raise ValueError(f"count must be from 1 to the number of examples ({len(x)}), got {count}")
    if count == len(x):
        return x.clone()
    order = torch.randperm(len(x), generator=generator, device=None if generator is None else generator.device)
    means = x[order[:count].to(x.device)]
    places = torch.arange(len(x), device=x.device)
    for _ in range(iterations):
        choice = torch.zeros(count, len(x), dtype=x.dtype, device=x.device)
        # A product adds up in one order, which makes it the same every time; an atomic sum would not be.
        choice[closest(x, means), places] = 1.0 if weight is None else weight
        mass = choice.sum(1, keepdim=True)
        means = torch.where(mass > 0, choice @ x / mass.clamp(min=torch.finfo(x.dtype).tiny), means)
    return means


def closest(x: Tensor, means: Tensor) -> Tensor:
    r"""Which mean is closest to each example.

    Args:
        x: The examples.
        means: What they are compared with.

    Shape:
        - x: $(n, m)$
        - means: $(k, m)$
        - the result: $(n)$
    """
    distances = means.square().sum(1) - 2 * x @ means.mT  # less the squared norm of x, which is the same for all
    return distances.argmin(1)
