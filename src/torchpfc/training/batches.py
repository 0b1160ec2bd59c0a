"""Examples in batches, in an order that the seed and the epoch decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchpfc.data.streams import check_batches, count_batches
from torchpfc.training.seeding import random_stream


class Batch(NamedTuple):
    r"""Examples to learn from.

    Shape:
        - x: $(n, m)$, or $(s, n, m)$ with other examples for each model of a stack
        - target: $(n, k)$ or $(s, n, k)$
        - rows: $(n)$ or $(s, n)$
    """

    x: Tensor
    target: Tensor
    rows: Tensor | None = None
    """Which examples these are, counted within the training set; needed for warm codes only."""


class Batches:
    """A data set as tensors on one device, in batches whose order is new in every epoch.

    The order depends on the seed and the epoch alone, so a run that goes on at some epoch sees the same batches as one
    that was never stopped.

    Args:
        x: All inputs.
        target: All targets.
        batch_size: Examples in a batch.
        rows: Which examples belong to this set, by default all. A stack may have others for each model.
        seeds: Decide the order, one for each model where `rows` differ. None keeps the order of `rows`. A generator in
            place of a seed draws an order whenever the batches are gone through, whatever the epoch.
        drop_last: Whether to leave out the rest that does not fill a batch.
        share: (k, n) takes the k-th of n equal parts of each batch, for one of n processes. Only whole batches can be
            divided so.

    Shape:
        - x: $(N, m)$
        - target: $(N, k)$
        - rows: $(n)$ or $(s, n)$

    Example:
        >>> batches = Batches(torch.rand(10, 3), torch.rand(10, 2), batch_size=4)
        >>> tuple(len(batch.x) for batch in batches)
        (4, 4, 2)
    """

    def __init__(
        self,
        x: Tensor,
        target: Tensor,
        *,
        batch_size: int,
        rows: Tensor | None = None,
        seeds: int | torch.Generator | Sequence[int | torch.Generator] | None = None,
        drop_last: bool = False,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        check_batches(x, target, batch_size)
        if batch_size % share[1]:
            raise ValueError(f"batch_size must be a multiple of the {share[1]} processes, got {batch_size}")
        if share[1] > 1 and not drop_last:
            raise ValueError(f"drop_last must be True where {share[1]} processes share batches, got False")
        self.x, self.target, self.batch_size = x, target, batch_size
        self.rows = torch.arange(len(x), device=x.device) if rows is None else rows.to(x.device)
        self.seeds = [seeds] if isinstance(seeds, int | torch.Generator) else seeds
        if self.seeds is not None and len(self.seeds) != (1 if self.rows.ndim == 1 else len(self.rows)):
            raise ValueError(f"seeds must be one for each set of rows, got {len(self.seeds)}")
        self.drop_last = drop_last
        self.share = share
        self.epoch = 0

    def __len__(self) -> int:
        return count_batches(self.rows.shape[-1], self.batch_size, drop_last=self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        order = self._order()
        part, parts = self.share
        for k in range(len(self)):
            chosen = order[..., k * self.batch_size : (k + 1) * self.batch_size][..., part::parts]
            rows = self.rows.gather(-1, chosen)
            yield Batch(self.x[rows], self.target[rows], chosen)

    def _order(self) -> Tensor:
        if self.seeds is None:
            return torch.arange(self.rows.shape[-1], device=self.rows.device).expand(self.rows.shape)
        streams = (
            seed if isinstance(seed, torch.Generator) else random_stream(seed, "order", self.epoch)
            for seed in self.seeds
        )
        orders = [torch.randperm(self.rows.shape[-1], generator=stream) for stream in streams]
        return torch.stack(orders).view(self.rows.shape).to(self.rows.device)
