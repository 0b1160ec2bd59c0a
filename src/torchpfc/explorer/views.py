"""What the page shows, as plain values: what the library computes, chosen and put in order."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torchpfc.interpret import Column, Explanation, Term
from torchpfc.unlearning import Certificate

SHOWN_TERMS = 12
"""Parts of an explanation that are shown one by one; the others are added up."""

STAGES = 12
"""Into how many stages the batches of a training are grouped at most."""

Numbers = list[float | None]
"""Numbers for JSON, which has no NaN: None in its place."""


@dataclass(frozen=True)
class Accuracy:
    """How many examples are answered rightly."""

    overall: float | None
    """Share of all examples; None where there are no classes to know."""
    per_class: Numbers
    """Share of the examples of each class; None where there are none."""


@dataclass(frozen=True)
class ModelView:
    """What is being looked at."""

    name: str
    kind: str
    version: int
    """Goes up with every change, so that a page knows when to look again."""
    num_parts: int
    num_features: int
    shape: tuple[int, int, int] | None
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    classes: bool
    brightest: float
    """The largest number in the examples."""
    num_examples: int
    source: str
    labelled: bool
    accuracy: Accuracy
    num_batches: int
    forgotten: list[int]
    """Batches that are forgotten now."""
    undo: int
    """How many changes can be taken back."""
    sha256: str


@dataclass(frozen=True)
class PartView:
    """One column in the atlas."""

    column: int
    image: str
    """One byte for each number, from -127 to 127, relative to the largest; in base64."""
    usage: float
    mean_amount: float
    output: int | None
    """The output that it adds to most."""
    first_step: int | None
    dead: bool
    gone: bool
    """Whether all its weights are zero."""


@dataclass(frozen=True)
class ExampleView:
    """An example to pick."""

    index: int
    image: str
    label: int | None
    answer: int | None
    amount: float | None = None
    """How much of a part it contains, where it is shown beside one."""


@dataclass(frozen=True)
class PartDetail:
    """All that is known of a column."""

    column: Column
    values: Numbers
    top_examples: list[ExampleView]
    gone: bool

    def to_dict(self) -> dict[str, Any]:
        """All of it on one level, as plain values for JSON."""
        return asdict(self.column) | {name: value for name, value in asdict(self).items() if name != "column"}


@dataclass(frozen=True)
class ExplanationView:
    """An input and a prediction as sums."""

    label: int | None
    input: Numbers
    reconstruction: list[float]
    residual: list[float]
    unexplained: float
    recognition: float
    y: list[float]
    before: list[float]
    """What y is without any change of the amounts."""
    base: list[float]
    answer: int | None
    terms: list[Term]
    others: Term
    """All parts that are not shown, added up; `part` says how many they are."""


@dataclass(frozen=True)
class BatchView:
    """A batch of the training."""

    id: int
    first_step: int | None
    num_columns: int
    output: int | None
    """The class that more than half of what it wrote speaks for."""


@dataclass(frozen=True)
class StageView:
    """Some batches that follow each other, and how good the model was after them."""

    batches: list[int]
    columns: list[tuple[int, int]]
    """What they could write, as half-open ranges."""
    finished: list[int]
    """Columns that were written in this stage for the last time."""
    accuracy: Accuracy


@dataclass(frozen=True)
class TimeView:
    """The training, from the first batch to the last."""

    batches: list[BatchView]
    stages: list[StageView]
    exact: bool
    """Whether no column was ever written by batches of two stages, so that each stage is the model of that time."""


@dataclass(frozen=True)
class ForgetView:
    """What forgetting batches does."""

    report: Certificate
    before: Accuracy
    after: Accuracy

    def to_dict(self) -> dict[str, Any]:
        """All of it on one level, as plain values for JSON."""
        return {**self.report.to_dict(), "before": asdict(self.before), "after": asdict(self.after)}


def numbers(values: Tensor) -> Numbers:
    """A row of numbers for JSON."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def thumbnail(values: Tensor) -> str:
    """A row of numbers as bytes in base64, relative to the largest magnitude; gaps become 0."""
    known = values.nan_to_num(nan=0.0)
    largest = float(known.abs().max()) or 1.0
    return base64.b64encode((known / largest * 127).round().to(torch.int8).numpy().tobytes()).decode("ascii")


def measure(answers: Tensor, labels: Tensor | None, num_classes: int) -> Accuracy:
    """How many answers are right.

    Example:
        >>> measure(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 3)
        Accuracy(overall=0.6666666666666666, per_class=[0.5, 1.0, None])
    """
    if labels is None:
        return Accuracy(None, [])
    right = answers == labels
    per_class: Numbers = []
    for k in range(num_classes):
        chosen = right[labels == k]
        per_class.append(int(chosen.sum()) / len(chosen) if len(chosen) else None)
    return Accuracy(int(right.sum()) / len(right), per_class)


def explanation_view(
    now: Explanation, before: Explanation, changed: Iterable[int], *, label: int | None, p: float
) -> ExplanationView:
    """One explanation, with the parts of another in the same order, so that what changes can be followed.

    Args:
        now: What the model says with the amounts as they are now.
        before: What it says without any change.
        changed: Parts whose amounts were changed.
        label: The class of the example, if it is one.
        p: The p-value of the recognition.
    """
    terms = {term.part: term for term in now.terms()}
    shown = list(dict.fromkeys([*_largest(before), *changed, *_largest(now)]))
    nothing = (0.0,) * now.y.shape[1]
    rest = now.scaled(dict.fromkeys(shown, 0.0))
    length = float(now.x.nan_to_num(nan=0.0).norm()) or 1.0
    others = Term(
        part=int(rest.h.count_nonzero()),
        amount=float(rest.h.sum()),
        contributions=tuple(rest.contributions[0].sum(1).tolist()),
        share=float(rest.reconstruction.norm()) / length,
    )
    return ExplanationView(
        label=label,
        input=numbers(now.x[0]),
        reconstruction=now.reconstruction[0].tolist(),
        residual=now.rest[0].tolist(),
        unexplained=float(now.unexplained[0]),
        recognition=p,
        y=now.y[0].tolist(),
        before=before.y[0].tolist(),
        base=now.base.flatten().tolist(),
        answer=int(now.y[0].argmax()) if now.classes else None,
        terms=[terms.get(part, Term(part, 0.0, nothing, 0.0)) for part in shown],
        others=others,
    )


def _largest(explanation: Explanation) -> list[int]:
    """The parts with the largest share of the input."""
    terms = sorted(explanation.terms(), key=lambda term: (-term.share, term.part))
    return [term.part for term in terms[:SHOWN_TERMS]]


def stages_of(batches: Sequence[BatchView]) -> list[list[BatchView]]:
    """Batches in groups of the same size, but for the last."""
    size = -(-len(batches) // STAGES) or 1
    return [list(batches[start : start + size]) for start in range(0, len(batches), size)]
