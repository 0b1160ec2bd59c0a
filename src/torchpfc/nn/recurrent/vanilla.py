"""The recurrent baseline: a vanilla RNN (Section 3.1)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.nn.mlp import draw_linear_
from torchpfc.nn.recurrent.slices import Lengths, Slices
from torchpfc.solvers.checks import check_at_least_one


class VanillaRNN(nn.Module):
    r"""A recurrent network with GELU and a normalized state.

    $$h_t = \mathrm{gelu}(A\, \mathrm{LN}(h_{t-1}) + b + C x_t), \qquad y_t = D h_t + e$$

    The state that is carried on is $h_t$ itself. What a `FactorizedRNN` is compared with, and called in the same way.

    Args:
        input_size: Size of the input of a slice.
        hidden_size: Size of the state.
        output_size: Size of the output of a slice.
        batch_first: Whether sequences come as $(n, T, \text{input_size})$ or $(T, n, \text{input_size})$.
        bptt: False detaches the state that is handed from slice to slice, and the one that comes out.
        generator: Source of the initial weights.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, T, \text{input_size})$, or $(*, T, n, \text{input_size})$ without `batch_first`
        - state: $(*, \text{hidden_size})$
        - lengths: $(*)$
        - y: that of x, with output_size in place of input_size

    Example:
        >>> rnn = VanillaRNN(4, hidden_size=20, output_size=3)
        >>> y, state = rnn(torch.rand(5, 7, 4))
        >>> y.shape, state.shape
        (torch.Size([5, 7, 3]), torch.Size([5, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        batch_first: bool = True,
        bptt: bool = True,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_at_least_one(input_size=input_size, hidden_size=hidden_size, output_size=output_size)
        self.batch_first = batch_first
        self.bptt = bptt
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = nn.LayerNorm(hidden_size, **options)
        self.recurrent = nn.Linear(hidden_size, hidden_size, **options)  # A and b
        self.input = nn.Linear(input_size, hidden_size, bias=False, **options)  # C
        self.output = nn.Linear(hidden_size, output_size, **options)  # D and e
        if generator is not None:  # otherwise PyTorch has drawn them already
            self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights and biases from PyTorch's default distribution for linear layers."""
        self.norm.reset_parameters()
        for layer in (self.recurrent, self.input, self.output):
            draw_linear_(layer, generator)

    def forward(self, x: Tensor, state: Tensor | None = None, lengths: Lengths | None = None) -> tuple[Tensor, Tensor]:
        """Predicts y for every slice and returns it with the last state.

        Args:
            x: The sequences.
            state: The state before the first slice; zeros by default.
            lengths: How many slices each sequence has, where some end early. Their outputs are zero from there on and
                their state stays as it is.
        """
        weight = self.input.weight
        slices = Slices.of(x, weight, features=weight.shape[-1], batch_first=self.batch_first).end_at(lengths)
        h = slices.first_state(state, weight.shape[-2])
        from_input = self.input(slices.x)  # (T, n, hidden_size)
        states = []
        for t, part in enumerate(from_input):
            before = h
            h = F.gelu(self.recurrent(self.norm(before)) + part)
            if slices.active is not None:
                h = torch.where(slices.active[t], h, before)
            states.append(h)
            if not self.bptt:
                h = h.detach()
        y = slices.keep_active(self.output(torch.stack(states)))
        return slices.restore(y), slices.restore_state(h)

    def extra_repr(self) -> str:
        """The settings shown when the network is printed."""
        return f"batch_first={self.batch_first}, bptt={self.bptt}"
