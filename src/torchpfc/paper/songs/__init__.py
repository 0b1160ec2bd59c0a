"""Songs that are made up, as stems: everything runs and is tested with them, without a download.

A song has a key, a tempo, chords, a melody with syllables, a band and a mix of its own, all drawn from its seed. The
generator is frozen: a seed stands for the same song in every version, and a test holds it to that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch

from torchpfc.audio.stems import STEMS, Track
from torchpfc.paper.songs.band import play_bass, play_drums, play_others
from torchpfc.paper.songs.score import compose
from torchpfc.paper.songs.sounds import RATE, Signal, echo, level, normalized
from torchpfc.paper.songs.voice import sing

__all__ = ["RATE", "fingerprint", "generate_track", "generate_tracks"]

LOUDEST = 0.9
"""The largest sample of a mixture."""

_VOCALS_DB = (-6.5, -1.0)  # of the vocals, relative to the accompaniment
_SPREAD_DB = 3.0  # of the other stems among each other
_SPLITS = {"train": 0, "valid": 1, "test": 2}


def generate_track(seed: int | tuple[int, ...], seconds: float = 30.0) -> Track:
    """Makes up a song.

    It has one channel and 44,100 samples per second, each of 16 bits as on a CD.

    Args:
        seed: Which song; one number or several.
        seconds: How long it is. Another length is another song.

    Example:
        >>> track = generate_track(0, seconds=2.0)
        >>> track.mixture.shape, sorted(track.stems)
        (torch.Size([1, 88200]), ['bass', 'drums', 'other', 'vocals'])
        >>> bool((track.vocals == generate_track(0, seconds=2.0).vocals).all())
        True
    """
    if not 0.1 <= seconds < float("inf"):
        raise ValueError(f"seconds must be at least 0.1, got {seconds}")
    rng = np.random.Generator(np.random.PCG64(seed))
    score = compose(rng, seconds)
    parts = {
        "vocals": echo(rng, sing(rng, score.melody, seconds)),
        "other": echo(rng, play_others(rng, score, seconds)),
        "drums": play_drums(rng, score, seconds),
        "bass": play_bass(rng, score, seconds),
    }
    mixed = _mix(rng, parts)
    name = "generated " + "-".join(str(number) for number in np.atleast_1d(seed))
    stems = {stem: torch.from_numpy(mixed[stem]).float().unsqueeze(0) for stem in STEMS}
    return Track(name, stems, RATE)


def generate_tracks(split: str, count: int, seconds: float = 30.0, *, seed: int = 0) -> list[Track]:
    """Makes up songs for one use; no song of one split is also in another.

    Args:
        split: "train", "valid" or "test".
        count: How many songs.
        seconds: How long each is.
        seed: Another one gives other songs.
    """
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    return [generate_track((seed, _SPLITS[split], number), seconds) for number in range(count)]


def fingerprint(tracks: Iterable[Track]) -> str:
    """SHA-256 over the stems of songs, which tells whether they are the same ones.

    Samples count to 12 bits: a processor may differ from another in the last one.
    """
    digest = hashlib.sha256()
    for track in tracks:
        for stem in STEMS:
            digest.update(np.round(track.stems[stem].double().numpy() * 2**11).astype("<i2").tobytes())
    return digest.hexdigest()


def _mix(rng: np.random.Generator, parts: dict[str, Signal]) -> dict[str, Signal]:
    """Brings the stems to a common level, with some loud and some soft, and rounds samples to 16 bits."""
    band = [stem for stem in STEMS if stem != "vocals"]
    mixed = {stem: normalized(parts[stem]) * 10 ** (rng.uniform(-_SPREAD_DB, _SPREAD_DB) / 20) for stem in band}
    wanted = level(sum((mixed[stem] for stem in band), np.zeros(1))) * 10 ** (rng.uniform(*_VOCALS_DB) / 20)
    mixed["vocals"] = normalized(parts["vocals"]) * wanted
    peak = float(np.abs(sum(mixed.values(), np.zeros(1))).max())
    return {stem: np.round(LOUDEST * 2**15 / peak * signal) / 2**15 for stem, signal in mixed.items()}
