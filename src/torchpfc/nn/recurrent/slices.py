"""A batch of sequences as slices, time first: the form that recurrent modules compute in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from torchpfc.nn.matching import match_weight

Lengths = Tensor | Sequence[int]


@dataclass(frozen=True, eq=False)
class Slices:
    r"""Sequences in the form that recurrent modules compute in, and the way back to that of the caller.

    Shape:
        - x: $(T, n, \text{features})$, or $(T, s, n, \text{features})$ for a stack of s models
        - active: $(T, n, 1)$ or $(T, 1, n, 1)$
    """

    x: Tensor
    """The slices, one after the other; zero beyond the end of a sequence."""
    batch: torch.Size
    """The dimensions of the caller's result beside time and features, those of a stack first."""
    batch_first: bool
    """Whether the caller has the batch before time."""
    alone: bool
    """Whether the caller has one sequence without a dimension for the batch."""
    active: Tensor | None = None
    """True up to the end of each sequence; None where all are as long as the tensor."""

    @classmethod
    def of(cls, x: Tensor, like: Tensor, *, features: int, batch_first: bool = True, name: str = "x") -> Self:
        r"""Checks sequences and brings time to the front.

        Args:
            x: The sequences.
            like: A weight, whose dtype and device they should have. Where it is a stack, so are the slices: one
                sequence for all models or one for each.
            features: The size that each slice should have.
            batch_first: Whether the batch comes before time.
            name: What a message calls x.

        Shape:
            - x: $(*, T, \text{features})$, or $(*, T, n, \text{features})$ without `batch_first`
        """
        if x.ndim < 2 or x.shape[-1] != features:
            order = "..., T" if batch_first else "T, ..."
            raise ValueError(f"{name} must have shape ({order}, {features}), got {tuple(x.shape)}")
        x = match_weight(x, like, name)
        alone = x.ndim == 2
        if alone:
            x = x.unsqueeze(0)
        elif not batch_first:
            x = x.transpose(-3, -2)
        if not x.shape[-2]:
            raise ValueError(f"{name} must have at least one slice, got shape {tuple(x.shape[alone:])}")
        batch, stack = x.shape[:-2], like.shape[:-2]
        if stack:
            if x.ndim > 3 and batch[:-1] != stack:
                leading = f"{tuple(stack)}, got {tuple(batch[:-1])}"
                raise ValueError(f"{name} must have no leading dimensions or those of the stack {leading}")
            batch = torch.Size((*stack, batch[-1]))
            x = x.expand(*batch, -1, -1).flatten(0, -4)
        else:
            x = x.flatten(0, -3)
        return cls(x.movedim(-2, 0), batch[:-1] if alone else batch, batch_first, alone)

    def end_at(self, lengths: Lengths | None) -> Self:
        r"""The same sequences, each ending where it should.

        Args:
            lengths: How many slices each sequence has: integers, or a tensor on the CPU, so that looking at them does
                not wait for the device.

        Shape:
            - lengths: that of the batch, without the dimensions of a stack
        """
        if lengths is None:
            return self
        lengths = torch.as_tensor(lengths)
        count, rows = len(self.x), self.x.shape[-2]
        if lengths.device.type != "cpu":
            raise ValueError(f"lengths must be on the CPU, got {lengths.device}")
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"lengths must be integers, got {lengths.dtype}")
        wanted = self.batch if self.x.ndim == 3 else self.batch[len(self.batch) - 1 + self.alone :]
        if lengths.shape != wanted:
            raise ValueError(f"lengths must have shape {tuple(wanted)}, got {tuple(lengths.shape)}")
        if rows and not 1 <= lengths.min() <= lengths.max() <= count:
            shortest, longest = int(lengths.min()), int(lengths.max())
            raise ValueError(f"lengths must be from 1 to the {count} slices of x, got {shortest} to {longest}")
        active = (torch.arange(count).unsqueeze(1) < lengths.flatten()).unsqueeze(-1).to(self.x.device)
        ended = replace(self, active=active if self.x.ndim == 3 else active.unsqueeze(1))
        return replace(ended, x=ended.keep_active(self.x))

    def first_state(self, state: Tensor | None, size: int) -> Tensor:
        r"""The state before the first slice, zeros by default.

        Shape:
            - state: $(*, \text{size})$ with the dimensions of the batch
            - the result: $(n, \text{size})$ or $(s, n, \text{size})$
        """
        shape = (*self.x.shape[1:-1], size)
        if state is None:
            return self.x.new_zeros(shape)
        if state.shape != (*self.batch, size):
            raise ValueError(f"state must have shape {(*self.batch, size)}, got {tuple(state.shape)}")
        if state.dtype != self.x.dtype:
            raise TypeError(f"state must have the dtype of the weights ({self.x.dtype}), got {state.dtype}")
        if state.device != self.x.device:
            raise ValueError(f"state must be on the device of the weights ({self.x.device}), got {state.device}")
        return state.reshape(shape)

    def keep_active(self, values: Tensor) -> Tensor:
        """Values of all slices, with zeros beyond the end of each sequence."""
        return values if self.active is None else values.where(self.active, 0.0)  # padding may hold anything, even NaN

    def restore(self, values: Tensor) -> Tensor:
        """Values of all slices in the caller's order of dimensions."""
        values = values.movedim(0, -2).reshape(*self.batch, len(values), values.shape[-1])
        return values if self.batch_first or self.alone else values.transpose(-3, -2)

    def restore_state(self, state: Tensor) -> Tensor:
        """A state in the caller's shape."""
        return state.reshape(*self.batch, state.shape[-1])


def slices_as_rows(values: Tensor) -> Tensor:
    """From (T, *, n, k) to (*, T n, k)."""
    return values.movedim(0, -3).flatten(-3, -2)
