"""Trains the networks of the demo and looks into them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.data.images import Images, load_images
from torchpfc.data.streams import SPLIT_PAIRS, Stream, corrupt, fixed_shuffle
from torchpfc.interpret import Explanation, explain
from torchpfc.interpret.recognition import p_values
from torchpfc.nn import MLP, PFCBlock, keep_nonnegative
from torchpfc.optim import Ledger, RMSprop, RMSpropSLW, SlidingWindow
from torchpfc.progress import Progress
from torchpfc.solvers import FISTA, Implicit
from torchpfc.training import Batch, Batches, EarlyStopping, Evaluation, SquaredErrors, evaluate, fit
from torchpfc.unlearning import Snapshots, forget, retrain_without

NUM_PIXELS = 64
NUM_CLASSES = 10

UNITS = 60
"""Parts of the block, and hidden units of the MLP, that learn all classes at once."""

ITERATIONS = 30
"""Steps in which a block finds its code."""

WEIGHT_DECAY = 1e-4

KNOWN_SHARE = 0.95
"""What share of the validation digits counts as recognised."""

CORRUPTED = (0.4, 0.8)
"""Where the batches with wrong labels begin and end, as shares of all batches."""

Tick = Callable[[float], None]
"""Told the share of a training that is done, from 0 to 1."""


@dataclass(frozen=True)
class Training:
    """How a network learns.

    Args:
        lr: Learning rate.
        max_epochs: Passes over the training digits, at most.
        patience: Passes without a lower validation loss after which training stops.
        batch_size: Digits in one step.
        window: Which columns learn; None for all of them.
        seconds: About how long it takes.
    """

    lr: float
    max_epochs: int
    patience: int
    batch_size: int
    window: SlidingWindow | None = None
    seconds: float = 1.0


# Each network has the learning rate and the number of epochs with the best mean accuracy on the validation digits of
# seeds 100, 101 and 102, and the window likewise. Tried for all classes at once: learning rates from 3e-4 to 1e-2, 40
# to 100 units; the accuracy of the block is no higher after 100 epochs than after 20. For one task after another:
# learning rates from 2e-6 to 1e-2, 1 to 200 epochs, windows 5 to 30 columns wide, sweep speeds from 0.25 to 1. The slow
# rates of the two without a window are those at which they keep most: at the rates that suit all classes at once, they
# know the last task alone. With wrong labels, on seeds 100 and 101: windows 8 to 20 columns wide, learning rates from
# 4e-3 to 2e-2, chosen by the accuracy after the forgetting.
TRAININGS = {
    "Training a PFC block": Training(1e-2, max_epochs=20, patience=10, batch_size=50, seconds=4),
    "Training an MLP": Training(3e-3, max_epochs=100, patience=10, batch_size=50),
    "Teaching an MLP two digits at a time": Training(3e-5, max_epochs=30, patience=5, batch_size=20),
    "Teaching a PFC block two digits at a time": Training(2e-5, max_epochs=8, patience=5, batch_size=20, seconds=3),
    "Teaching a PFC block through a window": Training(4e-3, 6, 5, 20, SlidingWindow(10, 0.5), seconds=2),
    "Teaching a PFC block some wrong labels": Training(2e-2, 8, 8, 20, SlidingWindow(12, 4), seconds=3),
}
"""What is done, in this order, and how."""

SMOKE = {name: replace(training, max_epochs=1) for name, training in TRAININGS.items()}
"""For tests: everything happens, and little is learned."""


class Splits(NamedTuple):
    """Digits to learn from, to choose with, and to report on."""

    train: Images
    validation: Images
    test: Images


@dataclass(frozen=True)
class Count:
    """How many of some digits were right."""

    right: int
    total: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        from scipy.stats import binomtest  # type: ignore[import-untyped]

        interval = binomtest(self.right, self.total).proportion_ci(0.95, method="wilson")
        return interval.low, interval.high

    def __str__(self) -> str:
        return percent(self.share)


@dataclass(frozen=True)
class Classifier:
    """A network that learned all classes at once."""

    training: Training
    parameters: int
    epochs: int
    """After which it was best."""
    test: Count


@dataclass(frozen=True)
class Lessons:
    """A network that learned one task after another."""

    training: Training
    tests: tuple[tuple[Count, ...], ...]
    """Row k was measured after task k, column j on the classes of task j."""
    columns: tuple[range, ...]
    """Where there is a window: what it left behind in each task; what it had reached at the end belongs to the last."""

    @property
    def final(self) -> Count:
        """Right answers over all classes, after the last task."""
        return Count(sum(count.right for count in self.tests[-1]), sum(count.total for count in self.tests[-1]))


@dataclass(frozen=True, eq=False)
class Forgetting:
    """A block that learned from some wrong labels, and then had them taken out."""

    num_batches: int
    corrupted: range
    """Which batches had wrong labels."""
    columns: range
    """What these could write, and so what was removed."""
    learned: Explanation
    """Of the test digits, with all columns as they were before."""
    before: Count
    after: Count
    never: Count
    """Of a block that skipped these batches."""


@dataclass(frozen=True, eq=False)
class Findings:
    """All that the page shows."""

    seed: int
    splits: Splits
    at_once: dict[str, Classifier]
    kinds: dict[str, Explanation]
    """What the block makes of the test digits, of the same pixels in disorder, and of noise."""
    limit: float
    """How much of a digit may stay unexplained where it counts as recognised."""
    in_tasks: dict[str, Lessons]
    windowed: Explanation
    """Of the test digits, by the block with a window."""
    forgetting: Forgetting


def find_out(trainings: Mapping[str, Training], *, seed: int, progress: Progress) -> Findings:
    """Measures everything that the page shows.

    Args:
        trainings: As `TRAININGS`.
        seed: Decides the validation digits, the first weights and the order of the digits.
        progress: Told what is going on.
    """
    splits, ticks = load_splits(seed), _begin(trainings, progress)
    pfc, mlp, task_mlp, task_pfc, task_window, wrong = trainings.values()
    block, num_columns = make_pfc(UNITS, seed), columns_needed(splits.train, task_window)
    plain, windowed = make_pfc(num_columns, seed), make_pfc(num_columns, seed)
    at_once = {
        "PFC block": learn_all_classes(block, pfc, splits, seed, next(ticks)),
        "MLP": learn_all_classes(make_mlp(UNITS, seed), mlp, splits, seed, next(ticks)),
    }
    in_tasks = {
        "MLP with RMSprop": teach(make_mlp(num_columns, seed), task_mlp, splits, seed, next(ticks)),
        "PFC block with RMSprop": teach(plain, task_pfc, splits, seed, next(ticks)),
        "PFC block with RMSpropSLW": teach(windowed, task_window, splits, seed, next(ticks)),
    }
    forgetting = learn_and_forget(wrong, splits, seed, next(ticks))
    kinds, limit = recognise(block, splits, _generator(seed))
    return Findings(seed, splits, at_once, kinds, limit, in_tasks, explain(windowed, splits.test.x), forgetting)


def load_splits(seed: int) -> Splits:
    """Splits the digits 60 : 20 : 20, with the same share of each class in every part.

    The test digits are the same for every seed. So a setting that was chosen on the validation digits of any seed has
    never seen them.

    Args:
        seed: Decides which of the other digits are for validation.
    """
    from sklearn.model_selection import train_test_split

    digits = load_images("digits")
    rest = range(len(digits.train))
    rows = train_test_split(rest, test_size=0.25, stratify=digits.train.label, random_state=seed)
    train, validation = (digits.train.select(torch.tensor(some)) for some in rows)
    return Splits(train, validation, digits.test)


def make_pfc(num_basis: int, seed: int) -> PFCBlock:
    """A block for digits, with the paper's inference in fewer steps and a gradient through its end point."""
    solver, adjoint = FISTA.paper(ITERATIONS), Implicit.fast()
    return PFCBlock(NUM_PIXELS, NUM_CLASSES, num_basis, solver=solver, adjoint=adjoint, generator=_generator(seed))


