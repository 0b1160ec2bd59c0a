"""Elastic weight consolidation: which weights of a perceptron the tasks so far need, and a loss that holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchpfc.nn import MLP
from torchpfc.paper.components import MLPModel
from torchpfc.paper.settings import Amount, Count
from torchpfc.training import Objective

_ROWS_AT_ONCE = 2000


@dataclass(frozen=True, kw_only=True)
class ElasticMLP(MLPModel):
    """A perceptron that may hold the weights that it needs."""

    hidden_features: Count = 1357
    penalty: Amount = 0.0
    """What it costs to move weights that earlier tasks need (elastic weight consolidation); 0 lets them move."""


@dataclass(frozen=True, eq=False)
class Anchored:
    r"""A loss that holds weights where earlier phases need them, $\tfrac\lambda2 \sum_t F_t (w - w_t)^2$ (EWC).

    The sum over phases is kept as $\sum_t F_t$ and $\sum_t F_t w_t$, by the names of the parameters.
    """

    objective: Objective
    stack: nn.Module
    """Whose weights are held: the model of a call may be wrapped for several processes."""
    kept: dict[str, Tensor]
    penalty: float

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Any:
        """Applies the model and measures it."""
        scored = self.objective(model, x, target)
        loss = scored.loss
        for name, p in self.stack.named_parameters():
            pull = self.kept[f"importance.{name}"] * p - 2 * self.kept[f"anchor.{name}"]
            loss = loss + 0.5 * self.penalty * (pull * p).flatten(1).sum(1)
        return scored._replace(loss=loss)


@torch.no_grad()
def importance(model: MLP, x: Tensor, rows: Tensor) -> dict[str, Tensor]:
    r"""How much a task needs each weight of a stack of perceptrons at its end, by the names of the weights.

    The importance of a weight is the diagonal of the Fisher information for a normal distribution of variance 1 around
    the outputs, $F = \mathrm{mean}_n \sum_k (\partial y_{nk} / \partial w)^2$, found without sampling.

    Args:
        model: The stack.
        x: All images.
        rows: Those of the task, for each perceptron.
    """
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for chunk in torch.split(rows, _ROWS_AT_ONCE, dim=1):
        for name, value in _squared_slopes(model, x[chunk]).items():
            sums[name] += value / rows.shape[1]
    return sums


def _squared_slopes(model: MLP, x: Tensor) -> dict[str, Tensor]:
    """Sums over examples and outputs of the squared derivatives of the outputs, by the names of the weights."""
    z = model.hidden(x)
    a, slope = torch.nn.functional.gelu(z), _gelu_slope(z)
    reach = model.output.weight.square().sum(-2).unsqueeze(-2) * slope.square()  # (models, n, units)
    return {
        "hidden.weight": reach.mT @ x.square(),
        "hidden.bias": reach.sum(-2),
        "output.weight": a.square().sum(-2).unsqueeze(-2).expand_as(model.output.weight),
        "output.bias": torch.full_like(model.output.bias, float(x.shape[-2])),
    }


def _gelu_slope(z: Tensor) -> Tensor:
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * density
