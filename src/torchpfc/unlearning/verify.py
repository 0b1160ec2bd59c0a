"""Checking a certificate of forgetting: both trainings again, with and without, and their bits side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from torchpfc.continual import ContinualPFC
from torchpfc.continual.certificate import BatchRecord, Certificate, content_of, fingerprint, leaves
from torchpfc.data.arrays import read_arrays
from torchpfc.data.formats import DataError
from torchpfc.machine import describe_bits

Batch = tuple[BatchRecord, dict[str, Any]]
"""A record, and the content as `x`, `y` and `weight`."""


class Learner(Protocol):
    """What can be taught batch by batch and forget them."""

    def forget(self, batches: Any, *, how: Any) -> Certificate:
        """Takes batches out."""


L = TypeVar("L", bound=Learner)


@dataclass(frozen=True)
class Verdict:
    """What came of checking a certificate."""

    confirmed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    """What could be neither confirmed nor refused here."""

    @property
    def holds(self) -> bool:
        """Whether the certificate holds as far as it could be checked, and anything could be."""
        return bool(self.confirmed) and not self.refused

    def __str__(self) -> str:
        parts = (("confirmed", self.confirmed), ("refused", self.refused), ("could not be checked", self.unchecked))
        lines = [f"{name}: {sentence}" for name, sentences in parts for sentence in sentences]
        return "\n".join([*lines, "The certificate holds." if self.holds else "The certificate does not hold."])


def save_batch(
    path: str | Path,
    x: Tensor | ArrayLike,
    y: Tensor | ArrayLike | None = None,
    weight: Tensor | ArrayLike | None = None,
) -> None:
    """Saves a batch, so that `torchpfc verify` finds it: an .npz file with the arrays `x`, `y` and `weight`.

    Args:
        path: The file; its name makes no difference, but that it must end in `.npz`.
        x: Inputs.
        y: Targets or labels, if there are any.
        weight: What each row counts, if it was said.
    """
    arrays = {"x": x, "y": y, "weight": weight}
    kept = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
    # Text in an array of objects would be pickled.
    kept = {name: np.array(value.tolist()) if value.dtype == object else value for name, value in kept.items()}
    np.savez(path, **kept)  # type: ignore[arg-type]


def verify(certificate: Certificate, data: str | Path, *, make: Callable[[], ContinualPFC] | None = None) -> Verdict:
    """Checks the certificate of a continual learner: all is learned again, with what was forgotten and without.

    Args:
        certificate: Of a `ContinualPFC`.
        data: A folder with all batches that it had learned, as `save_batch` saves them.
        make: Makes the learner, where its settings cannot be written down.

    Example:
        >>> import tempfile
        >>> model, folder = ContinualPFC(4, columns_per_class=2), tempfile.TemporaryDirectory()
        >>> for name in ("mo", "tu"):
        ...     x, y = torch.rand(6, 4), torch.arange(6) % 2
        ...     save_batch(f"{folder.name}/{name}.npz", x, y)
        ...     columns = model.learn(x, y, batch=name)
        >>> verify(model.forget(["mo"]), folder.name).holds
        True
        >>> folder.cleanup()
    """
    dtype = _dtype_of(certificate)
    if make is None and (refused := cannot_be_repeated(certificate)):
        return refused

    def train(batches: Iterable[Batch]) -> ContinualPFC:
        learner = ContinualPFC.from_settings(certificate.settings or {}, dtype=dtype) if make is None else make()
        for record, given in batches:
            generator = torch.Generator().manual_seed(record.seed or 0)
            options: Any = {"batch": record.name, "count": record.per_class, "generator": generator}
            learner.learn(given["x"], given["y"], weight=given.get("weight"), **options)
        return learner

    return verify_batches(certificate, Path(data), train, ContinualPFC.state_dict, torch.device("cpu"))


def verify_batches(
    certificate: Certificate,
    folder: Path,
    train: Callable[[Sequence[Batch]], L],
    bits: Callable[[L], Mapping[str, Any]],
    device: torch.device,
) -> Verdict:
    """Checks the certificate of a learner that is taught batch by batch.

    Args:
        certificate: What to check.
        folder: Where the batches are.
        train: Teaches a new learner batches.
        bits: All that a learner has come to, as tensors and plain values.
        device: Where it learns.
    """
    batches, missing = read_batches(folder, certificate.learned)
    if missing:
        return Verdict(refused=missing)
    gone = set(certificate.batches)
    if strangers := gone.difference(record.name for record in certificate.learned):
        return Verdict(refused=(f"batch {min(strangers, key=str)!r} is to be forgotten, but was never learned",))
    everything, never = train(batches), train([batch for batch in batches if batch[0].name not in gone])
    as_certified = deepcopy(everything)
    repeated = as_certified.forget(list(certificate.batches), how=certificate.how)
    everything.forget(list(certificate.batches), how="remove")
    what = f"learning {len(batches)} batches and forgetting {len(gone)}, and learning {len(batches) - len(gone)} alone,"
    both = compare_bits(bits(everything), bits(never), what)
    hashes = compare_hashes(certificate, repeated.sha256_before, repeated.sha256_after, device)
    return Verdict(both.confirmed + hashes.confirmed, both.refused + hashes.refused, hashes.unchecked)


def cannot_be_repeated(certificate: Certificate) -> Verdict | None:
    """The verdict on a certificate that promises nothing which could be checked; None where it does."""
    if not certificate.exact:
        return Verdict(refused=("the certificate does not claim that this is the model that never saw the data",))
    if certificate.settings is None:
        return Verdict(unchecked=(f"any of it: {certificate.obstacle or 'the certificate has no settings'}",))
    return None


def compare_bits(one: Mapping[str, Any], other: Mapping[str, Any], what: str) -> Verdict:
    """Compares two states bit by bit.

    Args:
        one: A state.
        other: Another.
        what: What led to the two.
    """
    first, second = dict(leaves(one)), dict(leaves(other))
    different = [name for name in first.keys() | second.keys() if not _same(first.get(name), second.get(name))]
    if different:
        return Verdict(refused=(f"{what} give other bits in {min(different)} ({len(different)} of {len(first)})",))
    return Verdict(confirmed=(f"{what} give the same, bit for bit, in all {len(first)} values",))


def compare_hashes(certificate: Certificate, before: str | None, after: str, device: torch.device) -> Verdict:
    """Compares the hashes of a certificate with those of a training that was repeated here, where they can agree.

    Args:
        certificate: What to check.
        before: The hash of the model that had learned everything; None where it cannot be repeated.
        after: Of the model that has forgotten.
        device: Where it learned.
    """
    there = certificate.machine
    here = describe_bits(device, _dtype_of(certificate))
    if other := [f"{name} {there.get(name)!r}, not {here[name]!r}" for name in here if here[name] != there.get(name)]:
        return Verdict(unchecked=(f"the hashes of the model, which were made with {'; '.join(other)} as here",))
    pairs = {"before": (certificate.sha256_before, before), "after": (certificate.sha256_after, after)}
    confirmed, refused, unchecked = [], [], []
    for when, (written, found) in pairs.items():
        if found is None or not written:
            unchecked.append(f"the hash of the model {when}, which cannot be repeated")
        elif written == found:
            confirmed.append(f"the model {when} has the hash that the certificate gives")
        else:
            refused.append(f"the model {when} has the hash {found[:16]}…, and the certificate gives {written[:16]}…")
    return Verdict(tuple(confirmed), tuple(refused), tuple(unchecked))


def read_batches(folder: Path, records: Iterable[BatchRecord]) -> tuple[list[Batch], tuple[str, ...]]:
    """The batches of a certificate from the .npz files of a folder, by their content; and sentences on what is missing.

    Args:
        folder: Where.
        records: What is looked for.
    """
    if not folder.is_dir():
        raise DataError(f"--data must be a folder with one .npz file for each batch, got {folder}")
    files = sorted(folder.glob("*.npz"))
    by_content = {}
    for path in files:
        arrays = _read(path)
        by_content[content_of(arrays["x"], arrays.get("y"), arrays.get("weight")).sha256] = arrays
    found = [(record, by_content[record.sha256]) for record in records if record.sha256 in by_content]
    missing = tuple(
        f"batch {record.name!r} ({record.rows} rows) with sha256 {record.sha256[:16]}… is in none of the {len(files)} "
        f".npz files of {folder}"
        for record in records
        if record.sha256 not in by_content
    )
    return found, missing


def _dtype_of(certificate: Certificate) -> torch.dtype:
    dtype = getattr(torch, str(certificate.machine.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"machine must have a dtype of PyTorch, got {certificate.machine.get('dtype')!r}")
    return dtype


def _read(path: Path) -> dict[str, Any]:
    arrays = read_arrays(path)
    if "x" not in arrays:
        raise DataError(f"{path} must hold an array x, got none")
    return arrays


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return fingerprint({"": one}) == fingerprint({"": other})  # also where NaN is
    return type(one) is type(other) and one == other
