"""Models as the explorer sees them, whatever they were made with: estimators, and blocks with a ledger."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchpfc.continual.certificate import hash_of
from torchpfc.interpret import Explanation, counterfactual, explain
from torchpfc.interpret.recognition import Usual
from torchpfc.nn.block import PFCBlock
from torchpfc.optim.ledger import Ledger
from torchpfc.unlearning import Certificate, fingerprint, forget

if TYPE_CHECKING:
    from torchpfc.sklearn.base import PFCEstimator


@dataclass(eq=False)
class Subject(ABC):
    """A model to look at: a block, the record of its training, and names for what it says."""

    name: str
    """What to call it."""
    kind: str
    """What it is."""
    block: PFCBlock
    ledger: Ledger
    """Which batch could write which columns."""
    num_features: int
    """How many numbers an input has."""
    outputs: tuple[str, ...]
    """The names of the outputs."""
    classes: bool
    """Whether the outputs are scores of classes."""

    @property
    def by_class(self) -> bool:
        """Whether each class explains an input by itself, as after `partial_fit`, and not all parts together."""
        return False

    def answers_without(self, x: Tensor, left: Tensor) -> Tensor:
        """What a model of some of the columns alone would answer.

        Args:
            x: Inputs.
            left: True for the columns that are left.
        """
        block = copy.deepcopy(self.block)
        block.remove_basis((~left).nonzero().flatten().tolist())
        with torch.no_grad():
            scores: Tensor = block.eval()(self.encode(x))
        return scores.argmax(1)

    @property
    def takes_gaps(self) -> bool:
        """Whether inputs may have gaps (NaN)."""
        return self.kind == "PFCTransformer"

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
    def forget(self, batches: Iterable[int]) -> Certificate:
        """Removes what batches wrote, in this model."""

    def fingerprint(self) -> str:
        """The hash that certificates have of the model."""
        return fingerprint(self.block)

    def adapted(self, x: Tensor, factors: Mapping[int, float]) -> Explanation:
        """What the model says with other amounts of some parts, when the others make the best of that.

        Args:
            x: One input, as a row.
            factors: What to multiply the amounts of parts with.
        """
        before = self.explain(x)
        h = counterfactual(self.block, self.encode(x), factors).h
        return before.with_amounts(h)

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
        self.estimator = estimator
        super().__init__(
            name,
            type(estimator).__name__,
            estimator.block_,
            estimator.ledger_,
            num_features=estimator.n_features_in_,
            outputs=estimator.output_names(),
            classes=hasattr(estimator, "classes_"),
        )

    @property
    def by_class(self) -> bool:
        """Whether `partial_fit` made the model."""
        return hasattr(self.estimator, "learner_")

    def answers_without(self, x: Tensor, left: Tensor) -> Tensor:
        """What a model of some of the columns alone would answer."""
        if not self.by_class:
            return super().answers_without(x, left)
        learner = copy.deepcopy(self.estimator.learner_)
        with torch.no_grad():
            learner.block.weight_x *= left
            scores: Tensor = learner(x)
        return scores.argmax(1)

    def explain(self, x: Tensor) -> Explanation:
        """Predictions as sums, in the units of inputs and outputs."""
        return self.estimator.explain(x.numpy())

    def recognise(self, x: Tensor) -> list[float]:
        """The estimator's own p-values."""
        values: list[float] = self.estimator.recognition_score(x.numpy()).tolist()
        return values

    def encode(self, x: Tensor) -> Tensor:
        """Inputs as the block sees them."""
        return self.estimator.encode(x)

    def fingerprint(self) -> str:
        """The hash of all that batches have taught, or of the block after `fit`."""
        return hash_of(self.estimator.bits) or super().fingerprint()

    def forget(self, batches: Iterable[int]) -> Certificate:
        """Removes what batches wrote, and their rows held out."""
        report = self.estimator.forget(list(batches), how="zero")  # parts keep their numbers
        self.block, self.ledger = self.estimator.block_, self.estimator.ledger_
        return report


class BlockSubject(Subject):
    """A block that was saved with its ledger.

    Args:
        block: The block.
        ledger: The record of its training.
        name: What to call it.
        reference: Inputs that it should recognise; others are compared with them.
        classes: Whether its outputs are scores of classes.
    """

    def __init__(self, block: PFCBlock, ledger: Ledger, name: str, reference: Tensor, *, classes: bool) -> None:
        outputs = tuple(str(k) for k in range(block.out_features))
        super().__init__(name, "PFCBlock", block, ledger, block.in_features, outputs, classes)
        self.block.eval()
        self._reference = self.encode(reference)
        self._usual: Usual | None = None

    def explain(self, x: Tensor) -> Explanation:
        """Predictions as sums."""
        return explain(self.block, self.encode(x), outputs=self.outputs, classes=self.classes)

    def recognise(self, x: Tensor) -> list[float]:
        """The share of the reference that is as odd, or odder."""
        if self._usual is None:
            known = explain(self.block, self._reference)
            self._usual = Usual.of(known.x, known.reconstruction, torch.ones(len(known)))
        asked = self.explain(x)
        values: list[float] = self._usual.p_values(asked.x, asked.reconstruction).tolist()
        return values

    def encode(self, x: Tensor) -> Tensor:
        """Inputs in the type of the block."""
        return x.to(self.block.weight_x.dtype)

    def forget(self, batches: Iterable[int]) -> Certificate:
        """Removes what batches wrote."""
        report = forget(self.block, self.ledger, batches=batches)
        self._usual = None
        self.block.eval()
        return report
