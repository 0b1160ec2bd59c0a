"""Estimators as folders: their parameters, what they have learned, and labels, as plain values and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchpfc._version import __version__
from torchpfc.checkpoint import (
    STATE_FILE,
    CorruptFileError,
    load_checkpoint,
    load_tensors,
    read_json,
    reading,
    save_checkpoint,
)
from torchpfc.nn.saving import to_plain
from torchpfc.sklearn.rows import Rows
from torchpfc.solvers import FISTA, Implicit

SAVED = "an estimator that save_pretrained wrote"
"""The folder's content, as errors name it."""

_FORMAT = 2
_EARLIER_CONFIG = "config.json"
"""What names the tensors in a folder of version 0.1.0."""


def save_estimator(folder: Path, name: str, params: dict[str, Any], learned: dict[str, Any]) -> None:
    """Saves an estimator, which replaces what the folder held in one stroke.

    Args:
        folder: Where; made if need be.
        name: Its class.
        params: Its parameters.
        learned: What it has learned, as tensors and plain values.
    """
    about = {"format": _FORMAT, "torchpfc": __version__, "estimator": name, "params": plain_params(params)}
    save_checkpoint(folder, about | learned)
    (folder / _EARLIER_CONFIG).unlink(missing_ok=True)


def load_estimator(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loads the parameters of an estimator and what it has learned.

    Args:
        folder: Where.
        name: The class that it must have.
    """
    state = load_checkpoint(folder)
    if state is None:
        if not (folder / _EARLIER_CONFIG).exists():
            raise FileNotFoundError(
                f"folder must hold a {STATE_FILE} that save_pretrained wrote, got {folder} without one"
            )
        state = _from_0_1(folder / _EARLIER_CONFIG)
    with reading(folder, SAVED):
        found, params, version = state["estimator"], state["params"], state["format"]
    if version != _FORMAT:
        raise CorruptFileError(f"{folder} must have format {_FORMAT}, got {version!r}; save it again")
    if found != name:
        raise ValueError(f"folder must hold a {name}, got a {found} in {folder}")
    return params, state


def saved_class(folder: Path) -> str | None:
    """The class of the estimator that a folder holds; None where it holds none.

    Args:
        folder: Where.
    """
    if (folder / STATE_FILE).is_file():
        with reading(folder, SAVED):
            name = read_json(folder / STATE_FILE)["state"].get("estimator")
        return None if name is None else str(name)
    earlier = folder / _EARLIER_CONFIG
    return str(read_json(earlier).get("estimator")) if earlier.is_file() else None


def _from_0_1(path: Path) -> dict[str, Any]:
    """What version 0.1.0 saved, in the form of today."""
    config = read_json(path)
    tensors = load_tensors(path, config)
    with reading(path.parent, SAVED):
        params = config["params"]
        block = {
            "nonnegative": config["nonnegative"],
            "l1": params["l1"],
            "solver": to_plain(FISTA(max_iter=params.get("inference_steps", 100))),
            "adjoint": to_plain(Implicit.fast()),
        }
        weights = {name: tensors[name] for name in ("weight_x", "weight_y", "power_vector")}
        held_out = {name: tensors[f"held_out.{name}"] for name in Rows._fields}
        now = {"format": _FORMAT, "block": block, "weights": weights, "held_out": held_out, "extra": config["state"]}
        return config | now


def plain_params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator as plain values.

    Args:
        params: What `get_params` gave.
    """
    plain = {}
    for name, value in params.items():
        if isinstance(value, torch.device):
            value = str(value)
        elif isinstance(value, np.generic):
            value = value.item()
        elif not isinstance(value, str | int | float | bool | None):
            raise TypeError(f"{name} must be a plain value to be saved as JSON, got {value!r}")
        plain[name] = value
    return plain


def labels_to_json(labels: Any) -> dict[str, Any]:
    """Class labels as plain values."""
    values = labels.tolist()
    if not all(isinstance(value, str | int | float | bool) for value in values):
        kinds = sorted({type(value).__name__ for value in values})
        raise TypeError(f"classes must be numbers, strings or booleans to be saved, got {kinds}; pickle keeps them all")
    return {"dtype": labels.dtype.str, "values": values}


def labels_from_json(state: dict[str, Any]) -> Any:
    """What `labels_to_json` took apart."""
    return np.array(state["values"], dtype=np.dtype(state["dtype"]))
