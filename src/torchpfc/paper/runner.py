"""Runs experiments: groups what can be trained at once, skips what is done, goes on where a run was stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchpfc.checkpoint import CorruptFileError, read_json, write_atomically
from torchpfc.locks import HeldError, held
from torchpfc.paper.registry import Experiment, Job
from torchpfc.paper.results import Result, job_key, load_result, result_path
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

    def to_run(self, results: Path, folder: Path, how: Mapping[str, Any]) -> tuple[Job, ...]:
        """The jobs without a result, or all that were begun together, if that was stopped; none if all have results.

        Args:
            results: Folder of the results.
            folder: What was begun is in it, if anything was.
            how: On what they are to be run. What was begun otherwise is refused: its result would say what is not so.
        """
        pending = [job for job in self.jobs if not self._has_result(results, job)]
        begun = folder / _JOBS_FILE
        if not pending or not (begun.exists() or _can_go_on(folder)):
            return tuple(pending)
        content = read_json(begun) if begun.exists() else {}
        keys = content.get("jobs")
        jobs = [job for job in self.jobs if isinstance(keys, list) and self._key(job) in keys]
        if not jobs or len(jobs) != len(keys or ()):
            raise CorruptFileError(
                f"{begun} must name the runs that were begun together, got others; delete {folder} to begin anew"
            )
        for name, value in how.items():
            if content.get(name) != value:
                raise CorruptFileError(
                    f"{name} must be {content.get(name)}, with which the run in {folder} was begun, got {value}; "
                    "finish it with that, or delete the folder to begin anew"
                )
        return tuple(jobs)

    def begin(self, jobs: Sequence[Job], folder: Path, how: Mapping[str, Any]) -> None:
        """Notes what is run together, and on what, where it was not begun before."""
        if not (folder / _JOBS_FILE).exists():
            keys = [self._key(job) for job in jobs]
            write_atomically(folder / _JOBS_FILE, json.dumps({"jobs": keys, **how}) + "\n")

    def is_open(self, results: Path) -> bool:
        """Whether a job has no result, or something was left behind by the process that ran them."""
        left = (results / UNFINISHED / self.key, *(self._lock(results, job) for job in self.jobs))
        return any(path.exists() for path in left) or not all(self._has_result(results, job) for job in self.jobs)

    @contextmanager
    def held(self, results: Path) -> Iterator[None]:
        """Holds the locks of all its jobs, so that no other process runs one of them."""
        try:
            with ExitStack() as locks:
                for job in self.jobs:
                    what = f"{self.experiment.name} with seed {job.seed} in {results}"
                    locks.enter_context(held(self._lock(results, job), what))
                yield
        finally:
            _remove_if_empty(results / UNFINISHED)

    def _lock(self, results: Path, job: Job) -> Path:
        return results / UNFINISHED / f"{self._key(job)}.lock"

    def _has_result(self, results: Path, job: Job) -> bool:
        path = path_of(results, self.experiment, job)
        return path.exists() and bool(load_result(path))

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
    precision: str = "tf32",
    describe: Callable[[Result], str] = lambda result: result.key,
    **options: Any,
) -> list[Result]:
    """Runs all that has no result yet, and writes one file for each job.

    A group that was stopped goes on with the jobs that it had begun with, from its last checkpoint, so that all of them
    end as if it had never stopped. Its results are written when all its jobs have ended. One that another process runs
    at the moment is left to that, which a line says.

    Args:
        groups: What to run.
        fabric: Devices and processes.
        results: Folder of the results.
        precision: Of the arithmetic.
        describe: What to print of a result.
        options: Of every `Context`: `data_dir`, `test`, `checkpoint_seconds` and `models`.

    Returns:
        What was run; the other jobs had results already, or are run by others.
    """
    new: list[Result] = []
    done = 0.0
    first = fabric.is_global_zero
    how: dict[str, Any] = {"precision": precision}
    if first:
        how |= {"device": fabric.device.type, "processes": fabric.world_size}
        for group in groups:  # before hours go into the others
            group.to_run(results, results / UNFINISHED / group.key, how)
    with Progress(sum(group.work for group in groups), show=None if first else False, lines=first) as progress:
        for number, group in enumerate(groups, start=1):
            folder = results / UNFINISHED / group.key
            context = Context(fabric, folder, precision=precision, tick=progress.part(done, group.work), **options)
            with ExitStack() as lock:
                ours = first and _hold(group, results, lock, progress)
                # One process decides: another might look when this one has gone on.
                while jobs := fabric.broadcast(group.to_run(results, folder, how) if ours else ()):
                    progress.at(done, f"{group.experiment.name} ({number} of {len(groups)}, {len(jobs)} at once)")
                    if first:
                        group.begin(jobs, folder, how)
                    found = _run(group, jobs, context)
                    new += found
                    if first:
                        for result in found:
                            result.save(results)
                            progress.note(describe(result))
                        _remove(folder)
                    fabric.barrier()
                if ours:
                    _remove(folder)
            done += group.work
            progress.at(done)
    return new


def _hold(group: Group, results: Path, lock: ExitStack, progress: Progress) -> bool:
    """Whether there is anything to do for a group, by this process; holds the lock of it until the end then."""
    if not group.is_open(results):
        return False
    try:
        lock.enter_context(group.held(results))
    except HeldError as error:
        progress.note(f"left to another: {error}")
        return False
    return True


def _run(group: Group, jobs: tuple[Job, ...], context: Context) -> list[Result]:
    try:
        return list(group.experiment.run(jobs, context))
    except BaseException:
        if context.fabric.is_global_zero and not _can_go_on(context.folder):
            _remove(context.folder)
        raise


def _can_go_on(folder: Path) -> bool:
    """Whether a run has left something to go on from."""
    return any(path.name != _JOBS_FILE for path in folder.glob("[!.]*"))


def _remove(folder: Path) -> None:
    """Removes the folder of a group, and the one around it if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    _remove_if_empty(folder.parent)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty, or never made
        folder.rmdir()
