"""A classifier that says why."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from torchpfc.sklearn.base import DTYPES
from torchpfc.sklearn.calibration import fit_sharpness
from torchpfc.sklearn.learning import class_parts
from torchpfc.sklearn.rows import Array, Rows, check_weights
from torchpfc.sklearn.saving import labels_from_json, labels_to_json
from torchpfc.sklearn.supervised import SupervisedPFC

_MOST_PER_CLASS = 30
"""Parts that a class gets at most where nobody says how many."""


class PFCClassifier(ClassifierMixin, SupervisedPFC):  # type: ignore[misc]
    r"""Classifies inputs by the parts that they are made of.

    A `PFCBlock` explains an input as a sum of parts, and the score of a class is what these parts add to it:
    $y = \sum_r W_y[:, r]\, h_r$. `explain` shows that sum. Parts begin as means of similar examples of each class,
    $W_y$ is found by least squares, and both are then learned together by gradients.

    Args:
        n_components: How many parts; fewer where there are fewer examples. `"auto"` is one for every five examples, 20
            to 30 a class where there are enough of them.
        nonnegative: Whether parts and what they add are non-negative (NMF) or free (semi-NMF). `"auto"` is the former
            where no entry of X is negative.
        fit_intercept: Whether inputs get one more feature, a constant. Without it, and with `l1=0`, an input that is
            twice as large has twice the scores, and so the same class. `"auto"` adds it where parts may be negative.
        l1: Weight of the sum of h in what h minimizes, for inputs scaled to a size of 1; makes explanations short.
        reconstruction: What the error of the reconstruction counts in learning, where that of the scores counts 1.
        inference_steps: Steps in which a code is found.
        max_iter: Epochs of learning by gradients, at most.
        learning_rate: Of these.
        batch_size: Examples in a step; `"auto"` is 200.
        early_stopping: Whether to stop when the error of the rows held out no longer falls, and to go back to where it
            was smallest.
        validation_fraction: Rows to hold out. They calibrate probabilities and recognition as well, and the estimator
            keeps up to 1,000 of them. Where they would be fewer than 5, all rows are learned from and used for this.
        n_iter_no_change: Epochs without a smaller error after which to stop.
        tol: How much smaller it must be, relatively.
        parts_per_batch: How many parts each call of `partial_fit` adds; `"auto"` is one for every five examples.
        device: Where to compute, such as `"cuda"`; the CPU by default.
        random_state: Seed of everything random.
        verbose: Whether to print progress.

    Attributes:
        classes_: The labels, sorted.
        components_: The parts, in the units of the input.
        block_: The block itself.
        ledger_: Which batch wrote which parts.
        n_iter_: Epochs that were made; calls of `partial_fit` after the first of those.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PFCClassifier(n_components=50, max_iter=0, random_state=0).fit(X[:500], y[:500])
        >>> model.components_.shape
        (50, 64)
        >>> explanation = model.explain(X[500:501])
        >>> explanation.answers == [str(model.predict(X[500:501])[0])]
        True
    """

    classes_: Array
    sharpness_: float
    """The factor between scores and the logarithms of odds, from the rows held out."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learns from all examples at once.

        Args:
            X: Inputs, of shape (n, n_features).
            y: Their classes, of any type that can be sorted.
            sample_weight: What each example counts. 2 is the same as having it twice.
        """
        self._check_params()
        X, y = validate_data(self, X, y, dtype=DTYPES)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        weight = check_weights(sample_weight, len(X))
        self.classes_, labels = np.unique(y, return_inverse=True)
        if (known := len(np.unique(labels[weight > 0]))) < 2:
            raise ValueError(f"y must hold at least two classes, got {known} class")
        self._fit(X, labels.reshape(-1, 1), weight)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, batch_id: int | None = None
    ) -> Self:
        """Learns from one batch, without changing what was learned before.

        Each call adds parts of its own: means of similar examples of the same class, each of which stands for that
        class. So batches may come in any order, sorted by class too, and `forget` can take one of them out again.

        Args:
            X: Inputs, of shape (n, n_features). The first batch decides how inputs are scaled, and whether parts may be
                negative.
            y: Their classes.
            classes: All classes that there will ever be; needed in the first call.
            sample_weight: What each example counts.
            batch_id: The number under which `forget` knows this batch; the next one by default.
        """
        self._check_params()
        first = not hasattr(self, "block_")
        X, y = validate_data(self, X, y, dtype=DTYPES, reset=first)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        weight = check_weights(sample_weight, len(X))
        self._check_classes(classes, first=first)
        if len(unknown := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"y must hold labels of classes ({self.classes_.tolist()}), got {unknown.tolist()}")
        self._partial_fit(X, np.searchsorted(self.classes_, y).reshape(-1, 1), weight, batch_id, first=first)
        return self

    def decision_function(self, X: Any) -> Array:
        """The scores of the classes.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            An array of shape (n, n_classes); with two classes, how much the score of the second exceeds that of the
            first, of shape (n,).
        """
        scores = self._numpy(self._couple(X)[2])
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Array:
        """The class with the highest score.

        Args:
            X: Inputs, of shape (n, n_features_in_).
        """
        scores = self._couple(X)[2]
        labels: Array = self.classes_[self._numpy(scores.argmax(1))]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, calibrated by the rows that were held out.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            An array of shape (n, n_classes).
        """
        scores = self._couple(X)[2]
        return self._numpy(torch.softmax(self.sharpness_ * scores, 1))

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of `predict_proba`.

        Args:
            X: Inputs, of shape (n, n_features_in_).
        """
        scores = self._couple(X)[2]
        return self._numpy(torch.log_softmax(self.sharpness_ * scores, 1))

    def _check_classes(self, classes: Any, *, first: bool) -> None:
        if first:
            if classes is None:
                raise ValueError("classes must be given in the first call of partial_fit, got None")
            known = np.unique(np.asarray(classes))
            if len(known) < 2:
                raise ValueError(f"classes must hold at least two classes, got {len(known)} class")
            self.classes_ = known
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes must be those of the first call ({self.classes_.tolist()}), got others")

    def _targets(self, raw: Array) -> Tensor:
        return F.one_hot(torch.tensor(raw[:, 0], dtype=torch.int64), len(self.classes_))

    def _find_parts(
        self, rows: Rows, count: int | None, fewest: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        labels = rows.target.argmax(1)
        W_x, owners = class_parts(rows.x, labels, rows.weight, count, generator, fewest=fewest, most=_MOST_PER_CLASS)
        one_hot = F.one_hot(owners.clamp(min=0), len(self.classes_)).to(rows.x.dtype)
        one_hot[owners < 0] = 1 / len(self.classes_)
        return W_x, one_hot.mT

    def output_names(self) -> tuple[str, ...]:
        """The classes."""
        return tuple(str(label) for label in self.classes_.tolist())

    def _calibrate(self) -> Tensor:
        y = super()._calibrate()
        if len(y):
            self.sharpness_ = fit_sharpness(y, self.held_out_.target, self.held_out_.weight)
        return y

    def _extra_state(self) -> dict[str, Any]:
        return {"classes": labels_to_json(self.classes_), "sharpness": self.sharpness_, "n_iter": self.n_iter_}

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        self.classes_ = labels_from_json(state["classes"])
        self.sharpness_, self.n_iter_ = float(state["sharpness"]), int(state["n_iter"])
