"""Rows of learners whose columns have rates of their own, beside those with one rate for all and with a window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from torchpfc.paper.components import RatedOptimizer
from torchpfc.paper.continual import SplitMNIST
from torchpfc.paper.registry import Row
from torchpfc.paper.settings import change

SEEDS = 3

_DIGITS = change(SplitMNIST(), dataset="digits", batch_size=20)

PLACES: Mapping[str, tuple[str, SplitMNIST]] = {
    "D": ("digits", change(_DIGITS, num_basis=200)),
    "D50": ("digits, 50 parts", change(_DIGITS, num_basis=50)),
    "M": ("MNIST", change(SplitMNIST(), num_basis=1357)),
}
"""Where learners are compared."""

LEARNERS: Mapping[str, str] = {
    "RMSprop": "RMSprop",
    "SLW": "RMSpropSLW",
    "code": "rates by codes",
    "square": "rates by squared codes",
    "mean": "rates by a running mean of squared codes",
    "age": "rates by age",
}
"""In words."""

_MEASURES: Mapping[str, dict[str, Any]] = {
    "code": {"use": "code"},
    "square": {"use": "square"},
    "mean": {"use": "square", "use_kept": 0.99},
    "age": {"use": "age"},
}

_RATES = {"lr": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1), "half_after": (1.0, 3.0, 10.0)}
_RATES_OF_MNIST = {"lr": (3e-3, 1e-2), "half_after": (3.0, 10.0, 30.0)}

GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "D.RMSprop": {"lr": (3e-6, 1e-5, 3e-5, 1e-4)},
    "D.SLW": {"width": (15, 30), "sweep_speed": (0.25, 0.5), "lr": (3e-3, 1e-2, 3e-2)},
    "D.code": _RATES,
    "D.square": _RATES,
    "D.mean": _RATES,
    "D.age": {"lr": (1e-4, 1e-3, 1e-2, 1e-1), "half_after": (1.0, 3.0, 30.0, 300.0)},
    "D50.SLW": {"width": (5, 10), "sweep_speed": (0.05, 0.1), "lr": (3e-3, 1e-2, 3e-2)},
    "D50.square": _RATES,
    "D50.mean": _RATES,
    "M.square": _RATES_OF_MNIST,
    "M.mean": _RATES_OF_MNIST,
}
"""By place and learner, the settings to choose from, in every combination."""

CHOSEN: Mapping[str, Mapping[str, float]] = {
    "D.RMSprop": {"lr": 1e-5},
    "D.SLW": {"width": 15, "sweep_speed": 0.25, "lr": 1e-2},
    "D.code": {"lr": 3e-2, "half_after": 3.0},
    "D.square": {"lr": 1e-2, "half_after": 3.0},
    "D.mean": {"lr": 1e-2, "half_after": 3.0},
    "D.age": {"lr": 1e-2, "half_after": 3.0},
    "D50.SLW": {"width": 5, "sweep_speed": 0.1, "lr": 1e-2},
    "D50.square": {"lr": 1e-1, "half_after": 3.0},
    "D50.mean": {"lr": 1e-1, "half_after": 3.0},
}
"""By place and learner, those with the highest mean accuracy over three seeds on held-out images of all tasks, with the
fast preset; of equal ones the first."""

_SAID = {
    "num_basis": "{} parts",
    "width": "window of {}",
    "sweep_speed": "speed {}",
    "lr": "learning rate {}",
    "half_after": "half after {}",
}


NOTE = (
    "Learners on digits have the settings of STRENGTH that were the most accurate on held-out images of all tasks, "
    "by the mean over three seeds with the fast preset. On MNIST, RMSprop and RMSpropSLW have those of the paper, "
    "and rates have those of the digits. What is found on digits: with rates by codes, or by their squares, a block "
    "learns task after task without a window, and is at most three points less accurate than with one, while one "
    "rate for all columns forgets about half. What it lacks is the last task, which finds most columns slow. It "
    "matters which columns are slowed: by age all are slowed alike, which keeps the first tasks and leaves nothing "
    "to learn the last ones with. Rates are no way to need fewer columns: they spread over all there are, and with "
    "a quarter as many the window is at least nine points ahead. Columns in codes are the fewest that hold 99 % of "
    "the codes of held-out images. On MNIST, with the settings of the digits, little of this is left: rates by codes "
    "are some ten points ahead of one rate for all, those by squares by no more than seeds differ, and the window is "
    "more than seventeen points ahead of all."
)

SEARCH_NOTE = (
    "What the settings of RATES were chosen from, without test images: every combination of learning rate and use "
    "after which a column moves half as far, and for the others of learning rate, width and speed. On MNIST another "
    "use is the best, and eight points ahead of that of the digits, but far behind the window, too."
)


def search_rows() -> Iterator[Row]:
    """All settings to choose from, to be measured without test images."""
    for name, grid in GRIDS.items():
        place, learner = name.split(".")
        for values in product(*grid.values()):
            numbers = "-".join(f"{value:g}" for value in values)
            yield _row(f"STRENGTH.{name}.{numbers}", place, learner, dict(zip(grid, values, strict=True)))


def chosen_rows() -> Iterator[Row]:
    """The settings that were chosen; on MNIST those of the paper, and those that were chosen on digits."""
    for name, settings in CHOSEN.items():
        place, learner = name.split(".")
        yield _row(f"RATES.{name}", place, learner, settings)
    yield _row("RATES.M.RMSprop", "M", "RMSprop", {"lr": 1e-5})
    yield _row("RATES.M.SLW", "M", "SLW", {"num_basis": 2000, "width": 15, "sweep_speed": 0.25, "lr": 3e-4})
    for learner in _MEASURES:
        yield _row(f"RATES.M.{learner}", "M", learner, CHOSEN[f"D.{learner}"])


def _row(id: str, place: str, learner: str, settings: Mapping[str, Any]) -> Row:
    under, config = PLACES[place]
    config = change(config, width=0, sweep_speed=0.0)
    if learner in _MEASURES:
        config = replace(config, optimizer=RatedOptimizer(**_MEASURES[learner], **settings))
    else:
        config = change(config, **settings)
    what = ", ".join([LEARNERS[learner], *(_SAID[name].format(f"{value:g}") for name, value in settings.items())])
    return Row(id, config, seeds=SEEDS, what=what, under=under)
