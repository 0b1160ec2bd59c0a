"""Vocals out of a mixture: factorized and vanilla networks, NMF, and what bounds them (Section 5.11)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchpfc.audio import ClipSampler, NMFSeparator, SeparationErrors, all_clips, hear, hear_both, save_separator
from torchpfc.paper.learners import Learner, Rounds, Sequences, Source
from torchpfc.paper.recurrent_models import mean_squares
from torchpfc.paper.recurrent_run import NetworkRun
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.separation_measures import (
    ByIdealFeatures,
    ByIdealMask,
    ByModel,
    ByNothing,
    Method,
    measure,
    measure_error,
    measure_plainly,
    show,
)
from torchpfc.paper.separation_songs import (
    FEATURES,
    GENERATED,
    NETWORKS,
    SeparationConfig,
    Songs,
    load_songs,
)
from torchpfc.paper.settings import settings
from torchpfc.paper.stack_run import Examined, Found, make_result
from torchpfc.training import EpochStats, random_stream

NAME = "separation"


class SeparationRun(NetworkRun):
    """Networks that learn from clips whose stems come from different songs."""

    config: SeparationConfig

    def prepare(self) -> None:
        """Loads the songs."""
        self.songs = load_songs(self.config, self.context.data_dir)
        self.sampler = ClipSampler(
            [track.to(self.device) for track in self.songs.train],
            samples=self.config.samples,
            gain_per_batch=self.config.gain_per_batch,
        )
        heard = hear(all_clips(self.songs.valid, self.config.samples))
        self.hear = hear_both if self.config.predicts == "both" else hear
        self.valid = [part.to(self.device, self.dtype) for part in heard]

    def build(self) -> Learner:
        """All networks as they begin."""
        config, outputs = self.config, FEATURES.bins * (2 if self.config.predicts == "both" else 1)
        errors = SeparationErrors(FEATURES, config.mask_weight, config.mask_power)
        return self.gradient_learner(FEATURES.bins, outputs, objective=errors)

    def num_epochs(self) -> int:
        """As many as there are validations."""
        return max(1, round(self.songs.steps / self.config.validate_every))

    def source(self) -> Source:
        """Fresh clips."""
        count = min(self.config.validate_every, self.songs.steps)
        return Rounds(count, lambda epoch: (self.draw(epoch, k) for k in range(count)))

    def draw(self, epoch: int, k: int) -> Sequences:
        """A batch of clips for the networks that still learn, which depends on the seeds and these numbers alone."""
        streams = [random_stream(seed, "clips", epoch, k) for seed in self.seeds()]
        drawn = [self.hear(self.sampler.draw(self.config.batch_size, stream)) for stream in streams]
        return Sequences(*(torch.stack(part).to(self.device, self.dtype) for part in zip(*drawn, strict=True)))

    def examine(self, stats: EpochStats) -> Examined:
        """The error of vocals on validation songs, whose clips are as they are in the song."""
        count = len(self.members)
        total = torch.zeros(count, device=self.device, dtype=self.dtype)
        parts = (torch.split(part, self.config.batch_size) for part in self.valid)
        for x, target in zip(*parts, strict=True):
            y = self.learner.stack(x.expand(count, *x.shape))[0][..., : FEATURES.bins]
            total += mean_squares(y - target) * len(x)
        errors = (total / len(self.valid[0])).cpu().double()
        return Examined(errors, -errors, {"valid_mse": errors})

    def measure(self, model: Any, i: int) -> Found:
        """Everything that is known of a trained network."""
        history = self.history[i]["valid_mse"]
        best = min(history)
        steps = [float((k + 1) * self.config.validate_every) for k in range(len(history))]
        found = Found({"valid_mse": best, "best_step": steps[history.index(best)]}, {"steps": steps})
        return complete(found, ByModel(model, self.config.mask_power), self.songs, self.jobs[i], self.context)


def complete(found: Found, method: Method, songs: Songs, job: Job, context: Context) -> Found:
    """Adds what test songs tell about a method, if they may be looked at, and keeps a model if that is asked for."""
    config = job.config
    if context.models is not None and isinstance(method, ByModel) and context.fabric.is_global_zero:
        both = "-both" if config.predicts == "both" else ""
        folder = context.models / f"{NAME}-{config.model}-{config.num_basis}{both}-{job.seed}"
        about = settings(config) | {"seed": job.seed}
        save_separator(folder, method.model, FEATURES, about, power=method.power)
    found.data[config.source] = songs.fingerprint
    found.metrics["valid_sdr"] = measure_plainly(method, songs.valid)
    if context.test:
        found.metrics |= measure(method, songs, config.samples)
        if not job.seed:  # one of the runs is enough to look at and to listen to
            # Sounds of songs that are not ours stay where they are.
            found |= show(method, next(songs.test()), sounds=config.source == GENERATED)
    return found


def run_without_steps(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """NMF, whose columns come from each source by itself, and what separation is compared with."""
    for job in jobs:
        start = time.perf_counter()
        songs = load_songs(job.config, context.data_dir)
        method = make_method(job.config, songs, job.seed)
        found = Found({"valid_mse": measure_error(method, songs.valid, job.config.samples)})
        found = complete(found, method, songs, job, context)
        yield make_result(NAME, job, found, context, time.perf_counter() - start)


def make_method(config: SeparationConfig, songs: Songs, seed: int) -> Method:
    """What takes no steps."""
    if config.model == "nmf":
        return ByModel(fit_nmf(config, songs, seed), config.mask_power)
    without: dict[str, Callable[[], Method]] = {
        "mixture": ByNothing,
        "ideal-mask": ByIdealMask,
        "ideal-features": ByIdealFeatures,
    }
    return without[config.model]()


def fit_nmf(config: SeparationConfig, songs: Songs, seed: int) -> NMFSeparator:
    """Learns half of the columns from vocals, and half from all the rest."""
    clips = all_clips(songs.train, config.samples)
    vocals, rest = (FEATURES.of(FEATURES.analyze(part)) for part in (clips.vocals, clips.mixture - clips.vocals))
    half = config.num_basis // 2
    return NMFSeparator.fit(
        vocals, rest, (half, config.num_basis - half), features=FEATURES, generator=random_stream(seed, "columns")
    )


def run(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains and measures methods that share one stack key."""
    if jobs[0].config.model in NETWORKS:
        return SeparationRun(NAME, jobs, context).results()
    return run_without_steps(jobs, context)
