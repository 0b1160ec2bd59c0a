"""Soft masks: how much of each point of a mixture's spectrogram belongs to the vocals."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from torchpfc.audio.features import Features


def soft_mask(estimate: Tensor, mixture: Tensor, features: Features, *, power: float = 1.0) -> Tensor:
    r"""The mask of estimated vocals.

    With magnitudes v of the vocals and a of the rest,

    $$m = \frac{v^p}{v^p + a^p}$$

    An estimate of the vocals alone leaves for the rest what the magnitudes x of the mixture have beside them,
    $a = \max(x - v, 0)$. For $p = 1$ the mask is then $\min(v / x, 1)$: the estimated magnitude, but never more than
    the mixture has. An estimate of both is better: what it gets wrong in both by the same factor leaves no trace.

    Where there is neither of the two, the mask is 0. That of the true features of both, with $p = 1$, is known as the
    ideal ratio mask.

    Args:
        estimate: Features of the vocals, or of the vocals and then of the rest.
        mixture: Features of the mixture.
        features: The settings of both.
        power: The p of the formula; 2 decides more clearly.

    Shape:
        - estimate: $(*, \text{bins})$ or $(*, 2 \cdot \text{bins})$
        - mixture and the result: $(*, \text{bins})$

    Example:
        >>> import torch
        >>> features, mixture = Features(), torch.tensor([0.5, 0.5, 0.5, 0.0])
        >>> soft_mask(torch.tensor([0.0, 0.25, 0.9, 0.3]), mixture, features)
        tensor([0.0000, 0.0625, 1.0000, 0.0000])
        >>> soft_mask(torch.tensor([0.1, 0.3, 0.1, 0.3]), torch.tensor([0.5, 0.5]), Features(bins=2))
        tensor([0.5000, 0.5000])
    """
    bins = mixture.shape[-1]
    if estimate.shape[-1] not in (bins, 2 * bins):
        raise ValueError(f"estimate must have {bins} features or {2 * bins}, got {estimate.shape[-1]}")
    vocals = features.expand(estimate[..., :bins])
    if estimate.shape[-1] > bins:
        rest = features.expand(estimate[..., bins:])
    else:
        whole = features.expand(mixture)
        rest = (whole - vocals).clamp(min=0)
        vocals = vocals.minimum(whole)
    if power != 1.0:  # scaled first: what is small to a power is lost
        largest = vocals.maximum(rest).clamp(min=1e-30)
        vocals, rest = (vocals / largest) ** power, (rest / largest) ** power
    return vocals / (vocals + rest).clamp(min=1e-30)


def check_power(power: float) -> float:
    """The power of a mask, which must be a positive number."""
    if not 0 < power < float("inf"):
        raise ValueError(f"power must be positive and finite, got {power}")
    return power


def apply_mask(mask: Tensor, spectrum: Tensor) -> Tensor:
    r"""A spectrogram with a mask, and with nothing in the bins that the mask does not have.

    Shape:
        - mask: $(*, \text{bins})$
        - spectrum and the result: $(*, \text{hop} + 1)$, complex
    """
    kept = mask * spectrum[..., : mask.shape[-1]]
    return F.pad(kept, (0, spectrum.shape[-1] - mask.shape[-1]))
