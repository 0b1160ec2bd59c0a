"""When to stop, and the weights to go back to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchpfc.solvers.checks import check_at_least_one

KEEPS = ("loss", "accuracy")
"""By which number on validation data the best epoch can be chosen."""


class EarlyStopping:
    """Tells which model is at its best, and which has not got better for too long.

    The published code has two counters, one for the validation loss and one for the validation accuracy: the first to
    reach the patience stops the training. The best model is that of the lowest loss. Where the loss says little about
    accuracy, accuracy can decide alone.

    Args:
        patience: Epochs without improvement after which to stop.
        count: Number of models in a stack; None for a single model.
        watch_accuracy: Whether accuracy counts too.
        keep: Which model is the best: that of the lowest "loss", or that of the highest "accuracy". In the second case
            accuracy alone counts, for stopping too.
        tol: How much lower than the lowest a loss must be, relatively, not to count towards stopping. Any lower one is
            the best.

    Example:
        >>> stopping = EarlyStopping(patience=2)
        >>> for loss in (1.0, 0.5, 0.6, 0.7):
        ...     better = stopping.update(torch.tensor(loss), torch.tensor(0.9))
        >>> bool(stopping.stopped)
        True
    """

    def __init__(
        self,
        patience: int,
        count: int | None = None,
        *,
        watch_accuracy: bool = True,
        keep: str = "loss",
        tol: float = 0.0,
    ) -> None:
        check_at_least_one(patience=patience)
        if keep not in KEEPS:
            raise ValueError(f"keep must be one of {', '.join(KEEPS)}, got {keep!r}")
        if not tol >= 0:
            raise ValueError(f"tol must be non-negative, got {tol}")
        shape = () if count is None else (count,)
        self.patience = patience
        self.watch_accuracy = watch_accuracy
        self.keep = keep
        self.tol = tol
        self.state = {
            "best_loss": torch.full(shape, torch.inf),
            "best_accuracy": torch.full(shape, -torch.inf),
            "worse_losses": torch.zeros(shape, dtype=torch.long),
            "worse_accuracies": torch.zeros(shape, dtype=torch.long),
        }

    def update(self, loss: Tensor, accuracy: Tensor) -> Tensor:
        """Takes in an epoch; says which models it makes better than they ever were. NaN never does."""
        state = self.state
        lower, higher = loss < state["best_loss"], accuracy > state["best_accuracy"]
        much_lower = lower & (state["best_loss"].isinf() | (loss < (1 - self.tol) * state["best_loss"]))
        state["best_loss"] = torch.where(lower, loss, state["best_loss"])
        state["best_accuracy"] = torch.where(higher, accuracy, state["best_accuracy"])
        state["worse_losses"] = (state["worse_losses"] + 1) * ~much_lower
        state["worse_accuracies"] = (state["worse_accuracies"] + 1) * ~higher
        return lower if self.keep == "loss" else higher

    @property
    def stopped(self) -> Tensor:
        """Which models have not got better for too long."""
        by_loss, by_accuracy = (self.state[name] >= self.patience for name in ("worse_losses", "worse_accuracies"))
        if self.keep == "accuracy":
            return by_accuracy
        return by_loss | by_accuracy if self.watch_accuracy else by_loss

    def state_dict(self) -> dict[str, Tensor]:
        """All that decides when to stop."""
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over what was saved."""
        self.state.update(state)

    def select_(self, members: Tensor) -> None:
        """Goes on with some models of a stack."""
        self.state = {name: value[members] for name, value in self.state.items()}


class BestWeights:
    """A copy of the weights of each model at its best.

    Args:
        model: A model, or a stack.
    """

    def __init__(self, model: nn.Module) -> None:
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def keep(self, model: nn.Module, better: Tensor, members: Tensor | None = None) -> None:
        """Takes over the weights of those models that are better than before.

        Args:
            model: The model, or the stack.
            better: Which ones are.
            members: Which models of the stack that this was made for are left in it, if not all.
        """
        for name, value in model.state_dict().items():
            if better.ndim:
                places = better.nonzero()[:, 0] if members is None else members[better]
                self.values[name][places.to(value.device)] = value[better.to(value.device)]
            elif better:  # in new memory: the model may have gained or lost parts
                self.values[name] = value.detach().clone()

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, by name."""
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over weights that were saved, whatever their shapes."""
        self.values = {name: state[name].to(value.device, value.dtype) for name, value in self.values.items()}
