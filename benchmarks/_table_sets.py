"""Tables that come with packages, as arrays: nobody here has chosen a default by looking at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import sklearn.datasets
from numpy.typing import NDArray

Array = NDArray[Any]

ROWS = 2500
"""Larger tables are sampled down to this many rows."""


class TableSet(NamedTuple):
    """A table."""

    X: Array
    y: Array
    """Classes as strings, or numbers to predict."""

    @property
    def classes(self) -> bool:
        return self.y.dtype.kind == "U"


def of_sklearn(name: str, *, classes: bool = True) -> TableSet:
    X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return TableSet(X, y.astype(str) if classes else y)


def of_river(name: str, *, classes: bool = True, target: str | None = None) -> TableSet:
    import river.datasets

    rows, targets = zip(*getattr(river.datasets, name)(), strict=True)
    names = list(rows[0])
    columns = [[row[name] for row in rows] for name in names]
    y = np.array([row[target] > 0 for row in targets] if target else targets)  # whether there was one
    return TableSet(one_hot(columns), y.astype(str) if classes else y.astype(float))


def of_mlxtend(name: str, *, classes: bool = False) -> TableSet:
    import mlxtend.data

    X, y = getattr(mlxtend.data, f"{name}_data")()
    X = np.asarray(X, float)
    return TableSet(X[:, ~np.isnan(X).all(0)], np.asarray(y).astype(str if classes else float))


def of_statsmodels(name: str, target: str, *, without: tuple[str, ...] = (), classes: bool = False) -> TableSet:
    import statsmodels.api

    frame = getattr(statsmodels.api.datasets, name).load_pandas().data.dropna()
    y = frame.pop(target)
    X = one_hot([frame[column].tolist() for column in frame.columns if column not in without])
    return TableSet(X, (y if classes else y.astype(float)).to_numpy().astype(str if classes else float))


def star98() -> TableSet:
    """The share of pupils above the national median."""
    import statsmodels.api

    frame = statsmodels.api.datasets.star98.load_pandas().data
    above, below = frame.pop("NABOVE"), frame.pop("NBELOW")
    return TableSet(frame.to_numpy(float), (above / (above + below)).to_numpy(float))


def affairs() -> TableSet:
    """Whether there was one."""
    X, y = of_statsmodels("fair", "affairs")
    return TableSet(X, (y > 0).astype(str))


def one_hot(columns: list[list[Any]]) -> Array:
    """Numbers as they are, words as one column each."""
    parts = []
    for values in columns:
        if isinstance(values[0], str):
            parts += [[float(value == word) for value in values] for word in sorted(set(values))]
        else:
            parts.append([float(value) for value in values])
    return np.array(parts).T


SETS: dict[str, Callable[[], TableSet]] = {
    "iris": lambda: of_sklearn("iris"),
    "wine": lambda: of_sklearn("wine"),
    "breast cancer": lambda: of_sklearn("breast_cancer"),
    "digits": lambda: of_sklearn("digits"),
    "mnist": lambda: of_mlxtend("mnist", classes=True),
    "phishing": lambda: of_river("Phishing"),
    "bananas": lambda: of_river("Bananas"),
    "image segments": lambda: of_river("ImageSegments"),
    "shuttle": lambda: of_river("Shuttle"),
    "solar flares": lambda: of_river("SolarFlare", target="c-class-flares"),
    "vote": lambda: of_statsmodels("anes96", "vote", classes=True),
    "travel mode": lambda: of_statsmodels("modechoice", "choice", without=("individual",), classes=True),
    "affairs": affairs,
    "diabetes": lambda: of_sklearn("diabetes", classes=False),
    "boston": lambda: of_mlxtend("boston_housing"),
    "autompg": lambda: of_mlxtend("autompg"),
    "chick weights": lambda: of_river("ChickWeights", classes=False),
    "trump approval": lambda: of_river("TrumpApproval", classes=False),
    "star98": star98,
    "health insurance": lambda: of_statsmodels("randhie", "mdvis"),
    "investment": lambda: of_statsmodels("grunfeld", "invest"),
    "food": lambda: of_statsmodels("engel", "foodexp"),
    "crime": lambda: of_statsmodels("statecrime", "murder", without=("violent",)),
    "unemployment": lambda: of_statsmodels("macrodata", "unemp"),
}


def load(name: str) -> TableSet:
    """A table, of at most `ROWS` rows: a sample with a fixed seed."""
    table = SETS[name]()
    if len(table.X) > ROWS:
        chosen = np.random.default_rng(0).permutation(len(table.X))[:ROWS]
        table = TableSet(table.X[chosen], table.y[chosen])
    return table
