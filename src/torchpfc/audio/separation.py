"""Vocals and accompaniment out of a mixture: a tensor, a stream, or a file of any length."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchpfc.audio.features import Features, StreamingAnalysis, StreamingSynthesis
from torchpfc.audio.files import AudioReader, AudioWriter
from torchpfc.audio.masks import apply_mask, check_power, soft_mask
from torchpfc.audio.resampling import Resampler
from torchpfc.data.formats import DataError
from torchpfc.solvers.checks import check_at_least_one

BLOCK_FRAMES = 128
"""Frames that a model hears at once in a stream: about three seconds."""

VOCALS_FILE, ACCOMPANIMENT_FILE = "vocals.wav", "accompaniment.wav"


class Separated(NamedTuple):
    r"""The two parts of a mixture. They add up to it.

    Shape:
        - vocals, accompaniment: $(\text{channels}, n)$
    """

    vocals: Tensor
    accompaniment: Tensor


class Separator:
    r"""Separates a mixture that comes in pieces, in constant memory.

    The model maps features of a mixture to those of its vocals, or to those of its vocals and then those of the rest.
    These make a soft mask for the spectrogram of the mixture, whose phase is kept. The accompaniment is what is left of
    the mixture. Each channel is heard by itself. Frequencies above the bins that the model knows stay with the
    accompaniment.

    The state of the model is carried from block to block. Blocks do not depend on the pieces, so that the result is
    the same to the last bit, however the mixture was cut.

    Args:
        model: Called as `FactorizedRNN` is: `model(features, state)` gives features and the next state. It is put in
            evaluation mode.
        features: Their settings.
        rate: Samples per second of the mixture; any. What the model hears is converted to the rate of the features.
        channels: Channels of the mixture.
        power: Of the mask, as in `soft_mask`.
        block_frames: Frames that the model hears at once.

    Example:
        >>> from torchpfc import VanillaRNN
        >>> model = VanillaRNN(350, hidden_size=8, output_size=350)
        >>> separator = Separator(model, rate=48_000, channels=2)
        >>> mixture = torch.rand(2, 100_000, generator=torch.Generator().manual_seed(0)) - 0.5
        >>> parts = [*(separator.push(piece) for piece in mixture.split(30_000, dim=-1)), separator.finish()]
        >>> vocals, accompaniment = (torch.cat(part, dim=-1) for part in zip(*parts))
        >>> vocals.shape, torch.allclose(vocals + accompaniment, mixture, atol=1e-6)
        (torch.Size([2, 100000]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        features: Features | None = None,
        *,
        rate: int = 44_100,
        channels: int = 1,
        power: float = 1.0,
        block_frames: int = BLOCK_FRAMES,
    ) -> None:
        check_at_least_one(rate=rate, channels=channels, block_frames=block_frames)
        self.model, self.features = model.eval(), Features() if features is None else features
        self.channels, self.power = channels, check_power(power)
        self._weight = next(model.parameters(), torch.empty(0))
        self._to_features = Resampler(rate, self.features.rate, channels)
        self._analysis = StreamingAnalysis(self.features, channels)
        self._synthesis = StreamingSynthesis(self.features)
        self._from_features = Resampler(self.features.rate, rate, channels)
        self._block = max(1, block_frames * self.features.hop * rate // self.features.rate)
        self._state: Tensor | None = None
        self._heard = torch.zeros(channels, 0)  # not yet a block
        self._mixture = torch.zeros(channels, 0)  # not yet separated
        self._finished = False

    def push(self, mixture: Tensor) -> Separated:
        r"""What a piece completes; it lags behind by a block and a frame at most, and by what a `Resampler` holds back.

        Shape:
            - mixture: $(\text{channels}, n)$, float32
            - vocals, accompaniment: $(\text{channels}, m)$, with $m$ possibly 0
        """
        if self._finished:
            raise RuntimeError("push must be called before finish: make a new Separator for another mixture")
        if mixture.ndim != 2 or len(mixture) != self.channels:
            raise ValueError(f"mixture must have shape ({self.channels}, n), got {tuple(mixture.shape)}")
        if not mixture.is_floating_point():
            raise TypeError(f"mixture must have a floating-point dtype and samples from -1 to 1, got {mixture.dtype}")
        self._mixture = torch.cat([self._mixture, mixture], dim=-1)
        heard = torch.cat([self._heard, mixture], dim=-1)
        blocks = [block for block in torch.split(heard, self._block, dim=-1) if block.shape[-1] == self._block]
        self._heard = heard[:, len(blocks) * self._block :].clone()
        done = [self._separate(self._analysis.push(self._to_features.push(block))) for block in blocks]
        return self._give(torch.cat([self._mixture[:, :0], *done], dim=-1))

    def finish(self) -> Separated:
        """What is left at the end of the mixture."""
        if self._finished:
            raise RuntimeError("finish must be called once, got a second call")
        self._finished = True
        last = torch.cat([self._to_features.push(self._heard), self._to_features.finish()], dim=-1)
        spectrum = torch.cat([self._analysis.push(last), self._analysis.finish()], dim=-2)
        vocals = torch.cat([self._separate(spectrum), self._from_features.finish()], dim=-1)
        return self._give(vocals[:, : self._mixture.shape[-1]])

    @torch.no_grad()
    def _separate(self, spectrum: Tensor) -> Tensor:
        """Vocals of further frames, at the rate of the mixture."""
        if not spectrum.shape[-2]:
            return self._mixture[:, :0]
        heard = self.features.of(spectrum)
        estimate, self._state = self.model(heard.to(self._weight), self._state)
        mask = soft_mask(estimate.to(heard), heard, self.features, power=self.power)
        return self._from_features.push(self._synthesis.push(apply_mask(mask, spectrum)))

    def _give(self, vocals: Tensor) -> Separated:
        count = vocals.shape[-1]
        mixture, self._mixture = self._mixture[:, :count], self._mixture[:, count:].clone()
        return Separated(vocals, mixture - vocals)


def separate(
    mixture: Tensor, model: nn.Module, features: Features | None = None, *, rate: int = 44_100, power: float = 1.0
) -> Separated:
    r"""Separates a mixture that is in memory.

    Args:
        mixture: The samples.
        model: As in `Separator`.
        features: Their settings.
        rate: Samples per second.
        power: Of the mask, as in `soft_mask`.

    Shape:
        - mixture: $(\text{channels}, n)$, float32

    Raises:
        ValueError: Where there is no sample, or one that is not a finite number.

    Example:
        >>> from torchpfc import VanillaRNN
        >>> model = VanillaRNN(350, hidden_size=8, output_size=350)
        >>> separate(torch.zeros(1, 5_000), model).vocals.abs().max()
        tensor(0.)
    """
    if mixture.ndim != 2 or not mixture.numel():
        raise ValueError(f"mixture must have shape (channels, n) and samples, got {tuple(mixture.shape)}")
    if not bool(mixture.isfinite().all()):
        raise ValueError("mixture must have finite samples, got NaN or infinity")
    separator = Separator(model, features, rate=rate, channels=len(mixture), power=power)
    parts = separator.push(mixture), separator.finish()
    return Separated(*(torch.cat(part, dim=-1) for part in zip(*parts, strict=True)))


def separate_by_oracle(mixture: Tensor, vocals: Tensor, features: Features | None = None) -> Separated:
    r"""Separates a mixture by the ideal ratio mask, which needs the true vocals.

    It is the mask of a model that knows the features of vocals and rest exactly: the ceiling of ratios in decibels for
    all that separate by such masks.

    Args:
        mixture: The samples, at the rate of the features.
        vocals: Those of the vocals.
        features: The settings.

    Shape:
        - mixture, vocals: $(\text{channels}, n)$
    """
    features = Features() if features is None else features
    spectrum = features.analyze(mixture, whole=True)
    parts = [features.of(features.analyze(part, whole=True)) for part in (vocals, mixture - vocals)]
    mask = soft_mask(torch.cat(parts, dim=-1), features.of(spectrum), features)
    estimate = features.synthesize(apply_mask(mask, spectrum))[:, : mixture.shape[-1]]
    return Separated(estimate, mixture - estimate)


def separate_file(
    path: Path,
    out: Path,
    model: nn.Module,
    features: Features | None = None,
    *,
    power: float = 1.0,
    tell: Callable[[float], None] | None = None,
) -> tuple[Path, Path]:
    """Separates an audio file of any length in constant memory, and writes two WAV files of the same rate and length.

    Args:
        path: The mixture.
        out: The folder for `vocals.wav` and `accompaniment.wav`; made if need be.
        model: As in `Separator`.
        features: Their settings.
        power: Of the mask, as in `soft_mask`.
        tell: Called with the share that is done, where the file says how long it is.

    Returns:
        The two files.

    Raises:
        DataError: Where the file is not sound, or has samples that are not finite. Then nothing is written.
    """
    vocals, accompaniment = out / VOCALS_FILE, out / ACCOMPANIMENT_FILE
    if path.resolve() in (vocals.resolve(), accompaniment.resolve()):
        raise DataError(f"{path} must not be overwritten by its own parts; name another folder than {out}")
    with AudioReader(path) as reader, ExitStack() as stack:
        separator = Separator(model, features, rate=reader.rate, channels=reader.channels, power=power)
        writers = [
            stack.enter_context(AudioWriter(file, reader.rate, reader.channels, reader.length))
            for file in (vocals, accompaniment)
        ]
        done = 0
        for block in reader.blocks():
            _write(writers, separator.push(block))
            done += block.shape[-1]
            if tell is not None and reader.length:
                tell(min(1.0, done / reader.length))
        _write(writers, separator.finish())
    return vocals, accompaniment


def _write(writers: list[AudioWriter], parts: Separated) -> None:
    for writer, samples in zip(writers, parts, strict=True):
        writer.write(samples)
