"""Exact forgetting: a training that is rewound and replayed, beside one that never saw what is forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchpfc.checkpoint import CorruptFileError, load_checkpoint, reading, save_checkpoint
from torchpfc.continual.certificate import BatchRecord
from torchpfc.data.streams import Stream, corrupt
from torchpfc.locks import held
from torchpfc.nn import PFCBlock, keep_nonnegative
from torchpfc.optim import Ledger, RMSpropSLW
from torchpfc.paper.components import solving
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.image_run import Sets
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import change, settings
from torchpfc.paper.stack_run import Found, make_result
from torchpfc.paper.unlearning_settings import Unlearning
from torchpfc.training import Batches, BestWeights, evaluate, fit, random_stream
from torchpfc.unlearning import Certificate, SavedModel, Snapshots, fingerprint, retrain_without
from torchpfc.unlearning.models import (
    FORGOTTEN,
    LOCK_FILE,
    SNAPSHOTS,
    delete_what_was,
    new_snapshots,
    prepare_certificate,
    save_model,
    snapshots_of,
)
from torchpfc.unlearning.snapshots import copy_snapshots

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_ROWS_AT_ONCE = 1000


class Training:
    """A block that learns a fixed stream with a window, and can learn it again without some of it.

    Unlike a stack it calls the hooks of every step, from which its ledger and its snapshots live.

    Args:
        job: The settings, which may ask for wrong labels, and the seed.
        context: Where to train, and on what; not where to keep anything.
        ledger: That of an earlier process; a new one by default.
        folder: Where to keep snapshots; None keeps them in memory.
    """

    def __init__(self, job: Job, context: Context, *, ledger: Ledger | None = None, folder: Path | None = None) -> None:
        config: Unlearning = job.config
        dtype = dtype_of(context.precision)
        self.config, self.sets = config, Sets([job], context, dtype)
        (self.data,) = self.sets.data.values()
        self.record = BatchRecord(self.data.name, len(self.data.train.x), self.data.fingerprint, job.seed)
        self.block = config.model.build(self.data, random_stream(job.seed, "weights")).to(context.fabric.device, dtype)
        self.optimizer = RMSpropSLW(self.block.parameters(), **settings(config.optimizer), **settings(config.window))
        if config.model.nonnegative:
            keep_nonnegative(self.block, self.optimizer)
        x, target, train, valid = self.sets.x, self.sets.target, self.sets.train[0][0], self.sets.valid[0][0]
        stream = Stream(x, target, train, batch_size=config.schedule.batch_size, drop_last=True)
        self.stream = corrupt(stream, config.wrong_batches(self.data, train))
        self.valid = Batches(x, target, batch_size=min(_ROWS_AT_ONCE, len(valid)), rows=valid)
        self.objective = config.model.errors(*config.model.loss_weights())
        self.stopping = config.make_stopping()
        self.best = BestWeights(self.block)
        self.ledger = Ledger() if ledger is None else ledger
        self.snapshots = Snapshots(
            self.block,
            self.optimizer,
            self.ledger,
            every=config.snapshot_every,
            also={"stopping": self.stopping, "best": self.best},
            folder=folder,
        )

    def train(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """Trains from where the snapshots are to the end.

        Args:
            tick: Told the share that is done.
        """
        epochs = self.config.schedule.epochs
        for stats in fit(
            self.block,
            self.optimizer,
            self.snapshots.follow(self.stream),
            self.objective,
            epochs=epochs,
            first_epoch=self.snapshots.epoch,
            capture=False,  # a recorded step calls no hooks
        ):
            with solving(self.block, self.config.model.eval_solver()):
                found = evaluate(self.block, self.valid, self.objective)
            self.best.keep(self.block, self.stopping.update(found.loss, found.accuracy))
            self.optimizer.reset_window()
            tick((stats.epoch + 1) / epochs)
            if self.stopping.stopped:
                return

    def go_on(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """Trains to the end, from the last snapshot of an earlier process where there is one.

        Args:
            tick: Told the share that is done.
        """
        if self.snapshots.taken_at:
            self.snapshots.rewind()
        self.train(tick)

    def train_without(
        self,
        *,
        batches: Iterable[int] | None = None,
        examples: Iterable[int] | None = None,
        tick: Callable[[float], None] = lambda share: None,
    ) -> Certificate:
        """Goes back to before some data was seen, and trains on without it; the report ends at the best weights."""
        report = retrain_without(lambda: self.train(tick), self.snapshots, batches=batches, examples=examples)
        return replace(report, sha256_after=fingerprint(self.at_best()))

    def at_best(self) -> PFCBlock:
        """A copy of the block with the best weights of the training, and the solver for measuring."""
        block = deepcopy(self.block)
        block.load_state_dict(self.best.values)
        block.solver = self.config.model.inference.eval_solver
        return block

    def test_accuracy(self) -> float:
        """The accuracy in percent on test images, with the best weights."""
        batches = Batches(*self.sets.test[:2], batch_size=_ROWS_AT_ONCE)
        return 100 * evaluate(self.at_best(), batches, self.objective).accuracy.item()

    def bits(self) -> dict[str, Tensor]:
        """All that the training has come to: weights, the best of them, the optimizer, and the counters."""
        found = {f"model.{name}": value for name, value in self.block.state_dict().items()}
        found |= {f"best.{name}": value for name, value in self.best.values.items()}
        found |= {f"stopping.{name}": value for name, value in self.stopping.state.items()}
        for name, p in self.block.named_parameters():
            found |= {f"optimizer.{name}.{key}": value for key, value in self.optimizer.state[p].items()}
        return {name: value.detach().clone() for name, value in found.items()}


class _Stages:
    """What a replay that was stopped has come to, beside its snapshots.

    Args:
        context: Of the replay.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._begin = context, time.perf_counter()
        state = load_checkpoint(context.folder) or {"seconds": 0.0, "kept": False}
        with reading(context.folder, "what a replay has come to"):
            self._before, self.kept = float(state["seconds"]), bool(state["kept"])

    @property
    def seconds(self) -> float:
        """How long all of it has taken, also before it was stopped."""
        return self._before + time.perf_counter() - self._begin

    def save(self) -> None:
        """Keeps the time, and whether the model was kept."""
        save_checkpoint(self._context.folder, {"seconds": self.seconds, "kept": self.kept})

    def tick(self, stage: int) -> Callable[[float], None]:
        """What one of the three trainings is to tell how far it is, after each epoch."""

        def tick(share: float) -> None:
            self.save()
            self._context.tick((stage + share) / 3)

        return tick


