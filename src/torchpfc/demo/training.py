"""The two networks of the demo and the loop that trains them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.demo.digits import NUM_CLASSES, NUM_PIXELS, Digits
from torchpfc.demo.settings import Training
from torchpfc.nn import MLP, PFCBlock
from torchpfc.solvers import FISTA, Implicit


class Epoch(NamedTuple):
    """How far training has come."""

    number: int
    """Counted from 1."""
    best: int
    """The epoch with the lowest validation loss so far."""


def pfc(num_basis: int, iterations: int, generator: torch.Generator) -> PFCBlock:
    """A block for digits, with the paper's inference in fewer steps and a gradient through its end point."""
    solver, adjoint = FISTA.paper(iterations), Implicit.fast()
    return PFCBlock(NUM_PIXELS, NUM_CLASSES, num_basis, solver=solver, adjoint=adjoint, generator=generator)


def mlp(hidden_features: int, generator: torch.Generator) -> MLP:
    """A perceptron for digits, drawn as PyTorch draws linear layers, but from a generator."""
    model = MLP(NUM_PIXELS, NUM_CLASSES, hidden_features)
    with torch.no_grad():
        for layer in (model.hidden, model.output):
            bound = 1 / math.sqrt(layer.in_features)
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
    return model


def loss(model: nn.Module, digits: Digits) -> Tensor:
    """The squared error of the answer; for a block, half of it is that of the reconstruction."""
    if isinstance(model, PFCBlock):
        out = model.couple(digits.x)
        return 0.5 * F.mse_loss(out.y, digits.target) + 0.5 * F.mse_loss(out.x, digits.x)
    return F.mse_loss(model(digits.x), digits.target)


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    train: Digits,
    validation: Digits,
    training: Training,
    generator: torch.Generator,
) -> Iterator[Epoch]:
    """Trains until the validation loss stops falling, then puts the best weights back.

    Args:
        model: The network.
        optimizer: The optimizer of its weights; it returns to the best epoch too, and a window with it.
        train: What to learn from.
        validation: What decides when to stop and which epoch is the best.
        training: How long and how fast.
        generator: Source of the order of the digits.

    Yields:
        How far it has come, after each epoch.
    """
    lowest, best, kept = math.inf, 0, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for epoch in range(1, training.max_epochs + 1):
        for rows in torch.randperm(len(train), generator=generator).split(training.batch_size):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss(model, train.select(rows)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if (error := _validation_loss(model, validation)) < lowest:
            lowest, best, kept = error, epoch, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        yield Epoch(epoch, best)
        if epoch - best >= training.patience:
            break
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])


@torch.no_grad()
def answers(model: nn.Module, digits: Digits) -> Tensor:
    """The class that a network gives each digit."""
    model.eval()
    y: Tensor = model(digits.x)
    model.train()
    return y.argmax(-1)


@torch.no_grad()
def _validation_loss(model: nn.Module, digits: Digits) -> float:
    model.eval()
    error = loss(model, digits).item()
    model.train()
    return error