def make_mlp(hidden_features: int, seed: int) -> MLP:
    """A perceptron for digits."""
    return MLP(NUM_PIXELS, NUM_CLASSES, hidden_features, generator=_generator(seed))


def make_optimizer(model: nn.Module, training: Training) -> RMSprop | RMSpropSLW:
    """RMSprop as the paper uses it, with its window if there is one; the weights of a block stay non-negative."""
    params, lr, window = model.parameters(), training.lr, training.window
    optimizer: RMSprop | RMSpropSLW
    if window is None:
        optimizer = RMSprop(params, lr, weight_decay=WEIGHT_DECAY)
    else:
        speed = window.sweep_speed
        optimizer = RMSpropSLW(params, lr, weight_decay=WEIGHT_DECAY, width=window.width, sweep_speed=speed)
    if isinstance(model, PFCBlock):
        keep_nonnegative(model, optimizer)
    return optimizer


def learn_all_classes(model: nn.Module, training: Training, splits: Splits, seed: int, tick: Tick) -> Classifier:
    """Trains a network on all classes at once and tests it."""
    epochs = learn(model, make_optimizer(model, training), training, splits, seed, tick)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Classifier(training, parameters, epochs, count_right(model, splits.test))


def teach(model: nn.Module, training: Training, splits: Splits, seed: int, tick: Tick) -> Lessons:
    """Teaches one task after another without showing an earlier one again, and tests all of them after each.

    As in the paper, a task ends when the validation loss over all classes taught so far stops falling, and the next
    starts from the best epoch.
    """
    optimizer, tests, starts = make_optimizer(model, training), [], [0]
    for k, task in enumerate(SPLIT_PAIRS):
        optimizer.state.clear()  # running averages of the gradient belong to one task
        known = of_classes(splits.validation, sum(SPLIT_PAIRS[: k + 1], ()))
        lesson = splits._replace(train=of_classes(splits.train, task), validation=known)
        learn(model, optimizer, training, lesson, seed, _part(tick, k, len(SPLIT_PAIRS)))
        tests.append(tuple(count_right(model, of_classes(splits.test, classes)) for classes in SPLIT_PAIRS))
        if isinstance(optimizer, RMSpropSLW):
            starts.append(optimizer.window.columns.start)
    if isinstance(optimizer, RMSpropSLW):
        starts[-1] = optimizer.param_groups[0]["window"][1]
    return Lessons(training, tuple(tests), tuple(range(*ends) for ends in pairwise(starts)))


