"""Exact forgetting: back to the last state before something was seen, and on from there without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from torchpfc.continual.certificate import COPIES, Certificate, fingerprint
from torchpfc.machine import describe_bits
from torchpfc.nn.recording import named_blocks
from torchpfc.optim.ledger import whole_numbers
from torchpfc.unlearning.forget import affected_batches
from torchpfc.unlearning.snapshots import Snapshots


def retrain_without(
    train: Callable[[], object],
    snapshots: Snapshots,
    *,
    batches: Iterable[int] | None = None,
    examples: Iterable[int] | Tensor | None = None,
) -> Certificate:
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
    like = next(iter(named_blocks(snapshots.model).values())).weight_x
    return Certificate(
        learner=type(snapshots.model).__name__,
        how="replay",
        exact=True,
        batches=tuple(known),
        examples=tuple(sorted(rows or ())),
        resumed_at=resumed_at,
        replayed=replayed,
        share=replayed / snapshots.steps,
        machine=describe_bits(like.device, like.dtype),
        sha256_before=before,
        sha256_after=fingerprint(snapshots.model),
        guaranteed=(
            "On the same hardware and with the same versions, this is, bit for bit, the state of a training that never "
            "saw them.",
            "Snapshots that had seen them are deleted.",
        ),
        not_guaranteed=(COPIES,),
    ).unrepeatable("the training is a function of the one who called it")
