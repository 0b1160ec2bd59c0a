"""What batches have left behind, as tensors by name."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchpfc.checkpoint.files import parse_json
from torchpfc.continual.certificate import BatchRecord
from torchpfc.continual.names import name_from_plain, name_to_plain
from torchpfc.continual.portion import Portion

_PORTIONS = "portions."

MOST_SCORES = 2**28
"""Classes times parts at most, where many of the classes were never seen."""

_MAY_LACK = (".parts", ".points", ".waiting")
"""Features of these that were never observed are NaN."""


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
    known = [record for record in records.values() if record is not None]
    # A stream may have very many: names and numbers without their keys, and hashes as bytes.
    rows = [[name_to_plain(name), *numbers] for name, *numbers in (record._replace(sha256="") for record in known)]
    hashes = torch.tensor([list(bytes.fromhex(record.sha256)) for record in known], dtype=torch.uint8).view(-1, 32)
    named = {"names": _text(names), "records": _text(rows), "hashes": hashes}
    return state | {f"{prefix}{_PORTIONS}{name}": value for name, value in named.items()}


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
    names = _parsed(saved.pop("names"))
    known = _parsed(saved.pop("records")) if "records" in saved else []
    hashes = saved.pop("hashes").tolist() if "hashes" in saved else []
    records = {}
    for row, sha256 in zip(known, hashes, strict=True):
        plain = dict(zip(BatchRecord._fields, row, strict=True)) | {"sha256": bytes(sha256).hex()}
        record = BatchRecord.from_plain(plain)
        records[record.name] = record
    _check(names, saved)
    found: list[dict[str, Tensor]] = [{} for _ in names]
    for key, value in saved.items():
        place, _, name = key.partition(".")
        found[int(place)][name] = value.to(device, copy=True)
    portions = [
        Portion.from_tensors(tuple(map(name_from_plain, batches)), label, tensors)
        for (label, batches), tensors in zip(names, found, strict=True)
    ]
    return portions, {**records}


def _parsed(text: Tensor) -> Any:
    if text.dtype != torch.uint8 or text.ndim != 1:
        raise ValueError(f"names must be bytes, got {text.dtype} of shape {tuple(text.shape)}")
    return parse_json(text.cpu().numpy().tobytes())


def _check(names: Any, saved: Mapping[str, Tensor]) -> None:
    """Checks labels and sums before tables of all classes and parts are made."""
    labels: list[int] = [label for label, _ in names]
    if not all(type(label) is int and label >= -1 and isinstance(batches, list) for label, batches in names):
        raise ValueError("portions must have a label and batches each, got others")
    parts = sum(value.shape[-1] for key, value in saved.items() if key.endswith(".parts"))
    most = max(labels, default=0) + 1
    if most > len(set(labels)) and most * parts > MOST_SCORES:
        raise ValueError(f"labels must be at most {MOST_SCORES // parts} for {parts} parts, got {most - 1}")
    for key, value in saved.items():
        if value.isinf().any() or (not key.endswith(_MAY_LACK) and value.isnan().any()):
            raise ValueError(f"{key} must be finite, got infinity or NaN")


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
