"""What classifier and regressor share: learning a block from inputs, targets and weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpfc.optim.ledger import Ledger
from torchpfc.sklearn.base import PFCEstimator, check_number
from torchpfc.sklearn.learning import Refinement, couple, readout
from torchpfc.sklearn.rows import Array, InputScale, Rows, distinct, hold_out

FEWEST_PARTS = 20
"""How many parts `fit` gives each class, or the numbers to predict, where there are twice as many rows."""


class SupervisedPFC(PFCEstimator):
    """An estimator that learns from targets."""

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        nonnegative: bool | str = "auto",
        fit_intercept: bool | str = "auto",
        l1: float = 0.03,
        reconstruction: float = 0.1,
        inference_steps: int = 50,
        max_iter: int = 20,
        learning_rate: float = 3e-3,
        batch_size: int | str = "auto",
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        tol: float = 1e-4,
        parts_per_batch: int | str = "auto",
        device: str | torch.device | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.nonnegative = nonnegative
        self.fit_intercept = fit_intercept
        self.l1 = l1
        self.reconstruction = reconstruction
        self.inference_steps = inference_steps
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.parts_per_batch = parts_per_batch
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.nonnegative is True
        return tags

    # What a concrete estimator says of itself

    @abstractmethod
    def _set_targets(self, raw: Array, weight: Array, *, nonnegative: bool) -> None:
        """Decides, by the first rows, how targets are seen by the block."""

    @abstractmethod
    def _targets(self, raw: Array) -> Tensor:
        """Targets as the block should predict them."""

    @abstractmethod
    def _labels(self, raw: Array) -> Tensor | None:
        """The class of each row, where there are classes."""

    @abstractmethod
    def _find_parts(
        self, rows: Rows, labels: Tensor | None, count: int | None, fewest: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Columns for the inputs and for the outputs, from rows alone; without a count, as many as suit the rows."""

    @abstractmethod
    def _outputs_of_new_parts(self, rows: Rows, weight_y: Tensor, known: int) -> Tensor:
        """Columns for the outputs of the parts from `known` on, which the block has just got; it predicts 0 there."""

    @abstractmethod
    def _wants_constant(self, *, signed: bool) -> bool:
        """Whether inputs get a constant where nobody says."""

    # Learning

    def _fit(self, x: Array, raw: Array, weight: Array) -> None:
        generator = self._generator()
        x, raw, weight = distinct(x, raw, weight)
        nonnegative = self._begin(x, raw, weight)
        dtype = torch.float32 if x.dtype == np.float32 else torch.float64
        rows, labels = self._rows(x, raw, weight, 0, dtype), self._labels(raw)
        learned, held = hold_out(len(x), labels, self.validation_fraction, generator)
        train = rows.select(learned)
        test = rows.select(held) if len(held) else train
        count = None if self.n_components == "auto" else int(self.n_components)
        W_x, W_y = self._find_parts(train, None if labels is None else labels[learned], count, FEWEST_PARTS, generator)
        block = self._new_block(W_x, W_y, nonnegative=nonnegative)
        self._read_out(block, train)
        self._say(f"{len(train.x)} rows to learn from, {len(held)} held out, {block.num_basis} parts")
        self.n_iter_ = self._refinement(len(train.x)).learn(block, train, test, generator, self._say)
        self._read_out(block, train, test)
        self.block_, self.ledger_ = block.eval(), Ledger()
        self.ledger_.record(0, range(block.num_basis))
        self.held_out_ = test.select(held[:0])
        self._keep_held_out(test, generator)
        self._calibrate()

    def _partial_fit(self, x: Array, raw: Array, weight: Array, batch_id: int | None, *, first: bool) -> None:
        generator = self._generator()
        x, raw, weight = distinct(x, raw, weight)
        dtype = torch.float32 if x.dtype == np.float32 else torch.float64
        if first:
            nonnegative = self._begin(x, raw, weight)
            self.ledger_, self.n_iter_ = Ledger(), 0
        else:
            nonnegative, dtype = self.block_.nonnegative, self.block_.weight_x.dtype
            self._check_sign(torch.tensor(x))
        batch = self._batch_id(batch_id)
        rows, labels = self._rows(x, raw, weight, batch, dtype), self._labels(raw)
        learned, held = hold_out(len(x), labels, self.validation_fraction, generator)
        train = rows.select(learned)
        count = None if self.parts_per_batch == "auto" else int(self.parts_per_batch)
        W_x, W_y = self._find_parts(train, None if labels is None else labels[learned], count, 0, generator)
        known = 0 if first else self.block_.num_basis
        if first:
            self.block_ = self._new_block(W_x, torch.zeros_like(W_y), nonnegative=nonnegative)
            self.ledger_.record(batch, range(self.block_.num_basis))
            self.held_out_ = rows.select(held[:0])
        else:
            self._add_parts(W_x, torch.zeros_like(W_y), batch)
        with torch.no_grad():
            self.block_.weight_y[:, known:] = self._outputs_of_new_parts(train, W_y, known)
        self.n_iter_ += 1
        self._say(f"batch {batch}: {len(train.x)} rows, {W_x.shape[1]} new parts, {self.block_.num_basis} in all")
        self._keep_held_out(rows.select(held) if len(held) else train, generator)
        self._calibrate()

    def _begin(self, x: Array, raw: Array, weight: Array) -> bool:
        """Decides what the first rows decide; says whether parts are non-negative."""
        nonnegative = not self._signed(x)
        self._set_targets(raw, weight, nonnegative=nonnegative)
        self.scale_ = InputScale.of(x, weight, constant=self._constant(signed=not nonnegative))
        return nonnegative

    def _rows(self, x: Array, raw: Array, weight: Array, batch: int, dtype: torch.dtype) -> Rows:
        device = self._device()
        inputs = torch.tensor(np.ascontiguousarray(x), dtype=dtype, device=device)
        return Rows(
            self.scale_.encode(inputs),
            self._targets(raw).to(device=device, dtype=dtype),
            torch.tensor(weight, dtype=dtype, device=device),
            torch.full((len(x),), batch, dtype=torch.int64),
        )

    @torch.no_grad()
    def _read_out(self, block: Any, train: Rows, test: Rows | None = None) -> None:
        """Gives a block the best weights for the outputs of its codes, unless those it has do better on a test."""
        block.eval()
        h, _, _ = couple(block, train.x)
        found = readout(h, train.target, train.weight, nonnegative=block.nonnegative)
        if test is not None:
            h_test, y, _ = couple(block, test.x)
            before, after = (
                float((test.weight * (guess - test.target).square().sum(1)).sum()) for guess in (y, h_test @ found.mT)
            )
            if not after < before:
                return
        block.weight_y.copy_(found)

    def _refinement(self, count: int) -> Refinement:
        return Refinement(
            epochs=int(self.max_iter),
            batch_size=min(200, count) if self.batch_size == "auto" else int(self.batch_size),
            lr=float(self.learning_rate),
            reconstruction=float(self.reconstruction),
            patience=int(self.n_iter_no_change) if self.early_stopping else None,
            tol=float(self.tol),
        )

    def _constant(self, *, signed: bool) -> bool:
        if self.fit_intercept not in (True, False, "auto"):
            raise ValueError(f"fit_intercept must be True, False or 'auto', got {self.fit_intercept!r}")
        return self._wants_constant(signed=signed) if self.fit_intercept == "auto" else bool(self.fit_intercept)

    def _check_params(self) -> None:
        for name in ("n_components", "batch_size", "parts_per_batch"):
            if (value := getattr(self, name)) != "auto":
                if isinstance(value, str):
                    raise ValueError(f"{name} must be an int or 'auto', got {value!r}")
                check_number(name, value, integer=True, low=1)
        for name, low in (("inference_steps", 1), ("max_iter", 0), ("n_iter_no_change", 1)):
            check_number(name, getattr(self, name), integer=True, low=low)
        for name in ("l1", "reconstruction", "tol"):
            check_number(name, getattr(self, name), integer=False, low=0)
        check_number("learning_rate", self.learning_rate, integer=False, low=0, above=True)
        check_number("validation_fraction", self.validation_fraction, integer=False, low=0, high=0.5)
