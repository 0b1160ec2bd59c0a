"""Soft masks: how much of each point of a mixture's spectrogram belongs to the vocals."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from torchpfc.audio.features import Features


def soft_mask(estimate: Tensor, mixture: Tensor, features: Features, *, power: float = 1.0) -> Tensor:
    r"""The mask of estimated vocals, from the features of the mixture.

    With magnitudes v of the vocals and x of the mixture, and what is left for the rest, $a = \max(x - v, 0)$,

    $$m = \frac{v^p}{v^p + a^p}$$

    For $p = 1$ this is $\min(v / x, 1)$: the estimated magnitude, but never more than the mixture has. A silent mixture
    has the mask 0.

    Args:
        estimate: Features of the vocals.
        mixture: Features of the mixture.
        features: The settings of both.
        power: The p of the formula; 2 decides more clearly.

    Shape:
        - estimate, mixture and the result: $(*, \text{bins})$

    Example:
        >>> import torch
        >>> features, mixture = Features(), torch.tensor([0.5, 0.5, 0.5, 0.0])
        >>> soft_mask(torch.tensor([0.0, 0.25, 0.9, 0.3]), mixture, features)
        tensor([0.0000, 0.0625, 1.0000, 0.0000])
    """
    vocals, whole = features.expand(estimate), features.expand(mixture)
    rest = (whole - vocals).clamp(min=0)
    vocals = vocals.minimum(whole)
    if power != 1.0:  # scaled first: what is small to a power is lost
        largest = vocals.maximum(rest).clamp(min=1e-30)
        vocals, rest = (vocals / largest) ** power, (rest / largest) ** power
    return vocals / (vocals + rest).clamp(min=1e-30)


def oracle_mask(vocals: Tensor, mixture: Tensor, features: Features) -> Tensor:
    r"""The best mask that there is: the one between 0 and 1 that brings the mixture closest to the vocals.

    With spectrograms V and X it is $\mathrm{Re}(V / X)$, cut off at 0 and 1. It needs the true vocals, so it is not a
    method but a ceiling for all that use masks.

    Args:
        vocals: The spectrogram of the vocals.
        mixture: The spectrogram of the mixture.
        features: The settings; bins that are not kept have no mask.

    Shape:
        - vocals, mixture: $(*, \text{hop} + 1)$, complex
        - the result: $(*, \text{bins})$
    """
    v, x = vocals[..., : features.bins], mixture[..., : features.bins]
    return ((v * x.conj()).real / x.abs().square().clamp(min=1e-30)).clamp(0, 1)


def apply_mask(mask: Tensor, spectrum: Tensor) -> Tensor:
    r"""A spectrogram with a mask, and with nothing in the bins that the mask does not have.

    Shape:
        - mask: $(*, \text{bins})$
        - spectrum and the result: $(*, \text{hop} + 1)$, complex
    """
    kept = mask * spectrum[..., : mask.shape[-1]]
    return F.pad(kept, (0, spectrum.shape[-1] - mask.shape[-1]))
