"""Exact forgetting: a training that is rewound and replayed, beside one that never saw what is forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from torchpfc.checkpoint import CorruptFileError
from torchpfc.data.images import ImageData, load_images
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.registry import Job
from torchpfc.paper.replayable import Training
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import settings
from torchpfc.paper.unlearning_settings import Unlearning, batches_to_forget, make_phase
from torchpfc.training import Batches, SquaredErrors, evaluate
from torchpfc.unlearning import ReplayReport, SavedModel
from torchpfc.unlearning.models import SNAPSHOTS, save_model

_ROWS_AT_ONCE = 1000


def run_replay(job: Job, context: Context) -> Result:
    """Trains, forgets by a replay, trains again without what is forgotten, and compares both bit by bit.

    Args:
        job: What to train.
        context: Where, and on what. With a folder for models, the one that learned everything is kept there.
    """
    config: Any = job.config
    device, dtype = context.fabric.device, dtype_of(context.precision)
    data = load_images(config.dataset, context.data_dir)
    begin = time.perf_counter()
    training = start_training(config, job.seed, data, device, dtype)
    training.tick = lambda share: context.tick(share / 3)
    training.train()
    accuracies = {"before_accuracy": _test_accuracy(training, data)} if context.test else {}
    if context.models is not None:
        keep_model(context.models / f"unlearning-{job.seed}", job, data, context)
    forgotten = batches_to_forget(config, data, training.stream.rows)
    training.tick = lambda share: context.tick((1 + share) / 3)
    report = training.train_without(batches=forgotten)
    never = start_training(config, job.seed, data, device, dtype)
    never.snapshots.skip(batches=forgotten)
    never.tick = lambda share: context.tick((2 + share) / 3)
    never.train()
    one, other = training.bits(), never.bits()
    same = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    if context.test:
        accuracies["exact_accuracy"] = _test_accuracy(training, data)
    metrics = {"bit_equal": float(same), "replayed_share": report.share, "replayed_batches": float(report.replayed)}
    return Result(
        experiment="unlearning",
        config=settings(config),
        seed=job.seed,
        metrics={**accuracies, **metrics, "epochs": float(config.epochs)},
        data={data.name: data.fingerprint},
        seconds=time.perf_counter() - begin,
        **context.provenance(),
    )


def start_training(
    config: Unlearning, seed: int, data: ImageData, device: torch.device, dtype: torch.dtype, **options: Any
) -> Training:
    """A training that has not begun: of a config, with the wrong labels that it asks for."""
    phase = make_phase(config, data, seed)
    wrong = batches_to_forget(config, data, phase.train) if config.what == "batches" else []
    return Training(config, seed, data, phase, wrong, device=device, dtype=dtype, **options)


def keep_model(folder: Path, job: Job, data: ImageData, context: Context) -> None:
    """Trains a model and keeps it with its ledger and snapshots, so that `torchpfc forget` can work on it.

    Args:
        folder: Where.
        job: What to train.
        data: The images.
        context: On what.
    """
    device, dtype = context.fabric.device, dtype_of(context.precision)
    training = start_training(job.config, job.seed, data, device, dtype, folder=folder / SNAPSHOTS)
    training.train()
    about = {"config": settings(job.config), "seed": job.seed, "precision": context.precision}
    save_model(folder, training.at_best(), training.ledger, about)


def forget_exactly(
    folder: Path,
    saved: SavedModel,
    *,
    batches: Iterable[int] | None = None,
    examples: Iterable[int] | None = None,
    data_dir: Path | None = None,
    device: torch.device,
) -> ReplayReport:
    """Replays the training of a model that was kept, without some of it, and keeps what comes of that instead.

    Args:
        folder: Where the model is, with its snapshots.
        saved: What was loaded from there.
        batches: What to forget; give either these or `examples`.
        examples: What to forget.
        data_dir: Where the images are.
        device: Where to train; the bits are the same on the same hardware alone.
    """
    if not (folder / SNAPSHOTS).is_dir() or not {"config", "seed", "precision"} <= saved.about.keys():
        remedy = "models that torchpfc run unlearning --rows 'EXACT.*' --models DIR keeps have them"
        raise CorruptFileError(f"{folder} must hold snapshots and the settings of a training to be replayed; {remedy}")
    config = Unlearning(**saved.about["config"])
    data = load_images(config.dataset, data_dir)
    training = start_training(
        config,
        saved.about["seed"],
        data,
        device,
        dtype_of(saved.about["precision"]),
        ledger=saved.ledger,
        folder=folder / SNAPSHOTS,
    )
    training.block.load_state_dict(saved.block.state_dict())
    report = training.train_without(batches=batches, examples=examples)
    save_model(folder, training.at_best(), training.ledger, saved.about)
    return report


def _test_accuracy(training: Training, data: ImageData) -> float:
    block = training.at_best().eval()
    x = data.test.x.to(block.weight_x.device, block.weight_x.dtype)
    target = F.one_hot(data.test.label, data.num_classes).to(x)
    return 100 * evaluate(block, Batches(x, target, batch_size=_ROWS_AT_ONCE), SquaredErrors()).accuracy.item()
