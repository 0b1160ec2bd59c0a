"""Exact forgetting: back to the last state before something was seen, and on from there without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from torchpfc.optim.ledger import whole_numbers
from torchpfc.unlearning.forget import affected_batches
from torchpfc.unlearning.report import fingerprint
from torchpfc.unlearning.snapshots import Snapshots


@dataclass(frozen=True)
class ReplayReport:
    """What `retrain_without` did."""

    batches: tuple[int, ...]
    """The batches that had been learned from and are not any more, or not from all of their examples."""
    resumed_at: int
    """How many batches of the training stand as they were."""
    replayed: int
    """How many batches came again, learned or skipped."""
    share: float
    """What part of the whole training was replayed."""
    sha256_before: str
    sha256_after: str

    def __str__(self) -> str:
        return "\n".join(
            [
                f"Trained again without {len(self.batches)} batches, or without some of their examples.",
                f"Replayed {self.replayed} of {self.resumed_at + self.replayed} batches, {self.share:.1%}.",
                f"Weights before: sha256 {self.sha256_before}",
                f"Weights after:  sha256 {self.sha256_after}",
                "Guaranteed: on the same hardware and with the same versions, this is bit for bit the state of a "
                "training that never saw them. Snapshots that had seen them are deleted; other copies are not.",
            ]
        )


def retrain_without(
    train: Callable[[], object],
    snapshots: Snapshots,
    *,
    batches: Iterable[int] | None = None,
    examples: Iterable[int] | Tensor | None = None,
) -> ReplayReport:
    """Forgets exactly: goes back to before the data was first seen, and trains on from there without it.

    The result is that of a training that never saw the data, bit for bit: one with the same start whose window passed
    over those batches (`Snapshots.skip`), on the same hardware.

    Args:
        train: Runs the training from `snapshots.epoch` to its end, with batches from `snapshots.follow`.
        snapshots: Those of the training.
        batches: What to forget, by the numbers of the batches. Give either these or `examples`.
        examples: What to forget, by the numbers of the examples: they are taken out of their batches, whose other
            examples are learned as before.

    Example:
        >>> import torch
        >>> from torchpfc import PFCBlock, RMSpropSLW
        >>> from torchpfc.data.streams import Stream
        >>> from torchpfc.optim.ledger import Ledger
        >>> from torchpfc.training import SquaredErrors, fit
        >>> stream = Stream(torch.rand(40, 8), torch.rand(40, 3), batch_size=4)
        >>> block = PFCBlock(8, 3, num_basis=20)
        >>> optimizer = RMSpropSLW(block.parameters(), width=5, sweep_speed=1)
        >>> ledger = Ledger()
        >>> snapshots = Snapshots(block, optimizer, ledger, every=3)
        >>> def train():
        ...     batches = snapshots.follow(stream)
        ...     for stats in fit(block, optimizer, batches, SquaredErrors(), epochs=2, first_epoch=snapshots.epoch):
        ...         optimizer.reset_window()
        >>> train()
        >>> report = retrain_without(train, snapshots, batches=range(7, 9))
        >>> report.resumed_at, report.replayed, report.share
        (6, 14, 0.7)
        >>> ledger.batches
        [0, 1, 2, 3, 4, 5, 6, 9]
    """
    rows = None if examples is None else set(whole_numbers(examples, "examples"))
    asked, known = affected_batches(snapshots.ledger, batches, rows)
    before = fingerprint(snapshots.model)
    first = snapshots.ledger.first_step(known)
    if rows is not None:  # batches keep their other examples, if they have any
        asked = [id for id in known if rows.issuperset(snapshots.ledger.rows_of(id))]
    resumed_at = snapshots.rewind(first, batches=asked, examples=rows or ())
    train()
    replayed = snapshots.steps - resumed_at
    return ReplayReport(
        batches=tuple(known),
        resumed_at=resumed_at,
        replayed=replayed,
        share=replayed / snapshots.steps,
        sha256_before=before,
        sha256_after=fingerprint(snapshots.model),
    )
