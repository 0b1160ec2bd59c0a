"""From a folder on disk, or from nothing, to a model and the examples to look at it with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from torchpfc.checkpoint import STATE_FILE, CorruptFileError
from torchpfc.data.formats import DataError
from torchpfc.data.images import IMAGE_SETS, load_images
from torchpfc.explorer.examples import MOST_EXAMPLES, Examples, Shape, guess_shape, read_examples
from torchpfc.explorer.subjects import BlockSubject, EstimatorSubject, Subject
from torchpfc.unlearning import load_model

READY_NAME = "digits, class by class"
READY_SOURCE = "test images of digits"
BATCHES_PER_CLASS = 3
PARTS_PER_BATCH = 6
_FEWEST_EXAMPLES, _AFFORDABLE = 100, 300_000_000

MOST_WRITTEN = 20_000_000
"""Columns that all batches of a ledger may name together: the page shows who wrote each."""

HELD_OUT = 0.125
"""Share of the ready model's training digits that it is calibrated with."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model, and examples that fit it."""

    subject: Subject
    examples: Examples


def ready_model(seed: int = 0) -> Loaded:
    """Trains a classifier on scikit-learn's digits, one class after another, in a second or so.

    Each class comes in three batches of its own, so that there is something to see over time and something to forget.

    Args:
        seed: Of everything random.
    """
    from torchpfc.sklearn import PFCClassifier

    data = load_images("digits")
    x, y = data.train.x.numpy(), data.train.label.numpy()
    model = PFCClassifier(parts_per_batch=PARTS_PER_BATCH, validation_fraction=HELD_OUT, random_state=seed)
    for label in range(data.num_classes):
        for rows in np.array_split(np.flatnonzero(y == label), BATCHES_PER_CLASS):
            model.partial_fit(x[rows], y[rows], classes=range(data.num_classes))
    test = data.test
    return Loaded(EstimatorSubject(model, READY_NAME), Examples(test.x, test.label, READY_SOURCE, test.shape))


def load(
    model: Path | None, data: str | None = None, *, shape: tuple[int, int] | None = None, data_dir: Path | None = None
) -> Loaded:
    """Loads a model that was saved, and examples for it.

    Args:
        model: A folder of `save_pretrained` or of `save_model`; None trains a model on digits.
        data: As for `read_examples`. None takes the rows that an estimator holds out, and for a block the test images
            of the set that it was trained on.
        shape: Rows and columns of an image; None finds out.
        data_dir: The folder of data sets.

    Raises:
        CorruptFileError: Where the folder holds no model.
        DataError: Where the examples cannot be read, or do not fit the model.
    """
    if model is None:
        if data is not None:
            raise DataError(f"--data must come with a model, got {data!r} and no model")
        return ready_model()
    from torchpfc.sklearn.saving import saved_class

    if (kind := saved_class(model)) is not None:
        subject, examples = _load_estimator(model, kind, data, data_dir)
    elif (model / STATE_FILE).is_file():
        subject, examples = _load_block(model, data, data_dir)
    else:
        raise CorruptFileError(
            f"the model must be a folder that save_pretrained or save_model wrote, got {str(model)!r}"
        )
    count = examples.x.shape[1]
    written = sum(len(part) for id in subject.ledger.batches for part in subject.ledger.columns_of([id]))
    if written > MOST_WRITTEN:
        raise CorruptFileError(f"{model} must have a ledger of at most {MOST_WRITTEN} columns in all, got {written}")
    if count != subject.num_features:
        size = f"{subject.num_features} numbers each, as the model takes them"
        raise DataError(f"the examples must have {size}, got {count} in {examples.source}")
    lowest = float(examples.x.nan_to_num(nan=0.0).min())
    if subject.block.nonnegative and lowest < 0:
        raise DataError(f"the examples must not be negative for this model, got {lowest:.3g}")
    if not subject.takes_gaps and bool(examples.x.isnan().any()):
        raise DataError(f"the examples must have no gaps (NaN) for this model, got some in {examples.source}")
    examples = replace(examples, shape=_shape(examples, shape))
    return Loaded(subject, examples.select(slice(affordable(subject.block.num_basis))))


def affordable(num_basis: int) -> int:
    """How many examples a model of this size is looked at with, so that it answers in seconds: a code costs r².

    Example:
        >>> affordable(300), affordable(1000), affordable(5000)
        (1000, 300, 100)
    """
    return min(MOST_EXAMPLES, max(_FEWEST_EXAMPLES, _AFFORDABLE // num_basis**2))


def _load_estimator(folder: Path, kind: str, data: str | None, data_dir: Path | None) -> tuple[Subject, Examples]:
    from torchpfc import sklearn as estimators

    if kind not in estimators.__all__:
        raise CorruptFileError(f"{folder} must be of an estimator ({', '.join(estimators.__all__)}), got {kind!r}")
    estimator = getattr(estimators, kind).from_pretrained(folder, device="cpu")
    subject = EstimatorSubject(estimator, folder.resolve().name)
    names = tuple(map(str, getattr(estimator, "feature_names_in_", ())))
    if names:
        del estimator.feature_names_in_  # or it would warn of every input without names
    if data is not None:
        found = read_examples(data, subject.outputs if subject.classes else (), data_dir)
        return subject, replace(found, features=names if len(names) == found.x.shape[1] else ())
    held = estimator.held_out_
    if not len(held.x):
        raise DataError(f"--data must be given, since {folder} holds no examples of its own")
    labels = held.target.argmax(1) if subject.classes else None
    given = estimator.scale_.restored(estimator.scale_.decode(held.x)).to(subject.block.weight_x.dtype)
    examples = Examples(given, labels, "rows that the model keeps", features=names)
    # Mixed, in an order that is always the same: rows held out lie in the order of the batches, and so of classes.
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    return subject, examples.select(order[:MOST_EXAMPLES])


def _load_block(folder: Path, data: str | None, data_dir: Path | None) -> tuple[Subject, Examples]:
    saved = load_model(folder)
    config = saved.about.get("config")
    source = data or (config.get("dataset") if isinstance(config, dict) else None)
    if data is None and source is not None and source not in IMAGE_SETS:  # never a file that a stranger names
        raise CorruptFileError(f"{folder} must name one of {', '.join(IMAGE_SETS)} as its data; give --data instead")
    if source is None:
        raise DataError(f"--data must be given, since {folder} does not say what the model was trained on")
    classes = tuple(str(k) for k in range(saved.block.out_features))
    examples = read_examples(str(source), classes, data_dir)
    known = examples.labels is not None
    return BlockSubject(saved.block, saved.ledger, folder.resolve().name, examples.x, classes=known), examples


def _shape(examples: Examples, asked: tuple[int, int] | None) -> Shape | None:
    count = examples.x.shape[1]
    if asked is None:
        return examples.shape or (None if examples.features else guess_shape(count))
    rows, columns = asked
    if count not in (rows * columns, 3 * rows * columns):
        raise DataError(f"--shape must be that of {count} numbers, got {rows}x{columns}")
    return count // (rows * columns), rows, columns
