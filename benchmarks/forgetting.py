"""What does it cost to forget one batch in a hundred exactly, beside training anew and beside SISA?

MNIST in 100 batches of 500 rows of all classes, and the embeddings of every second intent of CLINC150 in 750 batches,
one for each tenth of four fifths of an intent's sentences. A hundredth of the batches, drawn anew with each seed, is to
be forgotten. `ContinualPFC` takes it out. SISA (Bourtoule et al., 2021) has 5 perceptrons, each of which sees a fifth
of the batches in 10 slices and is kept after each slice, so that training goes on from the last one that has not seen
what is to be forgotten. A single perceptron is trained anew. Perceptrons are scikit-learn's `MLPClassifier`, taught by
`partial_fit`; for CLINC150 with the best of three settings on validation sentences, for MNIST with the default ones and
with epochs that were set by hand, the test rows in view. Another of each learner is trained without what was forgotten.
Seconds are those of the processor, with the first answer by itself. An attack looks at how high the score of the true
class is, for rows that were forgotten and for rows of the same classes that nobody has seen.

    OMP_NUM_THREADS=1 TORCHPFC_DATA=DATA python benchmarks/forgetting.py [--sets mnist] [--seeds 0 1 2] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from _intent_sets import Encoder, load
from _machine import describe, write_json
from sklearn.neural_network import MLPClassifier

from torchpfc import ContinualPFC
from torchpfc.checkpoint import read_json
from torchpfc.data import load_images
from torchpfc.solvers import FewParts
from torchpfc.unlearning import fingerprint, membership

SHARDS, SLICES = 5, 10
SHARE = 0.01
"""What part of the batches is to be forgotten."""


class Part(NamedTuple):
    """Rows and the numbers of their classes."""

    x: Any
    y: Any


Batches = Mapping[int, Part]


@dataclass(frozen=True)
class Data:
    """A set in batches."""

    batches: Batches
    fresh: Part
    """Rows that nobody has seen, like those of the batches."""
    test: Part
    classes: int
    parts: int
    """How many ours makes for each class of a batch."""
    epochs: int
    """How often SISA shows what it has of a shard after each slice."""
    perceptron: Mapping[str, Any]


def images(seed: int) -> Data:
    """MNIST, shuffled: 50,000 rows in batches, and the others to attack with."""
    data = load_images("mnist")
    x, y = data.train.x.float().numpy(), data.train.label.numpy()
    order = np.random.default_rng(seed).permutation(len(x))
    batches = {k: Part(x[rows], y[rows]) for k, rows in enumerate(order[:50_000].reshape(100, -1))}
    test = Part(data.test.x.float().numpy(), data.test.label.numpy())
    return Data(batches, Part(x[order[50_000:]], y[order[50_000:]]), test, 10, 5, 4, {})


def intents(seed: int) -> Data:
    """Every second intent of CLINC150 in tenths, in a random order; a fifth of the sentences is never taught."""
    data = load("clinc150", Encoder(), ngrams=False)
    names = np.unique(data.train.y)[::2]
    train, test = (
        Part(part.x[own], np.searchsorted(names, part.y[own]))
        for part in (data.train, data.test)
        for own in [np.isin(part.y, names)]
    )
    generator = np.random.default_rng(seed)
    groups, untaught = [], []
    for c in range(len(names)):
        rows = generator.permutation(np.flatnonzero(train.y == c))
        few = len(rows) // 5
        untaught.append(rows[:few])
        groups += np.array_split(rows[few:], 10)
    fresh = Part(*(values[np.concatenate(untaught)] for values in train))
    order = [groups[i] for i in generator.permutation(len(groups))]
    batches = {k: Part(train.x[rows], train.y[rows]) for k, rows in enumerate(order)}
    settings = {"batch_size": 32, "learning_rate_init": 3e-3, "hidden_layer_sizes": (256,)}
    return Data(batches, fresh, test, len(names), 2, 4, settings)


SETS: dict[str, Callable[[int], Data]] = {"mnist": images, "clinc150": intents}


class Ours:
    """`ContinualPFC`; a batch leaves parts of its own."""

    def __init__(self, data: Data, seed: int) -> None:
        features = data.fresh.x.shape[1]
        self.model = ContinualPFC(features, data.classes, columns_per_class=data.parts, solver=FewParts())
        self.seed, self.again = seed, 0.0

    def teach(self, batches: Batches) -> None:
        """Learns batch after batch."""
        for name, (x, y) in batches.items():
            generator = torch.Generator().manual_seed(self.seed)
            self.model.learn(torch.from_numpy(x), torch.from_numpy(y), batch=name, generator=generator)

    def forget(self, names: Collection[int]) -> None:
        """Takes batches out."""
        self.model.forget(names)

    @torch.no_grad()
    def scores(self, x: Any) -> Any:
        """What each class explains."""
        return self.model(torch.from_numpy(x)).numpy()

    def state(self) -> Any:
        """Of all that it knows."""
        return fingerprint(self.model)


class Sisa:
    """Sharded, isolated, sliced and aggregated training."""

    shards = SHARDS

    def __init__(self, data: Data, seed: int) -> None:
        self.data, self.seed, self.again = data, seed, 0.0
        self.kept: list[list[MLPClassifier]] = []
        """The model of each shard after each slice, and at first the one that has seen none."""

    def teach(self, batches: Batches) -> None:
        """Trains each shard, slice after slice."""
        places = np.random.default_rng(self.seed).permutation(len(self.data.batches)).tolist()
        self.place = {name: divmod(place, SLICES) for name, place in zip(self.data.batches, places, strict=True)}
        self.batches = dict(batches)
        fresh = MLPClassifier(random_state=self.seed, **self.data.perceptron)
        self.kept = [[deepcopy(fresh)] for _ in range(self.shards)]
        self.shown = sum(self._train(shard, 0) for shard in range(self.shards))

    def forget(self, names: Collection[int]) -> None:
        """Goes back, in each shard, to before the first slice with one of the batches, and trains on without them."""
        first: dict[int, int] = {}
        for name in names:
            shard, part = self._where(name)
            first[shard] = min(part, first.get(shard, SLICES))
            del self.batches[name]
        self.again = sum(self._train(shard, part) for shard, part in first.items()) / self.shown

    def _where(self, name: int) -> tuple[int, int]:
        """Shard and slice of a batch, whatever else there is."""
        group, part = self.place[name]
        return group % self.shards, part

    def _train(self, shard: int, start: int) -> int:
        """Trains a shard from a slice on; how many rows were shown."""
        shown, kept = 0, self.kept[shard][: start + 1]
        for part in range(start, SLICES):
            own = [batch for name, batch in self.batches.items() if self._up_to(name, shard, part)]
            x, y = (np.concatenate(some) for some in zip(*own, strict=True))
            model = deepcopy(kept[-1])
            for _ in range(self.data.epochs):
                model.partial_fit(x, y, classes=np.arange(self.data.classes))
                shown += len(x)
            kept.append(model)
        self.kept[shard] = kept
        return shown

    def _up_to(self, name: int, shard: int, part: int) -> bool:
        where, when = self._where(name)
        return where == shard and when <= part

    def scores(self, x: Any) -> Any:
        """The mean of the probabilities."""
        return np.mean([models[-1].predict_proba(x) for models in self.kept], axis=0)

    def state(self) -> Any:
        """All weights."""
        return [weight.tobytes() for models in self.kept for weight in (*models[-1].coefs_, *models[-1].intercepts_)]


class Perceptron(Sisa):
    """A single one, which sees everything as often as the perceptrons of SISA see their shard."""

    shards = 1

    def _train(self, shard: int, start: int) -> int:
        x, y = (np.concatenate(some) for some in zip(*self.batches.values(), strict=True))
        model, epochs = deepcopy(self.kept[shard][0]), round(self.data.epochs * (SLICES + 1) / 2)
        for _ in range(epochs):
            model.partial_fit(x, y, classes=np.arange(self.data.classes))
        self.kept[shard] = [self.kept[shard][0], model]
        return epochs * len(x)


LEARNERS: dict[str, type[Ours] | type[Sisa]] = {
    "ours": Ours,
    "sisa": Sisa,
    "perceptron": Perceptron,
}


def timed(learner: Ours | Sisa, data: Data, what: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the processor, and of the first answer afterwards."""
    begin = time.process_time()
    what()
    done = time.process_time()
    learner.scores(data.test.x[:1])
    return done - begin, time.process_time() - done


