"""Certificates of forgetting: what was asked and done, what holds of it, and hashes by which a stranger can check it.

Here and not with the rest of unlearning, because the continual learner writes them as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from torchpfc.checkpoint import CorruptFileError, write_atomically
from torchpfc.checkpoint.files import MOST_JSON, parse_json, read_regular
from torchpfc.continual.names import name_from_plain, name_to_plain

How = Literal["zero", "reinitialize", "remove"]

_FORMAT = 1

COPIES = "Copies made before (files, pickles, snapshots) still hold what is forgotten here."
"""What no forgetting can promise."""

HASHES = "This certificate has hashes of batches: who can guess what one held can confirm the guess."
"""What writing it down gives away."""


class Content(NamedTuple):
    """What a batch held."""

    sha256: str
    rows: int


class BatchRecord(NamedTuple):
    """A batch that was learned from."""

    name: Hashable
    rows: int
    sha256: str
    """Of its content, by `content_of`."""
    seed: int | None = None
    """The seed that it was learned with."""
    per_class: int | None = None
    """How many parts each class was to get, where somebody said it."""
    parts: int = 0
    """How many parts it left."""

    def to_plain(self) -> dict[str, Any]:
        """The record as plain values for JSON."""
        return self._asdict() | {"name": name_to_plain(self.name)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> BatchRecord:
        """What `to_plain` made plain, checked."""
        record = cls(**{**plain, "name": name_from_plain(plain["name"])})
        numbers = record.rows, record.seed or 0, record.per_class or 1, record.parts
        if not (
            re.fullmatch("[0-9a-f]{64}", record.sha256) and all(type(n) is int and 0 <= n < 2**64 for n in numbers)
        ):
            raise ValueError(f"a record must have a hash and whole numbers, got {plain}")
        return record


def content_of(x: Tensor | ArrayLike, y: Tensor | ArrayLike | None, weight: Tensor | ArrayLike | None) -> Content:
    """SHA-256 over inputs, targets and weights: their types, shapes and bytes.

    Whole numbers count as the same of any size, and text as the same in any kind of array.

    Args:
        x: Inputs.
        y: Targets or labels, if there are any.
        weight: What each row counts, if somebody said it.

    Example:
        >>> content_of([[1.0, 2.0]], ["a"], None) == content_of(np.array([[1, 2]]), np.array(["a"], dtype=object), None)
        True
    """
    digest = hashlib.sha256()
    for name, part, whole in (("x", x, "float64"), ("y", y, "int64"), ("weight", weight, "float64")):
        kind, data = _bytes_of(part, whole)
        digest.update(f"{name} {kind}\n".encode())
        digest.update(data)
    return Content(digest.hexdigest(), len(x))  # type: ignore[arg-type]


def _bytes_of(part: Tensor | ArrayLike | None, whole: str) -> tuple[str, Any]:
    """A description and the bytes of an array, in which whole numbers are of one type."""
    if part is None:
        return "none", b""
    if isinstance(part, Tensor):
        if part.dtype == torch.bfloat16:  # which numpy does not have
            return f"bfloat16 {tuple(part.shape)}", part.detach().cpu().contiguous().view(torch.int16).numpy().data
        part = part.detach().cpu().numpy()
    array = np.asarray(part)
    if array.dtype.kind in "USO":
        text = json.dumps(array.tolist())
        return f"text {array.shape}", text.encode()
    array = np.ascontiguousarray(array.astype(whole) if array.dtype.kind in "biu" else array)
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return f"{array.dtype.name} {array.shape}", array.reshape(-1).view(np.uint8).data


def leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All tensors and plain values of a state with the names of their places, in order.

    Args:
        state: Dicts, lists and tuples, nested as you like.
        name: What names begin with.
    """
    if isinstance(state, Mapping | list | tuple):
        items = state.items() if isinstance(state, Mapping) else enumerate(state)
        for key, value in items:
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, state


def fingerprint(model: nn.Module | Mapping[str, Any]) -> str:
    """SHA-256 over the names, shapes and bytes of all that a model's `state_dict` holds.

    Args:
        model: Any module, or a state.

    Example:
        >>> len(fingerprint(nn.Linear(2, 3)))
        64
    """
    digest = hashlib.sha256()
    for name, value in leaves(model.state_dict() if isinstance(model, nn.Module) else model):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {json.dumps(value)}\n".encode())
    return digest.hexdigest()


