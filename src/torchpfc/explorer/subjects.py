"""Models as the explorer sees them, whatever they were made with: estimators, and blocks with a ledger."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchpfc.interpret import Explanation, counterfactual, explain
from torchpfc.nn.block import PFCBlock
from torchpfc.optim.ledger import Ledger
from torchpfc.unlearning import ForgetReport, forget

if TYPE_CHECKING:
    from torchpfc.sklearn.base import PFCEstimator


class Subject(ABC):
    """A model to look at: a block, the record of its training, and names for what it says."""

    name: str
    kind: str

    @property
    @abstractmethod
    def block(self) -> PFCBlock:
        """The block."""

    @property
    @abstractmethod
    def ledger(self) -> Ledger:
        """Which batch could write which columns."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""

    @property
    @abstractmethod
    def classes(self) -> bool:
        """Whether the outputs are scores of classes."""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """How many numbers an input has."""

    @abstractmethod
    def explain(self, x: Tensor) -> Explanation:
        """Predictions as sums, in the units of inputs and outputs."""

    @abstractmethod
    def recognise(self, x: Tensor) -> list[float]:
        """For each input a p-value: is it like what was learned?"""

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Inputs as the block sees them."""

    @abstractmethod
    def forget(self, batches: Iterable[int]) -> ForgetReport:
        """Removes what batches wrote, in this model."""

    def adapted(self, x: Tensor, factors: Mapping[int, float]) -> Explanation:
        """What the model says with other amounts of some parts, when the others make the best of that.

        Args:
            x: One input, as a row.
            factors: What to multiply the amounts of parts with.
        """
        before = self.explain(x)
        h = counterfactual(self.block, self.encode(x), factors).h
        return replace(before, h=h, y=before.base + h @ before.weight_y.mT)

    def copy(self) -> Subject:
        """A model of its own with the same weights."""
        return copy.deepcopy(self)


class EstimatorSubject(Subject):
    """An estimator of `torchpfc.sklearn`.

    Args:
        estimator: Fitted, and on the CPU.
        name: What to call it.
    """

    def __init__(self, estimator: PFCEstimator, name: str) -> None:
        self.estimator, self.name, self.kind = estimator, name, type(estimator).__name__

    @property
    def block(self) -> PFCBlock:
        """The block."""
        return self.estimator.block_

    @property
    def ledger(self) -> Ledger:
        """Which batch could write which columns."""
        return self.estimator.ledger_

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.estimator._output_names()

    @property
    def classes(self) -> bool:
        """Whether the outputs are scores of classes."""
        return hasattr(self.estimator, "classes_")

    @property
    def num_features(self) -> int:
        """How many numbers an input has."""
        return self.estimator.n_features_in_

    def explain(self, x: Tensor) -> Explanation:
        """Predictions as sums, in the units of inputs and outputs."""
        return self.estimator.explain(x.numpy())

    def recognise(self, x: Tensor) -> list[float]:
        """The estimator's own p-values."""
        values: list[float] = self.estimator.recognition_score(x.numpy()).tolist()
        return values

    def encode(self, x: Tensor) -> Tensor:
        """Inputs as the block sees them."""
        return self.estimator.scale_.encode(x.to(self.block.weight_x.dtype))

    def forget(self, batches: Iterable[int]) -> ForgetReport:
        """Removes what batches wrote, and their rows held out."""
        return self.estimator.forget(batches)


class BlockSubject(Subject):
    """A block that was saved with its ledger.

    Args:
        block: The block.
        ledger: The record of its training.
        name: What to call it.
        reference: Inputs that it should recognise; others are compared with them.
        classes: Whether its outputs are scores of classes.
    """

    kind = "PFCBlock"

    def __init__(self, block: PFCBlock, ledger: Ledger, name: str, reference: Tensor, *, classes: bool) -> None:
        self._block, self._ledger, self.name, self._classes = block.eval(), ledger, name, classes
        self._reference = self.encode(reference)
        self._unexplained: Tensor | None = None

    @property
    def block(self) -> PFCBlock:
        """The block."""
        return self._block

    @property
    def ledger(self) -> Ledger:
        """Which batch could write which columns."""
        return self._ledger

    @property
    def outputs(self) -> tuple[str, ...]:
        """The numbers of the outputs."""
        return tuple(str(k) for k in range(self._block.out_features))

    @property
    def classes(self) -> bool:
        """Whether the outputs are scores of classes."""
        return self._classes

    @property
    def num_features(self) -> int:
        """How many numbers an input has."""
        return self._block.in_features

    def explain(self, x: Tensor) -> Explanation:
        """Predictions as sums."""
        return explain(self._block, self.encode(x), outputs=self.outputs, classes=self._classes)

    def recognise(self, x: Tensor) -> list[float]:
        """The share of the reference that is explained as badly or worse."""
        from torchpfc.sklearn.calibration import p_values

        if self._unexplained is None:
            self._unexplained = explain(self._block, self._reference).unexplained
        weight = torch.ones_like(self._unexplained)
        values: list[float] = p_values(self.explain(x).unexplained, self._unexplained, weight).tolist()
        return values

    def encode(self, x: Tensor) -> Tensor:
        """Inputs in the type of the block."""
        return x.to(self._block.weight_x.dtype)

    def forget(self, batches: Iterable[int]) -> ForgetReport:
        """Removes what batches wrote."""
        report = forget(self._block, self._ledger, batches=batches)
        self._unexplained = None
        self._block.eval()
        return report
