"""Blocks, solvers and adjoints as plain values, and back: what is saved beside the weights of a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

import torchpfc.solvers as solvers
from torchpfc.nn.block import PFCBlock
from torchpfc.solvers import Adjoint, Solver

MOST_ITERATIONS = 100_000
"""Steps of a solver or an adjoint in a file at most."""

_KINDS = {name: getattr(solvers, name) for name in solvers.__all__}


def to_plain(choice: Solver | Adjoint) -> dict[str, Any]:
    """The name and the settings of a solver or an adjoint, for JSON.

    Args:
        choice: One of `torchpfc.solvers`; a class of your own cannot be found by its name.

    Example:
        >>> to_plain(solvers.Implicit.fast())
        {'name': 'Implicit', 'max_iter': 10, 'tol': 0.0, 'damping': 0.001}
    """
    kind = type(choice)
    if _KINDS.get(kind.__name__) is not kind:
        what = "solver" if isinstance(choice, Solver) else "adjoint"
        raise TypeError(f"{what} must be one of torchpfc.solvers to be saved, got {kind.__name__}; set another first")
    settings = {name: getattr(choice, name) for name in inspect.signature(kind).parameters}
    _check_steps(settings)
    return {"name": kind.__name__, **settings}


def from_plain(plain: Mapping[str, Any]) -> Any:
    """The solver or adjoint that `to_plain` took apart.

    Args:
        plain: Its name and settings. Without a name, as version 0.1.0 saved them, they are those of FISTA.

    Example:
        >>> from_plain({"name": "Truncated", "steps": 20})
        Truncated(steps=20)
    """
    from msgspec import convert

    settings = {"name": "FISTA", **plain}
    kind = _KINDS.get(settings.pop("name"))
    if not (isinstance(kind, type) and issubclass(kind, Solver | Adjoint)):
        raise ValueError(f"name must be that of a solver or an adjoint, got {plain['name']!r}")
    choice = kind(**settings)
    convert(settings, kind)  # the types of its fields, which kind() takes as they come
    _check_steps(settings)
    return choice


def _check_steps(settings: Mapping[str, Any]) -> None:
    """Refuses what would never end: a model from a stranger should answer, or not load."""
    for name in ("max_iter", "steps"):
        if (settings.get(name) or 0) > MOST_ITERATIONS:
            raise ValueError(f"{name} must be at most {MOST_ITERATIONS} to be saved, got {settings[name]}")


def block_settings(block: PFCBlock) -> dict[str, Any]:
    """All that a block was made with but its sizes, as plain values.

    Args:
        block: With a solver and an adjoint of `torchpfc.solvers`.
    """
    return {
        "nonnegative": block.nonnegative,
        "l1": block.l1,
        "init_range": block.init_range,
        "solver": to_plain(block.solver),
        "adjoint": None if block.adjoint is None else to_plain(block.adjoint),
    }


def block_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the constructor that `block_settings` took apart.

    Args:
        settings: Of a block. What version 0.1.0 did not save has its default.
    """
    adjoint = settings.get("adjoint")
    return {**settings, "solver": from_plain(settings["solver"]), "adjoint": adjoint and from_plain(adjoint)}


def block_from(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> PFCBlock:
    """A block with these settings and weights, on the CPU.

    Args:
        settings: What `block_settings` gave.
        weights: What the block's `state_dict` gave.

    Example:
        >>> block = PFCBlock(8, 3, num_basis=5, solver=solvers.ADMM(), l1=0.1)
        >>> same = block_from(block_settings(block), block.state_dict())
        >>> same.solver == block.solver and bool((same.weight_x == block.weight_x).all())
        True
    """
    _check_weights(weights)
    (in_features, num_basis), out_features = weights["weight_x"].shape, len(weights["weight_y"])
    options = block_options(settings)
    block = PFCBlock(in_features, out_features, num_basis, dtype=weights["weight_x"].dtype, **options)
    block.load_state_dict(weights)
    return block


def _check_weights(weights: Mapping[str, Tensor]) -> None:
    """Checks before a block as large as they say is made."""
    weight_x, weight_y = weights["weight_x"], weights["weight_y"]
    if weight_x.ndim != 2 or weight_y.ndim != 2 or weight_x.shape[1] != weight_y.shape[1] or not weight_x.numel():
        shapes = tuple(weight_x.shape), tuple(weight_y.shape)
        raise ValueError(f"weights must have shapes (in, parts) and (out, parts), got {shapes[0]} and {shapes[1]}")
    for name, weight in weights.items():
        if not weight.is_floating_point() or weight.dtype.itemsize < 2 or weight.dtype != weight_x.dtype:
            raise ValueError(f"{name} must be of the floating point type of all weights, got {weight.dtype}")
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity")
