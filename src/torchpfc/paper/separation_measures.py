"""How well vocals were separated, and how it looks and sounds."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.audio import (
    NMFSeparator,
    Separated,
    Track,
    all_clips,
    apply_mask,
    bss_eval,
    feature_mse,
    hear,
    median_scores,
    sdr,
    separate,
    separate_by_oracle,
    soft_mask,
    superposition_error,
)
from torchpfc.audio.files import Audio, encode_mp3
from torchpfc.audio.metrics import finite_median
from torchpfc.nn import FactorizedRNN, record_couplings
from torchpfc.paper.drawing import COLUMNS_GAP, LINE, SPECTROGRAM_GAP, draw_framed, draw_pixels
from torchpfc.paper.separation_songs import FEATURES, Songs
from torchpfc.paper.stack_run import Found

SHOWN_COLUMNS = 32
"""How many of the columns that were used most are drawn."""

COLUMN_WIDTH = 8  # pixels
SHOWN_SECONDS = 5.0
"""Length of the excerpt that is drawn and can be heard."""


class ByModel:
    """A trained model, which hears each clip from its first state on, and a song as a whole.

    Args:
        model: Called as `FactorizedRNN` is.
        power: Of the mask that its answers make.
    """

    def __init__(self, model: nn.Module, power: float = 1.0) -> None:
        self.model, self.power = model.eval(), power
        self.weight = next(model.parameters())

    @torch.no_grad()
    def features(self, mixture: Tensor, vocals: Tensor) -> Tensor:
        r"""What the model answers for the vocals, $(n, T, \text{bins})$.

        Args:
            mixture: Spectrograms of the clips.
            vocals: Those of the true vocals, for who may know them.
        """
        x = FEATURES.of(mixture)
        y: Tensor = self.model(x.to(self.weight))[0]
        return y[..., : FEATURES.bins].to(x)

    def separate(self, track: Track) -> Separated:
        """By the mask of the answers."""
        return separate(track.mixture, self.model, FEATURES, power=self.power)


class ByNothing:
    """The mixture taken for each of its parts: the floor."""

    def features(self, mixture: Tensor, vocals: Tensor) -> Tensor:
        """Those of the mixture."""
        return FEATURES.of(mixture)

    def separate(self, track: Track) -> Separated:
        """Twice the mixture."""
        return Separated(track.mixture, track.mixture)


class ByIdealMask:
    """The ideal ratio mask, from the true features of vocals and rest: the ceiling of ratios."""

    def features(self, mixture: Tensor, vocals: Tensor) -> Tensor:
        """Those of the masked mixture."""
        truth = torch.cat([FEATURES.of(vocals), FEATURES.of(mixture - vocals)], dim=-1)
        return FEATURES.of(apply_mask(soft_mask(truth, FEATURES.of(mixture), FEATURES), mixture))

    def separate(self, track: Track) -> Separated:
        """By that mask."""
        return separate_by_oracle(track.mixture, track.vocals, FEATURES)


class ByIdealFeatures:
    """The true features of the vocals with the phase of the mixture: what is lost where nothing else is known."""

    def features(self, mixture: Tensor, vocals: Tensor) -> Tensor:
        """Those of the sound that they make, when it is heard again."""
        sound = FEATURES.synthesize(FEATURES.invert(FEATURES.of(vocals), mixture))
        return FEATURES.of(FEATURES.analyze(sound))

    def separate(self, track: Track) -> Separated:
        """That sound, and all else."""
        mixture, vocals = (FEATURES.analyze(part, whole=True) for part in (track.mixture, track.vocals))
        sound = FEATURES.synthesize(FEATURES.invert(FEATURES.of(vocals), mixture))[:, : len(track)]
        return Separated(sound, track.mixture - sound)


Method = ByModel | ByNothing | ByIdealMask | ByIdealFeatures
"""Something that finds the vocals of a mixture."""


def measure_error(method: Method, tracks: Iterable[Track], samples: int) -> float:
    """The paper's measure: the mean squared error of the features of vocals, over all clips of all songs.

    Args:
        method: What to measure.
        tracks: The songs.
        samples: Of a clip.
    """
    return _mean(_clip_errors(method, track, samples) for track in tracks)


def measure_plainly(method: Method, tracks: Iterable[Track]) -> float:
    """The ratio of vocals to error in decibels, which forgives nothing: the median over songs.

    It takes a hundredth of the time of those of museval. NaN where no song has vocals.
    """
    songs = (track.to(dtype=torch.float32) for track in tracks)
    return finite_median([sdr(song.vocals, method.separate(song).vocals) for song in songs])


def measure(method: Method, songs: Songs, samples: int) -> dict[str, float]:
    """The error of features, ratios in decibels, and for models how far they are from superposition, on test songs.

    Ratios are those of museval: for each song the median over its seconds, then the median over songs. Of the plain
    ratio of signal to error, and of the error of superposition, too, the median over songs is taken.

    Args:
        method: What to measure.
        songs: Their test songs are used.
        samples: Of the clips over which errors of features are taken.
    """
    errors, scores, plain, apart = [], [], [], []
    for track in songs.test():  # once: they may have to be decoded
        errors.append(_clip_errors(method, track, samples))
        found = method.separate(track)
        scores.append(bss_eval(Separated(track.vocals, track.accompaniment), found, track.rate))
        plain.append(sdr(track.vocals, found.vocals))
        if isinstance(method, ByModel):
            apart.append(_superposition(method, track, samples))
    metrics = {"test_mse": _mean(errors), "vocals_plain_sdr": finite_median(plain)}
    medians = median_scores(scores)
    for part, values in zip(medians._fields, medians, strict=True):
        metrics |= {f"{part}_{name}": value for name, value in zip(values._fields, values, strict=True)}
    if apart:
        metrics["superposition_median"] = finite_median(apart)
    return metrics


class _Errors(NamedTuple):
    """Of the clips of a song."""

    total: float
    clips: int


def _clip_errors(method: Method, track: Track, samples: int) -> _Errors:
    mixture, vocals = (FEATURES.analyze(part) for part in all_clips([track], samples))
    target = FEATURES.of(vocals)
    return _Errors(feature_mse(method.features(mixture, vocals), target) * len(target), len(target))


def _mean(errors: Iterable[_Errors]) -> float:
    totals, counts = zip(*errors, strict=True)
    return float(sum(totals) / sum(counts))


def _superposition(method: ByModel, track: Track, samples: int) -> float:
    """How far the answer to vocals and the rest together is from the sum of the answers to each."""
    clips = all_clips([track], samples)
    parts = clips.vocals, clips.mixture - clips.vocals
    x1, x2 = (FEATURES.of(FEATURES.analyze(part)).to(method.weight) for part in parts)
    return superposition_error(method.model, x1, x2)


def show(method: Method, track: Track, *, sounds: bool = True) -> Found:
    """How the seconds with the loudest vocals look and sound when they are separated.

    Args:
        method: What separates.
        track: The song.
        sounds: Whether to keep how they sound.
    """
    song = excerpt(track)
    return Found({}, images=draw(method, song), sounds=listen(method, song) if sounds else {})


def excerpt(track: Track) -> Track:
    """The seconds of a song with the loudest vocals."""
    count = min(len(track), round(SHOWN_SECONDS * track.rate))
    starts = torch.arange(0, len(track) - count + 1, track.rate // 10)
    energy = F.pad(track.vocals.double().square().sum(0).cumsum(0), (1, 0))
    start = int(starts[(energy[starts + count] - energy[starts]).argmax()])
    return Track(track.name, {name: stem[:, start : start + count] for name, stem in track.stems.items()}, track.rate)


def draw(method: Method, track: Track) -> dict[str, str]:
    """Spectrograms of a mixture, its vocals and what was found of them, and the columns that a model used.

    Each is a PNG file in base64.
    """
    found = method.separate(track).vocals
    spectra = [FEATURES.of(FEATURES.analyze(part))[0].T.flip(0) for part in (track.mixture, track.vocals, found)]
    brightest = max(float(spectra[0].max()), 1e-12)
    gap = torch.full((len(spectra[0]), SPECTROGRAM_GAP), 0.0)
    side_by_side = [part for spectrum in spectra for part in (spectrum / brightest, gap)][:-1]
    images = {"spectrograms": draw_framed(torch.cat(side_by_side, dim=1))}
    if isinstance(method, ByModel) and (columns := columns_used(method.model, track)) is not None:
        images["columns"] = _draw_columns(columns)
    return images


@torch.no_grad()
def columns_used(model: nn.Module, track: Track) -> Tensor | None:
    r"""The columns that a model used most in a song, by what they add to the vocals, low ones first.

    None for a model that has no columns.

    Shape:
        - the result: $(2, \text{bins}, r)$: what each explains of the mixture, and what it says of the vocals
    """
    x = hear(all_clips([track], len(track))).mixture
    if isinstance(model, FactorizedRNN):
        with record_couplings(model) as seen:
            model(x.to(model.block.weight_x))
        h = torch.cat([coupling.h.flatten(0, -2) for coupling in chain.from_iterable(seen.values())]).mean(0)
        both = torch.stack([model.block.weight_x[-FEATURES.bins :], model.block.weight_y[: FEATURES.bins]])
    elif isinstance(model, NMFSeparator):
        h = model.amounts(x.to(model.weight_x)).flatten(0, -2).mean(0)
        of_vocals = torch.arange(len(h), device=h.device) < model.num_vocals
        both = torch.stack([model.weight_x, model.weight_x * of_vocals])
    else:
        return None
    used = (h * both.norm(dim=(0, 1))).topk(min(SHOWN_COLUMNS, len(h))).indices
    both = both[..., used].cpu().float()
    bins = torch.arange(FEATURES.bins).unsqueeze(1)
    pitch = (both[0].abs() * bins).sum(0) / both[0].abs().sum(0).clamp(min=1e-12)
    return both[..., pitch.argsort()]


def _draw_columns(columns: Tensor) -> str:
    """Two rows of spectra, what is added in black and what is taken away in red, each pair scaled by itself."""
    scaled = (columns / columns.abs().amax((0, 1)).clamp(min=1e-12)).flip(1)
    rows = []
    for part in scaled:
        gray = 1 - part.clamp(min=0)
        red = 1 - (-part).clamp(min=0)
        pixels = torch.stack([gray, gray * red, gray * red], dim=-1)  # (bins, r, 3)
        wide = pixels.repeat_interleave(COLUMN_WIDTH, dim=1)
        wide[:, ::COLUMN_WIDTH] = 1.0  # a gap
        rows += [wide, torch.full((COLUMNS_GAP, wide.shape[1], 3), 1 - LINE)]
    return draw_pixels((255 * torch.cat(rows[:-1])).round().byte())


def listen(method: Method, track: Track) -> dict[str, str]:
    """What was found of the vocals, or for the floor the mixture and the true vocals, as MP3 files in base64."""
    if isinstance(method, ByNothing):
        sounds = {"mixture": track.mixture, "vocals": track.vocals}
    else:
        sounds = {"estimate": method.separate(track).vocals}
    return {name: base64.b64encode(encode_mp3(Audio(s, track.rate))).decode() for name, s in sounds.items()}
