"""Are the estimators as good as others on tables they were not made for, with the data as it comes?

Tables that come with packages. Ours takes the numbers as they are and, beside it, stands behind a `StandardScaler`; the
others have the scaler they need. All have their default settings, and see the same five folds. Accuracy for classes and
R² for numbers, both in percent. What is there already is not measured again, unless --again says so.

    python benchmarks/tables.py [--sets wine boston] [--models pfc] [--again] [--out benchmarks/results/tables.json]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from _machine import describe, write_json
from _table_sets import ROWS, SETS, Array, TableSet, load
from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor
from joblib import Parallel, delayed, parallel_config
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torchpfc.checkpoint import read_json
from torchpfc.sklearn import PFCClassifier, PFCRegressor

FOLDS = 5

BAGS = 4
"""Of explainable boosting machines: 14 by default, with which they take most of an hour."""
EBM_SCORES = 300
"""Features times classes, beyond which they are not fitted at all."""
EBM_PAIRS = 12
"""Features, beyond which they have no terms of two: with 30, one fit takes a quarter of an hour."""

MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "pfc": (lambda: PFCClassifier(random_state=0), lambda: PFCRegressor(random_state=0)),
    "pfc scaled": (lambda: scaled(PFCClassifier(random_state=0)), lambda: scaled(PFCRegressor(random_state=0))),
    "linear": (lambda: scaled(LogisticRegression()), lambda: scaled(Ridge())),
    "knn": (lambda: scaled(KNeighborsClassifier()), lambda: scaled(KNeighborsRegressor())),
    "mlp": (
        lambda: scaled(MLPClassifier(random_state=0)),
        lambda: TransformedTargetRegressor(scaled(MLPRegressor(random_state=0)), transformer=StandardScaler()),
    ),
    "boosting": (
        lambda: HistGradientBoostingClassifier(random_state=0),
        lambda: HistGradientBoostingRegressor(random_state=0),
    ),
    "ebm": (
        lambda: ExplainableBoostingClassifier(random_state=0, outer_bags=BAGS, n_jobs=1),
        lambda: ExplainableBoostingRegressor(random_state=0, outer_bags=BAGS, n_jobs=1),
    ),
}
"""For classes, and for numbers."""


def scaled(model: Any) -> Any:
    return make_pipeline(StandardScaler(), model)


def judge(model: str, table: TableSet, train: Array, test: Array) -> tuple[float, float]:
    """The score of a model on one fold, and the seconds it took to fit."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those that stop before they converge there are many
        made = MODELS[model][not table.classes]()
        if model == "ebm" and (table.X.shape[1] > EBM_PAIRS or (table.classes and len(np.unique(table.y)) > 2)):
            made.set_params(interactions=0)  # with several classes the package advises against them
        fitted = made.fit(table.X[train], table.y[train])
    seconds = time.perf_counter() - begin
    return 100 * float(fitted.score(table.X[test], table.y[test])), seconds


def measure(table: TableSet, models: Sequence[str], jobs: int) -> Iterator[tuple[str, list[float], float]]:
    """For each model its scores on the folds of a set, in percent, and the seconds that one fit took."""
    splitter = (StratifiedKFold if table.classes else KFold)(FOLDS, shuffle=True, random_state=0)
    folds = list(splitter.split(table.X, table.y))
    with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1), Parallel() as parallel:
        for model in models:
            if model == "ebm" and table.X.shape[1] * number_of_classes(table) > EBM_SCORES:
                continue
            scores, seconds = zip(*parallel(delayed(judge)(model, table, *fold) for fold in folds), strict=True)
            yield model, [*scores], float(np.mean(seconds))


def number_of_classes(table: TableSet) -> int:
    return len(np.unique(table.y)) if table.classes else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--jobs", type=int, default=2, help="folds at a time, each with one thread")
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "tables.json")
    arguments = parser.parse_args()
    done = read_json(arguments.out)["data"] if arguments.out.exists() else {}
    machine = describe()
    for package in ("scikit-learn", "interpret-core", "river", "statsmodels", "mlxtend"):
        machine["versions"][package] = version(package)
    for number, name in enumerate(arguments.sets, start=1):
        table = load(name)
        found = done.setdefault(name, {"scores": {}, "fit_seconds": {}})
        found |= {"rows": len(table.X), "features": table.X.shape[1], "classes": number_of_classes(table)}
        missing = [model for model in arguments.models if arguments.again or model not in found["scores"]]
        print(f"{name} ({number} of {len(arguments.sets)})", flush=True)
        for model, scores, seconds in measure(table, missing, arguments.jobs):
            found["scores"][model], found["fit_seconds"][model] = scores, seconds
            print(f"  {model:12} {np.mean(scores):8.2f}  {seconds:7.2f} s to fit", flush=True)
        data = {name: done[name] for name in SETS if name in done}
        question = {"question": __doc__.splitlines()[0], "folds": FOLDS, "most_rows": ROWS}
        write_json(arguments.out, {**question, "data": data, **machine})


if __name__ == "__main__":
    main()
