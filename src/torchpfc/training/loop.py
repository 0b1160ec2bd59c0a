"""The loop: for one model or a stack of them, on a GPU with the whole step as one launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.nn import record_couplings
from torchpfc.optim.windowed import WindowedOptimizer
from torchpfc.training.batches import Batch
from torchpfc.training.capture import Recorded
from torchpfc.training.codes import WarmCodes


class Scored(NamedTuple):
    """What an objective finds: the loss of each model, and its predictions."""

    loss: Tensor
    """A scalar, or $(s)$ for a stack."""
    y: Tensor


Objective = Callable[[nn.Module, Tensor, Tensor], Scored]


@dataclass(frozen=True, eq=False)
class SquaredErrors:
    r"""The paper's loss: mean squared errors of the prediction and of the reconstruction of every block's input.

    Args:
        prediction: What the error of the prediction counts, or one weight for each model of a stack.
        reconstruction: What each error of a reconstruction counts; 0 leaves them out.
    """

    prediction: float | Tensor = 1.0
    reconstruction: float | Tensor = 0.0

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Scored:
        """Applies the model and measures it."""
        if isinstance(self.reconstruction, float | int) and not self.reconstruction:
            y = model(x)
            return Scored(self.prediction * _mean_square(y - target), y)
        with record_couplings(model) as seen:
            y = model(x)
        loss = self.prediction * _mean_square(y - target)
        for couplings in seen.values():
            for coupling in couplings:
                error = _mean_square(coupling.x - coupling.target)
                loss = loss + self.reconstruction * error / len(couplings)
        return Scored(loss, y)


class EpochStats(NamedTuple):
    """What an epoch was like."""

    epoch: int
    loss: Tensor
    """Mean over the batches, for each model."""
    steps: int
    seconds: float


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Any],
    objective: Objective,
    *,
    epochs: int,
    first_epoch: int = 0,
    codes: WarmCodes | None = None,
    capture: bool | None = None,
    backward: Callable[[Tensor], Any] = torch.Tensor.backward,
) -> Iterator[EpochStats]:
    """Trains epoch by epoch; what to do between epochs, and when to stop, is up to the caller.

    Args:
        model: A model, or a stack of models.
        optimizer: Of its parameters.
        batches: Yields `Batch` or pairs (x, target). If it has a method `set_epoch`, that is called before each epoch.
        objective: Finds the losses of a batch. Those of a stack are added up, so each model learns as if alone.
        epochs: Number of the epoch to end before.
        first_epoch: Number of the first epoch.
        codes: Where to start solves, for batches with `rows`.
        capture: Whether to record a whole step once and replay it, which takes batches of equal shapes on a CUDA device
            and an optimizer without a window, which moves on the host. None records where that is so.
        backward: Finds the gradients of a loss.

    Yields:
        The statistics of each epoch after it.

    Example:
        >>> from torchpfc import PFCBlock, RMSprop, keep_nonnegative
        >>> from torchpfc.training import Batches
        >>> block = PFCBlock(8, 3, num_basis=5)
        >>> optimizer = RMSprop(block.parameters())
        >>> handle = keep_nonnegative(block, optimizer)
        >>> batches = Batches(torch.rand(20, 8), torch.rand(20, 3), batch_size=10, seeds=0)
        >>> sum(stats.steps for stats in fit(block, optimizer, batches, SquaredErrors(), epochs=3))
        6
    """
    device = next(model.parameters()).device

    def learn(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        with nullcontext() if codes is None else codes.used(batch.rows):
            loss = objective(model, batch.x, batch.target).loss
        backward(loss.sum())
        optimizer.step()
        return loss.detach()

    step: Callable[[Batch], Tensor] = learn
    windowed = isinstance(optimizer, WindowedOptimizer) and not optimizer.moves_on_device
    if windowed and capture:
        raise ValueError("capture must be False with an optimizer whose window moves from step to step, got True")
    if (device.type == "cuda" and not windowed) if capture is None else capture:
        step = Recorded(step, optimizer.zero_grad)  # gpu-only: graphs are CUDA's
    for epoch in range(first_epoch, epochs):
        if hasattr(batches, "set_epoch"):
            batches.set_epoch(epoch)
        model.train()
        start, total, steps = time.perf_counter(), torch.zeros((), device=device), 0
        for batch in batches:
            total = total + step(Batch(*batch))
            steps += 1
        if not steps:
            raise ValueError("batches must hold at least one batch, got none")
        loss = (total / steps).cpu()  # waits for the device, so that the time is that of the work
        yield EpochStats(epoch, loss, steps, time.perf_counter() - start)


class Evaluation(NamedTuple):
    """How good each model is."""

    loss: Tensor
    """Mean over the examples."""
    accuracy: Tensor
    """Share of examples whose largest output is that of the target."""


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], objective: Objective) -> Evaluation:
    """Measures a model, or every model of a stack, without changing it.

    Args:
        model: The model.
        batches: As for `fit`.
        objective: As for `fit`.
    """
    losses, hits, count = [], [], 0
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            x, target, _ = Batch(*batch)
            scored = objective(model, x, target)
            losses.append(scored.loss * x.shape[-2])
            hits.append((scored.y.argmax(-1) == target.argmax(-1)).sum(-1))
            count += x.shape[-2]
    finally:
        model.train(was_training)
    if not count:
        raise ValueError("batches must hold at least one example, got none")
    return Evaluation(torch.stack(losses).sum(0).cpu() / count, torch.stack(hits).sum(0).cpu().double() / count)


def _mean_square(error: Tensor) -> Tensor:
    """The mean over examples and features: one number for each model of a stack."""
    return error.square().mean((-2, -1))
