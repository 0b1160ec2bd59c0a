"""The factorized RNN: a vanilla RNN whose network is a PFC block (Section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.nn.block import INIT_RANGE, Coupling, PFCBlock
from torchpfc.nn.recording import Couplings
from torchpfc.nn.recurrent.recurrence import Recurrence
from torchpfc.nn.recurrent.slices import Lengths, Slices
from torchpfc.solvers import FISTA, Adjoint, Solver
from torchpfc.solvers.checks import check_at_least_one

SLICE_STEPS = 10
"""Steps of the default solver per slice, as published: each slice goes on from the state before it."""

SIGNED_INIT_RANGE = (-INIT_RANGE[1] / 2, INIT_RANGE[1] / 2)
"""Range of the uniform distribution that the weights of a semi-NMF recurrent network are drawn from."""


@dataclass(frozen=True, eq=False)
class RecurrentCoupling(Coupling):
    r"""What a factorized RNN makes of all slices of a call: $(y_t; h_{t-1}; x_t) = (W_y; W_h; W_x) h_t$.

    Its `x` is the reconstruction of $z_t = (h_{t-1}; x_t)$ and its `target` is $z_t$ itself, as a constant. Beyond the
    end of a sequence everything is zero.

    Shape:
        - y: $(*, T, \text{output_size})$
        - x, target: $(*, T, \text{num_basis} + \text{input_size})$
        - h: $(*, T, \text{num_basis})$
    """

    @property
    def last_state(self) -> Reconstruction:
        """The state before each slice, and what the slice makes of it."""
        size = self.h.shape[-1]
        return Reconstruction(self.x[..., :size], self.target[..., :size])

    @property
    def input(self) -> Reconstruction:
        """The input of each slice, and what the slice makes of it."""
        size = self.h.shape[-1]
        return Reconstruction(self.x[..., size:], self.target[..., size:])


class Reconstruction(NamedTuple):
    """A reconstruction and what it should equal."""

    x: Tensor
    target: Tensor

    def loss(self) -> Tensor:
        """The mean squared error."""
        return F.mse_loss(self.x, self.target)


class _Factorized(nn.Module):
    """What the cell and the whole network share: a block whose input is the last state and x."""

    def __init__(
        self,
        input_size: int,
        num_basis: int,
        output_size: int,
        *,
        nonnegative: bool = True,
        bptt: bool = True,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        init_range: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_at_least_one(input_size=input_size, num_basis=num_basis, output_size=output_size)
        if init_range is None:
            init_range = INIT_RANGE if nonnegative else SIGNED_INIT_RANGE
        self.input_size = input_size
        self.bptt = bptt
        self.block = PFCBlock(
            num_basis + input_size,
            output_size,
            num_basis,
            nonnegative=nonnegative,
            solver=FISTA.paper(SLICE_STEPS) if solver is None else solver,
            adjoint=adjoint,
            init_range=init_range,
            generator=generator,
            device=device,
            dtype=dtype,
        )
        self.block.resizable = False

    @property
    def num_basis(self) -> int:
        """Number of parts, which is also the size of the state."""
        return self.block.num_basis

    @property
    def output_size(self) -> int:
        """Size of the output."""
        return self.block.out_features

    @property
    def weight_y(self) -> Tensor:
        """What each part predicts, $W_y$: the block's `weight_y`."""
        return self.block.weight_y

    @property
    def weight_h(self) -> Tensor:
        """The state before each part, $W_h$: the upper rows of the block's `weight_x`."""
        return self.block.weight_x[..., : -self.input_size, :]

    @property
    def weight_x(self) -> Tensor:
        """The input that each part stands for, $W_x$: the lower rows of the block's `weight_x`."""
        return self.block.weight_x[..., -self.input_size :, :]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights."""
        self.block.reset_parameters(generator)

    def random_state(self, *batch: int, scale: float = 1e-2, generator: torch.Generator | None = None) -> Tensor:
        r"""A state to begin with instead of zeros: uniform between 0 and the scale.

        Args:
            batch: Dimensions of the batch.
            scale: Upper end of the distribution.
            generator: Source of the numbers.

        Shape:
            - the result: $(*, \text{num_basis})$, and those of a stack first
        """
        weight = self.block.weight_x
        shape = (*weight.shape[:-2], *batch, self.num_basis)
        return scale * torch.rand(shape, generator=generator, device=weight.device, dtype=weight.dtype)

    def extra_repr(self) -> str:
        """The settings shown when the network is printed."""
        return f"input_size={self.input_size}, bptt={self.bptt}"

    def _run(self, slices: Slices, state: Tensor | None, put_back: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Infers the states of all slices, predicts from them, and shows everything to those who watch the block."""
        block = self.block
        if block.warm_start is not None:
            raise RuntimeError("warm_couplings must name blocks outside of RNNs: each slice starts at the state before")
        W, W_y = _as_one_stack(block.weight_x, 2), _as_one_stack(block.weight_y, 2)
        L = _as_one_stack(block.lipschitz())
        recurrence = Recurrence(block.solver, block.adjoint, L, self.bptt, slices.active)
        first = slices.first_state(state, self.num_basis)
        states = recurrence.states(slices.x, W, first)  # (T, *, n, num_basis)
        h = slices.keep_active(states)
        y = put_back(h @ W_y.mT)
        if block.watchers:
            before = torch.cat([first.detach().unsqueeze(0), states.detach()[:-1]])
            x = slices.x.detach().expand(*before.shape[:-1], -1)
            target = slices.keep_active(torch.cat([before, x], dim=-1))
            coupling = RecurrentCoupling(y=y, x=put_back(h @ W.mT), h=put_back(h), target=put_back(target))
            for watch in block.watchers:
                watch(coupling)
        last = states[-1] if self.bptt else states[-1].detach()
        return y, slices.restore_state(last)