def run_replay(job: Job, context: Context) -> Result:
    """Trains, forgets by a replay, trains again without what is forgotten, and compares both bit by bit.

    Where it was stopped, it goes on at the last snapshot of the training that it was in, but a replay begins anew.

    Args:
        job: What to train.
        context: Where, and on what. With a folder for models, the one that learned everything is kept there.
    """
    stages, folder = _Stages(context), context.folder
    training, never = (Training(job, context, folder=folder / name) for name in ("learned", "never"))
    training.go_on(stages.tick(0))
    metrics = {"before_accuracy": training.test_accuracy()} if context.test else {}
    if context.models is not None and not stages.kept:
        keep_model(context.models / f"unlearning-{job.seed}", training, job, context)
        stages.kept = True
        stages.save()
    forgotten = job.config.batches_to_forget(training.data, training.stream.rows)
    training.snapshots.branch(folder / "replayed")
    report = training.train_without(batches=forgotten, tick=stages.tick(1))
    never.snapshots.skip(batches=forgotten)
    never.go_on(stages.tick(2))
    one, other = training.bits(), never.bits()
    same = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    if context.test:
        metrics["exact_accuracy"] = training.test_accuracy()
    metrics |= {"bit_equal": float(same), "replayed_share": report.share}
    metrics["replayed_batches"] = float(report.replayed or 0)
    metrics["epochs"] = float(job.config.schedule.epochs)
    found = Found(metrics, data={training.data.name: training.data.fingerprint})
    return make_result("unlearning", job, found, context, stages.seconds)


def keep_model(folder: Path, training: Training, job: Job, context: Context) -> None:
    """Keeps a trained model with its ledger and snapshots, so that `torchpfc forget` can work on it.

    Args:
        folder: Where.
        training: The training, which has kept its snapshots in a folder.
        job: What was trained.
        context: On what.
    """
    assert training.snapshots.folder is not None
    with held(folder / LOCK_FILE, str(folder)):
        place = new_snapshots(folder)
        copy_snapshots(training.snapshots.folder, place)
        about = {"config": settings(job.config), "seed": job.seed, "precision": context.precision}
        about["data"] = training.sets.fingerprints
        save_model(folder, training.at_best(), training.ledger, {**about, SNAPSHOTS: place.name})
        delete_what_was(folder)


def forget_exactly(
    folder: Path,
    saved: SavedModel,
    *,
    batches: Iterable[int] | None = None,
    examples: Iterable[int] | None = None,
    data_dir: Path | None = None,
    fabric: Fabric,
) -> Certificate:
    """Replays the training of a model that was kept, without some of it, and keeps what comes of that instead.

    The model that comes of it takes the place of the other in one stroke, with its snapshots. Until then all is as it
    was: whatever ends the replay before has changed nothing. What was forgotten in place before is left out as well.

    Args:
        folder: Where the model is, with its snapshots.
        saved: What was loaded from there.
        batches: What to forget; give either these or `examples`.
        examples: What to forget.
        data_dir: Where the images are.
        fabric: Where to train; the bits are the same on the same hardware alone.
    """
    about = dict(saved.about)
    place = snapshots_of(folder, about)
    if place is None or not {"config", "seed", "precision"} <= about.keys():
        remedy = "models that torchpfc run unlearning --rows 'EXACT.*' --models DIR keeps have them"
        raise CorruptFileError(f"{folder} must hold snapshots and the settings of a training to be replayed; {remedy}")
    job = Job(change(Unlearning(), **about["config"]), about["seed"])
    context = Context(fabric, folder, data_dir, precision=about["precision"])
    training = Training(job, context, ledger=saved.ledger, folder=place)
    if about.get("data", training.sets.fingerprints) != training.sets.fingerprints:
        wanted = f"the images that the model has learned from, {training.data.name}"
        raise CorruptFileError(f"the data folder must hold {wanted}, got others; name the right one with --data-dir")
    # What was forgotten in place since is still in the snapshots: a replay without it would bring it back.
    earlier = [id for id in about.pop(FORGOTTEN, ()) if id in saved.ledger.batches]
    if batches is not None:
        batches = {*batches, *earlier}
    elif examples is not None:
        examples = {*examples, *(row for id in earlier for row in saved.ledger.rows_of(id))}
    skipped, passed = training.snapshots.passed_over
    config = {name: about[name] for name in ("config", "seed", "precision")}
    config |= {"skipped": skipped, "examples": passed, "in_place": earlier}
    changed = new_snapshots(folder)
    try:
        training.snapshots.branch(changed)
        report = training.train_without(batches=batches, examples=examples)
        report = replace(
            report,
            settings=config,
            learned=(training.record,),
            sha256_before=fingerprint(saved.block),
            obstacle="",
        )
        prepare_certificate(folder, report)
        save_model(folder, training.at_best(), training.ledger, {**about, SNAPSHOTS: changed.name})
    finally:
        delete_what_was(folder)
    return report
