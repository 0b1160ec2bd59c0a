"""What the demo finds out: computed in `measure`, drawn in `page`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from torchpfc.demo.settings import Settings, Training


@dataclass(frozen=True)
class Count:
    """How many of some digits were right."""

    right: int
    total: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        z, n, p = 1.96, self.total, self.share
        centre = p + z * z / (2 * n)
        margin = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (centre - margin) / (1 + z * z / n), (centre + margin) / (1 + z * z / n)


@dataclass(frozen=True)
class Classifier:
    """A network that learned all classes at once."""

    parameters: int
    epochs: int
    """After which it was best."""
    test: Count


@dataclass(frozen=True, eq=False)
class Parts:
    r"""The columns of a block.

    Shape:
        - images: $(r, 64)$
        - peaks: $(r)$
        - votes: $(r, 10)$
    """

    images: Tensor
    """Each scaled so that its darkest pixel is 1."""
    peaks: Tensor
    """What that pixel was."""
    votes: Tensor
    """What share of a part's say goes to which class; the shares of a part sum to 1."""


@dataclass(frozen=True, eq=False)
class Term:
    """What one part adds: its amount times its image to the digit, a number to the winning score."""

    part: int
    amount: float
    image: Tensor
    """Scaled so that its darkest pixel is 1."""
    score: float


@dataclass(frozen=True, eq=False)
class Others:
    """What several parts add together."""

    number: int
    image: Tensor
    score: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """A digit as a sum: some parts, the other parts together, and the rest that no part explains."""

    row: int
    """Which of the test digits it is, counted from 0."""
    x: Tensor
    label: int
    answer: int
    scores: Tensor
    """One for each class."""
    terms: tuple[Term, ...]
    """The parts that count most for the answer, largest first."""
    others: Others
    rest: Tensor


@dataclass(frozen=True, eq=False)
class Reconstructions:
    r"""Inputs of one kind, and how well parts can put them together.

    Shape:
        - x, reconstruction: $(n, 64)$
        - unexplained: $(n)$
    """

    x: Tensor
    reconstruction: Tensor
    unexplained: Tensor
    r"""$\|x - W h\| / \|x\|$."""

    def above(self, threshold: float) -> Count:
        """How many leave more unexplained than this."""
        return Count(int((self.unexplained > threshold).sum()), len(self.unexplained))


@dataclass(frozen=True, eq=False)
class Recognition:
    """Digits beside what is none."""

    digits: Reconstructions
    labels: Tensor
    """Of the digits."""
    shuffled: Reconstructions
    noise: Reconstructions
    threshold: float
    """What all but a few validation digits stay below."""


@dataclass(frozen=True)
class Lessons:
    """A network that learned one task after another."""

    training: Training
    epochs: tuple[int, ...]
    """How long each task took."""
    tests: tuple[tuple[Count, ...], ...]
    """Row k was measured after task k, column j on the classes of task j."""
    unfinished: tuple[range, ...] = ()
    """Where there is a window: the columns that it had reached and not left after each task. Those before are final."""

    @property
    def final(self) -> Count:
        """Right answers over all classes, after the last task."""
        last = self.tests[-1]
        return Count(sum(count.right for count in last), sum(count.total for count in last))


@dataclass(frozen=True, eq=False)
class Forgetting:
    """A block that learned from some wrong labels, and then had them taken out."""

    num_batches: int
    corrupted: range
    """Which batches had wrong labels."""
    columns: range
    """What these could write, and so what was removed."""
    parts: Parts
    """As they were before."""
    before: Count
    after: Count
    never: Count
    """Of a block that skipped these batches."""


@dataclass(frozen=True, eq=False)
class Findings:
    """All that the page shows."""

    seed: int
    settings: Settings
    sizes: tuple[int, int, int]
    """Numbers of digits for training, validation and test."""
    pfc: Classifier
    mlp: Classifier
    parts: Parts
    explanations: tuple[Explanation, ...]
    recognition: Recognition
    num_columns: int
    """Columns, or hidden units, of the networks that learned task by task."""
    task_mlp: Lessons
    task_pfc: Lessons
    task_window: Lessons
    window_parts: Parts
    forgetting: Forgetting
