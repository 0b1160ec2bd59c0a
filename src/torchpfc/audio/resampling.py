"""Another sample rate, for a signal that may come in pieces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchpfc.solvers.checks import check_at_least_one

_QUALITY = "VHQ"  # errors and aliases below the last bit of float32; one step lower is hardly faster


class Resampler:
    r"""Converts the sample rate of a signal that comes in pieces, by libsoxr, which comes with the package soxr.

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
        >>> y.shape, bool((y[:, 6_000:-6_000] - 1).abs().max() < 1e-5)
        (torch.Size([1, 44100]), True)
    """

    def __init__(self, source: int, target: int, channels: int) -> None:
        check_at_least_one(source=source, target=target)
        self._source, self._target, self._channels = source, target, channels
        self._taken = self._given = 0
        self._stream: Any = None
        if source != target:
            import soxr

            self._stream = soxr.ResampleStream(source, target, channels, dtype="float32", quality=_QUALITY)

    def push(self, x: Tensor) -> Tensor:
        r"""The samples that a piece completes, possibly none.

        Shape:
            - x: $(\text{channels}, n)$
            - the result: $(\text{channels}, m)$
        """
        if self._stream is None:
            return x
        y = self._convert(x)
        self._taken, self._given = self._taken + x.shape[-1], self._given + y.shape[-1]
        return y

    def finish(self) -> Tensor:
        """The last samples, with zeros after the end."""
        if self._stream is None:
            return torch.zeros(self._channels, 0)
        missing = -(-self._taken * self._target // self._source) - self._given
        after = torch.zeros(self._channels, -(-self._source // self._target))  # the stream rounds its length, also down
        return self._convert(after, last=True)[:, :missing]

    def _convert(self, x: Tensor, *, last: bool = False) -> Tensor:
        y = self._stream.resample_chunk(x.detach().cpu().float().T.contiguous().numpy(), last=last)
        return torch.from_numpy(y).T.contiguous().to(x)


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
    return torch.cat([stream.push(x), stream.finish().to(x)], dim=-1)
