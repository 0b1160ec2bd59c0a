"""A block and its ledger in one folder, so that what was learned can be found and forgotten later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchpfc.checkpoint import (
    STATE_FILE,
    CorruptFileError,
    load_checkpoint,
    read_json,
    reading,
    save_checkpoint,
    write_atomically,
)
from torchpfc.nn.block import PFCBlock
from torchpfc.nn.saving import block_from, block_settings
from torchpfc.optim.ledger import Ledger

SNAPSHOTS = "snapshots"
"""The folder of the states that its training went through, where they were kept."""

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
    learned = {"weights": dict(block.state_dict()), "ledger": ledger.state_dict()}
    save_checkpoint(folder, {"block": block_settings(block), **learned, "about": dict(about or {})})
    (folder / _EARLIER_LEDGER).unlink(missing_ok=True)


def load_model(folder: Path) -> SavedModel:
    """Loads what `save_model` saved, on the CPU.

    Args:
        folder: Where.
    """
    state = load_checkpoint(folder)
    if state is None:
        raise CorruptFileError(f"{folder} must be a folder with a model and its ledger, got no {STATE_FILE} in it")
    with reading(folder, "a model that save_model saved"):
        if "ledger" in state:
            ledger = Ledger()
            ledger.load_state_dict(state["ledger"])
            settings = state["block"]
        else:  # of version 0.1.0
            ledger = load_ledger(folder / _EARLIER_LEDGER)
            now = {"init_range": tuple(state["block"]["init_range"]), "solver": state["solver"]}
            settings = {**state["block"], **now}
        return SavedModel(block_from(settings, state["weights"]), ledger, dict(state["about"]))


def save_ledger(path: Path, ledger: Ledger) -> None:
    """Saves a ledger as JSON, in one stroke.

    Args:
        path: The file.
        ledger: What to save.
    """
    write_atomically(path, json.dumps(ledger.state_dict()) + "\n")


def load_ledger(path: Path) -> Ledger:
    """Loads what `save_ledger` saved.

    Args:
        path: The file.
    """
    ledger = Ledger()
    ledger.load_state_dict(read_json(path))
    return ledger
