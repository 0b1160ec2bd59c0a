"""What keeps h bounded: the floor under every entry and the cap over every row (Appendix A.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Bounds:
    r"""The projection after each step: $h = s \max(z, f)$, where $s \le 1$ brings the largest entry under the limit.

    Args:
        floor: The smallest value f that an entry may take before scaling.
        limit: The largest value that an entry of each row may take, or None for no cap.
        over: Dimensions that have a largest entry together: features, or the batch as well.

    Shape:
        - limit: $(*, n, 1)$, or $(*, 1, 1)$ over the batch
    """

    floor: float = 0.0
    limit: Tensor | None = None
    over: tuple[int, ...] = (-1,)

    @classmethod
    def of(cls, x: Tensor, *, floor: float, cap: bool) -> Bounds:
        """The bounds for input x: with a cap, no part may outshine the input, or unrolled h can explode."""
        return cls(floor, x.abs().amax(-1, keepdim=True) if cap else None)

    def project_(self, z: Tensor) -> Tensor | None:
        """Projects z in place and returns the scale s of each row, or None without a cap."""
        z.clamp_(min=self.floor)
        if self.limit is None:
            return None
        # Clamping the divisor keeps 0 / 0 out: a row of zeros has scale 0 and stays zero.
        largest = z.amax(self.over, keepdim=True).clamp_(min=torch.finfo(z.dtype).tiny)
        scale = (self.limit / largest).clamp_(max=1.0)
        z.mul_(scale)
        return scale

    def free(self, h: Tensor, scale: Tensor | None) -> Tensor:
        """1 where a projected h lies above the floor, so that it follows z, and 0 where it lies on it."""
        # Arithmetic instead of a comparison: on a CPU, operations with booleans take several times as long.
        return torch.sub(h, self.floor if scale is None else self.floor * scale).sign_()

    def pull_back(self, gradient: Tensor, h: Tensor, scale: Tensor | None) -> Tensor:
        """The gradient with respect to z, given the one with respect to h; the scale counts as a constant."""
        gradient = self.free(h, scale).mul_(gradient)
        return gradient if scale is None else gradient.mul_(scale)

    def rows(self, index: Tensor) -> Bounds:
        """The bounds of some of the rows."""
        return Bounds(self.floor, None if self.limit is None else self.limit[index])
