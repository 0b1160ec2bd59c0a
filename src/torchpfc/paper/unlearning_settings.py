"""What a block learns, and what of it is to be forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor

from torchpfc.data.images import ImageData
from torchpfc.optim import Ledger, RMSpropSLW
from torchpfc.paper.components import SHUFFLE_SEED, ImageConfig, Optimizer, Order, PFCModel, Phase, Schedule, Window
from torchpfc.paper.settings import Count, Natural, Share, all_settings_but, check_numbers, one_of, settings
from torchpfc.training import random_stream


@dataclass(frozen=True, kw_only=True)
class Unlearning(ImageConfig):
    """A block that learns with a window, and then forgets some of what it has learned."""

    optimizer: Optimizer = Optimizer(lr=1e-3)
    schedule: Schedule = Schedule(batch_size=50, epochs=8, patience=5, watch_accuracy=False)
    model: PFCModel = PFCModel(num_basis=3000)
    window: Window = Window(width=50, sweep_speed=2.5)
    order: Order = Order(order="fixed")
    what: Annotated[str, one_of("batches", "class", "examples")] = "batches"
    """What to forget. batches: those with wrong labels. class: one class. examples: some, scattered over all."""
    start: Natural = 500
    """The first batch with wrong labels, where batches are forgotten."""
    stop: int = 800
    """The batch after the last of them."""
    forgotten_class: int = 3
    share: Share = 0.01
    """Share of the examples, where examples are forgotten."""
    relearn_steps: Natural = 40
    """How many steps to try to learn again what was forgotten; 0 leaves this out."""
    replay: bool = False
    """Whether to forget exactly, by a replay from a snapshot, and to compare with a training that never saw it."""
    snapshot_every: Count = 500
    """Batches from one snapshot to the next."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        check_numbers(self.window, "width", least=1)
        if self.stop <= self.start:
            raise ValueError(f"stop must be greater than start, {self.start}, got {self.stop}")

    def smoke(self) -> Self:
        """A few steps on small digits, and few of them to forget."""
        return replace(super().smoke(), start=2, stop=5, relearn_steps=min(self.relearn_steps, 2), snapshot_every=4)

    def stack_key(self) -> object:
        """Everything but the order and what is forgotten; a replay is a training of its own."""
        apart = ("order", "what", "start", "stop", "forgotten_class", "share", "relearn_steps")
        return self if self.replay else all_settings_but(self, *apart)

    def stack_size(self) -> int:
        """Six, which are up to twelve models: each has a twin that never sees what is to be forgotten."""
        return 1 if self.replay else 6

    def shared_batch(self) -> int:
        """All images of a batch, but for a replay, which one process repeats bit by bit."""
        return 1 if self.replay else super().shared_batch()

    def phases(self, data: ImageData, seed: int) -> Sequence[Phase]:
        """What to learn from, in its order; a part of the validation images is never used."""
        (phase,) = super().phases(data, seed)
        return [phase._replace(valid=phase.valid[: -num_strangers(len(phase.valid))])]

    def has_twin(self) -> bool:
        """Whether what is to be forgotten fills batches, so that a model can pass over these and miss little else."""
        return self.what == "batches" or (self.what == "class" and self.order.order == "sorted")

    def batches(self, train: Tensor) -> Tensor:
        """The rows of each batch.

        Args:
            train: Those to learn from, in their order.
        """
        size = self.schedule.batch_size
        return train[: len(train) // size * size].view(-1, size)

    def rows_to_forget(self, data: ImageData, train: Tensor) -> Tensor:
        """The examples that are to be forgotten."""
        batches = self.batches(train)
        if self.what == "batches":
            return batches[self.start : self.stop].flatten()
        rows = batches.flatten()
        if self.what == "class":
            return rows[data.train.label[rows] == self.forgotten_class]
        order = torch.randperm(len(rows), generator=random_stream(SHUFFLE_SEED, "examples to forget"))
        return rows[order[: max(1, round(self.share * len(rows)))]]

    def batches_to_forget(self, data: ImageData, train: Tensor) -> list[int]:
        """The numbers of the batches that hold what is to be forgotten."""
        wanted = torch.isin(self.batches(train), self.rows_to_forget(data, train)).any(1)
        found: list[int] = wanted.nonzero()[:, 0].tolist()
        return found

    def wrong_batches(self, data: ImageData, train: Tensor) -> list[int]:
        """The numbers of the batches with wrong labels."""
        return self.batches_to_forget(data, train) if self.what == "batches" else []

    def make_ledger(self, train: Tensor) -> Ledger:
        """Which batch could write which columns, from the schedule of the window alone: the same in every epoch."""
        schedule = torch.nn.Parameter(torch.zeros(1, self.model.num_basis))
        optimizer = RMSpropSLW([schedule], **settings(self.window))
        ledger = Ledger()
        ledger.watch(optimizer)
        for id, rows in enumerate(self.batches(train)):
            with ledger.batch(id, rows):
                optimizer.step()  # without a gradient only the window moves
        return ledger


def num_strangers(num_valid: int) -> int:
    """How many of the held-out images nothing looks at before the audit: a ninth."""
    return max(2, num_valid // 9)
