"""Asking learners with labels, whatever they are: estimators and the continual learner."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpfc.continual import ContinualPFC

Labelled = tuple[Any, Any]
"""Inputs and labels, or numbers to predict; arrays or tensors."""


@torch.no_grad()
def losses_of_learner(model: Any, x: Any, y: Any) -> Tensor:
    """How badly a learner knows each example: minus the score of its class, or the squared error of a number.

    The score is what `ContinualPFC` returns, or what an estimator says in `decision_function` or else in
    `predict_proba`. Of a class that the learner does not know the loss is infinite.

    Args:
        model: The learner.
        x: Inputs.
        y: Their labels, or the numbers to predict.

    Example:
        >>> model = ContinualPFC(2)
        >>> learned = model.learn([[1.0, 0.0], [0.9, 0.0]], [0, 0])
        >>> losses_of_learner(model, [[1.0, 0.0], [1.0, 0.0]], [0, 7]).isinf()
        tensor([False,  True])
    """
    if isinstance(model, ContinualPFC):
        scores, classes = model(x).double().cpu(), np.arange(model.num_classes)
    elif hasattr(model, "classes_"):
        scores, classes = torch.as_tensor(_ask(model, x), dtype=torch.float64), np.asarray(model.classes_)
    else:
        error = torch.as_tensor(np.asarray(model.predict(x)) - np.asarray(y), dtype=torch.float64)
        return error.reshape(len(error), -1).square().mean(1)
    labels = np.asarray(y)
    if labels.shape != (len(scores),):
        raise ValueError(f"y must have shape ({len(scores)},) to match x, got {labels.shape}")
    right = torch.as_tensor(labels[:, None] == classes[None])  # (n, k)
    return -scores.where(right, -torch.inf).amax(1) if len(classes) else torch.full((len(labels),), torch.inf).double()


def _ask(model: Any, x: Any) -> Any:
    """The scores of all classes."""
    if not hasattr(model, "decision_function"):
        return model.predict_proba(x)
    scores = np.asarray(model.decision_function(x))
    return np.stack([-scores, scores], 1) if scores.ndim == 1 else scores


@torch.no_grad()
def score_of_learner(model: Any, x: Any, y: Any) -> float:
    """The accuracy of a learner, from 0 to 1; $R^2$ of an estimator that predicts numbers.

    Args:
        model: The learner.
        x: Inputs.
        y: Their labels, or the numbers to predict.
    """
    if not isinstance(model, ContinualPFC):
        return float(model.score(x, y))
    scores = model(x)
    return float((scores.argmax(1).cpu().numpy() == np.asarray(y)).mean()) if scores.shape[1] else 0.0


@dataclass(frozen=True)
class Reteaching:
    """How the time is measured that a learner takes to learn something again: shown a few examples at a time.

    Args:
        portion: Examples of a step.
        level: What score on all the forgotten data to reach; by default that of the first model of an audit.
        max_steps: How many steps to try, from the first example on again where all were shown.
    """

    portion: int = 20
    level: float | None = None
    max_steps: int = 100

    def __post_init__(self) -> None:
        for name in ("portion", "max_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def steps(self, model: Any, x: Any, y: Any, *, level: float) -> int | None:
        """Counts the steps that a copy of a learner takes; None where it needs too many.

        Args:
            model: Stays as it is.
            x: The forgotten inputs.
            y: Their labels, or the numbers to predict.
            level: What to reach, where nothing else was said.
        """
        if not hasattr(model, "partial_fit") and not isinstance(model, ContinualPFC):
            raise TypeError(f"relearning must be None for a model without partial_fit, got {type(model).__name__}")
        learner, wanted = deepcopy(model), level if self.level is None else self.level
        teach = learner.learn if isinstance(learner, ContinualPFC) else learner.partial_fit
        if score_of_learner(learner, x, y) >= wanted:
            return 0
        starts = cycle(range(0, len(x), self.portion))
        for step, start in enumerate(islice(starts, self.max_steps)):
            teach(x[start : start + self.portion], y[start : start + self.portion])
            if score_of_learner(learner, x, y) >= wanted:
                return step + 1
        return None
