"""What separation is learned from and tried on: settings, songs, and clips of them as features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Self

import torch

from torchpfc.audio import Features, Track, find_musdb, find_tracks
from torchpfc.audio.stems import load_tracks
from torchpfc.data.formats import DataError
from torchpfc.data.images import data_folders, download_command
from torchpfc.data.songs import EXCERPTS
from torchpfc.paper.components import Optimizer
from torchpfc.paper.recurrent_models import Network
from torchpfc.paper.recurrent_run import SideBySide
from torchpfc.paper.settings import Amount, Count, Positive, change, check_positive, one_of
from torchpfc.paper.songs import fingerprint, generate_tracks

GENERATED = "generated"
NETWORKS = ("factorized", "vanilla")
TRUTHS = ("ideal-mask", "ideal-features")
FEATURES = Features()


@dataclass(frozen=True, kw_only=True)
class SeparationConfig(SideBySide):
    """How vocals are separated; the defaults are the published ones of the factorized network."""

    model: Annotated[str, one_of(*NETWORKS, "nmf", *TRUTHS, "mixture")] = "factorized"
    """A network (factorized, vanilla), NMF frame by frame (nmf), and what to compare with: the mixture, or what knows
    the truth, as a mask (ideal-mask) or as features (ideal-features)."""
    source: str = GENERATED
    """Songs that are made up (generated), or the name of a data folder that has songs in `train` and `test`."""
    predicts: Annotated[str, one_of("vocals", "both")] = "vocals"
    """What a network answers: features of the vocals, or those of the vocals and those of the rest."""
    mask_power: Positive = 1.0
    """Of the mask that its answers make."""
    mask_weight: Amount = 0.0
    """What errors of the masked mixture count in its loss, beside those of features."""
    num_basis: Count = 1024
    """Size of the state; for NMF, columns of vocals and of the rest together."""
    iterations: Count = 10
    """Steps of the solver in each slice, for the factorized network."""
    optimizer: Optimizer = Optimizer(lr=5e-4, weight_decay=5e-5)
    batch_size: Count = 100
    clip_seconds: Positive = 5.0
    gain_per_batch: bool = False
    """Whether all clips of a batch share the gain of a stem, as in the published code, or each has its own."""
    epochs: Positive = 300.0
    """Length of all clips together, in lengths of the training songs."""
    validate_every: Count = 250
    """Steps from one validation to the next."""
    train_songs: Count = 40
    """How many to make up; folders have their own number."""
    valid_songs: Count = 8
    test_songs: Count = 10
    song_seconds: Positive = 30.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        check_positive(self.optimizer, "lr")
        if self.model == "nmf" and self.num_basis < 2:
            raise ValueError(f"num_basis must be at least 2 for nmf, got {self.num_basis}")

    @property
    def network(self) -> Network:
        """The network, where it is one: weights have any sign, and predictions alone count."""
        free = Network(nonnegative=False, reconstruction_weight=0.0)
        return replace(free, model=self.model, num_basis=self.num_basis, iterations=self.iterations)

    @property
    def samples(self) -> int:
        """Samples of a clip."""
        return round(self.clip_seconds * FEATURES.rate)

    def smoke(self) -> Self:
        """A few steps at one rate with songs of a moment, made up whatever was asked for."""
        return change(
            self,
            source=GENERATED,
            num_basis=6,
            iterations=2,
            lr=Optimizer.lr,
            batch_size=2,
            clip_seconds=0.5,
            epochs=1.0,
            validate_every=2,
            train_songs=2,
            valid_songs=1,
            test_songs=1,
            song_seconds=2.0,
        )

    def stack_size(self) -> int:
        """The seeds of a row at once."""
        return 4

    def shared_batch(self) -> int:
        """All clips of a batch, where a network learns from them."""
        return self.batch_size if self.model in NETWORKS else 1

    def cost(self) -> float:
        """Arithmetic of a run, roughly, in the unit of the other experiments."""
        if self.model not in NETWORKS:
            return 1.0
        slices = self.epochs * self.train_songs * self.song_seconds * FEATURES.rate / FEATURES.hop
        per_slice = self.iterations if self.model == "factorized" else 1
        return 1e-9 * slices * per_slice * self.num_basis * (self.num_basis + FEATURES.bins)


@dataclass(frozen=True, eq=False)
class Songs:
    """The songs of a set. Test songs are made or read when they are asked for, one at a time."""

    train: Sequence[Track]
    valid: Sequence[Track]
    test_files: Sequence[Path]
    """None of them where the songs are made up."""
    config: SeparationConfig

    def test(self) -> Iterator[Track]:
        """Each test song."""
        if self.config.source == GENERATED:
            yield from _make_songs("test", self.config.test_songs, self.config.song_seconds)
        for path in self.test_files:
            yield from load_tracks([path], min_samples=self.config.samples)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what is learned from and what settings are chosen with."""
        return fingerprint([*self.train, *self.valid])

    @property
    def steps(self) -> int:
        """How many batches make up the epochs of the config."""
        length = sum(len(track) for track in self.train)
        return max(1, round(self.config.epochs * length / (self.config.batch_size * self.config.samples)))


_make_songs = lru_cache(maxsize=3)(generate_tracks)  # the next stack mostly learns from the same songs


def load_songs(config: SeparationConfig, data_dir: Path | None = None) -> Songs:
    """Makes up or reads songs.

    A folder of songs has `train`, `test` and maybe `valid` in it. Without the last, the usual songs of MUSDB18 are
    taken out of the training songs.

    Args:
        config: Names the set.
        data_dir: Where data sets are; None looks where `load_images` does.

    Raises:
        DataError: Where the set is missing, or one of its parts.
    """
    if config.source == GENERATED:
        train = _make_songs("train", config.train_songs, config.song_seconds)
        return Songs(train, _make_songs("valid", config.valid_songs, config.song_seconds), [], config)
    places = [folder / config.source for folder in data_folders(data_dir)]
    root = next((place for place in places if place.is_dir()), None)
    if root is None:
        tried = ", ".join(map(str, places))
        command = f"run `{download_command(EXCERPTS, places[-1].parent)}`"
        advice = command if config.source == EXCERPTS else "put train and test there"
        raise DataError(f"{config.source} must be in a data folder, got nothing at {tried}; {advice}")
    files = find_musdb(root)
    held_out = find_tracks(root / "valid") if (root / "valid").is_dir() else files.valid
    if not held_out:
        raise DataError(f"{root} must have songs in valid, got no such folder")
    # Songs for training stay in memory, all of them: in half precision, which is 66 dB below the signal.
    train, valid = (
        [track.to(dtype=torch.float16) for path in part for track in load_tracks([path], min_samples=config.samples)]
        for part in (files.train, held_out)
    )
    return Songs(train, valid, files.test, config)
