"""Who knows intents best that came one at a time, none of them twice?

CLINC150 and Banking77, on embeddings (`wordllama`) alone, and with hashed words and pairs of words beside them. All
learners get the same inputs, one class after another, and keep no example. Settings are chosen on validation sentences:
those of CLINC150, and a fifth of the training sentences of Banking77. Logistic regression on all classes at once says
what there is to reach. Out of scope: how well the highest score tells sentences of CLINC150 that belong to no intent
from those that do, as AUROC; for logistic regression it is the highest probability. What is there already is not
measured again, unless --again says so.

    TORCHPFC_DATA=DATA python benchmarks/intents.py [--learners ours lda] [--again] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _intent_sets import Encoder, Intents, Numbers, Part, load
from _machine import describe, write_json
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from torchpfc import ContinualPFC
from torchpfc.checkpoint import read_json
from torchpfc.continual.readout import RidgeReadout
from torchpfc.sklearn import NearestMeanClassifier, RandomFeaturesClassifier, StreamingLDAClassifier

INPUTS = {"embeddings": False, "with n-grams": True}
SETS = ("clinc150", "banking77")
WEIGHT_OF_NGRAMS = 0.25


@dataclass(frozen=True)
class Learner:
    """Something to compare."""

    make: Callable[[Mapping[str, Any], Encoder, int], Any]
    """Makes one from settings, for some number of features."""
    settings: Mapping[str, tuple[Any, ...]]
    """What to choose from."""
    bytes: Callable[[Any], float]
    """What it carries from class to class."""
    penalties: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """What to choose from that may change once all is learned."""
    at_once: bool = False
    """Whether it sees all classes together."""


@dataclass(frozen=True)
class WordFeatures:
    """How much a sentence is like each of some words, and the words that it contains."""

    words: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The features of sentences, none negative."""
        embedded, ngrams = x[:, : self.words.shape[1]], x[:, self.words.shape[1] :]
        like = torch.relu(embedded @ self.words.T) / 8  # so that they weigh about as much as the others
        return torch.cat([like, WEIGHT_OF_NGRAMS * ngrams], 1)


class Ours:
    """`ContinualPFC` as the others are used."""

    def __init__(self, settings: Mapping[str, Any], encoder: Encoder, width: int) -> None:
        read_out = RidgeReadout(WordFeatures(torch.from_numpy(encoder.words())))
        self.model = ContinualPFC(width, columns_per_class=settings["columns"], read_out=read_out)
        self.labels: list[str] = []

    def partial_fit(self, X: Numbers, y: Any) -> None:
        """Takes in the sentences of one intent."""
        number = len(self.labels)
        self.labels.append(y[0])
        generator = torch.Generator().manual_seed(0)
        self.model.learn(torch.from_numpy(X), torch.full((len(X),), number), batch=y[0], generator=generator)

    @property
    def classes_(self) -> Any:
        """The intents in the order of the scores."""
        return np.array(self.labels)

    @torch.no_grad()
    def decision_function(self, X: Numbers) -> Any:
        """The scores of the intents."""
        return self.model(torch.from_numpy(X)).numpy()


def bytes_of_ours(learner: Ours) -> float:
    """Everything that is saved, and the word vectors."""
    return sum(t.numel() * t.element_size() for t in learner.model.state_dict().values() if isinstance(t, torch.Tensor))


LEARNERS = {
    "ours": Learner(Ours, {"columns": (10,)}, bytes_of_ours, {"ridge": (0.01, 0.03, 0.1)}),
    "nearest mean": Learner(lambda settings, *_: NearestMeanClassifier(), {}, lambda m: m.sums_.bytes_kept()),
    "lda": Learner(
        lambda settings, *_: StreamingLDAClassifier(**settings),
        {},
        lambda m: m.sums_.bytes_kept(),
        {"shrinkage": (1e-4, 1e-3, 1e-2, 1e-1)},
    ),
    "random features": Learner(
        lambda settings, *_: RandomFeaturesClassifier(6000, random_state=0, **settings),
        {"bandwidth": (0.7, 1.0)},
        lambda m: m.sums_.bytes_kept(),
        {"ridge": (0.1, 0.3, 1.0)},
    ),
    "logistic regression": Learner(
        lambda settings, *_: LogisticRegression(max_iter=300, **settings),
        {"C": (3.0, 10.0, 30.0)},
        lambda m: 4.0 * (m.coef_.size + m.intercept_.size),
        at_once=True,
    ),
}


