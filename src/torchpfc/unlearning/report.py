"""What forgetting columns does to a model, in plain words."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from torchpfc.continual import ContinualPFC
from torchpfc.continual.certificate import COPIES, How
from torchpfc.training import WarmCodes

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
    model: nn.Module, how: How, optimizer: Optimizer | None, codes: WarmCodes | None, outside: list[str]
) -> tuple[str, ...]:
    """What `forget` cannot promise, by what it was given, and the parameters that belong to no block."""
    if any(isinstance(module, ContinualPFC) for module in model.modules()):
        lost = "A batch of which some columns go loses all that it left of their class. `ContinualPFC.forget` is exact."
        return (lost, COPIES)
    sentences = [
        "Batches that came later computed their gradients while these columns were there, so what they wrote in other "
        "columns may depend on what is forgotten here. Only a replay without it, retrain_without, takes that out too.",
        "What other batches had learned in these columns is lost with them.",
        COPIES,
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
