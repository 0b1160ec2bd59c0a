"""Another sample rate, for a signal that may come in pieces."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ZERO_CROSSINGS = 32  # of the sinc on each side
_PASSED = 0.95  # of the frequencies that both rates can hold
_AT_ONCE = 1 << 13  # samples; each takes as many numbers as the filter has
_KAISER_BETA = 9.0  # about 90 dB down where the filter stops


class Resampler:
    r"""Converts the sample rate of a signal that comes in pieces, by a windowed sinc.

    The result does not depend on how the signal was cut, and nothing is shifted: sample n of the result is the signal
    at $n \cdot \text{source} / \text{target}$ samples.

    Args:
        source: Samples per second of what comes in.
        target: Samples per second of what goes out.
        channels: How many signals come at once.

    Example:
        >>> stream = Resampler(8_000, 44_100, channels=1)
        >>> x = torch.ones(1, 8_000)
        >>> y = torch.cat([stream.push(x[:, :3_000]), stream.push(x[:, 3_000:]), stream.finish()], dim=-1)
        >>> y.shape, bool((y[:, 2_000:-2_000] - 1).abs().max() < 1e-5)
        (torch.Size([1, 44100]), True)
    """

    def __init__(self, source: int, target: int, channels: int) -> None:
        for name, rate in (("source", source), ("target", target)):
            if rate < 1:
                raise ValueError(f"{name} must be at least 1, got {rate}")
        common = math.gcd(source, target)
        self._up, self._down = target // common, source // common
        self._filters = _filters(self._up, self._down)  # one for each place between two samples
        reach = self._filters.shape[-1] // 2
        self._waiting = torch.zeros(channels, reach - 1)
        self._first = 1 - reach  # the number of the first sample that waits
        self._taken = self._given = 0

    def push(self, x: Tensor) -> Tensor:
        r"""The samples that a piece completes, possibly none.

        Shape:
            - x: $(\text{channels}, n)$
            - the result: $(\text{channels}, m)$
        """
        self._taken += x.shape[-1]
        if self._up == self._down:
            return x
        return self._convert(x)

    def finish(self) -> Tensor:
        """The last samples, with zeros after the end."""
        missing = -(-self._taken * self._up // self._down) - self._given
        if self._up == self._down or missing <= 0:
            return self._waiting[:, :0]
        after = self._waiting.new_zeros(len(self._waiting), self._filters.shape[-1] // 2 + 1)
        return self._convert(after)[:, :missing]

    def _convert(self, x: Tensor) -> Tensor:
        taps = self._filters.shape[-1]
        x = torch.cat([self._waiting.to(x), x], dim=-1)
        rows = x.shape[-1] - taps + 1  # places where a filter fits
        # Sample n lies after sample floor(n down / up), and its filter begins taps / 2 - 1 samples before that one.
        stop = max(self._given, -(-(self._first + max(rows, 0) + taps // 2 - 1) * self._up // self._down))
        parts = [x[:, :0]]
        for first in range(self._given, stop, _AT_ONCE):
            n = torch.arange(first, min(first + _AT_ONCE, stop)) * self._down
            at = n.div(self._up, rounding_mode="floor") - (taps // 2 - 1) - self._first
            parts.append((x.unfold(-1, taps, 1)[:, at] * self._filters.to(x)[n % self._up]).sum(-1))
        self._given = stop
        used = min(x.shape[-1], (stop * self._down) // self._up - (taps // 2 - 1) - self._first)
        self._waiting, self._first = x[:, used:].clone(), self._first + used
        return torch.cat(parts, dim=-1)


def resample(x: Tensor, source: int, target: int) -> Tensor:
    r"""Signals at another sample rate.

    Args:
        x: The signals.
        source: Their samples per second.
        target: Those wanted.

    Shape:
        - x: $(\text{channels}, n)$
        - the result: $(\text{channels}, \lceil n \cdot \text{target} / \text{source} \rceil)$

    Example:
        >>> resample(torch.zeros(2, 48_000), 48_000, 44_100).shape
        torch.Size([2, 44100])
    """
    stream = Resampler(source, target, len(x))
    block = 1 << 17
    pieces = [stream.push(piece) for piece in torch.split(x, block, dim=-1)] if x.shape[-1] else []
    return torch.cat([*pieces, stream.finish().to(x)], dim=-1)


def _filters(up: int, down: int) -> Tensor:
    """Low-pass filters for each of the places that a sample can have between two others."""
    if up == down:
        return torch.ones(1, 2)
    cutoff = _PASSED * min(1.0, up / down)
    reach = math.ceil(_ZERO_CROSSINGS / cutoff)
    place = torch.arange(up, dtype=torch.float64).unsqueeze(-1) / up
    distance = torch.arange(1 - reach, reach + 1, dtype=torch.float64) - place  # (up, taps)
    inside = (1 - (distance / reach).square()).clamp(min=0)
    weight = torch.special.i0(_KAISER_BETA * inside.sqrt())
    filters: Tensor = torch.sinc(cutoff * distance) * weight
    filters /= filters.sum(-1, keepdim=True)
    return filters.float()
