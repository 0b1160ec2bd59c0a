"""Trains the networks of the demo and looks into them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.data.streams import Stream, corrupt, fixed_shuffle
from torchpfc.demo.digits import Digits, Splits, load_splits
from torchpfc.demo.progress import Progress, Tick
from torchpfc.demo.results import (
    Classifier,
    Count,
    Explanation,
    Findings,
    Forgetting,
    Lessons,
    Others,
    Parts,
    Recognition,
    Reconstructions,
    Term,
)
from torchpfc.demo.settings import (
    CORRUPTED,
    KNOWN_SHARE,
    MAX_TERMS,
    NUM_EXAMPLES,
    SCORE_SHARE,
    TASKS,
    Settings,
    Training,
)
from torchpfc.demo.training import answers, fit, loss, mlp, pfc
from torchpfc.nn import PFCBlock, keep_nonnegative
from torchpfc.optim import Ledger, RMSprop, RMSpropSLW, SlidingWindow
from torchpfc.unlearning import forget

STAGES = {
    "Training a PFC block": 10.0,
    "Training an MLP": 1.0,
    "Teaching an MLP two digits at a time": 1.0,
    "Teaching a PFC block two digits at a time": 3.0,
    "Teaching a PFC block through a window": 2.0,
    "Teaching a PFC block some wrong labels": 3.0,
}
"""What is done, and about how many seconds it takes."""


def find_out(settings: Settings, *, seed: int, progress: Progress) -> Findings:
    """Measures everything that the page shows.

    Args:
        settings: How.
        seed: Decides the validation digits, the first weights and the order of the digits.
        progress: Told what is going on.
    """
    splits = load_splits(seed)
    block = pfc(settings.units, settings.iterations, _generator(seed))
    with progress.stage("Training a PFC block") as tick:
        block_score = learn_all_classes(block, splits, settings.pfc, seed, tick)
    with progress.stage("Training an MLP") as tick:
        mlp_score = learn_all_classes(mlp(settings.units, _generator(seed)), splits, settings.mlp, seed, tick)

    num_columns = columns_needed(splits.train, settings.task_window, settings.window)
    perceptron = mlp(num_columns, _generator(seed))
    plain, windowed = (pfc(num_columns, settings.iterations, _generator(seed)) for _ in range(2))
    with progress.stage("Teaching an MLP two digits at a time") as tick:
        task_mlp = teach(perceptron, _rmsprop(perceptron, settings.task_mlp), splits, settings.task_mlp, seed, tick)
    with progress.stage("Teaching a PFC block two digits at a time") as tick:
        task_pfc = teach(plain, _rmsprop(plain, settings.task_pfc), splits, settings.task_pfc, seed, tick)
    with progress.stage("Teaching a PFC block through a window") as tick:
        optimizer = _rmsprop_slw(windowed, settings.task_window, settings.window)
        task_window = teach(windowed, optimizer, splits, settings.task_window, seed, tick)

    with progress.stage("Teaching a PFC block some wrong labels") as tick:
        forgetting = learn_and_forget(splits, settings, seed, tick)

    return Findings(
        seed=seed,
        settings=settings,
        sizes=(len(splits.train), len(splits.validation), len(splits.test)),
        pfc=block_score,
        mlp=mlp_score,
        parts=describe_parts(block),
        explanations=tuple(explain(block, splits.test, row) for row in choose_examples(block, splits.test)),
        recognition=recognise(block, splits, _generator(seed)),
        num_columns=num_columns,
        task_mlp=task_mlp,
        task_pfc=task_pfc,
        task_window=task_window,
        window_parts=describe_parts(windowed),
        forgetting=forgetting,
    )


def learn_all_classes(model: nn.Module, splits: Splits, training: Training, seed: int, tick: Tick) -> Classifier:
    """Trains a network on all classes at once and tests it."""
    optimizer = _rmsprop(model, training)
    for epoch in fit(model, optimizer, splits.train, splits.validation, training, _generator(seed)):
        tick(epoch.number / training.max_epochs)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Classifier(parameters, epoch.best, count_right(model, splits.test))


def teach(model: nn.Module, optimizer: Optimizer, splits: Splits, training: Training, seed: int, tick: Tick) -> Lessons:
    """Teaches one task after another without showing an earlier one again, and tests all of them after each.

    As in the paper, a task ends when the validation loss over all classes taught so far stops falling, and the next
    starts from the best epoch.
    """
    generator = _generator(seed)
    epochs, tests, unfinished = [], [], []
    for k, task in enumerate(TASKS):
        optimizer.state.clear()  # running averages of the gradient belong to one task
        validation = splits.validation.of([digit for known in TASKS[: k + 1] for digit in known])
        for epoch in fit(model, optimizer, splits.train.of(task), validation, training, generator):
            tick((k + epoch.number / training.max_epochs) / len(TASKS))
        epochs.append(epoch.best)
        tests.append(tuple(count_right(model, splits.test.of(classes)) for classes in TASKS))
        if isinstance(optimizer, RMSpropSLW):
            _, reached = optimizer.param_groups[0]["window"]
            unfinished.append(range(optimizer.window.columns.start, reached))
    return Lessons(training, tuple(epochs), tuple(tests), tuple(unfinished))


def learn_and_forget(splits: Splits, settings: Settings, seed: int, tick: Tick) -> Forgetting:
    """Teaches a block batches of which some have wrong labels, and takes out what these wrote.

    The order of the batches never changes, and the window starts anew in each epoch: so a batch always writes the same
    columns. A second block, which skips those batches, shows what there is to gain.
    """
    order = fixed_shuffle(len(splits.train), seed=seed)
    stream = Stream(splits.train.x, splits.train.target, order, batch_size=settings.corrupted.batch_size)
    bad = range(*(int(share * len(stream)) for share in CORRUPTED))
    taught, ledger = learn_stream(corrupt(stream, bad), settings, seed, lambda done: tick(done / 2))
    spared, _ = learn_stream(stream, settings, seed, lambda done: tick((1 + done) / 2), without=bad)
    parts, before = describe_parts(taught), count_right(taught, splits.test)
    (columns,) = ledger.columns_of(bad)
    forget(taught, ledger, batches=bad)
    after, never = count_right(taught, splits.test), count_right(spared, splits.test)
    return Forgetting(len(stream), bad, columns, parts, before, after, never)


def learn_stream(
    stream: Stream, settings: Settings, seed: int, tick: Tick, *, without: range = range(0)
) -> tuple[PFCBlock, Ledger]:
    """Teaches a block numbered batches, but for some, and notes which columns each of them could write."""
    window, training = settings.corrupted_window, settings.corrupted
    num_columns = window.advance(len(stream) - 1).columns.stop
    block = pfc(num_columns, settings.iterations, _generator(seed))
    optimizer = _rmsprop_slw(block, training, window)
    ledger = Ledger()
    ledger.watch(optimizer)
    for epoch in range(training.max_epochs):
        optimizer.reset_window()
        for id, (x, target, rows) in zip(stream.ids, stream, strict=True):
            if id in without:
                optimizer.skip()
                continue
            optimizer.zero_grad()
            loss(block, Digits(x, target.argmax(1))).backward()  # type: ignore[no-untyped-call]
            with ledger.batch(id, rows):
                optimizer.step()
        tick((epoch + 1) / training.max_epochs)
    return block, ledger


def columns_needed(train: Digits, training: Training, window: SlidingWindow) -> int:
    """How many columns a window reaches when every task takes all its epochs."""
    steps = sum(math.ceil(len(train.of(task)) / training.batch_size) for task in TASKS) * training.max_epochs
    return window.advance(steps - 1).columns.stop


def count_right(model: nn.Module, digits: Digits) -> Count:
    """How many digits a network gives the right class."""
    return Count(int((answers(model, digits) == digits.label).sum()), len(digits))


@torch.no_grad()
def describe_parts(block: PFCBlock) -> Parts:
    """The pictures of a block's columns, and the classes that they stand for."""
    peaks = block.weight_x.amax(0)
    return Parts((block.weight_x / peaks).T, peaks, (block.weight_y / block.weight_y.sum(0)).T)


