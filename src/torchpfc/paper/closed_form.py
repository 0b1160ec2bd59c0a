"""Learning from each example once, without looking back: the experiment, and a run of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from torchpfc.data.images import ImageData
from torchpfc.data.streams import SPLIT_PAIRS
from torchpfc.paper.components import ImageSet, Phase
from torchpfc.paper.continual_metrics import measure_tasks
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.image_run import Sets
from torchpfc.paper.one_pass_learners import Learner, Method
from torchpfc.paper.probes import share_right
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import Component, one_of
from torchpfc.paper.stack_run import make_result
from torchpfc.running_sums import ROWS_AT_ONCE


@dataclass(frozen=True, kw_only=True)
class OnePass(Component):
    """A learner that needs no validation data to know when to stop; so it can follow the strict protocol alone."""

    images: ImageSet = ImageSet()
    tasks: Annotated[str, one_of("pairs", "classes")] = "pairs"
    """pairs: two classes at a time, as in Split MNIST. classes: one, as where examples are sorted by label."""
    method: Method

    def stack_key(self) -> object:
        """Itself: seeds are run one after another."""
        return self

    def stack_size(self) -> int:
        """Any number."""
        return 16

    def cost(self) -> float:
        """About how long a run may take."""
        return self.method.cost()

    def phases(self, data: ImageData, seed: int) -> list[Phase]:
        """A phase for each task."""
        groups = SPLIT_PAIRS if self.tasks == "pairs" else [[c] for c in range(data.num_classes)]
        return self.images.tasks(data, groups, seed)

    def shared_batch(self) -> int:
        """None: all examples of a task are taken in at once."""
        return 1


@torch.no_grad()
def run_one_pass(experiment: str, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Lets each learner take in one task after another, and measures it after each."""
    for number, job in enumerate(jobs, start=1):
        yield _run_one(experiment, job, context)
        context.tick(number / len(jobs))


def _run_one(experiment: str, job: Job, context: Context) -> Result:
    device, dtype = context.fabric.device, dtype_of(context.precision)
    sets = Sets([job], context, dtype)
    (data,) = sets.data.values()
    valid, measured = list(_examples(sets.x, sets.target, sets.valid)), list(_examples(*sets.measured))
    learner = job.config.method.make(data, job.seed, device, dtype)
    matrix, seconds = [_accuracies(learner, measured)], 0.0
    for x, label in _examples(sets.x, sets.target, sets.train):
        begin = time.perf_counter()
        learner.learn(x, label)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # gpu-only: so that the time is that of the work
        seconds += time.perf_counter() - begin
        matrix.append(_accuracies(learner, measured))
    valid_sizes, valid_found = [len(found) for _, found in valid], _accuracies(learner, valid)
    valid_accuracy = sum(a * n for a, n in zip(valid_found, valid_sizes, strict=True)) / sum(valid_sizes)
    found = measure_tasks(matrix, [len(kind) for _, kind in measured], valid_accuracy, context.test)
    found.metrics |= {**learner.measures(), "epochs": 1.0}
    found.images = learner.pictures(data) if job.seed == 0 else {}
    found.data = {data.name: data.fingerprint}
    return make_result(experiment, job, found, context, seconds)


def _examples(x: Tensor, target: Tensor, rows_of_tasks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of each task, and their classes."""
    for rows in rows_of_tasks:
        own = rows.flatten().to(x.device)  # for one learner alone
        yield x[own], target[own].argmax(-1)


def _accuracies(learner: Learner, sets: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """The accuracy in percent on each of some sets."""
    found = []
    for x, label in sets:
        scores = torch.cat([learner.scores(some) for some in torch.split(x, ROWS_AT_ONCE)])
        found.append(share_right(scores, label))
    return found
