"""How well something was forgotten: accuracy, an attack that looks for members, and the time to learn it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.checkpoint import write_atomically
from torchpfc.training import Batch, Batches, Objective, evaluate
from torchpfc.unlearning.audit_page import Attested, draw_audit
from torchpfc.unlearning.learners import Labelled, Reteaching, losses_of_learner, score_of_learner
from torchpfc.unlearning.membership import Membership, beyond, losses_of_module, membership, squared_errors

_CERTAIN = 2.0
"""Standard errors by which an attack has to beat guessing to count."""


@dataclass(frozen=True)
class Knowledge:
    """What a model still knows."""

    retained: float
    """Accuracy on data that were to be kept; here and below, $R^2$ of an estimator that predicts numbers."""
    forgotten: float
    """Accuracy on data that were to be forgotten, with the targets they had in training."""
    test: float
    """Accuracy on test data."""
    membership: Membership
    """The attack on the forgotten data, whose examples count as members."""
    relearn_steps: int | None
    """Steps to learn the forgotten data again; None where it was not tried, or took more steps than it was given."""


@dataclass(frozen=True)
class Audit:
    """What models still know, one before forgetting and others after it."""

    models: Mapping[str, Knowledge]
    """By name, in the order in which they were given."""

    @property
    def verdicts(self) -> tuple[str, ...]:
        """A sentence on the attack for each model but the first, which says whether it proves anything."""
        (first, known), *others = self.models.items()
        if known.membership.deviation < _CERTAIN:
            return (f"The attack does not tell members of {first} either, so it proves nothing of the others.",)
        still = ((name, other.membership.deviation >= _CERTAIN) for name, other in others)
        return tuple(
            f"The attack tells members of {first}, and {'still' if found else 'no longer'} of {name}."
            for name, found in still
        )

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain values for JSON."""
        return {"models": {name: asdict(known) for name, known in self.models.items()}, "verdicts": list(self.verdicts)}

    def __str__(self) -> str:
        width = max(map(len, self.models))
        heads = f"{'':{width}}  {'kept':>8} {'forgotten':>10} {'unseen':>8}  {'attack':>14}  steps to relearn"
        lines = [heads]
        for name, known in self.models.items():
            attack = f"{known.membership.auroc:.3f} ± {known.membership.standard_error:.3f}"
            steps = "" if known.relearn_steps is None else str(known.relearn_steps)
            shares = f"{known.retained:8.1%} {known.forgotten:10.1%} {known.test:8.1%}"
            lines.append(f"{name:{width}}  {shares}  {attack:>14}  {steps}".rstrip())
        return "\n".join([*lines, *self.verdicts])

    def save_html(self, path: str | Path, certificate: Attested | None = None) -> None:
        """Saves the audit as a page that needs nothing else, with a certificate if there is one.

        Args:
            path: The file.
            certificate: What forgetting returned: prints as text, and `to_dict` gives it as plain values.
        """
        write_atomically(Path(path), draw_audit(self, certificate))


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
    models: Mapping[str, Any],
    objective: Objective | None = None,
    *,
    retained: Labelled,
    forgotten: Labelled,
    test: Labelled,
    non_members: Labelled | None = None,
    reference: Any = None,
    relearning: Relearning | Reteaching | None = None,
    batch_size: int = 200,
) -> Audit:
    """Compares models: one that learned everything, one that forgot, one that never saw what was to be forgotten.

    Read the attack on the first model first. Where it does not beat guessing there, it proves nothing about the others.

    Args:
        models: The models by name: modules that were trained with an objective; or, without one, estimators and
            continual learners, which are asked as `losses_of_learner` does.
        objective: The loss that modules were trained with.
        retained: Data that were to be kept.
        forgotten: Data that were to be forgotten, as they were in training (wrong labels included).
        test: Data that no model has seen.
        non_members: Data that no model has seen, prepared like `forgotten`, for the attack; by default `test`.
        reference: Helps the attack; see `membership_attack`.
        relearning: How to measure the time to learn it again: `Relearning` with an objective, `Reteaching` without;
            None leaves that out.
        batch_size: Examples of a module at a time, also where learning again.

    Example:
        >>> from torchpfc import ContinualPFC
        >>> before = ContinualPFC(8)
        >>> x, label = torch.rand(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
        >>> for batch, rows in enumerate(torch.arange(40).split(20)):
        ...     learned = before.learn(x[rows], label[rows], batch=batch)
        >>> after = deepcopy(before)
        >>> forgotten = after.forget([1])
        >>> thirds = zip(("retained", "forgotten", "test"), x.split(20), label.split(20))
        >>> found = audit({"before": before, "after": after}, **{name: part for name, *part in thirds})
        >>> found.models["before"].membership.auroc > found.models["after"].membership.auroc
        True
    """
    if not models:
        raise ValueError("models must hold at least one, got none")
    wanted: type = Reteaching if objective is None else Relearning
    if not isinstance(relearning, wanted | None):
        raise TypeError(f"relearning must be a {wanted.__name__} here, got a {type(relearning).__name__}")
    strangers = test if non_members is None else non_members

    def losses(model: Any, data: Labelled) -> Tensor:
        if objective is None:
            return losses_of_learner(model, *data)
        return losses_of_module(model, data, squared_errors, batch_size)

    def attack(model: Any, data: Labelled) -> Tensor:
        found = losses(model, data)
        return found if reference is None else beyond(found, losses(reference, data))

    def score(model: Any, data: Labelled) -> float:
        if objective is None:
            return score_of_learner(model, *data)
        return float(evaluate(model, Batches(*data, batch_size=batch_size), objective).accuracy)

    audits, level = {}, None
    for name, model in models.items():
        retained_score, forgotten_score, test_score = (score(model, data) for data in (retained, forgotten, test))
        level = forgotten_score if level is None else level
        steps = None
        if isinstance(relearning, Reteaching):
            steps = relearning.steps(model, *forgotten, level=level)
        elif relearning is not None and objective is not None:
            steps = steps_to_relearn(model, Batches(*forgotten, batch_size=batch_size), objective, relearning)
        found = membership(attack(model, forgotten), attack(model, strangers))
        audits[name] = Knowledge(retained_score, forgotten_score, test_score, found, steps)
    return Audit(audits)


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
