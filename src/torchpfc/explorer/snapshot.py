"""A model at one moment, and what was found out about it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchpfc.explorer.examples import Examples
from torchpfc.explorer.subjects import Subject
from torchpfc.explorer.views import Accuracy, BatchView, PartView, StageView, TimeView, measure, stages_of, thumbnail
from torchpfc.interpret import ColumnReport, Explanation, describe_columns
from torchpfc.optim.ledger import merged

TOP_EXAMPLES = 8
"""How many examples are named that contain most of a part."""


class Snapshot:
    """A model at one moment, with everything that was found out about it so far.

    Args:
        subject: The model. It stays as it is.
        examples: What it is looked at with.
        known: Accuracies of some of its columns alone, by which they are; snapshots of one model share them, since
            forgetting changes no column but those that it takes away.
    """

    def __init__(self, subject: Subject, examples: Examples, known: dict[bytes, Accuracy] | None = None) -> None:
        self.subject, self.examples = subject, examples
        self.known = {} if known is None else known

    @cached_property
    def explained(self) -> Explanation:
        """Predictions for all examples as sums."""
        return self.subject.explain(self.examples.x)

    @property
    def parts(self) -> Tensor:
        """The parts in the units of the input, one per row."""
        return self.explained.weight_x.mT

    @property
    def answers(self) -> Tensor:
        """The class that each example is given."""
        return self.explained.y.argmax(1)

    @cached_property
    def accuracy(self) -> Accuracy:
        """How many examples are answered rightly."""
        return self._measure(self.answers) if self.subject.classes else Accuracy(None, [])

    @cached_property
    def columns(self) -> ColumnReport:
        """Every column, described."""
        subject, h, labels = self.subject, self.explained.h, self.examples.labels
        return describe_columns(subject.block, h, labels=labels, ledger=subject.ledger, top=TOP_EXAMPLES)

    @cached_property
    def atlas(self) -> list[PartView]:
        """All columns, in the order of their numbers."""
        return [
            PartView(
                column=column.column,
                image=thumbnail(values),
                usage=column.usage,
                mean_amount=column.mean_amount,
                output=column.output,
                first_step=column.first_step,
                dead=column.dead,
                gone=not bool(values.any()),
            )
            for column, values in zip(self.columns.columns, self.parts, strict=True)
        ]

    @cached_property
    def sha256(self) -> str:
        """Over all weights."""
        return self.subject.fingerprint()

    @cached_property
    def batches(self) -> list[BatchView]:
        """The batches of the training, in the order in which they came."""
        subject = self.subject
        W_y, views = subject.block.weight_y.detach().abs(), []
        for id in subject.ledger.batches:
            columns = [c for part in self._ranges([id]) for c in part]
            say = W_y[:, columns].sum(1)
            output, total = int(say.argmax()), float(say.sum())
            main = output if subject.classes and total and float(say[output]) > total / 2 else None
            views.append(BatchView(id, subject.ledger.first_step([id]), len(columns), main))
        return sorted(views, key=lambda view: (view.first_step or 0, view.id))

    @cached_property
    def time(self) -> TimeView:
        """The training, stage by stage."""
        stages, groups = [], stages_of(self.batches)
        last = {view.id: k for k, group in enumerate(groups) for view in group}
        reached = [sorted({last[id] for id in column.batches}) for column in self.columns.columns]  # by which stages
        for k, group in enumerate(groups):
            ids = [view.id for view in group]
            later = [column for column, found in enumerate(reached) if found and found[-1] > k]
            stages.append(
                StageView(
                    batches=ids,
                    columns=[(part.start, part.stop) for part in self._ranges(ids)],
                    finished=[column for column, found in enumerate(reached) if found and found[-1] == k],
                    accuracy=self._accuracy_without(later),
                )
            )
        return TimeView(self.batches, stages, exact=all(len(found) < 2 for found in reached))

    def _ranges(self, ids: Sequence[int]) -> tuple[range, ...]:
        count = self.subject.block.num_basis
        return merged(range(part.start, min(part.stop, count)) for part in self.subject.ledger.columns_of(ids))

    @torch.no_grad()
    def _accuracy_without(self, columns: Sequence[int]) -> Accuracy:
        """The accuracy of a model that lacks some columns."""
        if self.accuracy.overall is None or not columns:
            return self.accuracy
        weight = self.subject.block.weight_x
        left = weight.any(0).index_fill_(0, torch.tensor(columns), False)  # columns that were forgotten are zero
        key = left.numpy().tobytes()
        if key not in self.known:
            self.known[key] = self._accuracy_of(left)
        return self.known[key]

    def _accuracy_of(self, left: Tensor) -> Accuracy:
        """The accuracy of a model of some columns alone."""
        if not left.any():
            return Accuracy(None, [None] * len(self.subject.outputs))
        return self._measure(self.subject.answers_without(self.examples.x, left))

    def _measure(self, answers: Tensor) -> Accuracy:
        return measure(answers, self.examples.labels, len(self.subject.outputs))
