"""How accurate is `PFCClassifier` on images, and how long do fit and predict take, beside `MLPClassifier`?

MNIST, pixels from 0 to 1 and nothing else done to them, both with default settings; the perceptron stops early,
as ours does. 10,000 training images, chosen by each seed, and all 60,000, with one seed. Accuracy is that of the 10,000
test images, and predict answers for all of them. Times are seconds of the processor, medians over the seeds; both take
turns in one run.

    OMP_NUM_THREADS=1 TORCHPFC_DATA=DATA python benchmarks/images.py [--seeds 0 1 2] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from _machine import describe, write_json
from sklearn.neural_network import MLPClassifier

from torchpfc.checkpoint import read_json
from torchpfc.data import load_images
from torchpfc.sklearn import PFCClassifier

MODELS: dict[str, Callable[[int], Any]] = {
    "pfc": lambda seed: PFCClassifier(random_state=seed),
    "mlp": lambda seed: MLPClassifier(early_stopping=True, random_state=seed),
}


def measure(rows: int, seeds: list[int]) -> dict[str, Any]:
    """Accuracy in percent, and seconds, of both for each seed."""
    data = load_images("mnist")
    (X, y), (X_test, y_test) = ((part.x.double().numpy(), part.label.numpy()) for part in (data.train, data.test))
    found: dict[str, Any] = {name: {"accuracy": [], "fit_seconds": [], "predict_seconds": []} for name in MODELS}
    for seed in seeds:
        chosen = np.random.default_rng(seed).permutation(len(X))[:rows]
        for name, make in MODELS.items():
            begin = time.process_time()
            model = make(seed).fit(X[chosen], y[chosen])
            fitted = time.process_time()
            answers = model.predict(X_test)
            told = 100 * float((answers == y_test).mean()), fitted - begin, time.process_time() - fitted
            for values, value in zip(found[name].values(), told, strict=True):
                values.append(value)
            print(f"{rows:,} rows, seed {seed}, {name}: {told[0]:.2f} %, {told[1]:.1f} s, {told[2]:.2f} s", flush=True)
    for kind in ("fit_seconds", "predict_seconds"):
        ours, other = (statistics.median(found[name][kind]) for name in ("pfc", "mlp"))
        found[kind.replace("seconds", "times_as_long")] = ours / other
    return found | {"seeds": seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", type=int, choices=(10_000, 60_000), default=[10_000, 60_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "images.json")
    arguments = parser.parse_args()
    done = read_json(arguments.out)["data"] if arguments.out.exists() else {}
    machine = describe()
    machine["versions"]["scikit-learn"] = sklearn.__version__
    for rows in arguments.rows:
        done[str(rows)] = measure(rows, arguments.seeds if rows == 10_000 else arguments.seeds[:1])
        write_json(arguments.out, {"question": __doc__.splitlines()[0], "data": done, **machine})


if __name__ == "__main__":
    main()
