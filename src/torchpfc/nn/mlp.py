"""The baseline: a perceptron with one hidden layer (Section 2.3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    r"""One hidden layer with GELU, $y = W_2\, \mathrm{gelu}(W_1 x + b_1) + b_2$.

    Args:
        in_features: Size of the input.
        out_features: Size of the output.
        hidden_features: Size of the hidden layer.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, \text{in_features})$
        - y: $(*, \text{out_features})$

    Example:
        >>> MLP(64, 10, hidden_features=30)(torch.rand(5, 64)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden_features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, hidden_features, device=device, dtype=dtype)
        self.output = nn.Linear(hidden_features, out_features, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Predicts y."""
        y: Tensor = self.output(F.gelu(self.hidden(x)))
        return y
