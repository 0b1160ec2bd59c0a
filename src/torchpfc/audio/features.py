"""Audio as features and back: compressed magnitudes of a short-time Fourier transform, whole or as a stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.solvers.checks import check_at_least_one


@dataclass(frozen=True)
class Features:
    r"""What a separation model hears: $(|X| / c)^{1/4}$ for the lowest bins of a spectrogram X (Section 5.11).

    Frame k is centred on sample k times `hop`, with zeros before the first sample and after the last. A signal between
    -1 and 1 gives features between 0 and 1. The defaults are the published settings.

    Args:
        rate: Samples per second.
        window: Length of a frame, weighted by a Hann window.
        hop: Samples from frame to frame: half of the window.
        bins: How many of the lowest frequencies are kept.
        exponent: Of the compression; 1 leaves magnitudes as they are.
        loudest: The magnitude c that becomes 1.

    Example:
        >>> features = Features()
        >>> x = 0.1 * torch.randn(5 * features.rate, generator=torch.Generator().manual_seed(0))
        >>> spectrum = features.analyze(x)
        >>> spectrum.shape, features.of(spectrum).shape
        (torch.Size([216, 1025]), torch.Size([216, 350]))
        >>> same = features.synthesize(spectrum)
        >>> bool((same - x[: len(same)]).abs().max() < 1e-6)
        True
    """

    rate: int = 44_100
    window: int = 2048
    hop: int = 1024
    bins: int = 350
    exponent: float = 0.25
    loudest: float = 1024.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_at_least_one(rate=self.rate)
        if self.hop < 1 or self.window != 2 * self.hop:
            raise ValueError(f"window must be twice the hop, got {self.window} and {self.hop}")
        if not 1 <= self.bins <= self.hop + 1:
            raise ValueError(f"bins must be from 1 to {self.hop + 1}, got {self.bins}")
        for name in ("exponent", "loudest"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def analyze(self, x: Tensor, *, whole: bool = False) -> Tensor:
        r"""The spectrogram of signals.

        Args:
            x: Signals.
            whole: Whether to add zeros until `synthesize` gives back every sample. Without them the samples after the
                last multiple of the hop are lost.

        Shape:
            - x: $(*, n)$
            - the result: $(*, 1 + \lfloor n / \text{hop} \rfloor, \text{hop} + 1)$, complex, and one frame more where
                zeros were needed
        """
        if not x.ndim or not x.shape[-1]:
            raise ValueError(f"x must have at least one sample, got shape {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"x must have a floating-point dtype, got {x.dtype}")
        missing = -x.shape[-1] % self.hop if whole else 0
        return self.spectrum(F.pad(x, (self.hop, self.hop + missing)))

    def spectrum(self, x: Tensor) -> Tensor:
        r"""The frames of signals that need no zeros: the first begins with the first sample.

        Shape:
            - x: $(*, n)$ with $n$ at least the window
            - the result: $(*, 1 + \lfloor (n - \text{window}) / \text{hop} \rfloor, \text{hop} + 1)$, complex
        """
        hann = torch.hann_window(self.window, dtype=x.dtype, device=x.device)
        spectrum: Tensor = torch.fft.rfft(x.unfold(-1, self.window, self.hop) * hann)
        return spectrum

    def synthesize(self, spectrum: Tensor) -> Tensor:
        r"""The signals whose frames are closest to those of a spectrogram: the inverse of `analyze`.

        Shape:
            - spectrum: $(*, t, \text{hop} + 1)$
            - the result: $(*, (t - 1) \, \text{hop})$
        """
        return _overlap(self.frames(spectrum))

    def frames(self, spectrum: Tensor) -> Tensor:
        r"""Frames whose overlapping halves add up to the signal.

        Shape:
            - spectrum: $(*, t, \text{hop} + 1)$
            - the result: $(*, t, \text{window})$
        """
        frames: Tensor = torch.fft.irfft(spectrum, self.window)
        hann = torch.hann_window(self.window, dtype=frames.dtype, device=frames.device)
        # Least squares: each sample is in two frames, and they count by the square of their weights.
        return frames * (hann / (hann.square() + hann.roll(self.hop).square()))

    def of(self, spectrum: Tensor) -> Tensor:
        r"""The features of a spectrogram.

        Shape:
            - spectrum: $(*, \text{hop} + 1)$, complex
            - the result: $(*, \text{bins})$
        """
        return self.compress(spectrum[..., : self.bins].abs())

    def compress(self, magnitude: Tensor) -> Tensor:
        """Features of magnitudes, $(|X| / c)^{1/4}$."""
        return (magnitude / self.loudest) ** self.exponent

    def expand(self, features: Tensor) -> Tensor:
        """Magnitudes of features; negative features count as zero."""
        return self.loudest * features.clamp(min=0) ** (1 / self.exponent)

    def invert(self, features: Tensor, spectrum: Tensor) -> Tensor:
        r"""A spectrogram with the magnitudes of features and the phase of another; zero in the bins that are not kept.

        Shape:
            - features: $(*, \text{bins})$
            - spectrum: $(*, \text{hop} + 1)$, complex
            - the result: that of spectrum
        """
        kept = torch.polar(self.expand(features), spectrum[..., : self.bins].angle())
        return F.pad(kept, (0, spectrum.shape[-1] - self.bins))


class StreamingAnalysis:
    r"""`Features.analyze` of a signal that comes in pieces.

    Args:
        features: The settings.
        channels: How many signals come at once.

    Example:
        >>> features, x = Features(), torch.rand(1, 10_000, generator=torch.Generator().manual_seed(0))
        >>> stream = StreamingAnalysis(features, channels=1)
        >>> pieces = [*(stream.push(piece) for piece in x.split(3_000, dim=-1)), stream.finish()]
        >>> torch.equal(torch.cat(pieces, dim=-2), features.analyze(x, whole=True))
        True
    """

    def __init__(self, features: Features, channels: int) -> None:
        self.features = features
        self._waiting = torch.zeros(channels, features.hop)  # those before the first sample

    def push(self, x: Tensor) -> Tensor:
        r"""The frames that a piece completes, possibly none.

        Shape:
            - x: $(\text{channels}, n)$
            - the result: $(\text{channels}, t, \text{hop} + 1)$
        """
        window, hop = self.features.window, self.features.hop
        x = torch.cat([self._waiting.to(x), x], dim=-1)
        count = max(0, (x.shape[-1] - window) // hop + 1)
        self._waiting = x[..., count * hop :].clone()  # or all of the piece would stay in memory
        if not count:
            return torch.empty(len(x), 0, hop + 1, dtype=x.dtype.to_complex(), device=x.device)
        return self.features.spectrum(x)

    def finish(self) -> Tensor:
        """The last frames, with zeros after the end."""
        hop = self.features.hop
        missing = -self._waiting.shape[-1] % hop
        return self.push(self._waiting.new_zeros(len(self._waiting), missing + hop))


class StreamingSynthesis:
    r"""`Features.synthesize` of a spectrogram that comes in pieces.

    Args:
        features: The settings.

    Example:
        >>> features, x = Features(), torch.rand(1, 10_240, generator=torch.Generator().manual_seed(0))
        >>> spectrum, stream = features.analyze(x), StreamingSynthesis(features)
        >>> pieces = [stream.push(piece) for piece in spectrum.split(4, dim=-2)]
        >>> torch.equal(torch.cat(pieces, dim=-1), features.synthesize(spectrum))
        True
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self._last: Tensor | None = None

    def push(self, spectrum: Tensor) -> Tensor:
        r"""The samples that further frames complete.

        Shape:
            - spectrum: $(\text{channels}, t, \text{hop} + 1)$
            - the result: $(\text{channels}, t \, \text{hop})$, and a hop less for the first piece
        """
        if not spectrum.shape[-2]:
            return spectrum.real.flatten(-2)
        frames = self.features.frames(spectrum)
        if self._last is not None:
            frames = torch.cat([self._last, frames], dim=-2)
        self._last = frames[..., -1:, :].clone()
        return _overlap(frames)


def _overlap(frames: Tensor) -> Tensor:
    """The signal that frames add up to, from the second half of the first to the first half of the last."""
    first, second = frames.chunk(2, dim=-1)
    return (second[..., :-1, :] + first[..., 1:, :]).flatten(-2)
