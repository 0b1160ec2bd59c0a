"""A regressor that says why."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from torchpfc.continual.certificate import content_of
from torchpfc.continual.portion import mean_parts
from torchpfc.continual.scaling import Moments, Sketch
from torchpfc.nmf.normalization import unit_columns
from torchpfc.sklearn.base import DTYPES, LENIENT
from torchpfc.sklearn.learning import couple, joint_means, readout, suitable_count
from torchpfc.sklearn.rows import Array, Rows, check_weights, dense, distinct
from torchpfc.sklearn.staged import StagedPFC, TaughtNumbers
from torchpfc.sklearn.supervised import FEWEST_PARTS, SupervisedPFC

_MOST_PARTS = 100
"""Parts at most where nobody says how many."""

_MOST_OF_A_BATCH = 135
"""Parts of a batch at most where nobody says how many."""


@dataclass(eq=False, repr=False)
class PFCRegressor(RegressorMixin, MultiOutputMixin, SupervisedPFC, StagedPFC):  # type: ignore[misc]
    r"""Predicts numbers, one or several, from the parts that inputs are made of.

    A `PFCBlock` explains an input as a sum of parts, and a prediction is a base plus what these parts add:
    $y = b + \sum_r W_y[:, r]\, h_r$. `explain` shows that sum. Parts begin as means of similar examples, $W_y$ is found
    by least squares, and both are then learned together by gradients.

    Where parts are non-negative the base is the smallest y, so that parts only add to it. Otherwise it is the mean, and
    parts add and subtract.

    Args:
        n_components: How many parts; fewer where there are fewer examples. `"auto"` is one for every five examples, 20
            to 100 where there are enough of them.
        nonnegative: Whether parts and what they add are non-negative (NMF) or free (semi-NMF). `"auto"` is the former
            where no entry of X is negative and features have a common scale.
        fit_intercept: Whether inputs get one more feature, a constant. Without it, predictions less the base are
            proportional to the size of an input. `"auto"` adds it.
        scale: `"features"` brings each feature to a scale of its own, by its median and quartiles, so that tables need
            no scaler; the parts stay in the units of the table. `"common"` divides all by one number: for images and
            counts. None takes them as they are. `"auto"` is `"features"`, unless there are 16 features or more that
            vary, none is ever negative, and they are alike in size: three in four reach half the largest value, or half
            of all entries are zero and no feature reaches more than 100 times what is usual.
        l1: Weight of the sum of h in what h minimizes, for inputs scaled to a size of 1; makes explanations short.
        reconstruction: What the error of the reconstruction counts in learning, where that of the prediction, scaled to
            a standard deviation of 1, counts 1.
        inference_steps: Steps in which a code is found, of `FISTA`; rounds of `FewParts` at most where parts are
            non-negative.
        max_iter: Epochs of learning by gradients, at most.
        learning_rate: Of these; `"auto"` is 0.1 over the root of the number of features, as the entries of a part of
            norm 1 are about as small.
        batch_size: Examples in a step; `"auto"` is one in twenty, from 32 to 200.
        early_stopping: Whether to stop when the error of the rows held out no longer falls, and to go back to where it
            was smallest.
        validation_fraction: Rows to hold out; in `fit` 20 at least, but no more than a third. They calibrate
            recognition as well, and the estimator keeps up to 1,000 of them. Where they would be fewer than 5, all rows
            are learned from and used for this.
        n_iter_no_change: Epochs without a smaller error after which to stop; `"auto"` is as many as have 500 steps, 5
            to 10 of them.
        tol: How much smaller it must be, relatively; and by more than a standard error over the rows held out.
        parts_per_batch: How many parts each call of `partial_fit` adds; `"auto"` is one for every two examples, and 135
            at most.
        device: Where to compute, such as `"cuda"`; the CPU by default.
        random_state: Seed of everything random.
        verbose: Whether to print progress.

    Attributes:
        components_: The parts, in the units of the input.
        base_: What is predicted where there is no part at all, one number for each output.
        block_: The block itself.
        ledger_: Which batch wrote which parts.
        n_iter_: Epochs that `fit` made, or batches that `partial_fit` was given and that are not forgotten.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> model = PFCRegressor(max_iter=0, random_state=0).fit(X, np.abs(X[:, 0]) + X[:, 1])
        >>> model.predict(X[:2]).shape
        (2,)
        >>> bool(model.score(X, np.abs(X[:, 0]) + X[:, 1]) > 0.9)
        True
    """

    _: KW_ONLY
    reconstruction: float = 0.5

    base_: Array = field(init=False)
    output_scale_: Array = field(init=False)
    """Units in which the block predicts each output."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learns from all examples at once.

        Args:
            X: Inputs, of shape (n, n_features).
            y: Numbers to predict, of shape (n,) or (n, n_outputs).
            sample_weight: What each example counts. 2 is the same as having it twice.
        """
        self._check_params()
        X, y = validate_data(self, X, y, dtype=DTYPES, multi_output=True, y_numeric=True, **LENIENT)
        X = dense(X)
        weight = check_weights(sample_weight, len(X))
        self._one_output = y.ndim == 1
        self._fit(X, np.asarray(y, dtype=X.dtype).reshape(len(X), -1), weight)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, batch_id: Hashable = None) -> Self:
        """Learns from one batch, and leaves what was learned before as it is.

        Each batch adds parts of its own, means of similar rows. What a batch leaves depends on it alone; scales, base
        and what the parts add are computed from what all batches left. So batches may come in any order, sorted by y
        too, and `forget` gives the model that never saw one of them, bit for bit. A call that fails changes nothing.
        After `fit`, the first call begins anew, with a warning.

        Args:
            X: Inputs, of shape (n, n_features).
            y: Numbers to predict, of shape (n,) or (n, n_outputs).
            sample_weight: What each example counts.
            batch_id: The name under which `forget` knows this batch, anything that can be a key of a dict; a free
                number by default.
        """
        self._check_params()
        with self._unchanged_by_errors():
            first = not hasattr(self, "_taught")
            X, y = validate_data(self, X, y, dtype=DTYPES, multi_output=True, y_numeric=True, reset=first, **LENIENT)
            X = dense(X)
            raw = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
            if first:
                self._one_output = y.ndim == 1
            elif raw.shape[1] != len(self.base_):
                raise ValueError(f"y must have {len(self.base_)} outputs, as in the first call, got {raw.shape[1]}")
            self._lowest(X)
            weight = check_weights(sample_weight, len(X))
            content = content_of(X, y, None if sample_weight is None else weight)
            self._teach(*distinct(X.astype(np.float64), raw, weight), batch_id, content)
        return self

    def predict(self, X: Any) -> Array:
        """Predicts numbers.

        Args:
            X: Inputs, of shape (n, n_features_in_).

        Returns:
            An array of shape (n,) or (n, n_outputs), as y was.
        """
        y = self._outputs(X).double()
        base, scale = self._affine()
        predicted = self._numpy(base + scale * y)
        return predicted[:, 0] if self._one_output else predicted

    def _set_targets(self, raw: Array, weight: Array, *, nonnegative: bool) -> None:
        raw = raw.astype(np.float64)
        mean = np.average(raw, axis=0, weights=weight)
        largest = np.abs(raw - mean).max(0) + np.finfo(np.float64).tiny
        spread = largest * np.sqrt(np.average(((raw - mean) / largest) ** 2, axis=0, weights=weight))
        self.base_ = raw.min(0) if nonnegative else mean
        self.output_scale_ = np.where(spread > 0, spread, 1.0)

    def _targets(self, raw: Array) -> Tensor:
        return torch.tensor((raw - self.base_) / self.output_scale_)

    def _find_parts(self, rows: Rows, count: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if count is None:
            count = suitable_count(len(rows.x), FEWEST_PARTS, _MOST_PARTS)
        return joint_means(rows, count, generator)

    def _parts_of_batch(
        self, rows: Tensor, weight: Tensor, sketch: Sketch, moments: Moments, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        width, targets = self.n_features_in_, moments.select(slice(self.n_features_in_, None))
        scale, _ = self._scale_by(sketch, moments, width)
        x, y = scale.encode(rows[:, :width]), (rows[:, width:] - targets.mean) / _unit(targets)
        x = x.where(~x.isnan(), x.nanmean(0).nan_to_num(nan=0.0))
        count = _MOST_OF_A_BATCH if self.parts_per_batch == "auto" else int(self.parts_per_batch)
        count = min(count, max(1, len(rows) // 2))
        return mean_parts(rows, torch.cat([x, y], 1), count, weight=weight, generator=generator)

    def _weights(self, sketch: Sketch, moments: Moments) -> tuple[Tensor, Tensor, bool]:
        taught, features = self._taught, slice(self.n_features_in_)
        targets = slice(self.n_features_in_, None)
        self.scale_, nonnegative = self._scale_by(sketch, moments, self.n_features_in_)
        base = sketch.select(targets).points.amin(0) if nonnegative else moments.select(targets).mean
        self.base_, self.output_scale_ = base.numpy(), _unit(moments.select(targets)).numpy()
        parts, held = taught.parts.mT, taught.rows(most=None)
        x, target = parts[:, features], torch.cat([parts[:, targets], held.target])
        x = x.where(~x.isnan(), moments.select(features).mean)
        W_x = unit_columns(self.scale_.encode(x).nan_to_num(nan=0.0).mT).float().to(self._device())
        block = self._new_block(W_x, W_x.new_zeros(target.shape[1], len(parts)), nonnegative=nonnegative)
        # The code of a part is that part alone, and says little of other rows: so rows held out have a say too.
        h, _, _ = couple(block, self.scale_.encode(torch.cat([x, held.x])).to(W_x))
        weight = torch.cat([taught.counts, held.weight]).to(W_x)
        return W_x, readout(h, self._targets(target.numpy()).to(W_x), weight, nonnegative=nonnegative), nonnegative

    def _new_taught(self) -> TaughtNumbers:
        return TaughtNumbers(self.n_features_in_)

    def output_names(self) -> tuple[str, ...]:
        """One name for each target."""
        return ("y",) if self._one_output else tuple(f"y{k}" for k in range(len(self.base_)))

    def _affine(self) -> tuple[Tensor, Tensor]:
        place = self.block_.weight_y.device
        return torch.tensor(self.base_, device=place), torch.tensor(self.output_scale_, device=place)

    def _extra_state(self) -> dict[str, Any]:
        return {
            "base": self.base_.tolist(),
            "output_scale": self.output_scale_.tolist(),
            "one_output": self._one_output,
            "n_iter": self.n_iter_,
        }

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        self.base_, self.output_scale_ = np.array(state["base"]), np.array(state["output_scale"])
        self._one_output, self.n_iter_ = bool(state["one_output"]), int(state["n_iter"])


def _unit(targets: Moments) -> Tensor:
    """In what unit the block predicts each output."""
    return targets.deviation.where(targets.deviation > 0, 1.0)
