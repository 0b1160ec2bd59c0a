"""Estimators as folders: their parameters, what they have learned, and labels, as plain values and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchpfc._version import __version__
from torchpfc.checkpoint import (
    MOST_OF_A_MODEL,
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
_LONGEST_NAME = 100
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
    save_checkpoint(folder, about | learned, most=MOST_OF_A_MODEL)
    (folder / _EARLIER_CONFIG).unlink(missing_ok=True)


def load_estimator(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loads the parameters of an estimator and what it has learned.

    Args:
        folder: Where.
        name: The class that it must have.
    """
    from torchpfc.checkpoint.schema import EstimatorState, conform

    state = load_checkpoint(folder, most=MOST_OF_A_MODEL)
    if state is None:
        if not (folder / _EARLIER_CONFIG).exists():
            raise FileNotFoundError(
                f"folder must hold a {STATE_FILE} that save_pretrained wrote, got {folder} without one"
            )
        state = _from_0_1(folder / _EARLIER_CONFIG)
    with reading(folder, SAVED):
        conform(state, EstimatorState)
    if state["format"] != _FORMAT:
        raise CorruptFileError(f"{folder} must have format {_FORMAT}, got {state['format']}; save it again")
    if state["estimator"] != name:
        raise ValueError(f"folder must hold a {name}, got a {state['estimator']} in {folder}")
    with reading(folder, SAVED):
        _check(state)
    return state["params"], state


def _check(state: dict[str, Any]) -> None:
    """Checks what an estimator has learned by kind, and that sizes fit each other."""
    from torchpfc.checkpoint.schema import Device, FittedState, StagedState, TaughtState, conform, conform_ledger

    conform(state["params"].get("device"), Device | None)

    features, names = state["n_features_in"], state["feature_names_in"]
    if names is not None and len(names) != features:
        raise ValueError(f"{len(names)} names for {features} features")
    if "taught" in state and "weights" not in state:
        conform(state, TaughtState)
        if any(x.shape != (len(weight), features) for _, x, _, weight in state["taught"]["held"]):
            raise ValueError(f"rows held out that do not have {features} features")
        return
    conform(state, StagedState if "taught" in state else FittedState)
    conform_ledger(state["ledger"])
    weights, scale, held = state["weights"], state["scale"], state["held_out"]
    inside = features + scale["constant"]
    if len(weights["weight_x"]) != inside or held["x"].shape != (len(held["weight"]), inside):
        raise ValueError(f"parts or rows held out that do not have {inside} features")
    for name in ("center", "spread"):
        if scale.get(name) is not None and scale[name].shape != (features,):
            raise ValueError(f"{name} that is not one of {features} features")
    if not (held["target"].isfinite().all() and held["weight"].isfinite().all()) or held["x"].isinf().any():
        raise ValueError("rows held out that are not finite")
    if "taught" in state and sum(count for _, count in state["taught"]["runs"]) != weights["weight_x"].shape[1]:
        raise ValueError("batches that do not have the columns of the block")


def saved_class(folder: Path) -> str | None:
    """The class of the estimator that a folder holds; None where it holds none.

    Args:
        folder: Where.
    """
    if (folder / STATE_FILE).is_file():
        with reading(folder, SAVED):
            name = read_json(folder / STATE_FILE)["state"].get("estimator")
        return None if name is None else str(name)[:_LONGEST_NAME]
    earlier = folder / _EARLIER_CONFIG
    return str(read_json(earlier).get("estimator"))[:_LONGEST_NAME] if earlier.is_file() else None


def _from_0_1(path: Path) -> dict[str, Any]:
    """What version 0.1.0 saved, in the form of today."""
    config = read_json(path)
    tensors = load_tensors(path, config, most=MOST_OF_A_MODEL)
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
    from torchpfc.checkpoint.schema import MOST_LABEL_BYTES, LabelState, conform

    conform(state, LabelState)
    dtype = np.dtype(state["dtype"])
    if dtype.itemsize * len(state["values"]) > MOST_LABEL_BYTES:
        raise ValueError(f"labels must have at most {MOST_LABEL_BYTES} bytes, got {dtype} for {len(state['values'])}")
    return np.array(state["values"], dtype=dtype)
