"""What recurrent experiments train: networks and their settings, a reader of images, and the paper's loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from torchpfc.nmf import ColumnCap, MeanOfMax, Normalization
from torchpfc.nn import FactorizedRNN, RecurrentCoupling, VanillaRNN, record_couplings
from torchpfc.nn.recurrent.slices import Slices
from torchpfc.paper.settings import Amount, Component, Count, one_of
from torchpfc.solvers import FISTA
from torchpfc.training import Scored

NETWORKS = ("factorized", "vanilla", "lstm", "gru")
"""Networks that learn by backpropagation."""
NORMALIZATIONS: dict[str, Normalization | None] = {
    "column-cap": ColumnCap(),
    "mean-of-max": MeanOfMax(),
    "unnormalized": None,
}
"""What keeps weights in bounds where networks learn without backpropagation."""


@dataclass(frozen=True, kw_only=True)
class Network(Component):
    """Settings of networks that learn by backpropagation; copying takes them without it too."""

    model: str = "factorized"
    """Which network: factorized, vanilla, lstm or gru."""
    num_basis: Count = 100
    """Size of the state."""
    nonnegative: bool = True
    """Whether the weights of a factorized network are to stay non-negative."""
    bptt: bool = True
    """Whether gradients pass from slice to slice; an LSTM and a GRU always let them."""
    iterations: Count = 10
    """Steps of the solver of a factorized network in each slice."""
    reconstruction_weight: Amount = 1.0
    """What the errors of its last states and inputs count."""

    def build(
        self, input_size: int, output_size: int, generator: torch.Generator, *, init_high: float | None = None
    ) -> nn.Module:
        """An untrained network.

        Args:
            input_size: Size of the input of a slice.
            output_size: Size of the output of a slice.
            generator: Source of the initial weights.
            init_high: Width of the range that the weights of a factorized one start from; None takes the published one.
        """
        sizes = (input_size, self.num_basis, output_size)
        if self.model == "vanilla":
            return VanillaRNN(*sizes, bptt=self.bptt, generator=generator)
        if self.model != "factorized":
            return GatedRNN(*sizes, kind=self.model, generator=generator)
        return FactorizedRNN(
            *sizes,
            nonnegative=self.nonnegative,
            bptt=self.bptt,
            solver=FISTA.paper(self.iterations),
            init_range=None if init_high is None else _init_range(init_high, self.nonnegative),
            generator=generator,
        )


@dataclass(frozen=True, kw_only=True)
class Updates(Component):
    """Settings of networks that learn without backpropagation; the defaults are those of the published code."""

    init_high: float = 2e-2
    """Width of the range that weights start from, which begins at 0 where they are non-negative."""
    normalization: Annotated[str, one_of(*NORMALIZATIONS)] = "column-cap"
    """What keeps weights in bounds: "column-cap", the paper's "mean-of-max", or nothing, "unnormalized"."""
    rate_h: float = 0.5
    """Length of a step on the states."""
    rate_w: float = 0.5
    """Length of a step on the weights."""

    def options(self, nonnegative: bool = True) -> dict[str, Any]:
        """Options of an `NMFRNN` that learns like this.

        Args:
            nonnegative: Whether weights are to stay so.
        """
        return {
            "nonnegative": nonnegative,
            "normalization": NORMALIZATIONS[self.normalization],
            "rate_h": self.rate_h,
            "rate_w": self.rate_w,
            "init_range": _init_range(self.init_high, nonnegative),
        }


