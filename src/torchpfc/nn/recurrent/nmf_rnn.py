"""The factorized RNN learned without backpropagation: alternating NMF updates (Section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.nmf import ColumnCap, Normalization
from torchpfc.nn.recurrent.inference import Inference, RightUpdate, SliceBySlice
from torchpfc.nn.recurrent.slices import Slices, slices_as_rows
from torchpfc.solvers import largest_eigenvalue
from torchpfc.solvers.checks import check_at_least_one, check_nonnegative
from torchpfc.solvers.cuda.halves import half_of, product_over_rows
from torchpfc.solvers.descent import COLD_ITERATIONS, cold_start
from torchpfc.solvers.fista import PAPER_FLOOR

INIT_HIGH = 2e-2
"""Upper end of the uniform distribution that weights are drawn from, as in the published code."""


class Losses(NamedTuple):
    """Mean squared errors of one pass, before its update of the weights; one number per model of a stack.

    Shape:
        - each: a scalar, or $(s)$
    """

    y: Tensor
    """Of the predictions, over slices that have a target."""
    h: Tensor
    """Of the reconstructed last states."""
    x: Tensor
    """Of the reconstructed inputs."""

    @property
    def total(self) -> Tensor:
        """Their sum."""
        return self.y + self.h + self.x


Callback = Callable[[int, Losses], bool | None]


class NMFRNN(nn.Module):
    r"""A factorized RNN that learns without backpropagation, for sequences of vectors or of symbols.

    All outputs, states and inputs of a sequence are one factorization:

    $$(y_t; h_{t-1}; x_t) \approx (W_y; W_h; W_x) h_t$$

    A pass finds the states from the inputs alone, with the weights fixed. Then one gradient step moves the weights
    towards the targets, the last states and the inputs, with the states fixed. No gradient passes from slice to slice.

    Args:
        input_size: Size of the input of a slice, or the number of symbols.
        num_basis: Number of parts, which is also the size of the state. More parts than needed make learning reliable;
            those that are not needed fall out of use.
        output_size: Size of the output of a slice; that of the input by default.
        num_models: Learns this many models at once, from different weights; None learns one.
        nonnegative: False leaves the sign of the weights free (semi-NMF).
        inference: How the states are found: `SliceBySlice()` by default, or `AllSlices()`.
        normalization: What keeps the weights in bounds: `ColumnCap()` by default, `MeanOfMax()`, or None.
        rate_h: Length of a step on the states, relative to one over the largest eigenvalue of $W_z^\top W_z$.
        rate_w: Length of a step on the weights, relative to one over that of $H^\top H$.
        threshold: What each entry of a state loses in every step, the published code's penalty on states (5e-4 there
            for repeating sequences).
        cap_over_batch: Whether the cap compares the largest state of the whole batch with the largest input of the
            whole batch, as published, or those of each sequence.
        floor: Smallest value of a state, and of a non-negative weight.
        init_range: Range of the uniform distribution that the weights start from; 0 to 0.02 by default, and -0.01 to
            0.01 for semi-NMF.
        generator: Source of the initial weights.
        device: Where the weights live.
        dtype: Their type.

    Shape:
        - x: $(*, T, \text{input_size})$, or $(*, T)$ symbols as integers
        - y: $(*, T, \text{output_size})$
        - state: $(*, \text{num_basis})$

    With `num_models`, results have a leading dimension of this size, and so may sequences.

    Example:
        >>> pattern = torch.tensor([0, 1, 2, 1] * 6)
        >>> generator = torch.Generator().manual_seed(0)
        >>> rnn = NMFRNN(3, num_basis=20, inference=SliceBySlice(20), generator=generator)
        >>> losses = rnn.fit(pattern, passes=60)  # learns to predict the next symbol
        >>> rnn.generate(torch.tensor([0, 1]), 6).argmax(-1)
        tensor([0, 1, 2, 1, 0, 1, 2, 1])
    """

    weight: Tensor

    def __init__(
        self,
        input_size: int,
        num_basis: int,
        output_size: int | None = None,
        *,
        num_models: int | None = None,
        nonnegative: bool = True,
        inference: Inference | None = None,
        normalization: Normalization | None = ColumnCap(),  # noqa: B008, it cannot change
        rate_h: float = 0.5,
        rate_w: float = 0.5,
        threshold: float = 0.0,
        cap_over_batch: bool = True,
        floor: float = PAPER_FLOOR,
        init_range: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        output_size = input_size if output_size is None else output_size
        check_at_least_one(input_size=input_size, num_basis=num_basis, output_size=output_size, num_models=num_models)
        for name, rate in (("rate_h", rate_h), ("rate_w", rate_w)):
            if not 0 < rate < 2:
                raise ValueError(f"{name} must be greater than 0 and less than 2, got {rate}")
        check_nonnegative(threshold=threshold, floor=floor)
        if init_range is None:
            init_range = (0.0, INIT_HIGH) if nonnegative else (-INIT_HIGH / 2, INIT_HIGH / 2)
        low, high = init_range
        if not low < high or (nonnegative and low < 0):
            condition = "0 <= low < high" if nonnegative else "low < high"
            raise ValueError(f"init_range must be (low, high) with {condition}, got {init_range}")
        self.input_size = input_size
        self.num_basis = num_basis
        self.output_size = output_size
        self.nonnegative = nonnegative
        self.inference = SliceBySlice() if inference is None else inference
        self.normalization = normalization
        self.rate_h = rate_h
        self.rate_w = rate_w
        self.threshold = threshold
        self.cap_over_batch = cap_over_batch
        self.floor = floor
        self.init_range = init_range
        stack = () if num_models is None else (num_models,)
        shape = (*stack, output_size + num_basis + input_size, num_basis)
        # A buffer, since no optimizer is to find it: W = (W_y; W_h; W_x).
        self.register_buffer("weight", torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters(generator)

    @property
    def weight_y(self) -> Tensor:
        """What each part predicts, $W_y$."""
        return self.weight[..., : self.output_size, :]

    @property
    def weight_h(self) -> Tensor:
        """The state before each part, $W_h$."""
        return self.weight[..., self.output_size : -self.input_size, :]

    @property
    def weight_x(self) -> Tensor:
        """The input that each part stands for, $W_x$."""
        return self.weight[..., -self.input_size :, :]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights."""
        self.weight.uniform_(*self.init_range, generator=generator)
        if self.nonnegative:
            self.weight.clamp_(min=self.floor)

    def fit(
        self,
        x: Tensor,
        y: Tensor | None = None,
        *,
        passes: int = 400,
        mask: Tensor | None = None,
        state: Tensor | None = None,
        periodic: bool = False,
        callback: Callback | None = None,
    ) -> Losses:
        r"""Learns the weights from sequences, all of them in every pass.

        Args:
            x: The inputs, or symbols.
            y: The targets, or symbols. None predicts what comes next: the inputs are x without its last slice, and the
                targets x without its first.
            passes: How often to find the states and update the weights.
            mask: True for slices that have a target; None for all. In the others y may hold anything.
            state: The state before the first slice; zeros by default.
            periodic: Whether a pass begins in the state in which the one before ended, as if the sequence went round
                in a circle. Otherwise the first slices, which nothing precedes, have to be learned as a case apart.
            callback: Called after each pass with its number, counted from 1, and its losses. Returning True stops.

        Returns:
            The losses of each pass.

        Shape:
            - x: $(*, T, \text{input_size})$ or $(*, T)$
            - y: $(*, T, \text{output_size})$ or $(*, T)$
            - mask: broadcasts to $(*, T)$
            - each of the losses: (passes), or (passes, num_models)
        """
        check_at_least_one(passes=passes)
        batch = self._batch(x, y, mask, state)
        history: list[Losses] = []
        states: Tensor | None = None
        for number in range(1, passes + 1):
            losses, states = self._learn(batch, states)
            history.append(losses)
            if periodic:
                batch = batch._replace(state=states[-1])
            if callback is not None and callback(number, losses):
                break
        return Losses(*(torch.stack(series) for series in zip(*history, strict=True)))

    def learn(
        self, x: Tensor, y: Tensor | None = None, *, mask: Tensor | None = None, state: Tensor | None = None
    ) -> Losses:
        """One pass, for a loop of one's own over batches that differ; the arguments are those of `fit`."""
        return self.learn_pass(x, y, mask=mask, state=state)[0]

    def learn_pass(
        self, x: Tensor, y: Tensor | None = None, *, mask: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Losses, Tensor]:
        r"""One pass, as `learn` makes it, and the states that it found, $(*, T, \text{num_basis})$."""
        batch = self._batch(x, y, mask, state)
        losses, states = self._learn(batch, None)
        return losses, batch.slices.restore(states)

    def infer(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        r"""The states of all slices, $(*, T, \text{num_basis})$."""
        slices = self._slices(x, "x", self.input_size)
        return slices.restore(self._infer(slices, state))

    def predict(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        r"""The outputs of all slices, $(*, T, \text{output_size})$."""
        slices = self._slices(x, "x", self.input_size)
        return slices.restore(self._infer(slices, state) @ self.weight_y.mT)

    @torch.no_grad()
    def generate(self, seed: Tensor, count: int, *, iterations: int = 100) -> Tensor:
        r"""Goes on with a sequence: what is predicted becomes the next input, as it is.

        Args:
            seed: How the sequence begins.
            count: How many slices to add.
            iterations: Steps on the state of each slice.

        Shape:
            - seed: $(*, T, \text{input_size})$, or $(*, T)$ symbols
            - the result: $(*, T + \text{count}, \text{input_size})$, the seed included
        """
        if self.output_size != self.input_size:
            sizes = f"{self.output_size} outputs and {self.input_size} inputs"
            raise RuntimeError(f"generate needs a model whose outputs can be its inputs, got {sizes}")
        check_at_least_one(count=count, iterations=iterations)
        slices = self._slices(seed, "seed", self.input_size)
        update = self._right_update(1.0)
        state = slices.first_state(None, self.num_basis)
        limit = update.largest(slices.x).amax(0)
        inputs = list(slices.x)
        for t in range(len(inputs) + count - 1):
            from_input = (inputs[t] @ update.W_x).sub_(self.threshold)
            state = update.solve_slice(state, from_input, limit, iterations)
            if t + 1 == len(inputs):
                inputs.append(state @ self.weight_y.mT)
        return slices.restore(torch.stack(inputs))

    def unstack(self) -> list[Self]:
        """The models that were learned at once, each by itself."""
        if self.weight.ndim == 2:
            raise RuntimeError("unstack needs a model made with num_models, got a single one")
        models = []
        for weight in self.weight:
            model = deepcopy(self)
            model.weight = weight.clone()
            models.append(model)
        return models

    def extra_repr(self) -> str:
        """The sizes and settings shown when the model is printed."""
        text = f"input_size={self.input_size}, num_basis={self.num_basis}, output_size={self.output_size}"
        if self.weight.ndim > 2:
            text += f", num_models={len(self.weight)}"
        text += f", nonnegative={self.nonnegative}, inference={self.inference}, normalization={self.normalization}"
        text += f", rate_h={self.rate_h}, rate_w={self.rate_w}, threshold={self.threshold}"
        return f"{text}, cap_over_batch={self.cap_over_batch}, floor={self.floor}"

    def _right_update(self, rate: float) -> RightUpdate:
        W = self.weight[..., self.output_size :, :]
        eta = rate / _largest_eigenvalue(W)
        cap_over = (-2, -1) if self.cap_over_batch else (-1,)
        W_h, W_x = eta * self.weight_h, eta * self.weight_x
        C = eta * product_over_rows(W, W)
        return RightUpdate(C, W_h, W_x, self.threshold, self.floor, cap_over, half_of(C))

    @torch.no_grad()
    def _infer(self, slices: Slices, state: Tensor | None) -> Tensor:
        first = slices.first_state(state, self.num_basis)
        return self.inference.states(self._right_update(self.rate_h), slices.x, first, None)

    @torch.no_grad()
    def _learn(self, batch: _Batch, start: Tensor | None) -> tuple[Losses, Tensor]:
        """Finds the states, then moves the weights; also returns the states, for the next pass to start from."""
        x = batch.slices.x
        states = self.inference.states(self._right_update(self.rate_h), x, batch.state, start)
        before = torch.cat([batch.state.unsqueeze(0), states[:-1]])
        V = slices_as_rows(torch.cat([batch.y, before, x], dim=-1))
        H = slices_as_rows(states)
        losses = self._losses(V, H, batch.mask)
        self._left_update_(V, H, batch.mask)
        return losses, states

    def _left_update_(self, V: Tensor, H: Tensor, mask: Tensor | None) -> None:
        r"""One step on the weights, $W \leftarrow \max(W - \eta (\mathrm{mask} \cdot (H W^\top - V))^\top H, f)$."""
        W, normalization = self.weight, self.normalization
        if normalization is not None and normalization.before_left:
            W.mul_(_column_scales(normalization, W, H))
        eta = self.rate_w / _largest_eigenvalue(H)
        W.sub_(eta * (self._errors(V, H, mask).mT @ H))
        if self.nonnegative:
            W.clamp_(min=self.floor)
        if normalization is not None and not normalization.before_left:
            W.mul_(_column_scales(normalization, W, H))

    def _errors(self, V: Tensor, H: Tensor, mask: Tensor | None) -> Tensor:
        """What the factorization gets wrong; zero where a slice has no target."""
        errors = H @ self.weight.mT - V
        if mask is not None:
            errors[..., : self.output_size].masked_fill_(~mask, 0.0)  # a target that is none may be anything
        return errors

    def _losses(self, V: Tensor, H: Tensor, mask: Tensor | None) -> Losses:
        squares = self._errors(V, H, mask).square_()
        y, h, x = torch.split_with_sizes(squares, [self.output_size, self.num_basis, self.input_size], -1)
        y_loss = y.mean((-2, -1))
        if mask is not None:
            y_loss = y_loss / mask.to(V.dtype).mean().clamp(min=torch.finfo(V.dtype).tiny)
        return Losses(y_loss, h.mean((-2, -1)), x.mean((-2, -1)))

    def _batch(self, x: Tensor, y: Tensor | None, mask: Tensor | None, state: Tensor | None) -> _Batch:
        if y is None:
            if self.output_size != self.input_size:
                raise ValueError(
                    f"y must be given where outputs are no inputs, got None for {self.output_size} outputs"
                )
            x = self._one_hot(x, "x", self.input_size)
            if x.ndim < 2 or x.shape[-2] < 2:
                raise ValueError(f"x must have at least two slices to predict the next, got shape {tuple(x.shape)}")
            x, y = x[..., :-1, :], x[..., 1:, :]
        inputs, targets = self._slices(x, "x", self.input_size), self._slices(y, "y", self.output_size)
        if inputs.x.shape[:-1] != targets.x.shape[:-1]:
            wanted = (*inputs.batch, len(inputs.x), self.output_size)
            raise ValueError(f"y must have shape {wanted} to match x, got {tuple(y.shape)}")
        rows: Tensor | None = None
        if mask is not None:
            if mask.dtype != torch.bool:
                raise TypeError(f"mask must be boolean (True where a slice has a target), got {mask.dtype}")
            shape = (*(inputs.batch[self.weight.ndim - 2 :]), len(inputs.x))
            try:
                mask = mask.to(x.device).expand(shape)
            except RuntimeError:
                raise ValueError(f"mask must broadcast to shape {shape}, got {tuple(mask.shape)}") from None
            rows = mask.reshape(-1, shape[-1]).T.reshape(-1, 1)  # (T n, 1), as in slices_as_rows
        return _Batch(inputs, targets.x, rows, inputs.first_state(state, self.num_basis))

    def _slices(self, x: Tensor, name: str, size: int) -> Slices:
        x = self._one_hot(x, name, size)
        slices = Slices.of(x, self.weight, features=size, name=name)
        if not slices.x.numel():  # nothing to take the largest entry of
            raise ValueError(f"{name} must hold at least one sequence, got shape {tuple(x.shape)}")
        return slices

    def _one_hot(self, x: Tensor, name: str, size: int) -> Tensor:
        """Symbols as vectors; anything else as it is."""
        if x.is_floating_point():
            return x
        if x.numel() and not 0 <= x.min() <= x.max() < size:
            raise ValueError(f"{name} must hold symbols from 0 to {size - 1}, got {int(x.min())} to {int(x.max())}")
        return F.one_hot(x.long(), size).to(self.weight)


class _Batch(NamedTuple):
    """What a pass learns from."""

    slices: Slices  # the inputs
    y: Tensor  # (T, *, n, output_size)
    mask: Tensor | None  # (T n, 1): True where a slice has a target
    state: Tensor  # (*, n, num_basis)


def _largest_eigenvalue(W: Tensor) -> Tensor:
    """The largest eigenvalue of $W^T W$, ready to divide the weights by."""
    start = cold_start(W)
    if W.is_cuda and W.shape[-2] > 2 * W.shape[-1]:  # gpu-only: one large product is faster than many with a vector
        value = largest_eigenvalue(product_over_rows(W, W), start, COLD_ITERATIONS // 2)[0].sqrt()
    else:
        value = largest_eigenvalue(W, start, COLD_ITERATIONS)[0]
    return value.clamp(min=torch.finfo(W.dtype).tiny)[..., None, None]


def _column_scales(normalization: Normalization, W: Tensor, H: Tensor) -> Tensor:
    """The factors of the columns of W, as a row."""
    # Each part is scaled by itself, so the parts of a stack of models are as good as those of one large model.
    parts = (factor.mT.reshape(-1, factor.shape[-2]) for factor in (W, H))
    return normalization.scales(*parts)[0].view(*W.shape[:-2], 1, -1)