class FactorizedRNNCell(_Factorized):
    r"""One slice of a factorized RNN: explains the last state and an input together, and predicts from that.

    $$h_t = \arg\min_{h \ge 0} \|(h_{t-1}; x_t) - (W_h; W_x) h\|^2, \qquad y_t = W_y h_t$$

    The search for $h_t$ starts at $h_{t-1}$ (Section 3.2).

    Args:
        input_size: Size of the input.
        num_basis: Number of parts, which is also the size of the state.
        output_size: Size of the output.
        nonnegative: Whether the weights are meant to be non-negative (NMF) or free (semi-NMF). `keep_nonnegative`
            holds an optimizer to it.
        bptt: False detaches the state that comes out, so that no gradient passes from slice to slice.
        solver: How h is found; `FISTA.paper(10)` by default.
        adjoint: How gradients pass through the solver; `Unrolled()` by default. It alone passes them on to the state
            as the start of the search.
        init_range: Range of the uniform distribution that the weights start from; 0 to 0.01 by default, and -0.005 to
            0.005 for semi-NMF.
        generator: Source of the initial weights.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, \text{input_size})$
        - state: $(*, \text{num_basis})$
        - y: $(*, \text{output_size})$

    Example:
        >>> cell = FactorizedRNNCell(4, num_basis=20, output_size=3)
        >>> state = None
        >>> for x in torch.rand(7, 5, 4):
        ...     y, state = cell(x, state)
        >>> y.shape, state.shape
        (torch.Size([5, 3]), torch.Size([5, 20]))
    """

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predicts y and returns it with the next state."""
        if not x.ndim or x.shape[-1] != self.input_size:
            raise ValueError(f"x must have shape (..., {self.input_size}), got {tuple(x.shape)}")
        slices = Slices.of(x.unsqueeze(-2), self.block.weight_x, features=self.input_size)
        return self._run(slices, state, lambda values: slices.restore(values).squeeze(-2))


class FactorizedRNN(_Factorized):
    r"""A recurrent network that is one factorization: all outputs, states and inputs are sums of the same parts.

    $$h_t = \arg\min_{h \ge 0} \|(h_{t-1}; x_t) - (W_h; W_x) h\|^2, \qquad y_t = W_y h_t$$

    Called as `nn.RNN` is, except that the state has no dimension for layers. `weight_y`, `weight_h` and `weight_x` are
    the three matrices. The parameters themselves belong to a `PFCBlock`, `block`, whose input is $(h_{t-1}; x_t)$, so
    that `record_couplings`, `keep_nonnegative`, `stack_models` and the sliding window work as with any block.

    What all slices share is computed once per call: the step size, $W^\top W$, the products with the input, and the
    outputs. With `Unrolled()` the backward pass through all steps of all slices is one function as well.

    Args:
        input_size: Size of the input of a slice.
        num_basis: Number of parts, which is also the size of the state.
        output_size: Size of the output of a slice.
        batch_first: Whether sequences come as $(n, T, \text{input_size})$ or $(T, n, \text{input_size})$.
        nonnegative: Whether the weights are meant to be non-negative (NMF) or free (semi-NMF). `keep_nonnegative`
            holds an optimizer to it.
        bptt: False detaches the state that is handed from slice to slice, and the one that comes out. Within a slice
            everything is still differentiated.
        solver: How h is found; `FISTA.paper(10)` by default.
        adjoint: How gradients pass through the solver; `Unrolled()` by default. It alone passes them on to the state
            as the start of the search.
        init_range: Range of the uniform distribution that the weights start from; 0 to 0.01 by default, and -0.005 to
            0.005 for semi-NMF.
        generator: Source of the initial weights.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, T, \text{input_size})$, or $(*, T, n, \text{input_size})$ without `batch_first`
        - state: $(*, \text{num_basis})$
        - lengths: $(*)$
        - y: that of x, with output_size in place of input_size

    Example:
        >>> rnn = FactorizedRNN(4, num_basis=20, output_size=3)
        >>> x = torch.rand(5, 7, 4)
        >>> y, state = rnn(x)
        >>> y.shape, state.shape
        (torch.Size([5, 7, 3]), torch.Size([5, 20]))
        >>> more, state = rnn(x, state)  # goes on where the last call ended
    """

    def __init__(
        self,
        input_size: int,
        num_basis: int,
        output_size: int,
        *,
        batch_first: bool = True,
        nonnegative: bool = True,
        bptt: bool = True,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        init_range: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            num_basis,
            output_size,
            nonnegative=nonnegative,
            bptt=bptt,
            solver=solver,
            adjoint=adjoint,
            init_range=init_range,
            generator=generator,
            device=device,
            dtype=dtype,
        )
        self.batch_first = batch_first

    def forward(self, x: Tensor, state: Tensor | None = None, lengths: Lengths | None = None) -> tuple[Tensor, Tensor]:
        """Predicts y for every slice and returns it with the last state.

        Args:
            x: The sequences.
            state: The state before the first slice; zeros by default.
            lengths: How many slices each sequence has, where some end early. Their outputs are zero from there on and
                their state stays as it is.
        """
        like = self.block.weight_x
        slices = Slices.of(x, like, features=self.input_size, batch_first=self.batch_first).end_at(lengths)
        return self._run(slices, state, slices.restore)

    def extra_repr(self) -> str:
        """The settings shown when the network is printed."""
        return f"{super().extra_repr()}, batch_first={self.batch_first}"


def rnn_reconstruction_loss(seen: Couplings, weight_h: float = 1.0, weight_x: float = 1.0) -> Tensor:
    r"""The two reconstruction terms of a factorized RNN's loss, averaged over slices and summed over the networks.

    $$\lambda_h \mathrm{MSE}(H_\text{prev}, W_h H) + \lambda_x \mathrm{MSE}(X, W_x H)$$

    The third term, $\lambda_y \mathrm{MSE}(Y, W_y H)$, is the user's own line (Section 3.4). `reconstruction_loss`
    instead counts every entry of the state and of the input alike.

    Args:
        seen: What `record_couplings` collected.
        weight_h: The weight of the states.
        weight_x: The weight of the inputs; also of those of blocks that are not part of a factorized RNN.

    Example:
        >>> from torchpfc import record_couplings
        >>> rnn, x = FactorizedRNN(4, num_basis=20, output_size=3), torch.rand(5, 7, 4)
        >>> with record_couplings(rnn) as seen:
        ...     y, _ = rnn(x)
        >>> loss = F.mse_loss(y, torch.zeros(5, 7, 3)) + rnn_reconstruction_loss(seen, weight_h=0.5)
    """
    losses = []
    for couplings in seen.values():
        for coupling in couplings:
            if isinstance(coupling, RecurrentCoupling):
                loss = weight_h * coupling.last_state.loss() + weight_x * coupling.input.loss()
            else:
                loss = weight_x * F.mse_loss(coupling.x, coupling.target)
            losses.append(loss / len(couplings))
    if not losses:
        raise RuntimeError("seen must hold at least one coupling, got none: run the model inside record_couplings")
    return sum(losses[1:], start=losses[0])


def _as_one_stack(values: Tensor, own: int = 0) -> Tensor:
    """Brings the dimensions of a stack of stacks to one; so many dimensions at the end belong to each model."""
    stacks = values.ndim - own
    return values.flatten(0, stacks - 1) if stacks > 1 else values