class GatedRNN(nn.Module):
    r"""An LSTM or a GRU with a linear output, made of linear layers, so that many can be trained as one.

    Gives what `nn.LSTM` and `nn.GRU` give with the same weights, and starts from the same distribution.

    Args:
        input_size: Size of the input of a slice.
        hidden_size: Size of the state.
        output_size: Size of the output of a slice.
        kind: "lstm" or "gru".
        generator: Source of the initial weights.

    Shape:
        - x: $(*, T, \text{input_size})$
        - state: $(*, \text{hidden_size})$, and twice that for an LSTM: its state, then its cell
        - y: $(*, T, \text{output_size})$
    """

    def __init__(
        self, input_size: int, hidden_size: int, output_size: int, *, kind: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.kind = kind
        gates = {"lstm": 4, "gru": 3}[kind]
        self.input = nn.Linear(input_size, gates * hidden_size)
        self.recurrent = nn.Linear(hidden_size, gates * hidden_size)
        self.output = nn.Linear(hidden_size, output_size)
        bound = 1 / math.sqrt(hidden_size)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predicts y for every slice and returns it with the last state."""
        weight, size = self.input.weight, self.recurrent.weight.shape[-1]
        slices = Slices.of(x, weight, features=weight.shape[-1])
        cells = 2 if self.kind == "lstm" else 1
        h, *cell = torch.split(slices.first_state(state, cells * size), size, dim=-1)
        states = []
        for part in self.input(slices.x):
            if cell:
                h, cell[0] = _lstm_step(part + self.recurrent(h), cell[0])
            else:
                h = _gru_step(part, self.recurrent(h), h)
            states.append(h)
        y = self.output(torch.stack(states))
        return slices.restore(y), slices.restore_state(torch.cat([h, *cell], dim=-1))

    def extra_repr(self) -> str:
        """The settings shown when the network is printed."""
        return f"kind={self.kind}"


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, keep, fresh, leave = gates.chunk(4, dim=-1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * fresh.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru_step(from_input: Tensor, from_state: Tensor, h: Tensor) -> Tensor:
    (reset, update, fresh), (reset_h, update_h, fresh_h) = from_input.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
    fresh = (fresh + (reset + reset_h).sigmoid() * fresh_h).tanh()
    keep = (update + update_h).sigmoid()
    return fresh + keep * (h - fresh)


def _init_range(width: float, nonnegative: bool) -> tuple[float, float]:
    return (0.0, width) if nonnegative else (-width / 2, width / 2)


class ImageReader(nn.Module):
    r"""Reads an image column by column, from left to right, and answers after the last.

    Args:
        rnn: Gives an output for every slice, and a state.
        shape: Channels, rows and columns of an image.

    Shape:
        - x: $(*, n, m)$ with m the product of `shape`
        - y: $(*, n, \text{output_size})$
    """

    def __init__(self, rnn: nn.Module, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.rnn = rnn
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """The answers."""
        y: Tensor = self.rnn(image_columns(x, self.shape))[0]
        return y[..., -1, :]


def image_columns(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    r"""Images as sequences of their columns, $(*, \text{columns}, \text{channels} \cdot \text{rows})$."""
    channels, rows, columns = shape
    return x.reshape(*x.shape[:-1], channels * rows, columns).mT


@dataclass(frozen=True, eq=False)
class SequenceErrors:
    r"""The paper's loss of recurrent networks (Section 3.4), for a stack of them.

    $$\lambda_y \mathrm{MSE}(Y, W_y H)
    + \lambda \bigl(\mathrm{MSE}(H_\text{prev}, W_h H) + \mathrm{MSE}(X, W_x H)\bigr)$$

    Args:
        prediction: What the error of the prediction counts, or one weight for each network.
        reconstruction: What the errors of last states and of inputs count; 0 leaves them out.
        last: How many slices, at the end, have a target; None where all have one.
    """

    prediction: float | Tensor = 1.0
    reconstruction: float | Tensor = 0.0
    last: int | None = None

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Scored:
        """Applies the networks and measures them."""
        if isinstance(self.reconstruction, float | int) and not self.reconstruction:
            return self._score(model(x), target)
        with record_couplings(model) as seen:
            loss, y = self._score(model(x), target)
        for couplings in seen.values():
            for coupling in couplings:
                assert isinstance(coupling, RecurrentCoupling)
                errors, size = coupling.x - coupling.target, coupling.h.shape[-1]
                of_both = mean_squares(errors[..., :size]) + mean_squares(errors[..., size:])
                loss = loss + self.reconstruction * of_both / len(couplings)
        return Scored(loss, y)

    def _score(self, answer: Any, target: Tensor) -> Scored:
        """The error of the prediction; outputs of networks may come with their state."""
        y: Tensor = answer[0] if isinstance(answer, tuple) else answer
        if self.last is not None:
            y, target = y[..., -self.last :, :], target[..., -self.last :, :]
        return Scored(self.prediction * mean_squares(y - target), y)


def mean_squares(errors: Tensor) -> Tensor:
    """The mean over all but the first dimension: one number for each model of a stack."""
    return errors.square().flatten(1).mean(1)
