"""What a continual learner was made with, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchpfc.continual.views import Shifts
from torchpfc.nn.saving import from_plain, to_plain

if TYPE_CHECKING:
    from torchpfc.continual.learner import ContinualPFC

_AS_THEY_ARE = ("in_features", "columns_per_class", "l1", "power", "refine", "scale", "max_parts", "wait")


def settings_of(model: ContinualPFC) -> dict[str, Any]:
    """The arguments that a learner was made with but its device, as plain values.

    Args:
        model: With a solver of `torchpfc.solvers`, no views but `Shifts`, and no read-out.
    """
    if model.read_out is not None:
        raise TypeError("a read-out has features of its own, which have no plain form")
    if not isinstance(model.views, Shifts | None):
        raise TypeError(f"views must be Shifts or None to be written down, got {model.views!r}")
    return {name: getattr(model, name) for name in _AS_THEY_ARE} | {
        "num_classes": model.announced,
        "views": None if model.views is None else {"shape": list(model.views.shape), "pixels": model.views.pixels},
        "solver": to_plain(model.solver),
    }


def options_from(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that `settings_of` made plain.

    Args:
        settings: Plain values.
    """
    views = settings["views"]
    views = None if views is None else Shifts(tuple(views["shape"]), views["pixels"])
    return {**settings, "views": views, "solver": from_plain(settings["solver"])}
