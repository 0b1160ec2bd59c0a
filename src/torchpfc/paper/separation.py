"""Vocals out of a mixture: factorized and vanilla networks, NMF, and what bounds them (Section 5.11)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchpfc.audio import ClipSampler, NMFSeparator, all_clips, hear, save_separator
from torchpfc.paper.learners import Learner, Rounds, Sequences, Source
from torchpfc.paper.recurrent_models import mean_squares
from torchpfc.paper.recurrent_run import NetworkRun
from torchpfc.paper.registry import Experiment, Job, Ratio, Row, Table, as_published, register
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.separation_measures import ByModel, ByNothing, ByOracle, Method, measure, measure_error, show
from torchpfc.paper.separation_songs import FEATURES, NETWORKS, SeparationConfig, Songs, load_songs
from torchpfc.paper.settings import change, settings
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
        self.valid = [part.to(self.device, self.dtype) for part in heard]

    def build(self) -> Learner:
        """All networks as they begin."""
        return self.gradient_learner(FEATURES.bins, FEATURES.bins)

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
        drawn = [hear(self.sampler.draw(self.config.batch_size, stream)) for stream in streams]
        return Sequences(*(torch.stack(part).to(self.device, self.dtype) for part in zip(*drawn, strict=True)))

    def examine(self, stats: EpochStats) -> Examined:
        """The error on validation songs, whose clips are as they are in the song."""
        count = len(self.members)
        total = torch.zeros(count, device=self.device, dtype=self.dtype)
        parts = (torch.split(part, self.config.batch_size) for part in self.valid)
        for x, target in zip(*parts, strict=True):
            y = self.learner.stack(x.expand(count, *x.shape))[0]
            total += mean_squares(y - target) * len(x)
        errors = (total / len(self.valid[0])).cpu().double()
        return Examined(errors, -errors, {"valid_mse": errors})

    def measure(self, model: Any, i: int) -> Found:
        """Everything that is known of a trained network."""
        history = self.history[i]["valid_mse"]
        best = min(history)
        steps = [float((k + 1) * self.config.validate_every) for k in range(len(history))]
        found = Found({"valid_mse": best, "best_step": steps[history.index(best)]}, {"steps": steps})
        return complete(found, ByModel(model), self.songs, self.jobs[i], self.context)


def complete(found: Found, method: Method, songs: Songs, job: Job, context: Context) -> Found:
    """Adds what test songs tell about a method, if they may be looked at, and keeps a model if that is asked for."""
    config = job.config
    if context.models is not None and isinstance(method, ByModel) and context.fabric.is_global_zero:
        name = f"{NAME}-{config.model}-{config.num_basis}-{job.seed}"
        save_separator(context.models / name, method.model, FEATURES, about=settings(config) | {"seed": job.seed})
    found.data[config.dataset] = songs.fingerprint
    if context.test:
        found.metrics |= measure(method, songs, config.samples)
        if not job.seed:  # one of the runs is enough to look at and to listen to
            found |= show(method, next(songs.test()))
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
        return ByModel(fit_nmf(config, songs, seed))
    return ByNothing() if config.model == "mixture" else ByOracle()


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


RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3)
"""Learning rates that both networks are tried with."""

PAPER = {"FAC": SeparationConfig(), "VAN": change(SeparationConfig(), model="vanilla", lr=1e-4)}
SMALL = {
    key: change(config, num_basis=256, batch_size=20, clip_seconds=2.0, epochs=30.0, validate_every=100)
    for key, config in PAPER.items()
}
"""What two cores can train."""

BEST_RATES = {"FAC": 1e-3, "VAN": 1e-3}
"""Of `RATES`, those with the lowest error on validation songs, for small networks."""


def _made_up() -> Iterator[Row]:
    yield Row("SEP.MIX", SeparationConfig(model="mixture"), what="the mixture itself: the floor")
    yield Row("SEP.NMF", SeparationConfig(model="nmf", num_basis=128), seeds=3, what="NMF, 64 and 64 columns")
    chosen = [(key, change(config, lr=BEST_RATES[key])) for key, config in SMALL.items()]
    for key, config in [*chosen, *PAPER.items()]:
        what = f"{config.model} RNN, {config.num_basis} parts"
        yield Row(f"SEP.{key}.{config.num_basis}", config, seeds=3, what=what)
    yield Row("SEP.ORACLE", SeparationConfig(model="oracle"), what="the best mask that there is: the ceiling")


def _rates() -> Iterator[Row]:
    for key, config in SMALL.items():
        for lr in RATES:
            yield Row(f"SEPLR.{key}.{lr:g}", change(config, lr=lr))


def _musdb() -> Iterator[Row]:
    # The numbers of the paper: means of three runs.
    for key, paper in {"FAC": 2.497e-3, "VAN": 3.657e-3}.items():
        config = change(PAPER[key], dataset="musdb18hq")
        yield Row(f"AUD.{key}", config, paper, slack=0.1 * paper, seeds=3, lower_is_better=True)


NOTE = (
    "Vocals out of made-up songs, by the mean squared error of their features on ten songs that no model has heard. "
    "Ratios are medians over songs in decibels, by museval. The floor takes the mixture for the vocals, the ceiling "
    "knows the true vocals. The paper's ratio is one on MUSDB18."
)

register(
    Experiment(
        NAME,
        "vocals out of a mixture (Section 5.11)",
        SeparationConfig,
        run,
        {"paper": as_published, "fast": as_published},
        (
            Table(
                "SEP",
                "Vocals out of made-up songs",
                tuple(_made_up()),
                "test_mse",
                NOTE,
                ratios=tuple(Ratio(f"SEP.FAC.{size}", f"SEP.VAN.{size}", 0.683) for size in (256, 1024)),
            ),
            Table(
                "SEPLR",
                "Vocals out of made-up songs, by learning rate",
                tuple(_rates()),
                "valid_mse",
                "The error on validation songs, by which learning rates were chosen.",
                over="lr",
            ),
            Table("AUD", "Vocals out of songs of MUSDB18", tuple(_musdb()), "test_mse"),
        ),
        package="museval",
    )
)
