"""One training that can be rewound: with a ledger, and snapshots to go back to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.data.images import ImageData
from torchpfc.data.streams import Stream, corrupt
from torchpfc.nn import PFCBlock, keep_nonnegative
from torchpfc.optim import Ledger, RMSpropSLW
from torchpfc.paper.image_run import Phase, solving
from torchpfc.paper.images import build_block
from torchpfc.training import Batches, BestWeights, EarlyStopping, SquaredErrors, evaluate, fit, random_stream
from torchpfc.unlearning import ReplayReport, Snapshots, fingerprint, retrain_without

_ROWS_AT_ONCE = 1000


class Training:
    """A block that learns a fixed stream with a window, and can learn it again without some of it.

    Args:
        config: The settings, with a window.
        seed: Decides the first weights.
        data: The images.
        phase: Which of them to learn from, in which order.
        wrong: Batches whose labels are wrong.
        device: Where to train.
        dtype: Of weights and images.
        ledger: That of an earlier process; a new one by default.
        folder: Where to keep snapshots; None keeps them in memory.
    """

    def __init__(
        self,
        config: Any,
        seed: int,
        data: ImageData,
        phase: Phase,
        wrong: Iterable[int] = (),
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        ledger: Ledger | None = None,
        folder: Path | None = None,
    ) -> None:
        self.config = config
        block = build_block(config, data, random_stream(seed, "weights"))
        assert isinstance(block, PFCBlock)
        self.block = block.to(device, dtype)
        self.optimizer = RMSpropSLW(
            self.block.parameters(),
            lr=config.lr,
            weight_decay=config.weight_decay,
            width=self.config.width,
            sweep_speed=self.config.sweep_speed,
        )
        keep_nonnegative(self.block, self.optimizer)
        x = data.train.x.to(device, dtype)
        target = F.one_hot(data.train.label, data.num_classes).to(device, dtype)
        stream = Stream(x, target, phase.train, batch_size=config.batch_size, drop_last=True)
        self.stream = corrupt(stream, wrong)
        rows = phase.valid.to(device)
        self.valid = Batches(x, target, batch_size=min(_ROWS_AT_ONCE, len(rows)), rows=rows)
        self.objective = SquaredErrors(config.prediction_weight, 1 - config.prediction_weight)
        self.stopping = EarlyStopping(config.patience, watch_accuracy=config.watch_accuracy)
        self.best = BestWeights(self.block)
        self.ledger = Ledger() if ledger is None else ledger
        self.snapshots = Snapshots(
            self.block,
            self.optimizer,
            self.ledger,
            every=self.config.snapshot_every,
            also={"stopping": self.stopping, "best": self.best},
            folder=folder,
        )
        self.tick: Callable[[float], None] = lambda share: None

    def train(self) -> None:
        """Trains from where the snapshots are to the end."""
        batches = self.snapshots.follow(self.stream)
        for stats in fit(
            self.block,
            self.optimizer,
            batches,
            self.objective,
            epochs=self.config.epochs,
            first_epoch=self.snapshots.epoch,
            capture=False,  # a recorded step calls no hooks
        ):
            with solving(self.block, self.config.make_solver(self.config.eval_iterations)):
                found = evaluate(self.block, self.valid, self.objective)
            self.best.keep(self.block, self.stopping.update(found.loss, found.accuracy))
            self.optimizer.reset_window()
            self.tick((stats.epoch + 1) / self.config.epochs)
            if self.stopping.stopped:
                return

    def train_without(self, *, batches: Iterable[int] | None = None, examples: Any = None) -> ReplayReport:
        """Goes back to before some data was seen, and trains on without it; the report ends at the best weights."""
        report = retrain_without(self.train, self.snapshots, batches=batches, examples=examples)
        return replace(report, sha256_after=fingerprint(self.at_best()))

    def at_best(self) -> PFCBlock:
        """A copy of the block with the best weights of the training, and the solver for measuring."""
        block = deepcopy(self.block)
        block.load_state_dict(self.best.values)
        block.solver = self.config.make_solver(self.config.eval_iterations)
        return block

    def bits(self) -> dict[str, Tensor]:
        """All that the training has come to: weights, the best of them, the optimizer, and the counters."""
        found = {f"model.{name}": value for name, value in self.block.state_dict().items()}
        found |= {f"best.{name}": value for name, value in self.best.values.items()}
        found |= {f"stopping.{name}": value for name, value in self.stopping.state.items()}
        for name, p in self.block.named_parameters():
            found |= {f"optimizer.{name}.{key}": value for key, value in self.optimizer.state[p].items()}
        return {name: value.detach().clone() for name, value in found.items()}