def choose_examples(block: PFCBlock, test: Digits, num_right: int = NUM_EXAMPLES) -> list[int]:
    """The first digits of different classes that a block gets right, then the first that it gets wrong."""
    right = (answers(block, test) == test.label).tolist()
    first: dict[int, int] = {}
    for row, label in enumerate(test.label.tolist()):
        if right[row] and len(first) < num_right:
            first.setdefault(label, row)
    return [*first.values(), *[row for row, is_right in enumerate(right) if not is_right][:1]]


@torch.no_grad()
def explain(block: PFCBlock, digits: Digits, row: int) -> Explanation:
    r"""Takes a prediction apart: $x = \sum_r W_x[:, r] h_r + \mathrm{rest}$ and $y = \sum_r W_y[:, r] h_r$.

    Args:
        block: The network.
        digits: Where the digit is from.
        row: Which it is.
    """
    x = digits.x[row]
    out = block.eval().couple(x)
    answer = int(out.y.argmax())
    parts = describe_parts(block)
    amounts = parts.peaks * out.h
    scores = block.weight_y[answer] * out.h

    order = scores.argsort(descending=True)
    num_terms = min(MAX_TERMS, 1 + int((scores[order].cumsum(0) < SCORE_SHARE * out.y[answer]).sum()))
    shown, hidden = order[:num_terms], order[num_terms:]
    terms = tuple(Term(r, float(amounts[r]), parts.images[r], float(scores[r])) for r in shown.tolist())
    visible = int((amounts[hidden] > 0.01).sum())
    others = Others(visible, amounts[hidden] @ parts.images[hidden], float(scores[hidden].sum()))
    rest = x - out.x

    picture = sum((term.amount * term.image for term in terms), start=others.image + rest)
    assert torch.allclose(picture, x, atol=1e-5), "the parts and the rest must add up to the digit"
    score = sum(term.score for term in terms) + others.score
    assert math.isclose(score, out.y[answer], abs_tol=1e-5), "what the parts add must be the score"
    return Explanation(row, x, int(digits.label[row]), answer, out.y, terms, others, rest)


