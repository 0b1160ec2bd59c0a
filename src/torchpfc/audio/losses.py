"""What a network that separates is trained for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from torchpfc.audio.features import Features
from torchpfc.audio.masks import soft_mask
from torchpfc.training import Scored


@dataclass(frozen=True, eq=False)
class SeparationErrors:
    r"""The squared errors of features, as in the paper, and those of the masked mixture.

    $$\mathrm{MSE}(y) + \lambda \, \mathrm{mean} \, (m x - v)^2$$

    with the mask m of `soft_mask` and magnitudes x of the mixture and v of the vocals, the loudest being 1. The first
    term hears soft sounds well, since features are fourth roots. The second hears what a listener will.

    Args:
        features: The settings of the features.
        mask_weight: The $\lambda$ of the formula; 0 gives the paper's loss.
        power: Of the mask.

    Shape:
        - x: $(*, n, T, \text{bins})$
        - target: $(*, n, T, \text{bins})$ for the vocals, or $(*, n, T, 2 \cdot \text{bins})$ for vocals and rest
        - loss: $(*)$, one number for each model of a stack
    """

    features: Features
    mask_weight: float = 0.0
    power: float = 1.0

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Scored:
        """Applies the networks and measures them."""
        y: Tensor = model(x)[0]
        loss = _mean_squares(y - target)
        if self.mask_weight:
            mask, magnitude = soft_mask(y, x, self.features, power=self.power), self.features.expand(x)
            missed = mask * magnitude - self.features.expand(target[..., : x.shape[-1]])
            loss = loss + self.mask_weight * _mean_squares(missed / self.features.loudest)
        return Scored(loss, y)


def _mean_squares(errors: Tensor) -> Tensor:
    """The mean over clips, slices and bins."""
    return errors.square().flatten(-3).mean(-1)
