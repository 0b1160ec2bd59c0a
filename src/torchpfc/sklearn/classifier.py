"""A classifier that says why."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from torchpfc.continual import ContinualPFC, RidgeReadout
from torchpfc.continual.certificate import Content, content_of
from torchpfc.interpret import Explanation
from torchpfc.interpret.recognition import Usual
from torchpfc.optim.ledger import Ledger
from torchpfc.sklearn.base import DTYPES, LENIENT
from torchpfc.sklearn.calibration import fit_sharpness
from torchpfc.sklearn.learning import class_parts, joint_means, suitable_count
from torchpfc.sklearn.rows import FEWEST_HELD_OUT, Array, InputScale, Rows, check_weights, dense
from torchpfc.sklearn.saving import labels_from_json, labels_to_json
from torchpfc.sklearn.supervised import FEWEST_PARTS, SupervisedPFC
from torchpfc.sklearn.taught import Held, TaughtClasses, hold_out_of_batch, names_of_features

_SHARPNESS = 20.0
"""The factor between scores and the logarithms of odds, where no row was held out to tell."""

_MOST_OF_SEVERAL = 100
"""Parts at most where an input may have several labels, and nobody says how many."""

_MOST_PER_CLASS = 30
"""Parts that a class gets at most where nobody says how many."""


@dataclass(eq=False, repr=False)
class PFCClassifier(ClassifierMixin, SupervisedPFC):  # type: ignore[misc]
    r"""Classifies inputs by the parts that they are made of.

    A `PFCBlock` explains an input as a sum of parts, and the score of a class is what these parts add to it:
    $y = \sum_r W_y[:, r]\, h_r$. `explain` shows that sum. Parts begin as means of similar examples of each class,
    $W_y$ is found by least squares, and both are then learned together by gradients.

    Args:
        n_components: How many parts; fewer where there are fewer examples. `"auto"` is one for every five examples, 20
            to 30 a class where there are enough of them.
        nonnegative: Whether parts and what they add are non-negative (NMF) or free (semi-NMF). `"auto"` is the former
            where no entry of X is negative and features have a common scale.
        fit_intercept: Whether inputs get one more feature, a constant. Without it, and with `l1=0`, an input that is
            twice as large has twice the scores, and so the same class. `"auto"` adds it where parts may be negative.
        scale: `"features"` brings each feature to a scale of its own, by its median and quartiles, so that tables need
            no scaler; the parts stay in the units of the table. `"common"` divides all by one number: for images and
            counts. None takes them as they are. `"auto"` is `"features"`, unless there are 16 features or more that
            vary, none is ever negative, and they are alike in size: three in four reach half the largest value, or half
            of all entries are zero and no feature reaches more than 100 times what is usual.
        l1: Weight of the sum of h in what h minimizes, for inputs scaled to a size of 1; makes explanations short.
        reconstruction: What the error of the reconstruction counts in learning, where that of the scores counts 1.
        inference_steps: Steps in which a code is found, of `FISTA`; rounds of `FewParts` at most where parts are
            non-negative.
        max_iter: Epochs of learning by gradients, at most.
        learning_rate: Of these; `"auto"` is 0.1 over the root of the number of features, as the entries of a part of
            norm 1 are about as small.
        batch_size: Examples in a step; `"auto"` is one in twenty, from 32 to 200.
        early_stopping: Whether to stop when the error of the rows held out no longer falls, and to go back to where it
            was smallest.
        validation_fraction: Rows to hold out; in `fit` 20 at least, but no more than a third. They calibrate
            probabilities and recognition as well, and the estimator keeps up to 1,000 of them. Where they would be
            fewer than 5, all rows are learned from and used for this.
        n_iter_no_change: Epochs without a smaller error after which to stop; `"auto"` is as many as have 500 steps, 5
            to 10 of them.
        tol: How much smaller it must be, relatively; and by more than a standard error over the rows held out.
        parts_per_batch: How many parts each call of `partial_fit` adds; `"auto"` is one for every two examples, and
            135 at most for each class.
        class_weight: What each class counts, as a dict; `"balanced"` counts classes alike that have few examples or
            many.
        max_parts: How many parts `partial_fit` makes at most, in all; then the most similar of a class become one.
        read_out: What `partial_fit` adds to the scores, from running sums; see `torchpfc.continual.RidgeReadout`.
        wait: Whether `partial_fit` waits for a second example of a class before it gets a part.
        device: Where to compute, such as `"cuda"`; the CPU by default.
        random_state: Seed of everything random.
        verbose: Whether to print progress.

    Attributes:
        classes_: The labels, sorted.
        components_: The parts, in the units of the input.
        block_: The block itself.
        ledger_: Which batch wrote which parts.
        n_iter_: Epochs that `fit` made, or batches that `partial_fit` was given and that are not forgotten.

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

    class_weight: Any = None
    max_parts: int | None = None
    read_out: RidgeReadout | None = None
    wait: bool = False

    _taught: TaughtClasses = field(init=False)
    classes_: Array = field(init=False)
    sharpness_: float = field(init=False)
    """The factor between scores and the logarithms of odds, from the rows held out."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learns from all examples at once.

        Args:
            X: Inputs, of shape (n, n_features).
            y: Their classes, of any type that can be sorted; or an array of zeros and ones, of shape (n, n_labels),
                where an input may have several labels at once.
            sample_weight: What each example counts. 2 is the same as having it twice.
        """
        self._check_params()
        X, y = validate_data(self, X, y, dtype=DTYPES, multi_output=True, **LENIENT)
        X, y = dense(X), dense(y)
        self.multilabel_ = y.ndim == 2 and y.shape[1] > 1
        if self.multilabel_:
            return self._fit_labels(X, y, sample_weight)
        y = _labels_of(y)
        weight = check_weights(sample_weight, len(X)) * self._class_weights(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if (known := len(np.unique(labels[weight > 0]))) < 2:
            raise ValueError(f"y must hold at least two classes, got {known} class")
        self._fit(X, labels.reshape(-1, 1), weight)
        return self

    def _fit_labels(self, x: Array, y: Array, sample_weight: Any) -> Self:
        """Learns several labels at once, each by itself from the same codes."""
        if not np.isin(y, (0, 1)).all():
            raise ValueError(
                f"y must hold zeros and ones where it has several columns, got {np.unique(y)[:5].tolist()}"
            )
        if self.class_weight is not None:
            raise ValueError(f"class_weight must be None with several labels at once, got {self.class_weight!r}")
        self.classes_ = np.arange(y.shape[1])
        self._fit(x, y, check_weights(sample_weight, len(x)))
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, batch_id: Hashable = None
    ) -> Self:
        """Learns from one batch, and leaves what was learned before as it is.

        A `ContinualPFC` learns, `learner_`: each batch adds parts of its own, means of similar examples of one class,
        and an input belongs to the class whose parts explain it best. What a batch leaves depends on it alone; scales
        and probabilities are computed from what all batches left. So batches may come in any order, sorted by class
        too, and `forget` gives the model that never saw one of them, bit for bit. A call that fails changes nothing.
        After `fit`, the first call begins anew, with a warning.

        Args:
            X: Inputs, of shape (n, n_features).
            y: Their classes.
            classes: All classes that there will ever be; by default those that come.
            sample_weight: What each example counts.
            batch_id: The name under which `forget` knows this batch, anything that can be a key of a dict; a free
                number by default.
        """
        self._check_params()
        with self._unchanged_by_errors():
            first = not hasattr(self, "_taught")
            X, y = validate_data(self, X, y, dtype=DTYPES, reset=first, **LENIENT)
            y = _labels_of(y)
            if y.dtype == object and all(isinstance(label, str) for label in y.tolist()):
                y = y.astype(str)  # one type for the same labels, however they are given
            X, weight = dense(X), check_weights(sample_weight, len(y))
            content = content_of(X, y, None if sample_weight is None else weight)
            self._teach(X, y, weight * self._class_weights(y), classes, batch_id, content)
        return self

    def _teach(self, x: Array, y: Array, weight: Array, classes: Any, batch_id: Hashable, content: Content) -> None:
        anew = not hasattr(self, "_taught")
        taught: TaughtClasses = self._new_taught(classes) if anew else self._taught
        if taught.announced is not None and len(unknown := np.setdiff1d(y, taught.announced)):
            raise ValueError(f"y must hold labels of classes ({taught.announced.tolist()}), got {unknown.tolist()}")
        if anew:
            self._draw_batch_seed()
        else:
            self._check_classes(classes, taught, y)
        used = weight > 0
        x, y, weight = x[used], y[used], weight[used]
        labels = torch.as_tensor(np.unique(y, return_inverse=True)[1].reshape(-1))
        learned, few = hold_out_of_batch(len(x), labels, self.validation_fraction, fewest=FEWEST_HELD_OUT)
        count = None
        if self.parts_per_batch != "auto":
            count = max(1, int(self.parts_per_batch) // len(np.unique(y)))
        held = Held(x[few], y[few], weight[few])
        x, y, weight = x[learned], y[learned], weight[learned]
        taught.teach(x, y, weight, held, batch=batch_id, content=content, count=count, seed=self.batch_seed_)
        if anew and hasattr(self, "block_"):
            warnings.warn("partial_fit begins anew, without what fit had learned from all rows at once", stacklevel=3)
        self._taught = taught
        self._say(f"batch {taught.batches[-1]!r}: {used.sum()} rows, {taught.learner.num_basis} parts in all")
        self._follow()

    def decision_function(self, X: Any) -> Array:
        """The scores of the classes.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            An array of shape (n, n_classes); with two classes, how much the score of the second exceeds that of the
            first, of shape (n,).
        """
        scores = self._numpy(self._outputs(X).double())
        if self._several():
            return scores - 0.5
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Array:
        """The class with the highest score; with several labels at once, ones for those that are likelier than not.

        Args:
            X: Inputs, of shape (n, n_features_in_).
        """
        scores = self._outputs(X)
        if self._several():
            return self._numpy((scores > 0.5).long())
        labels: Array = self.classes_[self._numpy(scores.argmax(1))]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, calibrated by the rows that were held out.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            An array of shape (n, n_classes).
        """
        scores = self._outputs(X).double()
        if self._several():
            return self._numpy(torch.softmax(self.sharpness_ * _odds(scores), 2)[..., 1])
        return self._numpy(torch.softmax(self.sharpness_ * scores, 1))

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of `predict_proba`.

        Args:
            X: Inputs, of shape (n, n_features_in_).
        """
        scores = self._outputs(X).double()
        if self._several():
            return self._numpy(torch.log_softmax(self.sharpness_ * _odds(scores), 2)[..., 1])
        return self._numpy(torch.log_softmax(self.sharpness_ * scores, 1))

    # What was taught batch by batch

    @property
    def learner_(self) -> ContinualPFC:
        """What learns in `partial_fit`."""
        if not hasattr(self, "_taught"):
            raise AttributeError("learner_ is there after partial_fit")
        return self._taught.learner

    @property
    def ledger_(self) -> Ledger:
        """Which batch wrote which parts."""
        return self._taught.ledger() if hasattr(self, "_taught") else self._ledger

    @ledger_.setter
    def ledger_(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def _announced(self) -> dict[str, Any] | None:
        return None if self._taught.announced is None else labels_to_json(self._taught.announced)

    def _new_taught(self, classes: Any = None) -> TaughtClasses:
        announced = None if classes is None else _labels_of(np.asarray(classes), what="classes")
        learner = ContinualPFC(
            self.n_features_in_,
            scale="common" if self.scale is None else self.scale,  # type: ignore[arg-type]
            max_parts=self.max_parts,
            read_out=self.read_out,
            wait=bool(self.wait),
            device=self._device(),
        )
        return TaughtClasses(learner, None if announced is None else np.unique(announced))

    def _check_classes(self, classes: Any, taught: TaughtClasses, y: Array) -> None:
        known = taught.classes
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), known):
            raise ValueError(f"classes must be those of the first call ({known.tolist()}), got others")
        if len(known) and (known.dtype.kind in "US") != (y.dtype.kind in "US"):
            raise ValueError(f"y must hold labels like those before ({known[:2].tolist()}), got {y[:2].tolist()}")

    def _follow(self) -> None:
        """Takes over what follows from what was taught."""
        taught = self._taught
        self.classes_, self.n_iter_ = taught.classes, len(taught.learner.batches)
        if taught.learner.block is None:
            if hasattr(self, "block_"):
                del self.block_
            return
        self.block_ = taught.learner.block
        self.scale_ = InputScale(1.0, constant=False)
        self.held_out_ = taught.rows()
        self._calibrate()

    def _couple(self, X: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if not hasattr(self, "_taught"):
            return super()._couple(X)
        given = self._given(X)
        coupling = self.learner_.couple(given)
        return given, coupling.h, self._taught.scores(coupling.y), self.learner_.reconstruct(given)

    def _outputs(self, X: Any) -> Tensor:
        if not hasattr(self, "_taught"):
            return super()._outputs(X)
        return self._taught.scores(self.learner_.couple(self._given(X)).y)

    def encode(self, x: Tensor) -> Tensor:
        """Inputs as the block sees them.

        Args:
            x: Inputs, of shape (n, n_features_in_).
        """
        return self.learner_.prepare(x) if hasattr(self, "_taught") else super().encode(x)

    @property
    def components_(self) -> Array:
        """The parts in the units of the input, of shape (n_components_, n_features_in_)."""
        if not hasattr(self, "_taught"):
            components: Array = super().components_
            return components
        return self._numpy(self.learner_.means.nan_to_num(nan=0.0))

    def explain(self, X: Any, *, features: Sequence[str] = ()) -> Explanation:
        """Takes predictions apart: which parts, how much of each, and what each adds to every output.

        After `partial_fit` the parts are those of the answer, which explains the input by itself; what is added by the
        read-out and to other classes is the base. Inputs and parts are as the learner sees them: of norm 1, and each
        feature by what is above its usual value and what is below.

        Args:
            X: Inputs, of shape (n, n_features_in_).
            features: Names of the features, by which parts are called; by default those of the data frame that the
                estimator was fitted with.

        Returns:
            The sums, checked to add up, in the units of inputs and outputs; prints as tables.
        """
        if not hasattr(self, "_taught"):
            return super().explain(X, features=features)
        learner, given = self.learner_, self._given(X)
        out = learner.couple(given)
        h, owners = learner.by_answer(out), learner.owners
        gain = (out.gain / h.clamp(min=torch.finfo(h.dtype).tiny)).where(h > 0, 0.0)
        outputs = F.one_hot(owners.clamp(min=0), out.y.shape[1]).to(h).mT  # (k, r)
        weight_y = gain.unsqueeze(1) * outputs
        weight_x = learner.block.weight_x.detach() if learner.block is not None else h.new_empty(0, 0)
        names = tuple(map(str, features if len(features) else getattr(self, "feature_names_in_", ())))
        return Explanation(
            x=learner.prepare(given).double().cpu(),
            y=out.y.double().cpu(),
            h=h.double().cpu(),
            weight_x=weight_x.double().cpu(),
            weight_y=weight_y.double().cpu(),
            base=(out.y - (weight_y @ h.unsqueeze(2)).squeeze(2)).double().cpu(),
            outputs=self.output_names(),
            classes=True,
            features=names_of_features(names, len(weight_x)),
        )

    def recognition_score(self, X: Any) -> Array:
        """Is this input like what was learned? The share of rows held out that are as odd as this one, or odder.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            A p-value for each; see `smallest_p_value_`.
        """
        if not hasattr(self, "_taught"):
            return super().recognition_score(X)
        given = self._given(X)
        coupling = self.learner_.couple(given)
        return self._numpy(self._usual.p_values(self.learner_.prepare(given), self.learner_.explained(coupling)))

    def _class_weights(self, y: Array) -> Array:
        weights: Array = compute_sample_weight(self.class_weight, y)
        return weights

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _several(self) -> bool:
        """Whether an input may have several labels at once."""
        return bool(getattr(self, "multilabel_", False)) and not hasattr(self, "_taught")

    def _labels(self, rows: Rows) -> Tensor | None:
        return None if self._several() else super()._labels(rows)

    def _targets(self, raw: Array) -> Tensor:
        if self._several():
            return torch.tensor(raw)
        return F.one_hot(torch.tensor(raw[:, 0], dtype=torch.int64), len(self.classes_))

    def _find_parts(self, rows: Rows, count: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self._several():
            count = suitable_count(len(rows.x), FEWEST_PARTS, _MOST_OF_SEVERAL) if count is None else count
            return joint_means(rows, count, generator)
        labels = rows.target.argmax(1)
        W_x, owners = class_parts(
            rows.x, labels, rows.weight, count, generator, fewest=FEWEST_PARTS, most=_MOST_PER_CLASS
        )
        one_hot = F.one_hot(owners.clamp(min=0), len(self.classes_)).to(rows.x.dtype)
        one_hot[owners < 0] = 1 / len(self.classes_)
        return W_x, one_hot.mT

    def output_names(self) -> tuple[str, ...]:
        """The classes."""
        return tuple(str(label) for label in self.classes_.tolist())

    def _calibrate(self) -> Tensor:
        if hasattr(self, "_taught"):
            rows = self.held_out_
            coupling = self.learner_.couple(rows.x)
            seen, explained = self.learner_.prepare(rows.x), self.learner_.explained(coupling)
            self._usual = Usual.of(seen, explained, rows.weight.to(seen))
            y, self.sharpness_ = coupling.y, _SHARPNESS
        else:
            y = super()._calibrate()
        if self._several():
            both = _odds(y).flatten(0, 1)
            target = F.one_hot(self.held_out_.target.flatten().long(), 2)
            self.sharpness_ = fit_sharpness(both, target, self.held_out_.weight.repeat_interleave(y.shape[1]))
        elif len(y):
            self.sharpness_ = fit_sharpness(y, self.held_out_.target, self.held_out_.weight)
        return y

    def _learned(self) -> dict[str, Any]:
        if not hasattr(self, "_taught"):
            return super()._learned()
        return self._about_features() | {"taught": self._taught.state(), "seed": self.batch_seed_}

    def _take_over(self, learned: dict[str, Any], device: torch.device) -> None:
        if "taught" not in learned:
            super()._take_over(learned, device)
            return
        self._take_over_features(learned)
        self._taught, self.batch_seed_ = self._new_taught(), int(learned["seed"])
        self._taught.load(learned["taught"])
        self._follow()

    def _extra_state(self) -> dict[str, Any]:
        learned = {"classes": labels_to_json(self.classes_), "sharpness": self.sharpness_, "n_iter": self.n_iter_}
        return learned | {"multilabel": self._several()}

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        self.classes_ = labels_from_json(state["classes"])
        self.sharpness_, self.n_iter_ = float(state["sharpness"]), int(state["n_iter"])
        self.multilabel_ = bool(state.get("multilabel", False))  # version 0.1 had one label for each input


def _odds(scores: Tensor) -> Tensor:
    """For each label by itself how much speaks against it and how much for it, of shape (n, k, 2)."""
    return torch.stack([0.5 - scores, scores - 0.5], 2)


def _labels_of(y: Any, *, what: str = "y") -> Array:
    """Labels of classes as an array, checked."""
    labels: Array = column_or_1d(y, warn=True)
    try:
        np.unique(labels)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in labels.tolist()})
        raise ValueError(f"{what} must hold labels that can be sorted, got {' and '.join(kinds)}") from None
    check_classification_targets(labels)
    return labels
