"""Taking knowledge out of a trained block, and what that leaves behind (Section 5.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchpfc.data.images import ImageData, load_images
from torchpfc.data.streams import next_label
from torchpfc.nn import PFCBlock
from torchpfc.optim.stacked_slw import StackedRMSpropSLW
from torchpfc.paper.continual import build, eval_solver, fast, loss_weights, phase_result
from torchpfc.paper.image_run import ImageRun, Recipe
from torchpfc.paper.registry import Experiment, Job, Row, Table, as_published, register
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import settings
from torchpfc.paper.stack_run import Found
from torchpfc.paper.unlearning_audit import Forgotten
from torchpfc.paper.unlearning_replay import run_replay
from torchpfc.paper.unlearning_settings import Unlearning, batches_to_forget, make_phase
from torchpfc.training import Batch


def spoil(batches: Iterable[Batch], jobs: Sequence[Job], optimizer: Optimizer) -> Iterator[Batch]:
    """Wrong labels in some batches of some models, and others passed over."""
    assert isinstance(optimizer, StackedRMSpropSLW)
    device = optimizer.passed_by.device
    wrong = [_wrong_batches(job.config) for job in jobs]
    skipped = [frozenset(job.config.skipped) for job in jobs]
    masks: dict[tuple[bool, ...], Tensor] = {}  # few, and each goes to the device once

    def mask(values: list[bool]) -> Tensor:
        if tuple(values) not in masks:
            masks[tuple(values)] = torch.tensor(values, device=device)
        return masks[tuple(values)]

    for id, batch in enumerate(batches):
        optimizer.passed_by.copy_(mask([id in ids for ids in skipped]))
        spoiled = [id in ids for ids in wrong]
        if any(spoiled):
            turned = next_label(batch.x, batch.target)[1]
            batch = batch._replace(target=torch.where(mask(spoiled).view(-1, 1, 1), turned, batch.target))
        yield batch


def _wrong_batches(config: Any) -> range:
    return range(config.start, config.stop) if config.what == "batches" else range(0)


@dataclass(frozen=True, kw_only=True)
class _Twin(Unlearning):
    """A config that knows which batches it passes over."""

    skipped: tuple[int, ...] = ()


RECIPE = Recipe(
    "unlearning",
    build,
    lambda config, data, seed: [make_phase(config, data, seed)],
    loss_weights=loss_weights,
    eval_solver=eval_solver,
    shuffles=False,
    resets_window=lambda config: True,
    change=spoil,
    look=ImageRun.look_at_phases,
)


def run_unlearning(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains blocks and their twins, which never see what is to be forgotten; then forgets, and compares."""
    if jobs[0].config.replay:
        yield from (run_replay(job, context) for job in jobs)
        return
    data = load_images(jobs[0].config.dataset, context.data_dir)
    twins = [k for k, job in enumerate(jobs) if has_twin(job.config)]
    members = [_member(job, data) for job in jobs] + [_member(jobs[k], data, skips=True) for k in twins]
    run = ImageRun(RECIPE, members, context)
    run.train()
    models = run.learner.unstack()
    for i, job in enumerate(jobs):
        own = [i, len(jobs) + twins.index(i)] if i in twins else [i]
        before, *never = (model for model in (models[k] for k in own) if isinstance(model, PFCBlock))
        found = Forgotten(run, i, before, never[0] if never else None)
        result = phase_result(run, i, Found(found.metrics()))
        seconds = sum(run.seconds[k] for k in own)
        yield replace(result, config=settings(job.config), images=found.pictures(), seconds=seconds)


def has_twin(config: Unlearning) -> bool:
    """Whether what is to be forgotten fills batches, so that a model can pass over these and miss little else."""
    return config.what == "batches" or (config.what == "class" and config.order == "sorted")


def _member(job: Job, data: ImageData, *, skips: bool = False) -> Job:
    config: Any = job.config
    train = make_phase(config, data, job.seed).train
    skipped = tuple(batches_to_forget(config, data, train)) if skips else ()
    return Job(_Twin(**settings(config), skipped=skipped), job.seed)


def _table_5() -> Iterator[Row]:
    corrupted = Unlearning()
    yield Row("T5.BEFORE", corrupted, 83.81, 2.0, seeds=5, metric="before_accuracy")
    yield Row("T5.AFTER", corrupted, 92.77, 0.0, seeds=5, metric="after_accuracy")
    yield Row("T5.UPPER", corrupted, 95.35, 0.35, seeds=5, metric="exact_accuracy")


def _table_beyond() -> Iterator[Row]:
    yield Row("FORGET.CLASS", Unlearning(what="class", order="sorted"), seeds=3)
    yield Row("FORGET.CLASS.SHUFFLED", Unlearning(what="class"), seeds=3)
    yield Row("FORGET.EXAMPLES", Unlearning(what="examples"), seeds=3)


def _table_exact() -> Iterator[Row]:
    yield Row("EXACT.BATCHES", Unlearning(replay=True, epochs=2, relearn_steps=0))


register(
    Experiment(
        "unlearning",
        "forgets batches with wrong labels, a class, or scattered examples (Section 5.5)",
        Unlearning,
        run_unlearning,
        {"paper": as_published, "fast": fast},
        (
            Table("T5", "Unlearning", tuple(_table_5())),
            Table("FORGET", "Forgetting a class, and scattered examples", tuple(_table_beyond()), "after_accuracy"),
            Table("EXACT", "Exact forgetting by replay", tuple(_table_exact()), "bit_equal"),
        ),
    )
)
