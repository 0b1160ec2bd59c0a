"""The baseline: a perceptron with one hidden layer (Section 2.3)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    r"""One hidden layer with GELU, $y = W_2\, \mathrm{gelu}(W_1 x + b_1) + b_2$.

    Args:
        in_features: Size of the input.
        out_features: Size of the output.
        hidden_features: Size of the hidden layer.
        generator: Source of the initial weights.
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
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, hidden_features, device=device, dtype=dtype)
        self.output = nn.Linear(hidden_features, out_features, device=device, dtype=dtype)
        if generator is not None:  # otherwise PyTorch has drawn them already
            self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights and biases from PyTorch's default distribution for linear layers."""
        for layer in (self.hidden, self.output):
            draw_linear_(layer, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Predicts y."""
        y: Tensor = self.output(F.gelu(self.hidden(x)))
        return y


@torch.no_grad()
def draw_linear_(layer: nn.Linear, generator: torch.Generator | None) -> None:
    """Draws a new weight and bias from PyTorch's default distribution, in place."""
    bound = 1 / math.sqrt(layer.in_features)
    for parameter in layer.parameters():
        parameter.uniform_(-bound, bound, generator=generator)
