"""Stacks of recurrent networks that learn from batches of sequences, with backpropagation or without."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchpfc.nn import NMFRNN, PFCBlock, keep_nonnegative, stack_models, unstack_models
from torchpfc.nn.stack import select_models_
from torchpfc.optim import RMSprop
from torchpfc.training import EpochStats, Objective, Recorded, fit, random_stream


class Sequences(NamedTuple):
    r"""A batch of sequences for each network of a stack.

    Shape:
        - x: $(s, n, T, \text{input_size})$
        - target: $(s, n, T, \text{output_size})$, or as much of it as the objective asks for
        - state: $(s, n, \text{num_basis})$
    """

    x: Tensor
    target: Tensor
    state: Tensor | None = None
    """The state before the first slice, for learning without backpropagation; None for zeros."""


def small_states(seeds: Sequence[int], size: tuple[int, int], high: float, like: Tensor, *purpose: object) -> Tensor:
    r"""First states between 0 and a small number, $(s, n, \text{num_basis})$, for learning without backpropagation.

    Args:
        seeds: One for each network.
        size: Sequences of a network, and size of a state.
        high: The small number.
        like: A tensor on the device and of the type that they should have.
        purpose: What they are for; others get other numbers.
    """
    states = []
    for seed in seeds:
        # Drawn where they are needed: there are too many to be sent there.
        own = random_stream(seed, "states", *purpose).initial_seed()
        generator = torch.Generator(like.device).manual_seed(own)
        states.append(torch.rand(size, generator=generator, device=like.device, dtype=like.dtype))
    return high * torch.stack(states)


class Source(Protocol):
    """Where sequences come from; the same in the same round, whatever came before."""

    def set_epoch(self, epoch: int) -> None:
        """Chooses the round."""

    def __iter__(self) -> Iterator[Sequences]:
        """The batches of that round."""


class Learner(ABC):
    """A stack of networks that learn from batches, each from its own."""

    stack: nn.Module

    @abstractmethod
    def rounds(self, source: Source, first: int, stop: int) -> Iterator[EpochStats]:
        """Learns round by round, from the first up to the last but one."""

    @abstractmethod
    def select_(self, members: Tensor) -> None:
        """Goes on with some of the networks."""

    @abstractmethod
    def unstack(self) -> list[Any]:
        """The networks by themselves."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""


class GradientLearner(Learner):
    """Networks that learn by backpropagation, with the paper's optimizer.

    Args:
        networks: The networks.
        objective: Their loss.
        lr: Learning rate.
        weight_decay: Share of each weight that a step takes away.
        device: Where they learn.
        dtype: Of their weights.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        objective: Objective,
        *,
        lr: float,
        weight_decay: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.stack = stack_models(networks).to(device, dtype)
        self.objective = objective
        self.optimizer = RMSprop(self.stack.parameters(), lr=lr, weight_decay=weight_decay)
        if any(isinstance(module, PFCBlock) and module.nonnegative for module in self.stack.modules()):
            keep_nonnegative(self.stack, self.optimizer)

    def rounds(self, source: Source, first: int, stop: int) -> Iterator[EpochStats]:
        """Learns round by round, each step as one launch where the device can do that."""
        return fit(self.stack, self.optimizer, source, self.objective, epochs=stop, first_epoch=first)

    def select_(self, members: Tensor) -> None:
        """Goes on with some of the networks."""
        select_models_(self.stack, members, self.optimizer)

    def unstack(self) -> list[Any]:
        """The networks by themselves."""
        return unstack_models(self.stack)

    def state_dict(self) -> dict[str, Any]:
        """Weights, and what the optimizer remembers."""
        return {"model": self.stack.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""
        self.stack.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class NMFLearner(Learner):
    """Networks that learn without backpropagation.

    Args:
        networks: The networks, each by itself.
        device: Where they learn.
        dtype: Of their weights.
        mask: True for slices that have a target; None for all.
        carried: Whether a pass begins in the state in which the one before ended, for a single sequence each.
        change: Told the stack and the number of each round before it; may change settings and values of the stack.

    Shape:
        - mask: $(T)$
    """

    stack: NMFRNN

    def __init__(
        self,
        networks: Sequence[NMFRNN],
        *,
        device: torch.device,
        dtype: torch.dtype,
        mask: Tensor | None = None,
        carried: bool = False,
        change: Callable[[NMFRNN, int], None] | None = None,
    ) -> None:
        self.stack = deepcopy(networks[0])
        self.stack.weight = torch.stack([network.weight for network in networks]).to(device, dtype)
        self._mask = None if mask is None else mask.to(device)
        size = (len(networks), 1, self.stack.num_basis)
        self.carried = torch.zeros(size, device=device, dtype=dtype) if carried else None
        self._change = change

    def rounds(self, source: Source, first: int, stop: int) -> Iterator[EpochStats]:
        """Learns round by round, each pass as one launch where the device can do that."""
        on_gpu = self.stack.weight.is_cuda
        step: Callable[[Sequences], Tensor] = self._pass
        recorded: object = None
        for number in range(first, stop):
            if self._change is not None:
                self._change(self.stack, number)
            now = (self.stack.threshold, self.stack.inference, self.stack.normalization)
            if on_gpu and now != recorded:  # gpu-only: what was recorded goes on with the settings of its time
                recorded, step = now, Recorded(self._pass)
            source.set_epoch(number)
            start, total, steps = time.perf_counter(), torch.zeros((), device=self.stack.weight.device), 0
            for batch in source:
                total = total + step(batch)
                steps += 1
            yield EpochStats(number, (total / steps).cpu(), steps, time.perf_counter() - start)

    def select_(self, members: Tensor) -> None:
        """Goes on with some of the networks."""
        self.stack.weight = self.stack.weight[members.to(self.stack.weight.device)]
        if self.carried is not None:
            self.carried = self.carried[members.to(self.carried.device)]

    def unstack(self) -> list[Any]:
        """The networks by themselves."""
        return self.stack.unstack()

    def state_dict(self) -> dict[str, Any]:
        """Weights, and the state that is carried on."""
        return {"weight": self.stack.weight, "carried": self.carried}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""
        self.stack.weight.copy_(state["weight"])
        if self.carried is not None:
            self.carried.copy_(state["carried"])

    def _pass(self, batch: Sequences) -> Tensor:
        state = batch.state if self.carried is None else self.carried
        losses, states = self.stack.learn_pass(batch.x, batch.target, mask=self._mask, state=state)
        if self.carried is not None:
            self.carried.copy_(states[..., -1, :])
        return losses.total
