"""How well does a learner follow a stream, one example at a time, each asked about before it is shown?

Sets that come with river: `PFCClassifier.partial_fit` with single rows and a bound on its parts, against river's
Hoeffding tree and adaptive random forest, Gaussian naive Bayes, and the class of the example before. Accuracy over the
whole stream after the first hundred, in percent, seconds of one processor for an example, asking and learning together,
and what ours keeps, halfway and at the end. What is there already is not measured again, unless --again says so.

    python benchmarks/streams.py [--sets phishing bananas] [--again] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import river.datasets
import river.dummy
import river.forest
import river.naive_bayes
import river.tree
from _machine import describe, write_json

from torchpfc.checkpoint import read_json
from torchpfc.sklearn import PFCClassifier

MOST = 5000
"""Examples of a stream, at most."""
UNJUDGED = 100
"""Examples at the beginning that do not count."""
PARTS = 200
"""Parts that ours may have."""

Example = tuple[dict[str, float], Any]
STREAMS: dict[str, Callable[[], Any]] = {
    "phishing": river.datasets.Phishing,
    "bananas": river.datasets.Bananas,
    "image segments": river.datasets.ImageSegments,
    "shuttle": river.datasets.Shuttle,
    "agrawal": lambda: river.datasets.synth.Agrawal(seed=0),
    "sea, with drift": lambda: river.datasets.synth.ConceptDriftStream(
        river.datasets.synth.SEA(variant=0, seed=0), river.datasets.synth.SEA(variant=3, seed=0), 0, MOST // 2, 50
    ),
    "led": lambda: river.datasets.synth.LED(seed=0),
    "waveform": lambda: river.datasets.synth.Waveform(seed=0),
}


class Ours:
    """`PFCClassifier` with the methods of river."""

    def __init__(self) -> None:
        self.model = PFCClassifier(max_parts=PARTS, random_state=0)

    def predict_one(self, x: dict[str, float]) -> Any:
        """The answer; none before anything was seen."""
        return self.model.predict([[*x.values()]])[0] if hasattr(self.model, "classes_") else None

    def learn_one(self, x: dict[str, float], y: Any) -> None:
        """Takes in one example."""
        self.model.partial_fit([[*x.values()]], [y])


LEARNERS: dict[str, Callable[[], Any]] = {
    "pfc": Ours,
    "hoeffding tree": river.tree.HoeffdingTreeClassifier,
    "adaptive random forest": lambda: river.forest.ARFClassifier(seed=0),
    "naive bayes": river.naive_bayes.GaussianNB,
    "class before": river.dummy.NoChangeClassifier,
}


def examples(name: str) -> Iterator[Example]:
    """The stream, the same every time, in numbers."""
    return (({str(k): float(v) for k, v in x.items()}, y) for x, y in islice(STREAMS[name](), MOST))


def follow(make: Callable[[], Any], stream: Iterator[Example]) -> dict[str, float]:
    """Asks, then tells."""
    model, right, times, half = make(), [], [], 0.0
    for x, y in stream:
        begin = time.process_time()
        right.append(model.predict_one(x) == y)
        model.learn_one(x, y)
        times.append(time.process_time() - begin)
        if len(times) == MOST // 2:
            half = bytes_of(model)
    first, last = (float(np.mean(some)) for some in (times[UNJUDGED : 2 * UNJUDGED], times[-UNJUDGED:]))
    accuracy = 100 * float(np.mean(right[UNJUDGED:]))
    told = {"accuracy": accuracy, "examples": len(right), "first_seconds": first, "last_seconds": last}
    return told | ({"half_bytes": half, "last_bytes": bytes_of(model)} if half else {})


def bytes_of(model: Any) -> float:
    """What ours has kept of a stream; 0 for the others."""
    if not isinstance(model, Ours):
        return 0.0
    return sum(float(value.nbytes) for value in model.model.learner_.state_dict().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=STREAMS, default=[*STREAMS])
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=[*LEARNERS])
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "streams.json")
    arguments = parser.parse_args()
    done = read_json(arguments.out)["data"] if arguments.out.exists() else {}
    machine = describe()
    machine["versions"]["river"] = version("river")
    protocol = {"question": __doc__.splitlines()[0], "max_parts": PARTS, "unjudged": UNJUDGED}
    for name in arguments.sets:
        found = done.setdefault(name, {})
        for learner in arguments.learners:
            if learner in found and not arguments.again:
                continue
            found[learner] = told = follow(LEARNERS[learner], examples(name))
            milliseconds = " then ".join(f"{1e3 * told[key]:.1f}" for key in ("first_seconds", "last_seconds"))
            print(f"{name:16} {learner:24} {told['accuracy']:6.2f}   {milliseconds} ms an example", flush=True)
            write_json(arguments.out, {**protocol, "data": done, **machine})


if __name__ == "__main__":
    main()