def look(learner: Ours | Sisa, data: Data, gone: Part) -> tuple[dict[str, float], Any]:
    """Accuracy and attack, and the scores of the test rows."""
    like = np.isin(data.fresh.y, gone.y)
    fresh = Part(data.fresh.x[like][:5000], data.fresh.y[like][:5000])
    losses = [-torch.from_numpy(learner.scores(p.x)[np.arange(len(p.y)), p.y]).double() for p in (gone, fresh)]
    attack, scores = membership(*losses), learner.scores(data.test.x)
    accuracy = 100 * float((scores.argmax(1) == data.test.y).mean())
    return {"accuracy": accuracy, "auroc": attack.auroc, "standard_error": attack.standard_error}, scores


def measure(make: type[Ours] | type[Sisa], data: Data, seed: int) -> dict[str, Any]:
    """Teaches, forgets, and teaches another without."""
    asked = np.random.default_rng(100 + seed).choice(len(data.batches), round(SHARE * len(data.batches)), replace=False)
    names = [int(name) for name in asked]
    gone = Part(*(np.concatenate(some) for some in zip(*(data.batches[name] for name in names), strict=True)))
    rest = {name: batch for name, batch in data.batches.items() if name not in names}
    learner, never = make(data, seed), make(data, seed)
    taught = timed(learner, data, lambda: learner.teach(data.batches))
    before, _ = look(learner, data, gone)
    forget = timed(learner, data, lambda: learner.forget(names))
    retrain = timed(never, data, lambda: never.teach(rest))
    after, scores = look(learner, data, gone)
    found: dict[str, Any] = {"teach_seconds": taught, "forget_seconds": forget, "retrain_seconds": retrain}
    found |= {"share_again": learner.again, "forgotten_rows": len(gone.y)}
    if isinstance(learner, Ours):
        found["alone_seconds"] = alone(make, data, rest, seed)
    same = learner.state() == never.state() and np.array_equal(scores[:1000], never.scores(data.test.x[:1000]))
    return found | {"before": before, "after": after, "same_bits": bool(same)}


