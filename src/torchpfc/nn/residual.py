"""Blocks in a row, each explaining what the one before left over (Section 5.7)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchpfc.nn.block import PFCBlock
from torchpfc.solvers.checks import check_at_least_one


class ResidualPFC(nn.Module):
    r"""PFC blocks with subtractive skip connections: $x_{i+1} = \max(x_i - y_i, f)$, and the last block predicts y.

    Args:
        in_features: Size of the input, and of everything between the blocks.
        out_features: Size of the output.
        num_basis: Number of parts of each block.
        num_blocks: How many blocks; the published network has two.
        rectify: Keep what passes between blocks at or above the solver's floor. Only semi-NMF can do without.
        options: Passed on to every `PFCBlock`.

    Shape:
        - x: $(*, \text{in_features})$
        - y: $(*, \text{out_features})$

    Example:
        >>> import torch
        >>> ResidualPFC(64, 10, num_basis=30)(torch.rand(5, 64)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_basis: int,
        *,
        num_blocks: int = 2,
        rectify: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_at_least_one(num_blocks=num_blocks)
        if not rectify and options.get("nonnegative", True):
            raise ValueError("rectify must be True for non-negative weights, got False")
        self.rectify = rectify
        sizes = [in_features] * (num_blocks - 1) + [out_features]
        self.blocks = nn.ModuleList(PFCBlock(in_features, size, num_basis, **options) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Predicts y."""
        *inner, last = self.blocks
        for block in inner:
            x = x - block(x)
            if self.rectify:
                assert isinstance(block, PFCBlock)
                x = x.clamp(min=block.solver.floor)
        y: Tensor = last(x)
        return y

    def extra_repr(self) -> str:
        """The settings shown when the network is printed."""
        return f"rectify={self.rectify}"
