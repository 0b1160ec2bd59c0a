"""Separation models as folders: a JSON file with the settings, and a safetensors file with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from torchpfc.audio.features import Features
from torchpfc.audio.masks import check_power
from torchpfc.audio.nmf import NMFSeparator
from torchpfc.checkpoint import MOST_OF_A_MODEL, STATE_FILE, CorruptFileError, load_checkpoint, reading, save_checkpoint
from torchpfc.nn.recurrent.rnn import FactorizedRNN
from torchpfc.nn.recurrent.vanilla import VanillaRNN
from torchpfc.nn.saving import block_options, block_settings


class SavedSeparator(NamedTuple):
    """What a folder holds."""

    model: nn.Module
    features: Features
    about: dict[str, Any]
    """Whatever was saved with it, such as how it was trained."""
    power: float = 1.0
    """Of the mask that goes with the model, as in `soft_mask`."""


def save_separator(
    folder: Path,
    model: nn.Module,
    features: Features | None = None,
    about: Mapping[str, Any] | None = None,
    *,
    power: float = 1.0,
) -> None:
    """Saves a separation model, so that `torchpfc separate` can use it.

    Args:
        folder: Where; made if need be.
        model: A `FactorizedRNN` with solver and adjoint of `torchpfc.solvers`, a `VanillaRNN`, or an `NMFSeparator`.
            It answers with the features of vocals, or of vocals and rest.
        features: The settings of what it hears; an `NMFSeparator` has its own.
        about: Plain values to keep with it.
        power: Of the mask that goes with it, as in `soft_mask`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_separator(Path(folder), VanillaRNN(350, 16, 350), about={"seed": 0})
        ...     load_separator(Path(folder)).about
        {'seed': 0}
    """
    if isinstance(model, NMFSeparator):
        features = model.features
    features = Features() if features is None else features
    kind, options = _describe(model)
    _check_sizes(model.state_dict(), features)
    settings = {"kind": kind, "options": options, "features": asdict(features), "power": check_power(power)}
    learned = {"weights": dict(model.state_dict()), "about": dict(about or {})}
    save_checkpoint(folder, settings | learned, most=MOST_OF_A_MODEL)


def load_separator(folder: Path) -> SavedSeparator:
    """Loads what `save_separator` saved, on the CPU.

    Args:
        folder: Where.
    """
    state = load_checkpoint(folder, most=MOST_OF_A_MODEL)
    if state is None:
        found = f"no {STATE_FILE} in it" if folder.is_dir() else "no such folder"
        raise CorruptFileError(f"{folder} must be a folder with a separation model, got {found}")
    with reading(folder, "a model that save_separator saved"):
        features, weights = Features(**state["features"]), state["weights"]
        _check_sizes(weights, features)
        if not all(bool(weight.isfinite().all()) for weight in weights.values()):
            raise ValueError("a weight is not a finite number")
        model = _build(state["kind"], state["options"], weights, features)
        model.load_state_dict(weights)
        power = check_power(state.get("power", 1.0))  # the first models had none
        return SavedSeparator(model.eval(), features, dict(state["about"]), power)


def _check_sizes(weights: Mapping[str, Any], features: Features) -> None:
    """What goes in and what comes out must be features."""
    if "input.weight" in weights:  # of a vanilla RNN
        sizes = weights["input.weight"].shape[-1], len(weights["output.weight"])
    elif "block.weight_x" in weights:  # of a factorized one, whose input begins with the state
        rows, num_basis = weights["block.weight_x"].shape
        sizes = rows - num_basis, len(weights["block.weight_y"])
    else:
        sizes = (len(weights["weight_x"]),) * 2
    if sizes not in ((features.bins, features.bins), (features.bins, 2 * features.bins)):
        wanted = f"{features.bins} features to as many, or to twice as many"
        raise ValueError(f"model must map {wanted}, got {sizes[0]} and {sizes[1]}")


def _describe(model: nn.Module) -> tuple[str, dict[str, Any]]:
    if isinstance(model, NMFSeparator):
        return "nmf", {"num_vocals": model.num_vocals}
    if isinstance(model, VanillaRNN):
        return "vanilla", {"bptt": model.bptt}
    if not isinstance(model, FactorizedRNN):
        raise TypeError(f"model must be a FactorizedRNN, VanillaRNN or NMFSeparator, got {type(model).__name__}")
    settings = block_settings(model.block)
    del settings["l1"]  # which a network has none of
    return "factorized", {**settings, "bptt": model.bptt}


def _build(kind: str, options: dict[str, Any], weights: Mapping[str, Any], features: Features) -> nn.Module:
    """An untrained model, as large as the weights, whose sizes have been checked."""
    if kind == "nmf":
        return NMFSeparator(weights["weight_x"], options["num_vocals"], features)
    if kind == "vanilla":
        size, outputs = len(weights["input.weight"]), len(weights["output.weight"])
        model: nn.Module = VanillaRNN(features.bins, size, outputs, **options)
    elif kind == "factorized":
        outputs, num_basis = weights["block.weight_y"].shape
        model = FactorizedRNN(features.bins, num_basis, outputs, **block_options(options))
    else:
        raise ValueError(f"kind must be factorized, vanilla or nmf, got {kind!r}")
    return model.to(next(iter(weights.values())).dtype)