def learn(model: nn.Module, optimizer: Optimizer, training: Training, splits: Splits, seed: int, tick: Tick) -> int:
    """Trains until the validation loss stops falling, then goes back to the best epoch; says which that was.

    The optimizer returns to the best epoch too, and its window with it.
    """
    stopping = EarlyStopping(training.patience, watch_accuracy=False)
    batches = make_batches(splits.train, training, seed)
    number, kept = 0, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for stats in fit(model, optimizer, batches, objective(model), epochs=training.max_epochs):
        if stopping.update(*measure(model, splits.validation)):
            number, kept = stats.epoch + 1, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        tick((stats.epoch + 1) / training.max_epochs)
        if stopping.stopped:
            break
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    return number


def learn_and_forget(training: Training, splits: Splits, seed: int, tick: Tick) -> Forgetting:
    """Teaches a block batches of which some have wrong labels, and takes out what these wrote.

    The order of the batches never changes, and the window starts anew in each epoch: so a batch always writes the same
    columns. Learning again without those batches shows what there is to gain.
    """
    train, order = splits.train, fixed_shuffle(len(splits.train), seed=seed)
    stream = Stream(train.x, target_of(train), order, batch_size=training.batch_size)
    bad = range(*(int(share * len(stream)) for share in CORRUPTED))
    block = make_pfc(columns_reached(training, len(stream)), seed)
    optimizer, ledger = make_optimizer(block, training), Ledger()
    assert isinstance(optimizer, RMSpropSLW)
    snapshots = Snapshots(block, optimizer, ledger, every=len(stream))

    def learn_stream(tick: Tick) -> None:
        batches, epochs = snapshots.follow(corrupt(stream, bad)), training.max_epochs
        for stats in fit(block, optimizer, batches, objective(block), epochs=epochs, first_epoch=snapshots.epoch):
            optimizer.reset_window()
            tick((stats.epoch + 1) / epochs)

    learn_stream(_part(tick, 0, 2))
    learned, forgetful = copy.deepcopy(block), copy.deepcopy(block)
    (columns,) = ledger.columns_of(bad)
    forget(forgetful, copy.deepcopy(ledger), batches=bad)
    retrain_without(lambda: learn_stream(_part(tick, 1, 2)), snapshots, batches=bad)
    counts = (count_right(model, splits.test) for model in (learned, forgetful, block))
    return Forgetting(len(stream), bad, columns, explain(learned, splits.test.x), *counts)


