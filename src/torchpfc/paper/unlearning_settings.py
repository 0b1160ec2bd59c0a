"""What a block learns, and what of it is to be forgotten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchpfc.data.images import ImageData
from torchpfc.data.streams import fixed_shuffle, label_ordered
from torchpfc.optim import Ledger, RMSpropSLW
from torchpfc.paper.continual import ORDERS, SHUFFLE_SEED
from torchpfc.paper.image_run import Phase, split
from torchpfc.paper.images import PFCImage
from torchpfc.paper.settings import all_settings_but
from torchpfc.training import random_stream

WHAT = ("batches", "class", "examples")


@dataclass(frozen=True, kw_only=True)
class Unlearning(PFCImage):
    """A block that learns with a window, and then forgets some of what it has learned."""

    num_basis: int = 3000
    lr: float = 1e-3
    batch_size: int = 50
    epochs: int = 8
    patience: int = 5
    watch_accuracy: bool = False
    width: int = 50
    sweep_speed: float = 2.5
    order: str = "fixed"
    """Of the images in every epoch. sorted: by label. fixed: one random order."""
    what: str = "batches"
    """What to forget. batches: those with wrong labels. class: one class. examples: some, scattered over all."""
    start: int = 500
    """The first batch with wrong labels, where batches are forgotten."""
    stop: int = 800
    """The batch after the last of them."""
    forgotten_class: int = 3
    share: float = 0.01
    """Share of the examples, where examples are forgotten."""
    relearn_steps: int = 40
    """How many steps to try to learn again what was forgotten; 0 leaves this out."""
    replay: bool = False
    """Whether to forget exactly, by a replay from a snapshot, and to compare with a training that never saw it."""
    snapshot_every: int = 500
    """Batches from one snapshot to the next."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        self._check(1, math.inf, "width", "snapshot_every")
        self._check(0, math.inf, "sweep_speed", "start", "relearn_steps")
        self._check(0, 1, "share")
        if self.width > self.num_basis:
            raise ValueError(f"width must be at most the number of parts, {self.num_basis}, got {self.width}")
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")
        if self.what not in WHAT:
            raise ValueError(f"what must be one of {', '.join(WHAT)}, got {self.what!r}")
        if self.stop <= self.start:
            raise ValueError(f"stop must be greater than start, {self.start}, got {self.stop}")

    def stack_key(self) -> object:
        """Everything but the order and what is forgotten; a replay is a training of its own."""
        apart = ("order", "what", "start", "stop", "forgotten_class", "share", "relearn_steps")
        return self if self.replay else all_settings_but(self, *apart)

    def stack_size(self) -> int:
        """Six, which are up to twelve models: each has a twin that never sees what is to be forgotten."""
        return 1 if self.replay else 6

    def shared_batch(self) -> int:
        """All images of a batch, but for a replay, which one process repeats bit by bit."""
        return 1 if self.replay else self.batch_size

    def _smaller(self) -> dict[str, Any]:
        small = {"width": min(self.width, 4), "sweep_speed": min(self.sweep_speed, 0.25), "start": 2, "stop": 5}
        return {**super()._smaller(), **small, "relearn_steps": min(self.relearn_steps, 2), "snapshot_every": 4}


def make_phase(config: Unlearning, data: ImageData, seed: int) -> Phase:
    """What to learn from, in its order; a part of the validation images is never used."""
    train, valid = split(len(data.train), config, seed)
    if config.order == "sorted":
        train = label_ordered(data.train.label, rows=train)
    else:
        train = train[fixed_shuffle(len(train), seed=SHUFFLE_SEED)]
    return Phase(train, valid[: -strangers(len(valid))], torch.arange(len(data.test)))


def strangers(num_valid: int) -> int:
    """How many of the held-out images nothing looks at before the audit: a ninth."""
    return max(2, num_valid // 9)


def batches_to_forget(config: Unlearning, data: ImageData, train: Tensor) -> list[int]:
    """The numbers of the batches that are to be forgotten, or that hold what is to be forgotten."""
    count = len(train) // config.batch_size
    if config.what == "batches":
        return list(range(min(config.start, count), min(config.stop, count)))
    rows = train[: count * config.batch_size].view(count, config.batch_size)
    if config.what == "class":
        wanted = (data.train.label[rows] == config.forgotten_class).any(1)
    else:
        wanted = torch.isin(rows, examples_to_forget(config, train)).any(1)
    found: list[int] = wanted.nonzero()[:, 0].tolist()
    return found


def examples_to_forget(config: Unlearning, train: Tensor) -> Tensor:
    """Scattered examples."""
    count = len(train) // config.batch_size * config.batch_size
    order = torch.randperm(count, generator=random_stream(SHUFFLE_SEED, "examples to forget"))
    return train[order[: max(1, round(config.share * count))]]


def make_ledger(config: Unlearning, train: Tensor) -> Ledger:
    """Which batch could write which columns, from the schedule of the window alone: the same in every epoch."""
    schedule = torch.nn.Parameter(torch.zeros(1, config.num_basis))
    optimizer = RMSpropSLW([schedule], width=config.width, sweep_speed=config.sweep_speed)
    ledger = Ledger()
    ledger.watch(optimizer)
    for id in range(len(train) // config.batch_size):
        with ledger.batch(id, train[id * config.batch_size : (id + 1) * config.batch_size]):
            optimizer.step()  # without a gradient only the window moves
    return ledger
