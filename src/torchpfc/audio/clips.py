"""Clips to learn from: stems from different places, mixed with random gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchpfc.audio.features import Features
from torchpfc.audio.stems import STEMS, Track
from torchpfc.solvers.checks import check_at_least_one


class Clips(NamedTuple):
    r"""Mixtures and the vocals in them.

    Shape:
        - mixture, vocals: $(n, \text{samples})$
    """

    mixture: Tensor
    vocals: Tensor


@dataclass(frozen=True)
class ClipSampler:
    r"""Draws clips from songs.

    Each stem of a clip comes from a song of its own and a place of its own, unless `aligned`. Songs are drawn by their
    length, so that all places are as likely. Which clips come depends on the generator alone.

    Args:
        tracks: The songs, all of one channel and one rate; see `load_tracks`.
        samples: Samples of a clip; the published 5 seconds by default.
        gains: Range of the factor that each stem is multiplied by. None leaves them as they are.
        gain_per_batch: Whether all clips of a batch share the factor of a stem, as in the published code, or each has
            its own, as in the paper.
        aligned: Whether all stems of a clip come from one place of one song, as in tests.

    Example:
        >>> from torchpfc.paper.songs import generate_track
        >>> sampler = ClipSampler([generate_track(0, seconds=3.0)], samples=44_100)
        >>> clips = sampler.draw(4, torch.Generator().manual_seed(0))
        >>> clips.mixture.shape, clips.vocals.shape
        (torch.Size([4, 44100]), torch.Size([4, 44100]))
    """

    tracks: Sequence[Track]
    samples: int = 220_500
    gains: tuple[float, float] | None = (0.5, 2.0)
    gain_per_batch: bool = False
    aligned: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        if not self.tracks:
            raise ValueError("tracks must have at least one song, got none")
        check_at_least_one(samples=self.samples)
        if self.gains is not None and not 0 <= self.gains[0] <= self.gains[1] < float("inf"):
            raise ValueError(f"gains must be a range of factors, got {self.gains}")
        for track in self.tracks:
            if len(track.vocals) != 1:
                raise ValueError(f"tracks must have one channel, got {len(track.vocals)} in {track.name}")
            _check_length(track, self.samples)
        if len({track.rate for track in self.tracks}) > 1:
            raise ValueError(f"tracks must have one rate, got {sorted({track.rate for track in self.tracks})}")

    def draw(self, count: int, generator: torch.Generator) -> Clips:
        """Draws clips.

        Args:
            count: How many.
            generator: Source of songs, places and gains; one of the CPU, wherever the songs are.
        """
        check_at_least_one(count=count)
        parts: dict[str, Tensor] = {}
        for stem in STEMS:
            if not parts or not self.aligned:
                where = self._places(count, generator)
            clips = torch.stack([self.tracks[i].stems[stem][0, at : at + self.samples] for i, at in where]).float()
            if self.gains is not None:
                low, high = self.gains
                drawn = torch.rand(1 if self.gain_per_batch else count, 1, generator=generator)
                clips = clips * (low + (high - low) * drawn).to(clips.device)
            parts[stem] = clips
        accompaniment = parts["drums"] + parts["bass"] + parts["other"]
        return Clips(accompaniment + parts["vocals"], parts["vocals"])

    def _places(self, count: int, generator: torch.Generator) -> list[tuple[int, int]]:
        """Songs and first samples, each place of each song as likely as any other."""
        rooms = torch.tensor([len(track) - self.samples + 1 for track in self.tracks])
        ends = rooms.cumsum(0)
        drawn = torch.randint(int(ends[-1]), (count,), generator=generator)
        songs = torch.searchsorted(ends, drawn, right=True)
        starts = drawn - (ends - rooms)[songs]
        return list(zip(songs.tolist(), starts.tolist(), strict=True))


def all_clips(tracks: Sequence[Track], samples: int) -> Clips:
    """Every song cut into clips, one after the other; what is left at an end is left out.

    Args:
        tracks: The songs, of one channel.
        samples: Samples of a clip.

    Raises:
        ValueError: Where a song is shorter than a clip.

    Example:
        >>> song = Track("song", {name: torch.ones(1, 50) for name in STEMS}, 44_100)
        >>> all_clips([song, song], samples=20).mixture.shape
        torch.Size([4, 20])
    """
    for track in tracks:
        _check_length(track, samples)
    cut = [
        Clips(*(part[0].float().unfold(0, samples, samples) for part in (track.mixture, track.vocals)))
        for track in tracks
    ]
    return Clips(*(torch.cat(parts) for parts in zip(*cut, strict=True)))


def hear(clips: Clips, features: Features | None = None) -> Clips:
    r"""Clips as features, each $(n, T, \text{bins})$.

    Args:
        clips: Their samples, at the rate of the features.
        features: The settings.
    """
    features = Features() if features is None else features
    return Clips(*(features.of(features.analyze(part)) for part in clips))


def hear_both(clips: Clips, features: Features | None = None) -> Clips:
    r"""Clips as features, with those of the rest beside those of the vocals, $(n, T, 2 \cdot \text{bins})$.

    Args:
        clips: Their samples, at the rate of the features.
        features: The settings.
    """
    mixture, vocals = hear(clips, features)
    _, rest = hear(Clips(clips.mixture, clips.mixture - clips.vocals), features)
    return Clips(mixture, torch.cat([vocals, rest], dim=-1))


def _check_length(track: Track, samples: int) -> None:
    if len(track) < samples:
        raise ValueError(
            f"tracks must have at least {samples} samples, got {len(track)} in {track.name}; take shorter clips"
        )