def alone(make: type[Ours] | type[Sisa], data: Data, batches: Batches, seed: int) -> float:
    """Seconds that the batches take each by itself: the least that training anew can cost."""
    begin = time.process_time()
    for name, batch in batches.items():
        make(data, seed).teach({name: batch})
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=[*LEARNERS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "forgetting.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = read_json(arguments.out)["data"] if arguments.out.exists() else {}
    machine = describe()
    machine["versions"]["scikit-learn"] = sklearn.__version__
    for name in arguments.sets:
        found = done.setdefault(name, {"learners": {}})
        for seed in arguments.seeds:
            data = SETS[name](seed)
            rows = sum(len(batch.y) for batch in data.batches.values())
            found |= {"rows": rows, "batches": len(data.batches), "epochs": data.epochs, "parts": data.parts}
            for key in arguments.learners:
                told = measure(LEARNERS[key], data, seed)
                runs = found["learners"].setdefault(key, [])
                runs[:] = [*(run for run in runs if run["seed"] != seed), {"seed": seed, **told}]
                print(name, seed, key, told, flush=True)
                protocol = {"question": __doc__.splitlines()[0], "shards": SHARDS, "slices": SLICES, "share": SHARE}
                write_json(arguments.out, {**protocol, "data": done, **machine})


if __name__ == "__main__":
    main()