def recognise(block: PFCBlock, splits: Splits, generator: torch.Generator) -> Recognition:
    """Compares digits with the same pixels in disorder and with uniform noise."""
    digits = splits.test.x
    shuffled = torch.stack([x[torch.randperm(len(x), generator=generator)] for x in digits])
    noise = torch.rand(digits.shape, generator=generator)
    threshold = reconstruct(block, splits.validation.x).unexplained.quantile(KNOWN_SHARE)
    return Recognition(
        digits=reconstruct(block, digits),
        labels=splits.test.label,
        shuffled=reconstruct(block, shuffled),
        noise=reconstruct(block, noise),
        threshold=float(threshold),
    )


@torch.no_grad()
def reconstruct(block: PFCBlock, x: Tensor) -> Reconstructions:
    """Puts inputs together from parts."""
    reconstruction = block.eval().couple(x).x
    return Reconstructions(x, reconstruction, (x - reconstruction).norm(dim=1) / x.norm(dim=1))


def _rmsprop(model: nn.Module, training: Training) -> Optimizer:
    optimizer = RMSprop(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    if isinstance(model, PFCBlock):
        keep_nonnegative(model, optimizer)
    return optimizer


def _rmsprop_slw(block: PFCBlock, training: Training, window: SlidingWindow) -> RMSpropSLW:
    optimizer = RMSpropSLW(
        block.parameters(),
        lr=training.lr,
        weight_decay=training.weight_decay,
        width=window.width,
        sweep_speed=window.sweep_speed,
    )
    keep_nonnegative(block, optimizer)
    return optimizer


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
