"""Finding the states of a sequence without gradients, for a factorized RNN that learns without backpropagation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpfc.solvers.checks import check_at_least_one
from torchpfc.solvers.cuda import choice, fused
from torchpfc.solvers.scaling import Bounds


@dataclass(frozen=True, eq=False)
class RightUpdate:
    r"""One step on the states with fixed weights: $h \leftarrow s \max(h - \eta W_z^\top (W_z h - z) - t, f)$.

    Here $z_t = (h_{t-1}; x_t)$ and $W_z = (W_h; W_x)$, and $s \le 1$ brings the largest entry of h under that of z.

    Args:
        C: $\eta W_z^\top W_z$.
        W_h: $\eta W_h$, which takes a last state to its share of the offset $\eta W_z^\top z$.
        W_x: $\eta W_x$, the same for an input.
        threshold: t, what every entry loses in a step.
        floor: f, the smallest entry before scaling.
        cap_over: Dimensions over which h and z have a largest entry: features, or the batch as well.
        half: C for products in half precision, where they may be rounded.

    Shape:
        - C: $(r, r)$ or $(s, r, r)$
        - W_h, W_x: like the weights
    """

    C: Tensor
    W_h: Tensor
    W_x: Tensor
    threshold: float
    floor: float
    cap_over: tuple[int, ...]
    half: Tensor | None

    def largest(self, values: Tensor) -> Tensor:
        """The largest magnitude that counts for the cap."""
        return values.abs().amax(self.cap_over, keepdim=True)

    def step(self, h: Tensor, offset: Tensor, limit: Tensor) -> Tensor:
        r"""The next h; offset is $\eta W_z^\top z - t$ and limit the largest entry that h may have."""
        # Not a product with I - C: where products are rounded (TF32), only C h may be.
        moved = h + offset
        moved = moved.addmm_(h, self.C, alpha=-1) if h.ndim == 2 else moved.sub_(h @ self.C)
        Bounds(self.floor, limit, self.cap_over).project_(moved)
        return moved

    def solve_slice(self, state: Tensor, from_input: Tensor, limit: Tensor, iterations: int) -> Tensor:
        """The state after one slice, from zeros."""
        offset = from_input + state @ self.W_h
        if choice.can_take(offset):  # gpu-only: kernels
            over_batch = len(self.cap_over) > 1
            limit = limit.expand(*offset.shape[:-2], 1 if over_batch else offset.shape[-2], 1)
            return fused.take_plain_steps(
                iterations, self.C, self.half, offset, limit, self.floor, over_batch=over_batch
            )
        h = torch.zeros_like(state)
        for _ in range(iterations):
            h = self.step(h, offset, limit)
        return h


@dataclass(frozen=True)
class Inference(ABC):
    """How the states of a sequence are found while the weights stay as they are.

    Args:
        iterations: Steps to take, of a slice or of all slices.
    """

    iterations: int = 100

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_at_least_one(iterations=self.iterations)

    @abstractmethod
    def states(self, update: RightUpdate, x: Tensor, state: Tensor, start: Tensor | None) -> Tensor:
        r"""The states of all slices.

        Args:
            update: The step.
            x: The slices.
            state: The state before the first slice.
            start: The states of the pass before, or None.

        Shape:
            - x: $(T, *, n, \text{input_size})$
            - state: $(*, n, r)$
            - start and the result: $(T, *, n, r)$
        """


@dataclass(frozen=True)
class SliceBySlice(Inference):
    """Finds one state after the other, each from zeros, so that every slice sees a last state that is final.

    What the published experiments do.

    Args:
        iterations: Steps per slice.
    """

    def states(self, update: RightUpdate, x: Tensor, state: Tensor, start: Tensor | None) -> Tensor:
        """The states of all slices."""
        from_input = (x @ update.W_x).sub_(update.threshold)
        limits = update.largest(x)
        states = x.new_empty((len(x), *state.shape))
        for t, h in enumerate(states):
            limit = torch.maximum(limits[t], update.largest(state))
            state = h.copy_(update.solve_slice(state, from_input[t], limit, self.iterations))
        return states


@dataclass(frozen=True)
class AllSlices(Inference):
    """Takes each step in all slices at once, and copies each state to the slice after it.

    The variant that the paper sketches and leaves open. A step is one large product instead of many small ones, but
    what one slice knows reaches the next only with the next step: a sequence of T slices needs more than T steps.

    Args:
        iterations: Steps of all slices.
        reuse: Whether a pass starts from the states of the one before, where `fit` goes over the same sequences. Far
            fewer steps are enough then.
    """

    iterations: int = 300
    reuse: bool = False

    def states(self, update: RightUpdate, x: Tensor, state: Tensor, start: Tensor | None) -> Tensor:
        """The states of all slices."""
        from_input = (x @ update.W_x).sub_(update.threshold)
        limits = update.largest(x)
        first = state.unsqueeze(0)
        h = x.new_zeros((len(x), *state.shape)) if start is None or not self.reuse else start
        for _ in range(self.iterations):
            before = torch.cat([first, h[:-1]])
            limit = torch.maximum(limits, update.largest(before))
            h = update.step(h, from_input + before @ update.W_h, limit)
        return h
