"""An attack that tries to tell what a model was trained on, example by example."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchpfc.training import Batches

Examples = tuple[Tensor, Tensor]
"""Inputs and targets."""

ExampleLosses = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Finds one loss for each example."""


@dataclass(frozen=True)
class Membership:
    """How well an attack tells what a model was trained on from what it was not."""

    auroc: float
    """The chance that a random member looks more like one than a random non-member does; 0.5 is guessing."""
    standard_error: float
    members: int
    non_members: int

    @property
    def deviation(self) -> float:
        """By how many standard errors the attack is better than guessing."""
        difference = self.auroc - 0.5
        if self.standard_error:
            return difference / self.standard_error
        return math.copysign(math.inf, difference) if difference else 0.0


def squared_errors(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The mean squared error of the prediction for each example.

    Args:
        model: Predicts targets.
        x: Inputs.
        target: Targets.
    """
    error: Tensor = model(x) - target
    return error.square().mean(-1)


def membership_attack(
    model: nn.Module,
    *,
    members: Examples,
    non_members: Examples,
    losses: ExampleLosses = squared_errors,
    reference: nn.Module | None = None,
    batch_size: int = 200,
) -> Membership:
    r"""Tries to tell members of the training set by their low loss, example by example.

    For thresholds of all heights at once: the area under the ROC curve is the chance that a random member has a lower
    loss than a random non-member, ties counting half. Its standard error is DeLong's, from the spread over the members
    and over the non-members of how many of the others each one beats:
    $\sqrt{s^2_\mathrm{m} / m + s^2_\mathrm{n} / n}$.

    Args:
        model: The model under attack.
        members: Data that it is suspected to know.
        non_members: Data like them that it has never seen.
        losses: Finds the loss of each example.
        reference: A model that never saw either. Its losses are subtracted, so that an example which is hard for any
            model is not taken for a stranger. This makes the attack stronger.
        batch_size: Examples at a time.

    Example:
        A model that returns its input knows the members, whose target it is:

        >>> x = torch.rand(100, 3)
        >>> membership_attack(nn.Identity(), members=(x[:50], x[:50]), non_members=(x[50:], 1 - x[50:])).auroc
        1.0
    """

    def find(data: Examples) -> Tensor:
        found = losses_of_module(model, data, losses, batch_size)
        return found if reference is None else beyond(found, losses_of_module(reference, data, losses, batch_size))

    return membership(find(members), find(non_members))


def membership(members: Tensor, non_members: Tensor) -> Membership:
    """The attack on losses that were found by whatever means.

    Args:
        members: The loss of each member; infinite where a model does not know the target at all.
        non_members: The loss of each example that the model has never seen.

    Example:
        >>> membership(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.15])).auroc
        0.75
    """
    for name, losses in (("members", members), ("non_members", non_members)):
        if len(losses) < 2:
            raise ValueError(f"{name} must have at least 2 examples, got {len(losses)}")
        if losses.isnan().any():
            raise ValueError(f"{name} must have losses that are numbers, got NaN")
    beaten, beats = _share_above(members, non_members), 1 - _share_above(non_members, members)
    error = beaten.var() / len(members) + beats.var() / len(non_members)
    return Membership(float(beaten.mean()), math.sqrt(float(error)), len(members), len(non_members))


def beyond(losses: Tensor, usual: Tensor) -> Tensor:
    """By how much losses exceed those of a reference; 0 where both are the same, infinite ones too.

    Args:
        losses: Of the model under attack.
        usual: Of the reference, for the same examples.

    Example:
        >>> beyond(torch.tensor([1.0, torch.inf]), torch.tensor([0.5, torch.inf]))
        tensor([0.5000, 0.0000])
    """
    return torch.where(losses == usual, 0.0, losses - usual)


@torch.no_grad()
def losses_of_module(model: nn.Module, data: Examples, losses: ExampleLosses, batch_size: int) -> Tensor:
    """The loss of each example, in double precision; the module stays in the mode it is in.

    Args:
        model: The module.
        data: The examples.
        losses: Finds them.
        batch_size: Examples at a time.
    """
    was_training = model.training
    model.eval()
    try:
        found = [losses(model, batch.x, batch.target) for batch in Batches(*data, batch_size=batch_size)]
    finally:
        model.train(was_training)
    return torch.cat(found).double().cpu()


def _share_above(values: Tensor, others: Tensor) -> Tensor:
    """For each value the share of the others that are greater, those equal counting half."""
    ordered = others.sort().values
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return 1 - (below + up_to).double() / (2 * len(others))
