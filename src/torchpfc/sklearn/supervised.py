"""What classifier and regressor share: learning a block from inputs, targets and weights."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from torchpfc.nn.block import PFCBlock
from torchpfc.nn.constraints import keep_nonnegative
from torchpfc.sklearn.base import PFCEstimator
from torchpfc.sklearn.learning import codes, readout
from torchpfc.sklearn.rows import ENOUGH_HELD_OUT, Array, InputScale, Rows, distinct, hold_out, sketched
from torchpfc.training import Batches, BestWeights, EarlyStopping, Scored, fit

FEWEST_PARTS = 20
"""How many parts `fit` gives each class, or the numbers to predict, where there are twice as many rows."""

LEARNING_RATE = 0.1
"""How far a step of learning goes, relative to an entry of a part of norm 1 that is spread over all features."""

FEWEST_TO_STOP_BY, MOST_OF_FEW = 20, 1 / 3
"""Fewer rows held out would say little of when to stop, but of few rows most must be learned from."""


@dataclass(eq=False, repr=False)
class SupervisedPFC(PFCEstimator):
    """An estimator that learns from targets."""

    n_components: int | str = "auto"
    _: KW_ONLY
    nonnegative: bool | str = "auto"
    fit_intercept: bool | str = "auto"
    scale: str | None = "auto"
    l1: float = 0.03
    reconstruction: float = 0.1
    inference_steps: int = 50
    max_iter: int = 500
    learning_rate: float | str = "auto"
    batch_size: int | str = "auto"
    early_stopping: bool = True
    validation_fraction: float = 0.1
    n_iter_no_change: int | str = "auto"
    tol: float = 1e-2
    parts_per_batch: int | str = "auto"
    device: str | torch.device | None = None
    random_state: Any = None
    verbose: int = 0

    # What a concrete estimator says of itself

    def _set_targets(self, raw: Array, weight: Array, *, nonnegative: bool) -> None:
        """Decides, by the first rows, how targets are seen by the block."""

    @abstractmethod
    def _targets(self, raw: Array) -> Tensor:
        """Targets as the block should predict them."""

    @abstractmethod
    def _find_parts(self, rows: Rows, count: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Columns for the inputs and for the outputs, from rows alone; without a count, as many as suit the rows."""

    # Learning

    def _fit(self, x: Array, raw: Array, weight: Array) -> None:
        self._forget_batches()
        generator = self._generator()
        x, raw, weight = distinct(x, raw, weight)
        nonnegative = self._begin(x, raw, weight)
        rows = self._rows(x, self._targets(raw), weight, torch.float32)
        observed, kept = hold_out(rows, self._labels(rows), self._share_held_out(len(rows.x)), generator)
        train = observed.filled()
        count = None if self.n_components == "auto" else int(self.n_components)
        block = self._new_block(*self._find_parts(train, count, generator), nonnegative=nonnegative)
        if train is not observed:  # what is missing becomes what the parts make of the rest
            train = observed.filled(F.linear(codes(block, observed.x), block.weight_x.detach()))
        self._read_out(block, train)
        held = len(rows.x) - len(train.x)
        self._say(f"{len(train.x)} rows to learn from, {held} held out, {block.num_basis} parts")
        self.n_iter_ = self._refine(block, train, kept, generator)
        self._read_out(block, train, kept)
        self._begin_with(block)
        self._learned_from = self._usual_of(train) if observed is not kept and len(kept.x) < ENOUGH_HELD_OUT else None
        self._keep_held_out(kept, generator)

    def _begin(self, x: Array, raw: Array, weight: Array) -> bool:
        """Decides what the first rows decide; says whether parts are non-negative."""
        scale, nonnegative = self._look(sketched(x), self._lowest(x))
        self._set_targets(raw, weight, nonnegative=nonnegative)
        constant = self._constant(signed=not nonnegative)
        self.scale_ = InputScale(1.0, constant)
        if self.scale is not None:
            self.scale_ = InputScale.of(x, weight, constant=constant, scale=scale)
        return nonnegative

    def _labels(self, rows: Rows) -> Tensor | None:
        """The class of each row, where there are classes."""
        return rows.target.argmax(1) if hasattr(self, "classes_") else None

    @torch.no_grad()
    def _read_out(self, block: PFCBlock, train: Rows, test: Rows | None = None) -> None:
        """Gives a block the best weights for the outputs of its codes, unless those it has do better on a test."""
        block.eval()
        found = readout(codes(block, train.x), train.target, train.weight, nonnegative=block.nonnegative)
        if test is not None:
            h = codes(block, test.x)
            before, after = (
                float((test.weight * (guess - test.target).square().sum(1)).sum())
                for guess in (F.linear(h, block.weight_y), F.linear(h, found))
            )
            if not after < before:
                return
        block.weight_y.copy_(found)

    def _refine(self, block: PFCBlock, train: Rows, held: Rows, generator: torch.Generator) -> int:
        r"""Learns parts and outputs together, by gradients, in place; gives the number of epochs.

        What is minimized is a mean over rows with weights, where $\lambda$ is `reconstruction`:

        $$\sum_i w_i (\|t_i - y_i\|^2 + \lambda \|x_i - W_x h_i\|^2) / \sum_i w_i$$

        With early stopping the block is left where that of the rows held out was smallest; a change counts that is
        larger than its standard error over these rows.
        """

        def errors(y: Tensor, x: Tensor, rows: Rows) -> Tensor:
            found = (y - rows.target).square().sum(1)
            if self.reconstruction:
                found = found + float(self.reconstruction) * (x - rows.x).nan_to_num(nan=0.0).square().sum(1)
            return found

        def objective(model: nn.Module, x: Tensor, numbers: Tensor) -> Scored:
            out, rows = block.couple(x), train.select(numbers)
            return Scored((rows.weight * errors(out.y, out.x, rows)).sum() / rows.weight.sum(), out.y)

        @torch.no_grad()
        def held_out_errors() -> Tensor:
            h = codes(block.eval(), held.x)
            return errors(F.linear(h, block.weight_y), F.linear(h, block.weight_x), held).double().cpu()

        optimizer = torch.optim.Adam(block.parameters(), lr=self._learning_rate(train.x.shape[1]))
        if block.nonnegative:
            keep_nonnegative(block, optimizer)
        batch_size = self._batch_size(len(train.x))
        numbers = torch.arange(len(train.x), device=train.x.device)  # in place of targets: a row has a weight too
        batches = Batches(train.x, numbers, batch_size=batch_size, seeds=generator)
        stopping = EarlyStopping(self._patience(len(batches)), watch_accuracy=False, tol=float(self.tol))
        best, lowest, epoch = BestWeights(block), held_out_errors(), 0
        share = (held.weight / held.weight.sum()).double().cpu()
        stopping.update(share @ lowest, -(share @ lowest))
        for stats in fit(block, optimizer, batches, objective, epochs=int(self.max_iter), capture=False):
            epoch, found = stats.epoch + 1, held_out_errors()
            self._say(f"epoch {epoch}: held-out error {float(share @ found):.5f} ({stats.seconds:.2f} s)")
            better = _surely_less(found, lowest, share)
            lowest = found if better else lowest
            loss = share @ found if better else share.new_tensor(torch.inf)
            best.keep(block, stopping.update(loss, -loss))
            if self.early_stopping and stopping.stopped:
                break
        if self.early_stopping:
            block.load_state_dict(best.values)
            if epoch == self.max_iter and epoch and not stopping.stopped:
                warnings.warn(
                    f"The error of the rows held out was still falling after max_iter={epoch} epochs. Increase it, or "
                    "set early_stopping=False to take what is there.",
                    ConvergenceWarning,
                    stacklevel=4,
                )
        return epoch

    def _share_held_out(self, rows: int) -> float:
        few = min(MOST_OF_FEW, FEWEST_TO_STOP_BY / rows)
        return max(self.validation_fraction, few) if self.validation_fraction else 0.0

    def _learning_rate(self, features: int) -> float:
        return LEARNING_RATE / math.sqrt(features) if self.learning_rate == "auto" else float(self.learning_rate)

    def _batch_size(self, rows: int) -> int:
        return min(rows, max(32, min(200, rows // 20))) if self.batch_size == "auto" else int(self.batch_size)

    def _patience(self, steps: int) -> int:
        """Epochs without a smaller error, of so many steps each."""
        return max(5, min(10, 500 // steps)) if self.n_iter_no_change == "auto" else int(self.n_iter_no_change)

    def _constant(self, *, signed: bool) -> bool:
        if self.fit_intercept not in (True, False, "auto"):
            raise ValueError(f"fit_intercept must be True, False or 'auto', got {self.fit_intercept!r}")
        numbers = not hasattr(self, "classes_")
        return signed or numbers if self.fit_intercept == "auto" else bool(self.fit_intercept)

    def _check_params(self) -> None:
        self._check_counts("n_components", "batch_size", "n_iter_no_change", "parts_per_batch")
        self._check_numbers("inference_steps", integer=True, low=1)
        self._check_numbers("max_iter", integer=True, low=0)
        self._check_numbers("l1", "reconstruction", "tol", low=0)
        if self.learning_rate != "auto":
            self._check_numbers("learning_rate", low=0, above=True)
        self._check_numbers("validation_fraction", low=0, high=0.5)
        self._check_scale()


def _surely_less(errors: Tensor, before: Tensor, share: Tensor) -> bool:
    """Whether the errors of some rows have fallen by more than the standard error of their mean change.

    Args:
        errors: Those of each row.
        before: The same before a change.
        share: The weights of the rows, which add up to 1.
    """
    change = errors - before
    mean = share @ change
    return bool(mean < -(share.square() @ (change - mean).square()).sqrt())
