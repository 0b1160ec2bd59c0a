"""A block and its ledger in one folder, so that what was learned can be found and forgotten later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchpfc.checkpoint import STATE_FILE, CorruptFileError, load_checkpoint, save_checkpoint
from torchpfc.nn.block import PFCBlock
from torchpfc.optim.ledger import Ledger
from torchpfc.solvers import FISTA
from torchpfc.unlearning.forget import load_ledger, save_ledger

LEDGER_FILE = "ledger.json"
"""The ledger of a model, beside its weights."""

SNAPSHOTS = "snapshots"
"""The folder of the states that its training went through, where they were kept."""


class SavedModel(NamedTuple):
    """What a folder holds."""

    block: PFCBlock
    ledger: Ledger
    about: dict[str, Any]
    """Whatever was saved with it, such as how it was trained."""


def save_model(folder: Path, block: PFCBlock, ledger: Ledger, about: Mapping[str, Any] | None = None) -> None:
    """Saves a block with its ledger; each file is replaced in one stroke.

    Args:
        folder: Where; made if need be.
        block: With `FISTA` for its solver.
        ledger: The record of its training.
        about: Plain values to keep with it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(Path(folder), PFCBlock(8, 3, num_basis=5), Ledger(), {"seed": 0})
        ...     load_model(Path(folder)).about
        {'seed': 0}
    """
    if not isinstance(block.solver, FISTA):
        raise TypeError(f"block must have FISTA for its solver to be saved, got {type(block.solver).__name__}")
    options = {"nonnegative": block.nonnegative, "l1": block.l1, "init_range": list(block.init_range)}
    weights = dict(block.state_dict())
    state = {"block": options, "solver": asdict(block.solver), "weights": weights, "about": dict(about or {})}
    save_checkpoint(folder, state)
    save_ledger(folder / LEDGER_FILE, ledger)


def load_model(folder: Path) -> SavedModel:
    """Loads what `save_model` saved, on the CPU.

    Args:
        folder: Where.
    """
    for name in (STATE_FILE, LEDGER_FILE):
        if not (folder / name).is_file():
            raise CorruptFileError(f"{folder} must be a folder with a model and its ledger, got no {name} in it")
    state = load_checkpoint(folder)
    try:
        weights = state["weights"]
        (in_features, num_basis), out_features = weights["weight_x"].shape, len(weights["weight_y"])
        options = {**state["block"], "init_range": tuple(state["block"]["init_range"])}
        solver, dtype = FISTA(**state["solver"]), weights["weight_x"].dtype
        block = PFCBlock(in_features, out_features, num_basis, solver=solver, dtype=dtype, **options)
        with torch.no_grad():
            block.load_state_dict(weights)
        return SavedModel(block, load_ledger(folder / LEDGER_FILE), dict(state["about"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CorruptFileError(f"{folder} must hold a model that save_model saved ({error})") from None
