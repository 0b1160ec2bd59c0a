"""Estimators as folders: `config.json` names a file of tensors beside it, and is replaced last."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpfc._version import __version__
from torchpfc.checkpoint import CorruptFileError, read_json, write_atomically
from torchpfc.optim.ledger import Ledger
from torchpfc.sklearn.rows import InputScale, Rows

CONFIG = "config.json"
_FORMAT = 1
_PLAIN = (str, int, float, bool, type(None))


def save_estimator(estimator: Any, folder: Path) -> None:
    """Saves a fitted estimator."""
    from safetensors.torch import save

    block, held = estimator.block_, estimator.held_out_
    tensors = {
        "weight_x": block.weight_x,
        "weight_y": block.weight_y,
        "power_vector": block.power_vector,
        **{f"held_out.{name}": value for name, value in zip(Rows._fields, held, strict=True)},
    }
    data = save({name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    config: dict[str, Any] = {
        "format": _FORMAT,
        "torchpfc": __version__,
        "estimator": type(estimator).__name__,
        "params": _params(estimator),
        "tensors": f"model-{digest[:16]}.safetensors",
        "sha256": digest,
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": _names(estimator),
        "nonnegative": block.nonnegative,
        "scale": {"size": estimator.scale_.size, "constant": estimator.scale_.constant},
        "ledger": estimator.ledger_.state_dict(),
        "state": estimator._extra_state(),
    }
    content = json.dumps(config, indent=1) + "\n"  # before anything is written: what JSON refuses changes no file
    write_atomically(folder / config["tensors"], data)
    write_atomically(folder / CONFIG, content)
    for old in folder.glob("model-*.safetensors"):
        if old.name != config["tensors"]:
            old.unlink(missing_ok=True)


def load_estimator(cls: Any, folder: Path, device: str | torch.device | None) -> Any:
    """Loads what `save_estimator` saved."""
    path = folder / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"folder must hold a {CONFIG} that save_pretrained wrote, got {folder} without one")
    config = read_json(path)
    try:
        name, params = config["estimator"], config["params"]
        if config["format"] != _FORMAT:
            raise CorruptFileError(f"{path} must have format {_FORMAT}, got {config['format']!r}; save it again")
        if name != cls.__name__:
            raise ValueError(f"folder must hold a {cls.__name__}, got a {name} in {path}")
        estimator = cls(**{**params, **({} if device is None else {"device": str(device)})})
        _restore(estimator, config, _tensors(folder, config))
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CorruptFileError(f"{path} must be what save_pretrained wrote ({error!r}); save the model again") from None
    return estimator


def _restore(estimator: Any, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    device = estimator._device()
    estimator.n_features_in_ = int(config["n_features_in"])
    if config["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(config["feature_names_in"], dtype=object)
    estimator.scale_ = InputScale(float(config["scale"]["size"]), bool(config["scale"]["constant"]))
    estimator.ledger_ = Ledger()
    estimator.ledger_.load_state_dict(config["ledger"])
    weights = tensors["weight_x"].to(device), tensors["weight_y"].to(device)
    estimator.block_ = estimator._new_block(*weights, nonnegative=bool(config["nonnegative"]))
    estimator.block_.power_vector.copy_(tensors["power_vector"])  # the same steps as before, to the last bit
    estimator.block_.eval()
    held = Rows(*(tensors[f"held_out.{name}"] for name in Rows._fields))
    estimator.held_out_ = Rows(held.x.to(device), held.target.to(device), held.weight.to(device), held.batch)
    estimator._load_extra_state(config["state"])
    estimator._calibrate()


def _tensors(folder: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    from safetensors.torch import load

    weights = folder / Path(config["tensors"]).name  # a name and no path: a file beside this one
    try:
        data = weights.read_bytes()
    except OSError as error:
        raise CorruptFileError(f"{weights} must be there, since {CONFIG} names it ({error}); save it again") from None
    if hashlib.sha256(data).hexdigest() != config["sha256"]:
        raise CorruptFileError(f"{weights} must have the checksum that {CONFIG} gives; save the model again")
    return load(data)


def _params(estimator: Any) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    for name, value in params.items():
        if isinstance(value, torch.device):
            params[name] = str(value)
        elif isinstance(value, np.generic):
            params[name] = value.item()
        elif not isinstance(value, _PLAIN):
            raise TypeError(f"{name} must be a plain value to be saved as JSON, got {value!r}")
    return dict(params)


def _names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


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
