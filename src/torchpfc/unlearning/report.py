"""What forgetting did to a model, and what that means, in plain words."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from torchpfc.training import WarmCodes

How = Literal["zero", "reinitialize", "remove"]


@dataclass(frozen=True)
class ForgetReport:
    """What `forget` did, and what that means."""

    how: str
    batches: tuple[int, ...]
    """The batches that were to be forgotten and had been learned from."""
    unrecorded: tuple[int, ...]
    """Batches that were to be forgotten and of which the ledger has no entry: they wrote nothing that it knows of."""
    columns: tuple[tuple[int, int], ...]
    """The columns, as half-open ranges of the numbers that they had before."""
    num_columns: int
    """How many columns these are."""
    share: float
    """What part of all columns that is."""
    others_affected: tuple[int, ...]
    """Batches that were not to be forgotten and lost something all the same: they could write some of the columns."""
    sha256_before: str
    sha256_after: str
    guaranteed: tuple[str, ...]
    not_guaranteed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def __str__(self) -> str:
        columns = ", ".join(f"{start} to {stop - 1}" for start, stop in self.columns) or "none"
        lines = [
            f"Forgot {len(self.batches)} batches ({self.how}).",
            f"Columns: {columns}; {self.num_columns} in all, {self.share:.1%} of the model.",
            f"Other batches that could write some of these columns: {len(self.others_affected)}.",
            f"Weights before: sha256 {self.sha256_before}",
            f"Weights after:  sha256 {self.sha256_after}",
            "Guaranteed:",
            *(f"- {sentence}" for sentence in self.guaranteed),
            "Not guaranteed:",
            *(f"- {sentence}" for sentence in self.not_guaranteed),
        ]
        return "\n".join(lines)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and bytes of all that a model's `state_dict` holds.

    Args:
        model: Any module.

    Example:
        >>> len(fingerprint(nn.Linear(2, 3)))
        64
    """
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


_DONE = {
    "zero": "Every weight that these batches could write in a block is 0, so its column takes no part in any output.",
    "reinitialize": "Every weight that these batches could write in a block has been drawn anew.",
    "remove": "Every column that these batches could write is gone from the blocks.",
}


def guaranteed(how: How, optimizer: Optimizer | None, codes: WarmCodes | None) -> tuple[str, ...]:
    """What holds after `forget`, by what it was given."""
    sentences = [_DONE[how], "No weight in another column has changed."]
    if optimizer is not None:
        sentences.append("The optimizer's state for these columns is cleared.")
    if optimizer is not None and how == "zero":
        sentences.append("Steps of this optimizer leave these columns at 0.")
    if codes is not None:
        sentences.append("The warm codes hold nothing of these columns, and nothing of the forgotten examples.")
    return tuple(sentences)


def not_guaranteed(
    how: How, optimizer: Optimizer | None, codes: WarmCodes | None, outside: list[str]
) -> tuple[str, ...]:
    """What `forget` cannot promise, by what it was given, and the parameters that belong to no block."""
    sentences = [
        "Batches that came later computed their gradients while these columns were there, so what they wrote in other "
        "columns may depend on what is forgotten here. Only a replay without it, retrain_without, takes that out too.",
        "What other batches had learned in these columns is lost with them.",
        "Copies made before (checkpoints, snapshots, the best weights of a run) still hold what is forgotten here.",
    ]
    if optimizer is None:
        sentences.append("No optimizer was given: the state of one that is used again still holds these columns.")
    if optimizer is None and how == "zero":
        sentences.append("No optimizer was given: call keep_forgotten before training goes on, or it fills the zeros.")
    if codes is None:
        sentences.append("No warm codes were given: if there are any, they still hold these columns.")
    if outside:
        sentences.append(f"Parameters outside PFC blocks are as they were: {', '.join(outside)}.")
    return tuple(sentences)
