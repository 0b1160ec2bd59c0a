"""What the server holds: one model, the examples, and the changes that can be taken back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from torchpfc._version import __version__
from torchpfc.explorer.loading import Loaded
from torchpfc.explorer.snapshot import Snapshot
from torchpfc.explorer.views import (
    BatchView,
    ExampleView,
    ExplanationView,
    ForgetView,
    ModelView,
    PartDetail,
    PartView,
    TimeView,
    explanation_view,
    numbers,
    thumbnail,
)

MOST_UNDO = 20
"""How many changes can be taken back."""


class Session:
    """A model that is being explored: everything the page can ask for.

    Changes are made to copies, so that each can be taken back; the files that the model came from stay as they are.

    Args:
        loaded: The model and its examples.

    Example:
        >>> from torchpfc.explorer.loading import ready_model
        >>> session = Session(ready_model())
        >>> session.model().num_parts
        180
        >>> session.forget([9, 10, 11]).report.num_columns  # the batches of class 3
        18
        >>> session.undo().forgotten
        []
    """

    def __init__(self, loaded: Loaded) -> None:
        self.examples = loaded.examples
        self._now = Snapshot(loaded.subject, loaded.examples)
        self._past: list[tuple[Snapshot, list[int]]] = []
        self._forgotten: list[int] = []
        self._reports: list[ForgetView] = []
        self._version = 0
        self._tried: dict[tuple[int, tuple[int, ...]], tuple[Snapshot, ForgetView]] = {}
        self._lock = threading.RLock()  # requests come in threads, and torch modules are not made for that

    @property
    def num_features(self) -> int:
        """How many numbers an input has."""
        return self._now.subject.num_features

    def model(self) -> ModelView:
        """What is being looked at."""
        with self._lock:
            now, subject, examples = self._now, self._now.subject, self.examples
            return ModelView(
                name=subject.name,
                kind=subject.kind,
                version=self._version,
                num_parts=subject.block.num_basis,
                num_features=subject.num_features,
                shape=examples.shape,
                features=examples.features,
                outputs=subject.outputs,
                classes=subject.classes,
                brightest=float(examples.x.nan_to_num(nan=0.0).abs().max()),
                num_examples=len(examples),
                source=examples.source,
                labelled=examples.labels is not None,
                accuracy=now.accuracy,
                num_batches=len(subject.ledger.batches),
                forgotten=list(self._forgotten),
                undo=len(self._past),
                sha256=now.sha256,
            )

    def parts(self) -> list[PartView]:
        """All columns, in the order of their numbers."""
        with self._lock:
            return self._now.atlas

    def part(self, number: int) -> PartDetail:
        """All that is known of one column.

        Args:
            number: Which.
        """
        with self._lock:
            now = self._now
            if not 0 <= number < now.subject.block.num_basis:
                raise KeyError(f"part must be in [0, {now.subject.block.num_basis}), got {number}")
            column, values = now.columns.columns[number], now.parts[number]
            if not now.subject.outputs:  # the block of an estimator without outputs still has one, which says nothing
                column = replace(column, profile=())
            top = [self._example(i, float(now.explained.h[i, number])) for i in column.top_examples]
            return PartDetail(column, numbers(values), top, gone=not bool(values.any()))

    def list_examples(
        self, offset: int, limit: int, *, label: int | None = None, wrong: bool = False
    ) -> tuple[list[ExampleView], int]:
        """Some of the examples, and how many there are of the kind.

        Args:
            offset: How many to pass over.
            limit: How many to give at most.
            label: Of one class only.
            wrong: Only those that are answered wrongly.
        """
        with self._lock:
            chosen = torch.ones(len(self.examples), dtype=torch.bool)
            labels = self.examples.labels
            if labels is not None and label is not None:
                chosen &= labels == label
            if labels is not None and wrong and self._now.subject.classes:
                chosen &= labels != self._now.answers
            rows = chosen.nonzero().flatten().tolist()
            return [self._example(i) for i in rows[offset : offset + limit]], len(rows)

    def explain(
        self,
        *,
        example: int | None = None,
        values: Sequence[float] | None = None,
        factors: Mapping[int, float] | None = None,
        adapt: bool = False,
    ) -> ExplanationView:
        """An input and what the model says to it, as sums.

        Args:
            example: The number of an example. Give either this or `values`.
            values: An input of one's own.
            factors: What to multiply the amounts of parts with.
            adapt: Whether the other parts make the best of that, or stay as they are.
        """
        with self._lock:
            subject = self._now.subject
            x = self._input(example, values)
            factors = dict(factors or {})
            before = subject.explain(x)
            now = before
            if factors:
                now = subject.adapted(x, factors) if adapt and self.can_adapt else before.scaled(factors)
            label = None if example is None or self.examples.labels is None else int(self.examples.labels[example])
            p = subject.recognise(x)[0]
            return explanation_view(now, before, factors, label=label, p=p)

    @property
    def can_adapt(self) -> bool:
        """Whether the other parts can make the best of a change: not for gaps, nor where each class is by itself."""
        return not (self._now.subject.takes_gaps or self._now.subject.by_class)

    def batches(self) -> list[BatchView]:
        """The batches of the training, in the order in which they came."""
        with self._lock:
            return self._now.batches

    def time(self) -> TimeView:
        """The training, stage by stage."""
        with self._lock:
            return self._now.time

    def preview(self, batches: Sequence[int]) -> ForgetView:
        """What forgetting batches would do, tried on a copy.

        Args:
            batches: Their numbers.
        """
        with self._lock:
            return self._forgotten_copy(batches)[1]

    def forget(self, batches: Sequence[int]) -> ForgetView:
        """Forgets batches, on a copy that takes the place of the model until the change is taken back.

        Args:
            batches: Their numbers.
        """
        with self._lock:
            copied, view = self._forgotten_copy(batches)
            self._past = [*self._past, (self._now, self._forgotten)][-MOST_UNDO:]
            gone = {id for id in batches if id in view.report.batches}
            self._now, self._forgotten = copied, sorted(gone.union(self._forgotten))
            self._reports.append(view)
            self._version += 1
            return view

    def undo(self) -> ModelView:
        """Takes the last change back."""
        with self._lock:
            if not self._past:
                raise LookupError("there is nothing to take back")
            self._now, self._forgotten = self._past.pop()
            self._reports.pop()
            self._version += 1
            return self.model()

    def report(self) -> dict[str, Any]:
        """What was forgotten, and what that does and does not guarantee, as plain values for a file."""
        with self._lock:
            if not self._reports:
                raise LookupError("nothing was forgotten yet")
            return {
                "torchpfc": __version__,
                "model": self._now.subject.name,
                "examples": self.examples.source,
                "num_examples": len(self.examples),
                "changes": [
                    {**view.report.to_dict(), "accuracy": {"before": asdict(view.before), "after": asdict(view.after)}}
                    for view in self._reports
                ],
            }

    def _forgotten_copy(self, batches: Sequence[int]) -> tuple[Snapshot, ForgetView]:
        """A copy that has forgotten; the one that was last made, where it was made of the same model."""
        asked = self._version, tuple(batches)
        if asked not in self._tried:
            self._tried = {asked: self._try(batches)}
        return self._tried[asked]

    def _try(self, batches: Sequence[int]) -> tuple[Snapshot, ForgetView]:
        if known := sorted(set(batches).intersection(self._forgotten)):
            raise ValueError(f"batches must not be forgotten already, got {known[0]}")
        copied = Snapshot(self._now.subject.copy(), self.examples, self._now.known)
        report = copied.subject.forget(list(batches))
        if not report.num_columns:
            raise ValueError("batches must have written columns that are still there, got none")
        return copied, ForgetView(report, self._now.accuracy, copied.accuracy)

    def _input(self, example: int | None, values: Sequence[float] | None) -> Tensor:
        if (example is None) == (values is None):
            raise ValueError("either example or values must be given, got " + ("both" if values else "neither"))
        if example is not None:
            if not 0 <= example < len(self.examples):
                raise ValueError(f"example must be in [0, {len(self.examples)}), got {example}")
            return self.examples.x[example : example + 1]
        assert values is not None
        if len(values) != self.num_features:
            raise ValueError(f"values must be {self.num_features} numbers, got {len(values)}")
        x = torch.tensor([values], dtype=self.examples.x.dtype)
        if self._now.subject.block.nonnegative and bool((x < 0).any()):
            raise ValueError(f"values must not be negative for this model, got {float(x.min()):.3g}")
        return x

    def _example(self, index: int, amount: float | None = None) -> ExampleView:
        labels, now = self.examples.labels, self._now
        return ExampleView(
            index=index,
            image=thumbnail(self.examples.x[index]),
            label=None if labels is None else int(labels[index]),
            answer=int(now.answers[index]) if now.subject.classes else None,
            amount=amount,
        )
