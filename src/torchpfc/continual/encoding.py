"""How parts see inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.continual.scaling import Scale


@dataclass(frozen=True, eq=False)
class Encoding:
    """Inputs as parts see them: raised to a power, and of norm 1, so that `l1` means the same for all.

    Args:
        power: Sizes are raised to it.
        scale: Brings features to scales of their own, around their centers; None leaves them as they are.
        signed: Whether each feature becomes two, what is above zero and what is below; else what is below is lost.
        dtype: The type of the result.

    Shape:
        - x: $(n, m)$, or $(*, m)$ without a scale
        - the encoded input: $(n, p)$ with $p$ from $m$ to $2 m + 2$

    Example:
        >>> Encoding(1.0, None, True, torch.float32).encode(torch.tensor([[3.0, -4.0]]))
        tensor([[0.6000, 0.0000, 0.0000, 0.8000]])
    """

    power: float
    scale: Scale | None
    signed: bool
    dtype: torch.dtype

    def encode(self, x: Tensor) -> Tensor:
        """Inputs as parts see them; zeros where they are not observed."""
        x = self.scaled(x)
        size = x.abs().nan_to_num(nan=0.0)
        # Sizes relative to the largest: no power or square can then leave the range of the type.
        size = size / size.amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        size = size.to(self.dtype)
        size = size if self.power == 1 else size.pow(self.power)
        size = F.normalize(size, dim=-1, eps=torch.finfo(size.dtype).tiny)
        above = size.where(x > 0, 0.0)
        return torch.cat([above, size.where(x < 0, 0.0)], -1) if self.signed else above

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs in units of their features' scales, and a constant, which lets a code know how large an input is."""
        return x if self.scale is None else F.pad(self.scale.encode(x), (0, 1), value=1.0)

    def observed(self, x: Tensor) -> Tensor | None:
        """Where encoded inputs are observed; None for everywhere."""
        gaps = x.isnan()
        if not gaps.any():
            return None
        seen = ~gaps if self.scale is None else F.pad(~gaps, (0, 1), value=True)
        return torch.cat([seen, seen], -1) if self.signed else seen

    def decode(self, seen: Tensor) -> Tensor:
        """What is above zero less what is below, without the power; up to a factor for each row."""
        above, below = seen.chunk(2, 1) if self.signed else (seen, torch.zeros_like(seen))
        return above.pow(1 / self.power) - below.pow(1 / self.power)

    def restored(self, seen: Tensor, like: Tensor) -> Tensor:
        """Encoded rows in units of the input, as large as given inputs are.

        Args:
            seen: The rows.
            like: An input for each.
        """
        own = self.decode(self.encode(like)).to(like)  # by what factor an input was brought to its size
        factor = self.scaled(like).abs().nan_to_num(nan=0.0).amax(1)
        factor = factor / own.abs().amax(1).clamp(min=torch.finfo(own.dtype).tiny)
        rows = self.decode(seen).to(like) * factor.unsqueeze(1)
        return rows if self.scale is None else self.scale.decode(rows[:, :-1])