def hash_of(state: Callable[[], Mapping[str, Any]]) -> str:
    """The fingerprint of a state; nothing where it is empty, or names in it cannot be written down.

    Args:
        state: Gives the state, or raises `TypeError`.
    """
    try:
        return fingerprint(found) if (found := state()) else ""
    except TypeError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What forgetting did to a model, what that means, and what a stranger needs to check it (`torchpfc verify`).

    The file has a checksum, by which a change is noticed. It is no signature: whoever writes another certificate can
    write its checksum too. What counts is that the training can be repeated.
    """

    learner: str
    """The kind of model."""
    how: str
    """`"remove"`, `"zero"`, `"reinitialize"`, or `"replay"` for a training that was repeated without."""
    exact: bool
    """Whether this is, bit for bit, the model that never saw what was forgotten."""
    batches: tuple[Hashable, ...]
    """The batches that were to be forgotten and had been learned from."""
    examples: tuple[int, ...] = ()
    """The examples that were to be forgotten, where examples were named."""
    unrecorded: tuple[Hashable, ...] = ()
    """Batches that were to be forgotten and of which the ledger has no entry: they wrote nothing that it knows of."""
    learned: tuple[BatchRecord, ...] = ()
    """All batches that had been learned from, in their order, where the learner keeps records of them."""
    settings: dict[str, Any] | None = None
    """What the learner was made with; None where it cannot be written down."""
    obstacle: str = ""
    """Why `torchpfc verify` cannot repeat it by itself; nothing where it can."""
    columns: tuple[tuple[int, int], ...] = ()
    """The columns, as half-open ranges of the numbers that they had before."""
    num_columns: int = 0
    """How many columns these are."""
    share: float = 0.0
    """What part of all columns that is, or of the whole training what was replayed."""
    others_affected: tuple[int, ...] = ()
    """Batches that were not to be forgotten and lost something all the same: they could write some of the columns."""
    resumed_at: int | None = None
    """Of a replay, how many batches of the training stand as they were."""
    replayed: int | None = None
    """Of a replay, how many batches came again, learned or skipped."""
    machine: dict[str, Any]
    """Versions, processor, threads, device and type."""
    sha256_before: str
    """Of the model; nothing where there was none, or where it cannot be written down."""
    sha256_after: str
    guaranteed: tuple[str, ...]
    not_guaranteed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain values for JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain |= {name: [name_to_plain(batch) for batch in plain[name]] for name in ("batches", "unrecorded")}
        plain["learned"] = [record.to_plain() for record in self.learned]
        content: dict[str, Any] = json.loads(json.dumps({"format": _FORMAT} | plain))
        return content

    def save(self, path: str | Path) -> None:
        """Saves the certificate as JSON, with a checksum.

        Args:
            path: The file.
        """
        write_atomically(Path(path), self._text())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Loads what `save` saved, if it is that to the last byte.

        Args:
            path: The file.
        """
        from torchpfc.checkpoint.schema import CertificateState, conform

        path = Path(path)
        if not path.is_file():
            raise CorruptFileError(f"{path} must be a certificate, got no such file")
        data = read_regular(path, MOST_JSON)
        try:
            content = parse_json(data)
            conform(content, CertificateState)
            certificate = cls._from_dict(content)
            same = certificate._text().encode() == data
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason, _, _ = str(error).partition("\n")
            raise CorruptFileError(f"{path} must be a certificate of torchpfc ({reason})") from None
        if not same:
            raise CorruptFileError(f"{path} must be as it was written, got one that was changed since")
        return certificate

    @classmethod
    def _from_dict(cls, content: Mapping[str, Any]) -> Self:
        plain = dict(content)
        plain.pop("checksum", None)
        if (version := plain.pop("format", None)) != _FORMAT:
            raise ValueError(f"format must be {_FORMAT}, got {version!r}")
        for name in ("batches", "unrecorded"):
            plain[name] = tuple(map(name_from_plain, plain[name]))
        for name in ("examples", "others_affected", "guaranteed", "not_guaranteed"):
            plain[name] = tuple(plain[name])
        plain["columns"] = tuple((start, stop) for start, stop in plain["columns"])
        plain["learned"] = tuple(map(BatchRecord.from_plain, plain["learned"]))
        return cls(**plain)

    def _text(self) -> str:
        plain = self.to_dict()
        checksum = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        return json.dumps(plain | {"checksum": checksum}, indent=1) + "\n"

    def unrepeatable(self, reason: object) -> Self:
        """The same without settings, which says why it cannot be repeated.

        Args:
            reason: What cannot be written down.
        """
        return replace(self, settings=None, obstacle=str(reason))

    def __str__(self) -> str:
        what = f"{len(self.examples)} examples" if self.examples else f"{len(self.batches)} batches"
        lines = [f"Forgot {what} ({self.how}{', exactly' if self.exact else ''})."]
        if self.replayed is not None and self.resumed_at is not None:
            whole = self.resumed_at + self.replayed
            lines.append(f"Replayed {self.replayed} of {whole} batches, {self.share:.1%}.")
        else:
            columns = ", ".join(f"{start} to {stop - 1}" for start, stop in self.columns) or "none"
            lines.append(f"Columns: {columns}; {self.num_columns} in all, {self.share:.1%} of the model.")
        if self.others_affected:
            lines.append(f"Other batches that could write some of these columns: {len(self.others_affected)}.")
        lines += [
            f"Model before: sha256 {self.sha256_before or 'none'}",
            f"Model after:  sha256 {self.sha256_after or 'none'}",
            "Guaranteed:",
            *(f"- {sentence}" for sentence in self.guaranteed),
            "Not guaranteed:",
            *(f"- {sentence}" for sentence in self.not_guaranteed),
        ]
        if self.obstacle:
            lines.append(f"torchpfc verify cannot repeat this by itself: {self.obstacle}.")
        return "\n".join(lines)
