"""How well something was forgotten: accuracy, an attack that looks for members, and the time to learn it again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.training import Batch, Batches, Objective, evaluate

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


@dataclass(frozen=True)
class Audit:
    """What a model still knows."""

    retained: float
    """Accuracy on data that were to be kept."""
    forgotten: float
    """Accuracy on data that were to be forgotten, with the targets they had in training."""
    test: float
    """Accuracy on test data."""
    membership: Membership
    """The attack on the forgotten data, whose examples count as members."""
    relearn_steps: int | None
    """Steps to learn the forgotten data again; None where it was not tried, or took more steps than it was given."""


@dataclass(frozen=True, eq=False)
class Relearning:
    """How the time to learn something again is measured.

    Args:
        make_optimizer: Makes an optimizer for a model, with all its hooks.
        loss: What the objective has to reach on all the forgotten data.
        max_steps: How many steps to try.
    """

    make_optimizer: Callable[[nn.Module], Optimizer]
    loss: float
    max_steps: int = 1000


def audit(
    models: Mapping[str, nn.Module],
    objective: Objective,
    *,
    retained: Examples,
    forgotten: Examples,
    test: Examples,
    non_members: Examples,
    reference: nn.Module | None = None,
    relearning: Relearning | None = None,
    batch_size: int = 200,
) -> dict[str, Audit]:
    """Compares models: one that learned everything, one that forgot, one that never saw what was to be forgotten.

    Read the attack on the first model first. Where it does not beat guessing there, it proves nothing about the others.

    Args:
        models: The models, by name.
        objective: The loss that they were trained with.
        retained: Data that were to be kept.
        forgotten: Data that were to be forgotten, as they were in training (wrong labels included).
        test: Data that no model has seen.
        non_members: Data that no model has seen, prepared like `forgotten`, for the attack.
        reference: Helps the attack; see `membership_attack`.
        relearning: How to measure the time to learn it again; None leaves that out.
        batch_size: Examples at a time, also where learning again.

    Example:
        >>> from torchpfc import PFCBlock
        >>> from torchpfc.training import SquaredErrors
        >>> data = {name: (torch.rand(20, 8), torch.rand(20, 3)) for name in ("retained", "forgotten", "test")}
        >>> models = {"before": PFCBlock(8, 3, num_basis=5), "after": PFCBlock(8, 3, num_basis=5)}
        >>> found = audit(models, SquaredErrors(), non_members=data["test"], **data)
        >>> found["after"].membership.members
        20
    """
    audits = {}
    for name, model in models.items():
        on_retained, on_forgotten, on_test = (
            float(evaluate(model, Batches(*data, batch_size=batch_size), objective).accuracy)
            for data in (retained, forgotten, test)
        )
        attack = membership_attack(
            model, members=forgotten, non_members=non_members, reference=reference, batch_size=batch_size
        )
        again = Batches(*forgotten, batch_size=batch_size)
        steps = None if relearning is None else steps_to_relearn(model, again, objective, relearning)
        audits[name] = Audit(on_retained, on_forgotten, on_test, membership=attack, relearn_steps=steps)
    return audits


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
    for name, (x, _) in (("members", members), ("non_members", non_members)):
        if len(x) < 2:
            raise ValueError(f"{name} must have at least 2 examples, got {len(x)}")
    scores = []
    for data in (members, non_members):
        score = _losses(model, data, losses, batch_size)
        if reference is not None:
            score = score - _losses(reference, data, losses, batch_size)
        scores.append(score)
    inside, outside = scores
    beaten, beats = _share_above(inside, outside), 1 - _share_above(outside, inside)
    error = beaten.var() / len(inside) + beats.var() / len(outside)
    return Membership(float(beaten.mean()), math.sqrt(float(error)), len(inside), len(outside))


def steps_to_relearn(
    model: nn.Module, batches: Iterable[Any], objective: Objective, relearning: Relearning
) -> int | None:
    """Counts the steps that a copy of a model takes to learn data again; None where it needs too many.

    Args:
        model: Stays as it is.
        batches: The data, over and over in this order.
        objective: The loss to learn with, and to reach on average over all the data.
        relearning: When it is reached, and by which optimizer.

    Example:
        >>> from torchpfc import PFCBlock, RMSprop
        >>> from torchpfc.training import SquaredErrors
        >>> batches = [(torch.rand(5, 8), torch.rand(5, 3))]
        >>> relearning = Relearning(lambda model: RMSprop(model.parameters()), loss=0.0, max_steps=3)
        >>> steps_to_relearn(PFCBlock(8, 3, num_basis=5), batches, SquaredErrors(), relearning) is None
        True
    """
    batches = [Batch(*batch) for batch in batches]
    learner = deepcopy(model)
    optimizer = relearning.make_optimizer(learner)
    for step, batch in enumerate(islice(cycle(batches), relearning.max_steps)):
        if float(evaluate(learner, batches, objective).loss) <= relearning.loss:
            return step
        learner.train()
        optimizer.zero_grad()
        torch.autograd.backward(objective(learner, batch.x, batch.target).loss)
        optimizer.step()
    reached = float(evaluate(learner, batches, objective).loss) <= relearning.loss
    return relearning.max_steps if reached else None


@torch.no_grad()
def _losses(model: nn.Module, data: Examples, losses: ExampleLosses, batch_size: int) -> Tensor:
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
