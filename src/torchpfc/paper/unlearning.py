"""Taking knowledge out of a trained block, and what that leaves behind (Section 5.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from torchpfc.data.streams import next_label
from torchpfc.nn import PFCBlock
from torchpfc.optim.stacked_slw import StackedRMSpropSLW
from torchpfc.paper.continual import fast
from torchpfc.paper.image_run import ImageRun
from torchpfc.paper.learners import Source
from torchpfc.paper.registry import Experiment, Job, Row, Table, as_published, register
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import change
from torchpfc.paper.stack_run import Found
from torchpfc.paper.unlearning_audit import Forgotten
from torchpfc.paper.unlearning_replay import run_replay
from torchpfc.paper.unlearning_settings import Unlearning
from torchpfc.training import Batch


class UnlearningRun(ImageRun):
    """The training of blocks and of their twins, which never see what is to be forgotten; then all forget.

    Args:
        jobs: The blocks.
        context: Where, and on what.
    """

    def __init__(self, jobs: Sequence[Job], context: Context) -> None:
        self.count = len(jobs)
        self.with_twin = [i for i, job in enumerate(jobs) if job.config.has_twin()]
        super().__init__("unlearning", [*jobs, *(jobs[i] for i in self.with_twin)], context)

    def prepare(self) -> None:
        """Loads the images, and finds which batches have wrong labels, and which are passed over."""
        super().prepare()
        configs, orders = [job.config for job in self.jobs], self.sets.train[0]
        count = len(self.jobs), orders.shape[1] // self.config.schedule.batch_size
        self.wrong, self.skipped = torch.zeros(2, *count, dtype=torch.bool)
        for k, (config, train) in enumerate(zip(configs, orders, strict=True)):
            self.wrong[k, list(config.wrong_batches(self.data, train))] = True
            if k >= self.count:
                self.skipped[k, config.batches_to_forget(self.data, train)] = True

    def source(self) -> Source:
        """The images in batches, of which some have wrong labels."""
        optimizer = self.learner.optimizer
        assert isinstance(optimizer, StackedRMSpropSLW)
        return Spoiled(super().source(), self.wrong[self.members], self.skipped[self.members], optimizer)

    def results(self) -> Iterator[Result]:
        """Those of the blocks; their twins have none."""
        return islice(super().results(), self.count)

    @torch.enable_grad()
    def measure(self, model: PFCBlock, i: int) -> Found:
        """Forgets, and compares."""
        never = None
        if i in self.with_twin:
            twin = self.count + self.with_twin.index(i)
            never = self.learner.unstack()[twin]
            self.seconds[i] += self.seconds[twin]
        forgotten = Forgotten(self, i, model, never)
        return self.measure_phases(i) | Found(forgotten.metrics(), images=forgotten.pictures())


class Spoiled:
    """Batches of which some models see some with wrong labels, and pass over others.

    Args:
        source: The batches as they should be.
        wrong: Which have wrong labels.
        skipped: Which are passed over.
        optimizer: Told of the latter.

    Shape:
        - wrong: $(s, n)$, models first, then batches
        - skipped: $(s, n)$
    """

    def __init__(self, source: Source, wrong: Tensor, skipped: Tensor, optimizer: StackedRMSpropSLW) -> None:
        device = optimizer.passed_by.device
        self._source, self._optimizer = source, optimizer
        self._wrong, self._skipped = wrong.to(device), skipped.to(device)

    def __len__(self) -> int:
        return len(self._source)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the round."""
        self._source.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        for id, batch in enumerate(self._source):
            self._optimizer.passed_by.copy_(self._skipped[:, id])
            turned = next_label(batch.x, batch.target)[1]
            yield batch._replace(target=torch.where(self._wrong[:, id].view(-1, 1, 1), turned, batch.target))


def run_unlearning(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains blocks, lets them forget, and compares them with such as never saw what is forgotten."""
    if jobs[0].config.replay:
        return (run_replay(job, context) for job in jobs)
    return UnlearningRun(jobs, context).results()


_PAPER = (
    Row("T5.BEFORE", Unlearning(), 83.81, 2.0, seeds=5, metric="before_accuracy"),
    Row("T5.AFTER", Unlearning(), 92.77, 0.0, seeds=5, metric="after_accuracy"),
    Row("T5.UPPER", Unlearning(), 95.35, 0.35, seeds=5, metric="exact_accuracy"),
)
_BEYOND = (
    Row("FORGET.CLASS", change(Unlearning(), what="class", order="sorted"), seeds=3),
    Row("FORGET.CLASS.SHUFFLED", Unlearning(what="class"), seeds=3),
    Row("FORGET.EXAMPLES", Unlearning(what="examples"), seeds=3),
)
_EXACT = Row("EXACT.BATCHES", change(Unlearning(), replay=True, epochs=2, relearn_steps=0))


register(
    Experiment(
        "unlearning",
        "forgets batches with wrong labels, a class, or scattered examples (Section 5.5)",
        Unlearning,
        run_unlearning,
        {"paper": as_published, "fast": fast},
        (
            Table("T5", "Unlearning", _PAPER),
            Table("FORGET", "Forgetting a class, and scattered examples", _BEYOND, "after_accuracy"),
            Table("EXACT", "Exact forgetting by replay", (_EXACT,), "bit_equal"),
        ),
    )
)
