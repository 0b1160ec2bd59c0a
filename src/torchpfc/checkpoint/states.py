"""Checkpoints: folders with weights and everything else, which are either whole or not there."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchpfc.checkpoint.files import (
    CorruptFileError,
    parse_json,
    read_json,
    read_regular,
    reading,
    remedy,
    remove_abandoned,
    write_atomically,
)

STATE_FILE = "state.json"

MOST_TENSORS = 2**38
"""Bytes of tensors at most: what a run of one's own may come to."""

MOST_OF_A_MODEL = 2**32
"""The same for models, which strangers may have sent."""

MOST_HEADER = 2**22
"""Bytes of the names and shapes of them."""

MOST_OF_NOTHING = 2**24
"""Numbers that an empty tensor could hold, were its sizes not 0 but 1."""

# Keys that stand for what JSON does not have.
_TENSOR, _PAIRS, _TUPLE = "<tensor>", "<pairs>", "<tuple>"


def save_checkpoint(folder: Path, state: Any, *, most: int = MOST_TENSORS) -> None:
    """Saves a state, replacing what the folder holds in one stroke.

    Its tensors go to a safetensors file of their own. The JSON file with all the rest, which names the other by what is
    in it, is replaced last: until then the checkpoint is the old one.

    Args:
        folder: Where; made if need be. Holds one checkpoint, which one process at a time may write.
        state: Tensors and plain values in dicts, lists and tuples, nested as you like.
        most: Bytes of tensors at most.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    plain = _take_out(state, "state", tensors)
    data = save({name: _own_copy(tensor) for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    weights = folder / f"{digest[:16]}.safetensors"
    named = {"tensors": weights.name, "sha256": digest, "state": plain}
    content = json.dumps({**named, "seal": _seal(named)}, indent=1) + "\n"
    try:
        parse_json(content.encode())
    except ValueError as error:
        raise ValueError(f"state must be such that it can be loaded, got {error}") from None
    if len(data) > most:
        raise ValueError(f"state must have at most {most} bytes of tensors, got {len(data)}")
    write_atomically(weights, data)
    write_atomically(folder / STATE_FILE, content)
    _delete_all_but(weights)


def delete_stale(folder: Path) -> None:
    """Deletes what is not of the checkpoint in a folder: one that was killed while saving left what was there before.

    Args:
        folder: With a checkpoint, which one process at a time may change.
    """
    _delete_all_but(folder / Path(read_json(folder / STATE_FILE)["tensors"]).name)


def _delete_all_but(weights: Path) -> None:
    for old in weights.parent.glob("[!.]*.safetensors"):
        if old != weights:
            old.unlink(missing_ok=True)
    remove_abandoned(weights.parent)


def load_checkpoint(folder: Path, *, most: int = MOST_TENSORS) -> Any:
    """Loads what `save_checkpoint` saved last, with its tensors on the CPU; None where nothing was.

    Args:
        folder: Where.
        most: Bytes of tensors at most.
    """
    path = folder / STATE_FILE
    if not os.path.lexists(path):  # a link that leads nowhere is there, and refused
        return None
    content = read_json(path)
    tensors = load_tensors(path, content, most=most)
    if "seal" in content and content["seal"] != _seal(content):  # version 0.1.0 had none
        raise CorruptFileError(f"{path} must be as it was written, got a seal of other content; {remedy(folder)}")
    with reading(folder, "a checkpoint"):
        state = _put_back(content["state"], tensors)
        if tensors:
            raise ValueError(f"no place for {min(tensors)}")
        return state


def load_tensors(path: Path, content: Mapping[str, Any], *, most: int) -> dict[str, Tensor]:
    """Loads the tensors that a JSON file names, if they are those that were written.

    Args:
        path: The JSON file.
        content: What it holds: as `tensors` the name of the file beside it, and as `sha256` its checksum.
        most: Bytes of them at most.
    """
    from safetensors.torch import load

    from torchpfc.checkpoint.schema import Named, conform

    with reading(path.parent, f"the tensors that {path.name} names"):
        conform(content, Named)
        weights = path.with_name(content["tensors"])
        data = read_regular(weights, most)
        if hashlib.sha256(data).hexdigest() != content["sha256"]:
            raise CorruptFileError(f"{weights} must have the checksum that {path.name} gives; {remedy(path.parent)}")
        if int.from_bytes(data[:8], "little") > MOST_HEADER:
            raise ValueError(f"a header of more than {MOST_HEADER} bytes")
        tensors: dict[str, Tensor] = load(data)
        for name, tensor in tensors.items():
            # An empty tensor takes no room in the file, whatever its shape; what is made of it may.
            if math.prod(max(size, 1) for size in tensor.shape) > max(len(data), MOST_OF_NOTHING):
                raise ValueError(f"a shape of {tuple(tensor.shape)} for {name}")
        return tensors


def _seal(content: Mapping[str, Any]) -> str:
    """The checksum of a JSON file, over all of it but this."""
    named = [content.get(name) for name in ("tensors", "sha256", "state")]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def _own_copy(tensor: Tensor) -> Tensor:
    """A copy that shares its memory with no other tensor, as the format asks."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _take_out(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with a note in the place of each tensor, and of what JSON would change."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)}:{name}"  # numbered, because {"a.b": ...} and {"a": {"b": ...}} spell the same path
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        pairs = [(key, _take_out(item, f"{name}.{key}", tensors)) for key, item in value.items()]
        if all(isinstance(key, str) for key in value):
            return dict(pairs)
        return {_PAIRS: pairs}  # a key of JSON is always text
    if isinstance(value, list | tuple):
        items = [_take_out(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    return value


def _put_back(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_back(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors.pop(value[_TENSOR])  # each has one place
    if _TUPLE in value:
        return tuple(_put_back(value[_TUPLE], tensors))
    pairs = value[_PAIRS] if _PAIRS in value else value.items()
    return {key: _put_back(item, tensors) for key, item in pairs}
