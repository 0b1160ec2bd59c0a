"""Is `PFCClassifier` as accurate as a tuned `MLPClassifier`, and does it keep what it learned first?

Both see the same splits of a repeated stratified cross-validation. The perceptron's size and penalty are chosen in each
split, by a cross-validation of its own; the classifier has its default settings. The interval of the mean difference is
that of the corrected resampled t-test (Nadeau and Bengio, 2003), which allows for splits that share examples.

Then both are shown the digits one class after another, by `partial_fit`.

    python benchmarks/estimators.py [--repeats 2] [--folds 5] [--out benchmarks/results/estimators.json]
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import sklearn
from _machine import describe, write_json
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from torchpfc.sklearn import PFCClassifier

DATA = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}
GRID = {"mlpclassifier__hidden_layer_sizes": [(50,), (200,)], "mlpclassifier__alpha": [1e-4, 1e-1]}


def scaler(name: str) -> Any:
    return MinMaxScaler() if name == "digits" else StandardScaler()


def perceptron(name: str) -> GridSearchCV:
    pipeline = make_pipeline(scaler(name), MLPClassifier(max_iter=300, random_state=0))
    return GridSearchCV(pipeline, GRID, cv=2)


def pfc(name: str) -> Pipeline:
    return make_pipeline(scaler(name), PFCClassifier(random_state=0))


def compare(name: str, folds: int, repeats: int) -> dict[str, Any]:
    X, y = DATA[name](return_X_y=True)
    scores: dict[str, list[float]] = {"pfc": [], "mlp": []}
    seconds = {"pfc": 0.0, "mlp": 0.0}
    for train, test in RepeatedStratifiedKFold(n_splits=folds, n_repeats=repeats, random_state=0).split(X, y):
        for kind, make in (("pfc", pfc), ("mlp", perceptron)):
            start = time.perf_counter()
            model = make(name).fit(X[train], y[train])
            seconds[kind] += time.perf_counter() - start
            scores[kind].append(model.score(X[test], y[test]))
    difference = 100 * (np.array(scores["pfc"]) - np.array(scores["mlp"]))
    low, high = interval(difference, 1 / (folds - 1))
    return {
        "scores": scores,
        "pfc": 100 * float(np.mean(scores["pfc"])),
        "mlp": 100 * float(np.mean(scores["mlp"])),
        "difference": float(difference.mean()),
        "interval": [low, high],
        "fit_seconds": {kind: total / len(difference) for kind, total in seconds.items()},
    }


def interval(difference: np.ndarray, test_over_train: float) -> tuple[float, float]:
    """The 95 % interval of a mean over splits that share examples."""
    n = len(difference)
    error = np.sqrt((1 / n + test_over_train) * difference.var(ddof=1))
    reach = scipy.stats.t.ppf(0.975, n - 1) * error
    return float(difference.mean() - reach), float(difference.mean() + reach)


def class_by_class() -> dict[str, float]:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    model, other = PFCClassifier(random_state=0), MLPClassifier(random_state=0)
    for label in range(10):
        model.partial_fit(X[y == label], y[y == label], classes=np.arange(10))
        for _ in range(20):
            other.partial_fit(X[y == label], y[y == label], classes=np.arange(10))
    return {"pfc": 100 * model.score(X_test, y_test), "mlp": 100 * other.score(X_test, y_test)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "estimators.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = {}
    print("| data | PFCClassifier | tuned MLPClassifier | difference, 95 % interval | seconds to fit |")
    print("|---|---|---|---|---|")
    for name in DATA:
        found = results[name] = compare(name, arguments.folds, arguments.repeats)
        low, high = found["interval"]
        seconds = " / ".join(f"{found['fit_seconds'][kind]:.1f}" for kind in ("pfc", "mlp"))
        accuracies = f"{found['pfc']:.2f} % | {found['mlp']:.2f} %"
        print(
            f"| {name} | {accuracies} | {found['difference']:+.2f} ({low:+.2f} to {high:+.2f}) | {seconds} |",
            flush=True,
        )
    stages = class_by_class()
    print(f"digits, one class after another: {stages['pfc']:.2f} % / {stages['mlp']:.2f} %")
    machine = describe()
    machine["versions"]["scikit-learn"] = sklearn.__version__
    protocol = {"folds": arguments.folds, "repeats": arguments.repeats, "grid": {k: str(v) for k, v in GRID.items()}}
    write_json(
        arguments.out,
        {"question": __doc__.splitlines()[0], **protocol, "data": results, "class_by_class": stages, **machine},
    )


if __name__ == "__main__":
    main()
