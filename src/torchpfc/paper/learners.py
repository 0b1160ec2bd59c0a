"""Stacks of models that learn from batches, with backpropagation or without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.nn import NMFRNN, unstack_models
from torchpfc.nn.stack import select_models_
from torchpfc.training import EpochStats, Objective, Recorded, WarmCodes, fit, random_stream

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
    """Where batches come from: named tuples of tensors, models first, then examples; the same in the same round."""

    def __len__(self) -> int:
        """How many batches a round has."""

    def set_epoch(self, epoch: int) -> None:
        """Chooses the round."""

    def __iter__(self) -> Iterator[Any]:
        """The batches of that round."""


@dataclass(eq=False)
class Rounds:
    """A source of batches that are made when they are asked for."""

    count: int
    """Batches in a round."""
    batches: Callable[[int], Iterable[Any]]
    """Makes those of a round, by its number."""
    epoch: int = 0

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        """Chooses the round."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches(self.epoch))


def share(source: Source, part: int, parts: int) -> Source:
    """One part of each batch, for one of several processes that share the work.

    Args:
        source: Whole batches.
        part: Which part.
        parts: How many there are, each as large as the others.
    """

    def own(epoch: int) -> Iterator[Any]:
        source.set_epoch(epoch)
        for batch in source:
            yield type(batch)(*(None if whole is None else whole[:, part::parts] for whole in batch))

    return Rounds(len(source), own)


class _Halved(nn.Module):
    """A model that takes products in half precision; what it is given and what it gives are halved too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Applies the model."""
        # Around one batch: a longer one would go on with halves of the weights from before a step.
        with torch.autocast(x.device.type, torch.bfloat16):
            y: Tensor = self.model(x.bfloat16())
        return y.float()


class GradientLearner:
    """Models that learn by backpropagation.

    Args:
        stack: The models.
        optimizer: Of the stack.
        objective: Makes the loss of those models that are left, by their numbers.
        fabric: Devices and processes.
        capture: Whether a step can be recorded: none that waits for the device can.
        codes: Where to start solves, for batches with `rows`.
        lr_decay: What the learning rate is multiplied with after every round.
        halved: Whether products are taken in half precision, in training alone.
    """

    def __init__(
        self,
        stack: nn.Module,
        optimizer: Optimizer,
        objective: Callable[[Tensor], Objective],
        fabric: Fabric,
        *,
        capture: bool = True,
        codes: WarmCodes | None = None,
        lr_decay: float = 1.0,
        halved: bool = False,
    ) -> None:
        self.stack, self.optimizer, self.codes = stack, optimizer, codes
        self._applied = _Halved(stack) if halved else stack
        self._objective, self._fabric, self._capture, self._lr_decay = objective, fabric, capture, lr_decay
        first = next(stack.parameters())
        self._first_rate = float(optimizer.defaults["lr"])
        # In a tensor, from which a recorded step reads it.
        self._rate = torch.tensor(
            self._first_rate, device=first.device, dtype=torch.promote_types(first.dtype, torch.float32)
        )

    def rounds(self, source: Any, members: Tensor, first: int, stop: int) -> Iterator[EpochStats]:
        """Learns round by round, each step as one launch where the device can do that.

        Args:
            source: A `Source`.
            members: Which of all models are left in the stack.
            first: Number of the first round.
            stop: Number of the round to end before.
        """
        fabric = self._fabric
        model, optimizer = fabric.setup(self._applied, self.optimizer)
        self._set_rate(first)
        for stats in fit(
            model,
            optimizer,
            source,
            self._objective(members),
            epochs=stop,
            first_epoch=first,
            codes=self.codes,
            capture=fabric.device.type == "cuda" and fabric.world_size == 1 and self._capture,
            backward=fabric.backward,
        ):
            self._set_rate(stats.epoch + 1)
            yield stats

    def select_(self, members: Tensor) -> None:
        """Goes on with some of the models."""
        select_models_(self.stack, members, self.optimizer)
        if self.codes is not None:
            self.codes.select_(members)

    def unstack(self) -> list[Any]:
        """The models by themselves."""
        return unstack_models(self.stack)

    def state_dict(self) -> dict[str, Any]:
        """Weights, what the optimizer remembers with its windows, and codes."""
        return {
            "model": self.stack.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "codes": None if self.codes is None else self.codes.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""
        self.stack.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.codes is not None:
            self.codes.load_state_dict(state["codes"])

    def _set_rate(self, epoch: int) -> None:
        """Sets the learning rate of a round, where it changes."""
        self._rate.fill_(self._first_rate * self._lr_decay**epoch)
        for group in self.optimizer.param_groups if self._lr_decay != 1 else ():
            group["lr"] = self._rate


class NMFLearner:
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

    def rounds(self, source: Any, members: Tensor, first: int, stop: int) -> Iterator[EpochStats]:
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


Learner = GradientLearner | NMFLearner
"""A stack of models that learn from batches, each from its own."""
