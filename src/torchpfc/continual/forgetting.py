"""What a learner forgets with some of its batches, and what that guarantees."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchpfc.continual.certificate import COPIES, HASHES, BatchRecord, Certificate, How, hash_of
from torchpfc.continual.portion import Portion
from torchpfc.continual.settings import settings_of
from torchpfc.machine import describe_bits
from torchpfc.optim.ledger import as_ranges

if TYPE_CHECKING:
    from torchpfc.continual.learner import ContinualPFC

Records = Mapping[Hashable, BatchRecord | None]
"""What is known of each batch, in the order in which they came."""

_JOINED = (
    "max_parts made one part of several while these batches were there, so what others left may be other than it would "
    "be without them."
)


def portions_of(portions: Sequence[Portion], batches: Collection[Hashable]) -> list[Portion]:
    """The portions that go with some batches, which must be all that made them.

    Args:
        portions: All portions.
        batches: The names of the batches.
    """
    gone = [portion for portion in portions if not set(portion.batches).isdisjoint(batches)]
    for portion in gone:
        if others := [batch for batch in portion.batches if batch not in batches]:
            raise ValueError(
                f"batches must name all that share a part, got {next(iter(batches))!r} without {others[0]!r} "
                f"({len(others)} in all); `inexact` lists such batches"
            )
    return gone


def records_of(portions: Sequence[Portion], known: Records) -> dict[Hashable, BatchRecord | None]:
    """The records of the batches that have portions; None of those that have none.

    Args:
        portions: All portions.
        known: The records that there are.
    """
    there = dict.fromkeys(name for portion in portions for name in portion.batches)
    kept = {name: record for name, record in known.items() if name in there}
    return kept | {name: None for name in there if name not in known}


def certify(
    model: ContinualPFC,
    how: How,
    asked: Collection[Hashable],
    learned: Collection[BatchRecord | None],
    columns: Sequence[int],
    total: int,
    before: str,
) -> Certificate:
    """The certificate of a learner that has forgotten.

    Args:
        model: As it is now.
        how: What it left.
        asked: The batches that it forgot.
        learned: The records that there were.
        columns: The numbers of the columns that went.
        total: How many there were.
        before: The hash of what there was.
    """
    exact = _as_if_never_seen(model)
    but = ", but for columns of zeros" if how == "zero" else ""
    never = f"Parts, scales and read-out are, bit for bit, those of the model that never saw these batches{but}."
    certificate = Certificate(
        learner=type(model).__name__,
        how=how,
        exact=exact,
        batches=tuple(asked),
        learned=tuple(record for record in learned if record is not None),
        columns=tuple((part.start, part.stop) for part in as_ranges(columns)),
        num_columns=len(columns),
        share=len(columns) / max(total, 1),
        machine=describe_bits(model.device, model.dtype),
        sha256_before=before,
        sha256_after=hash_of(model.state_dict),
        guaranteed=(never if exact else f"No part is left that these batches helped to make{but}.",),
        not_guaranteed=(COPIES, HASHES) if exact else (_JOINED, COPIES, HASHES),
    )
    if None in learned:
        return certificate.unrepeatable("version 0.1.0 kept no hashes of batches")
    try:
        certificate = replace(certificate, settings=settings_of(model))
        certificate.to_dict()
    except TypeError as error:
        return certificate.unrepeatable(error)
    return certificate


def _as_if_never_seen(model: ContinualPFC) -> bool:
    """Whether all that is there came about without `max_parts`: else it depends on batches that are gone too."""
    if model.max_parts is None:
        return True
    there = sum(portion.count for portion in model.portions if portion.batches)
    return None not in model.records and there == sum(record.parts for record in model.records if record)
