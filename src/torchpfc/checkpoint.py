"""Files that are either whole or not there: results, and checkpoints of weights and everything else a run needs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STATE_FILE = "state.json"

# Keys that stand for what JSON does not have.
_TENSOR, _PAIRS, _TUPLE = "<tensor>", "<pairs>", "<tuple>"


class CorruptFileError(ValueError):
    """A file is not what was written; the message names it and says what to do."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file so that whoever looks, at any moment, finds the old content or the new, and never a part.

    Args:
        path: The file; its folder is made if need be.
        content: All of it; text is written as UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode() if isinstance(content, str) else content
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the new name on an empty file
        os.replace(unfinished, path)
    except OSError as error:
        raise OSError(
            error.errno, error.strerror or str(error), str(path)
        ) from None  # a full disk does not say which file it was
    finally:
        unfinished.unlink(missing_ok=True)


def save_checkpoint(folder: Path, state: Any) -> None:
    """Saves a state, replacing what the folder holds in one stroke.

    Its tensors go to a safetensors file of their own. The JSON file with all the rest, which names the other, is
    replaced last: until then the checkpoint is the old one.

    Args:
        folder: Where; made if need be. Holds one checkpoint, which one process at a time may write.
        state: Tensors and plain values in dicts, lists and tuples, nested as you like.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    plain = _take_out(state, "state", tensors)
    data = save({name: _own_copy(tensor) for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    weights = folder / f"{digest[:16]}.safetensors"
    content = json.dumps({"tensors": weights.name, "sha256": digest, "state": plain}, indent=1)
    write_atomically(weights, data)
    write_atomically(folder / STATE_FILE, content + "\n")
    for old in folder.glob("*.safetensors*"):  # also what a process that was killed had begun to write
        if old != weights:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> Any:
    """Loads what `save_checkpoint` saved last, with its tensors on the CPU; None where nothing was.

    Args:
        folder: Where.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    content = read_json(path)
    tensors = load_tensors(path, content)
    with reading(folder, "a checkpoint"):
        return _put_back(content["state"], tensors)


def load_tensors(path: Path, content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Loads the tensors that a JSON file names, if they are those that were written.

    Args:
        path: The JSON file.
        content: What it holds: as `tensors` the name of the file beside it, and as `sha256` its checksum.
    """
    from safetensors.torch import load

    with reading(path.parent, f"the tensors that {path.name} names"):
        weights = path.with_name(Path(content["tensors"]).name)  # of a path from a stranger the name alone
        digest, data = content["sha256"], weights.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise CorruptFileError(f"{weights} must have the checksum that {path.name} gives; {_remedy(path.parent)}")
    return load(data)


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Says in one line that a folder does not hold what it should, whatever goes wrong inside with what was read.

    Args:
        folder: Where it was read from.
        what: What the folder should hold.

    Example:
        >>> with reading(Path("models/a"), "a model"):
        ...     {}["weights"]
        Traceback (most recent call last):
        torchpfc.checkpoint.CorruptFileError: models/a must hold a model ('weights'); delete the folder models/a to ...
    """
    try:
        yield
    except CorruptFileError:
        raise
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason, _, _ = str(error).partition("\n")
        raise CorruptFileError(f"{folder} must hold {what} ({reason}); {_remedy(folder)}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object, and says which file is at fault where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptFileError(f"{path} must hold JSON ({error}); delete it to have it made again") from None
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} must hold a JSON object, got a {type(content).__name__}; delete it")
    return content


def _remedy(folder: Path) -> str:
    return f"delete the folder {folder} to start from the beginning, or save again what it held"


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


def _put_back(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_back(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(_put_back(value[_TUPLE], tensors))
    pairs = value[_PAIRS] if _PAIRS in value else value.items()
    return {key: _put_back(item, tensors) for key, item in pairs}
