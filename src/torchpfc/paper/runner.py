"""Runs experiments: groups what can be trained at once, skips what is done, goes on where a run was stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchpfc.checkpoint import STATE_FILE, read_json, write_atomically
from torchpfc.paper.registry import Experiment, Job
from torchpfc.paper.results import Result, job_key, result_path
from torchpfc.paper.settings import settings
from torchpfc.progress import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

UNFINISHED = "unfinished"
"""Folder, beside the results, of what is needed to go on with runs that were stopped."""

_JOBS_FILE = "jobs.json"


@dataclass(frozen=True)
class Context:
    """What a run needs to know beside its jobs."""

    fabric: Fabric
    folder: Path
    """For checkpoints of these jobs."""
    data_dir: Path | None = None
    test: bool = True
    """Whether to measure on test data; settings are chosen without."""
    precision: str = "tf32"
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints, or a little more; 0 makes one after each epoch."""
    models: Path | None = None
    """Where to keep trained models, for experiments that can; None keeps none."""
    tick: Callable[[float], None] = field(default=lambda share: None)
    """Told the share that is done."""


@dataclass(frozen=True)
class Group:
    """Jobs that are trained at once."""

    experiment: Experiment
    jobs: tuple[Job, ...]

    @property
    def key(self) -> str:
        """The same for the same jobs."""
        keys = "".join(self._key(job) for job in self.jobs)
        return hashlib.sha256(keys.encode()).hexdigest()[:16]

    @property
    def work(self) -> float:
        """How long it may take, in no particular unit."""
        return sum(float(job.config.cost()) for job in self.jobs)

    def to_run(self, results: Path, folder: Path) -> tuple[Job, ...]:
        """The jobs without a result, or all that were begun together, if that was stopped; none if all have results."""
        pending = [job for job in self.jobs if not path_of(results, self.experiment, job).exists()]
        if not pending:
            return ()
        begun = folder / _JOBS_FILE
        if not begun.exists():
            write_atomically(begun, json.dumps({"jobs": [self._key(job) for job in pending]}) + "\n")
        keys = read_json(begun).get("jobs", ())
        return tuple(job for job in self.jobs if self._key(job) in keys)

    def _key(self, job: Job) -> str:
        return job_key(self.experiment.name, settings(job.config), job.seed)


def path_of(results: Path, experiment: Experiment, job: Job) -> Path:
    """Where the result of a job lies, if there is one.

    Args:
        results: Folder of the results.
        experiment: What the job belongs to.
        job: The job.
    """
    return result_path(results, experiment.name, settings(job.config), job.seed)


def make_groups(requests: Iterable[tuple[Experiment, Sequence[Job]]], *, processes: int = 1) -> list[Group]:
    """Puts together what can be trained at once; the cheapest groups come first.

    Args:
        requests: Experiments, each with what to run of it; what is asked for twice is run once.
        processes: Number of processes that are to share each batch.
    """
    groups: list[Group] = []
    for experiment, jobs in requests:
        stacks: dict[object, list[Job]] = {}
        for job in dict.fromkeys(jobs):
            check_shared(experiment, job, processes)
            stacks.setdefault(job.config.stack_key(), []).append(job)
        for stack in stacks.values():
            size = stack[0].config.stack_size()
            groups += [Group(experiment, tuple(stack[k : k + size])) for k in range(0, len(stack), size)]
    return sorted(groups, key=lambda group: group.work)


def check_shared(experiment: Experiment, job: Job, processes: int) -> None:
    """Refuses what some processes cannot do together: then each would do all of the work.

    Args:
        experiment: What is to be run.
        job: One model of it.
        processes: How many are to share each batch.
    """
    size = job.config.shared_batch()
    if size == 1 and processes > 1:
        what = f"{experiment.name} with {type(job.config).__name__}"
        raise ValueError(f"devices must be 1 for {what}, whose batches cannot be divided, got {processes}")
    if size % processes:
        raise ValueError(f"batch_size must be a multiple of the {processes} processes, got {size}")


def run_groups(
    groups: Sequence[Group],
    fabric: Fabric,
    results: Path,
    *,
    describe: Callable[[Result], str] = lambda result: result.key,
    **options: Any,
) -> list[Result]:
    """Runs all that has no result yet, and writes one file for each job.

    A group that was stopped goes on with the jobs that it had begun with, from its last checkpoint, so that all of them
    end as if it had never stopped. Its results are written when all its jobs have ended.

    Args:
        groups: What to run.
        fabric: Devices and processes.
        results: Folder of the results.
        describe: What to print of a result.
        options: Of every `Context`: `data_dir`, `test`, `precision`, `checkpoint_seconds` and `models`.

    Returns:
        What was run; the other jobs had results already.
    """
    new: list[Result] = []
    done = 0.0
    first = fabric.is_global_zero
    with Progress(sum(group.work for group in groups), show=None if first else False, lines=first) as progress:
        for number, group in enumerate(groups, start=1):
            folder = results / UNFINISHED / group.key
            # One process decides: another might look when this one has gone on.
            jobs = fabric.broadcast(group.to_run(results, folder) if fabric.is_global_zero else ())
            if jobs:
                progress.at(done, f"{group.experiment.name} ({number} of {len(groups)}, {len(jobs)} at once)")
                part = progress.part(done, group.work)
                context = Context(fabric, folder, tick=part, **options)
                try:
                    found = list(group.experiment.run(jobs, context))
                except BaseException:
                    if fabric.is_global_zero and not (folder / STATE_FILE).exists():
                        _remove(folder)  # there is nothing to go on from
                    raise
                new += found
                if fabric.is_global_zero:
                    for result in found:
                        result.save(results)
                        progress.note(describe(result))
            if fabric.is_global_zero:
                _remove(folder)
            fabric.barrier()
            done += group.work
            progress.at(done)
    return new


def _remove(folder: Path) -> None:
    """Removes the folder of a group, and the one around it if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty, or never made
        folder.parent.rmdir()