def recognise(block: PFCBlock, splits: Splits, generator: torch.Generator) -> tuple[dict[str, Explanation], float]:
    """Explains digits, the same pixels in disorder and noise, and finds how much may stay unexplained of a digit."""
    digits = splits.test.x
    shuffled = torch.stack([x[torch.randperm(len(x), generator=generator)] for x in digits])
    noise = torch.rand(digits.shape, generator=generator)
    kinds = {"Test digits": digits, "The same digits, pixels shuffled": shuffled, "Uniform noise": noise}
    held_out = explain(block, splits.validation.x).unexplained
    known = p_values(held_out, held_out, torch.ones_like(held_out)) > 1 - KNOWN_SHARE
    return {name: explain(block, x) for name, x in kinds.items()}, float(held_out[known].max())


def columns_needed(train: Images, training: Training) -> int:
    """How many columns a window reaches when every task takes all its epochs."""
    batches = sum(len(make_batches(of_classes(train, task), training, 0)) for task in SPLIT_PAIRS)
    return columns_reached(training, batches * training.max_epochs)


def columns_reached(training: Training, steps: int) -> int:
    """How many columns a window reaches in a number of steps."""
    assert training.window is not None
    return training.window.advance(steps - 1).columns.stop


def make_batches(train: Images, training: Training, seed: int) -> Batches:
    """Digits in batches, in an order that is new in every epoch."""
    return Batches(train.x, target_of(train), batch_size=training.batch_size, seeds=seed)


def objective(model: nn.Module) -> SquaredErrors:
    """The squared error of the answer; for a block, half of it is that of the reconstruction."""
    return SquaredErrors(0.5, 0.5) if isinstance(model, PFCBlock) else SquaredErrors()


def measure(model: nn.Module, digits: Images) -> Evaluation:
    """How good a network is on some digits."""
    return evaluate(model, [Batch(digits.x, target_of(digits))], objective(model))


def count_right(model: nn.Module, digits: Images) -> Count:
    """How many digits a network gives the right class."""
    return Count(round(float(measure(model, digits).accuracy) * len(digits)), len(digits))


def of_classes(digits: Images, classes: Collection[int]) -> Images:
    """Those of some classes."""
    return digits.select(torch.isin(digits.label, torch.tensor(list(classes))))


def target_of(digits: Images) -> Tensor:
    """The labels as rows of zeros with a single 1."""
    return F.one_hot(digits.label, NUM_CLASSES).to(digits.x.dtype)


def percent(share: float, digits: int = 1) -> str:
    r"""A share from 0 to 1 in percent.

    Example:
        >>> percent(0.5)
        '50.0\xa0%'
    """
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def _begin(trainings: Mapping[str, Training], progress: Progress) -> Iterator[Tick]:
    """What to tell how far each training is; taking the next one begins it."""
    start = 0.0
    for label, training in trainings.items():
        progress.at(start, label)
        yield progress.part(start, training.seconds)
        start += training.seconds


def _part(tick: Tick, k: int, count: int) -> Tick:
    """What to tell how far the k-th of equal parts is."""
    return lambda share: tick((k + share) / count)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
