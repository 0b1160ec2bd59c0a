"""A block and its ledger in one folder, so that what was learned can be found and forgotten later."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from torchpfc.checkpoint import (
    MOST_OF_A_MODEL,
    STATE_FILE,
    CorruptFileError,
    delete_stale,
    load_checkpoint,
    read_json,
    reading,
    save_checkpoint,
    write_atomically,
)
from torchpfc.continual.certificate import Certificate, fingerprint
from torchpfc.nn.block import PFCBlock
from torchpfc.nn.saving import block_from, block_settings
from torchpfc.optim.ledger import Ledger

SNAPSHOTS = "snapshots"
"""What the folder of the states that its training went through is called, where a number may follow; and, among what is
saved with a model, the name of the one that belongs to it."""

FORGOTTEN = "forgotten"
"""Among what is saved with a model, the batches that it has forgotten in place, and its snapshots have not."""

_NEXT_CERTIFICATE = ".certificate.json"
"""The certificate of a model that is about to be saved."""

LOCK_FILE = ".lock"
"""Held by who changes a model."""

_EARLIER_LEDGER = "ledger.json"
"""Where version 0.1.0 kept the ledger, beside the rest."""


class SavedModel(NamedTuple):
    """What a folder holds."""

    block: PFCBlock
    ledger: Ledger
    about: dict[str, Any]
    """Whatever was saved with it, such as how it was trained."""


def save_model(folder: Path, block: PFCBlock, ledger: Ledger, about: Mapping[str, Any] | None = None) -> None:
    """Saves a block with its ledger, which replace what the folder held in one stroke.

    The ledger is saved with the fingerprint of the weights that it speaks of, and loads with no others.

    Args:
        folder: Where; made if need be.
        block: With a solver and an adjoint of `torchpfc.solvers`.
        ledger: The record of its training.
        about: Plain values to keep with it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(Path(folder), PFCBlock(8, 3, num_basis=5), Ledger(), {"seed": 0})
        ...     load_model(Path(folder)).about
        {'seed': 0}
    """
    learned = {"weights": dict(block.state_dict()), "ledger": _of_weights(ledger, block)}
    state = {"block": block_settings(block), **learned, "about": dict(about or {})}
    save_checkpoint(folder, state, most=MOST_OF_A_MODEL)
    (folder / _EARLIER_LEDGER).unlink(missing_ok=True)


def load_model(folder: Path) -> SavedModel:
    """Loads what `save_model` saved, on the CPU.

    Args:
        folder: Where.
    """
    state = load_checkpoint(folder, most=MOST_OF_A_MODEL)
    if state is None:
        raise CorruptFileError(f"{folder} must be a folder with a model and its ledger, got no {STATE_FILE} in it")
    from torchpfc.checkpoint.schema import ModelState, conform

    with reading(folder, "a model that save_model saved"):
        conform(state, ModelState)
        if "ledger" in state:
            settings, entries = state["block"], state["ledger"]
        else:  # of version 0.1.0
            now = {"init_range": tuple(state["block"]["init_range"]), "solver": state["solver"]}
            settings, entries = {**state["block"], **now}, read_json(folder / _EARLIER_LEDGER)
        block = block_from(settings, state["weights"])
        return SavedModel(block, _ledger_from(entries, block), dict(state["about"]))


def snapshots_of(folder: Path, about: Mapping[str, Any]) -> Path | None:
    """The folder of the snapshots that belong to a model, where there are any.

    Args:
        folder: That of the model.
        about: What was saved with it.
    """
    place = folder / Path(str(about.get(SNAPSHOTS, SNAPSHOTS))).name  # of a path from a stranger the name alone
    return place if place.is_dir() and not place.is_symlink() else None


def new_snapshots(folder: Path) -> Path:
    """Where snapshots go that will belong to a model once it is saved with the name of this folder.

    Args:
        folder: That of the model.
    """
    names = chain([SNAPSHOTS], (f"{SNAPSHOTS}-{k}" for k in count(1)))
    return next(folder / name for name in names if not (folder / name).exists())


def prepare_certificate(folder: Path, certificate: Certificate) -> None:
    """Writes down what is about to be saved, so that the certificate is there whatever happens once it is.

    Args:
        folder: That of the model, which nobody else changes meanwhile.
        certificate: Of the model that will be saved next.
    """
    certificate.save(folder / _NEXT_CERTIFICATE)


def keep_certificate(folder: Path) -> Path | None:
    """Gives the certificate that was prepared its place beside the model, if that was saved; deletes it else.

    Args:
        folder: That of the model, which nobody else changes meanwhile.

    Returns:
        Where the last one is; None where there is none.
    """
    last: Path | None = None
    for k in count(1):
        place = folder / f"certificate-{k}.json"
        if not place.exists():
            break
        last = place
    prepared = folder / _NEXT_CERTIFICATE
    if not prepared.exists():
        return last
    if Certificate.load(prepared).sha256_after != fingerprint(load_model(folder).block):
        prepared.unlink()
        return last
    return prepared.replace(place)


def delete_what_was(folder: Path) -> None:
    """Deletes what does not belong to the model of a folder: what came before, or never was finished.

    A process that is killed leaves it, and it may hold what the model has forgotten.

    Args:
        folder: That of the model, which nobody else changes meanwhile.
    """
    own = snapshots_of(folder, load_model(folder).about)
    for path in folder.glob(f"{SNAPSHOTS}*"):
        if own is not None and path != own and re.fullmatch(rf"{SNAPSHOTS}(-\d+)?", path.name):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
    delete_stale(folder)
    keep_certificate(folder)
    if "ledger" in read_json(folder / STATE_FILE)["state"]:
        (folder / _EARLIER_LEDGER).unlink(missing_ok=True)


def save_ledger(path: Path, ledger: Ledger, model: nn.Module | None = None) -> None:
    """Saves a ledger as JSON, in one stroke.

    Args:
        path: The file.
        ledger: What to save.
        model: Whose training it records, as it is now; the ledger then loads with these weights alone.
    """
    write_atomically(path, json.dumps(_of_weights(ledger, model)) + "\n")


def load_ledger(path: Path, model: nn.Module | None = None) -> Ledger:
    """Loads what `save_ledger` saved.

    Args:
        path: The file.
        model: Whose training it records. A ledger that was saved with other weights is refused: it would name the wrong
            columns.
    """
    entries = read_json(path)
    try:
        return _ledger_from(entries, model)
    except ValueError as error:
        raise CorruptFileError(f"{path} must hold a ledger that save_ledger saved ({error}); delete it") from None


def _of_weights(ledger: Ledger, model: nn.Module | None) -> dict[str, Any]:
    """What a ledger knows, and of which weights."""
    entries = ledger.state_dict()
    return entries if model is None else {**entries, "weights": fingerprint(model)}


def _ledger_from(entries: dict[str, Any], model: nn.Module | None) -> Ledger:
    """The ledger that `_of_weights` took apart; version 0.1.0 did not say of which weights it was."""
    from torchpfc.checkpoint.schema import conform_ledger

    conform_ledger(entries)
    if model is not None and "weights" in entries and entries["weights"] != fingerprint(model):
        raise ValueError("the ledger must be of these weights, got that of others")
    ledger = Ledger()
    ledger.load_state_dict(entries)
    return ledger