def teach(learner: Learner, settings: Mapping[str, Any], part: Part, encoder: Encoder) -> tuple[Any, float]:
    """A learner that has seen every class once, in alphabetical order, and the seconds that took."""
    model, begin = learner.make(settings, encoder, part.x.shape[1]), time.perf_counter()
    if learner.at_once:
        model.fit(part.x, part.y)
    else:
        for label in np.unique(part.y):
            model.partial_fit(part.x[part.y == label], part.y[part.y == label])
    return model, time.perf_counter() - begin


def choices(settings: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]


def weigh(model: Any, penalties: Mapping[str, float]) -> None:
    for name, value in penalties.items():
        if isinstance(model, Ours):
            assert model.model.read_out is not None
            model.model.read_out = replace(model.model.read_out, **{name: value})
        else:
            setattr(model.sums_, name, value)


def scores_of(learner: Learner, model: Any, x: Numbers) -> Any:
    ask = model.predict_proba if learner.at_once else model.decision_function
    return np.concatenate([ask(some) for some in np.array_split(x, -(-len(x) // 1000))])


def right(model: Any, scores: Any, y: Any) -> float:
    return 100 * float((model.classes_[scores.argmax(1)] == y).mean())


def measure(learner: Learner, data: Intents, encoder: Encoder) -> dict[str, Any]:
    """Chooses settings on the validation part, and measures on the test part."""
    tried = []
    for settings in choices(learner.settings):
        model, seconds = teach(learner, settings, data.train, encoder)
        for penalties in choices(learner.penalties):
            weigh(model, penalties)
            valid = right(model, scores_of(learner, model, data.valid.x), data.valid.y)
            tried.append((valid, settings, penalties, model, seconds))
            print(f"    {settings | penalties}: {valid:.2f} on validation, {seconds:.1f} s", flush=True)
    valid, settings, penalties, model, seconds = max(tried, key=lambda one: one[0])
    if len(data.all.x) > len(data.train.x):
        model, seconds = teach(learner, settings, data.all, encoder)
    weigh(model, penalties)
    begin, scores = time.perf_counter(), scores_of(learner, model, data.test.x)
    asking = time.perf_counter() - begin
    found = {"valid": valid, "test": right(model, scores, data.test.y), "settings": settings | penalties}
    found |= {"teach_seconds": seconds, "ask_seconds": asking, "bytes": learner.bytes(model)}
    if data.out_of_scope is not None:
        strange = scores_of(learner, model, data.out_of_scope)
        inside = [True] * len(scores) + [False] * len(strange)
        found["out_of_scope_auroc"] = float(roc_auc_score(inside, np.concatenate([scores, strange]).max(1)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=[*LEARNERS])
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--classes", type=int, help="only so many intents, to try things out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "intents.json")
    arguments = parser.parse_args()
    done = read_json(arguments.out)["data"] if arguments.out.exists() else {}
    encoder, machine = Encoder(), describe()
    for package in ("scikit-learn", "wordllama"):
        machine["versions"][package] = version(package)
    for name, (inputs, ngrams) in product(SETS, INPUTS.items()):
        kept = done.setdefault(name, {}).setdefault(inputs, {})
        if not (missing := [key for key in arguments.learners if arguments.again or key not in kept]):
            continue
        data = load(name, encoder, ngrams=ngrams, most_classes=arguments.classes)
        for key in missing:
            print(f"{name}, {inputs}: {key}", flush=True)
            kept[key] = measure(LEARNERS[key], data, encoder)
            print(f"  {kept[key]['test']:.2f} on test", flush=True)
            sizes = {"train": len(data.all.x), "test": len(data.test.x), "classes": len(np.unique(data.all.y))}
            done[name]["sizes"] = sizes
            write_json(arguments.out, {"question": __doc__.splitlines()[0], "seed": 0, "data": done, **machine})


if __name__ == "__main__":
    main()
