"""What batches have left behind, as tensors by name."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchpfc.continual.certificate import BatchRecord
from torchpfc.continual.names import name_from_plain, name_to_plain
from torchpfc.continual.portion import Portion

_PORTIONS = "portions."


def to_state(
    portions: Sequence[Portion], records: Mapping[Hashable, BatchRecord | None], prefix: str
) -> dict[str, Tensor]:
    """Portions as tensors; labels, the names of batches and their records are JSON in two of them.

    Args:
        portions: The portions.
        records: Those of the batches.
        prefix: What names begin with.
    """
    state = {
        f"{prefix}{_PORTIONS}{place}.{name}": value
        for place, portion in enumerate(portions)
        for name, value in portion.tensors().items()
    }
    names = [[portion.label, [name_to_plain(batch) for batch in portion.batches]] for portion in portions]
    known = [record.to_plain() for record in records.values() if record is not None]
    return state | {f"{prefix}{_PORTIONS}names": _text(names), f"{prefix}{_PORTIONS}records": _text(known)}


def _text(content: Any) -> Tensor:
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


def take_from_state(
    state: dict[str, Any], prefix: str, device: torch.device
) -> tuple[list[Portion], dict[Hashable, BatchRecord | None]]:
    """The portions of a state, which is left without them, and the records of batches.

    A block that was saved without portions, as version 0.1 did, has one for each run of columns of one class.

    Args:
        state: The state of a learner.
        prefix: What names begin with.
        device: Where they are to live.
    """
    start = f"{prefix}{_PORTIONS}"
    saved = {key[len(start) :]: state.pop(key) for key in list(state) if key.startswith(start)}
    if not saved:
        return _portions_of_block(state, f"{prefix}block."), {}
    names = json.loads(bytes(saved.pop("names").tolist()))
    known = json.loads(bytes(saved.pop("records").tolist())) if "records" in saved else []
    records = {record.name: record for record in map(BatchRecord.from_plain, known)}
    found: list[dict[str, Tensor]] = [{} for _ in names]
    for key, value in saved.items():
        place, _, name = key.partition(".")
        found[int(place)][name] = value.to(device, copy=True)
    portions = [
        Portion.from_tensors(tuple(map(name_from_plain, batches)), label, tensors)
        for (label, batches), tensors in zip(names, found, strict=True)
    ]
    return portions, {**records}


def _portions_of_block(state: dict[str, Any], prefix: str) -> list[Portion]:
    weight, outputs = state.get(f"{prefix}weight_x"), state.get(f"{prefix}weight_y")
    if weight is None or outputs is None:
        return []
    labels = torch.where(weight.any(0), outputs.argmax(0), -1)
    runs, sizes = torch.unique_consecutive(labels, return_counts=True)
    portions: list[Portion] = []
    for c, parts in zip(runs.tolist(), torch.split(weight, sizes.tolist(), 1), strict=True):
        counts = torch.ones_like(parts[0])
        batches = () if c < 0 else (len(portions),)
        portions.append(Portion(batches, c, parts.clone(), counts, torch.zeros_like(counts, dtype=torch.bool)))
    return portions
