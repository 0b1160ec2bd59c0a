"""Inputs in the precision of the weights."""

from __future__ import annotations

import torch
from torch import Tensor


def match_weight(x: Tensor, weight: Tensor, name: str = "x") -> Tensor:
    """The input in the precision of a weight; an error where it has another, or lies on another device.

    Args:
        x: The input.
        weight: The weight.
        name: What a message calls x.
    """
    if x.device != weight.device:
        raise ValueError(f"{name} must be on the device of the weights ({weight.device}), got {x.device}")
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(weight.dtype)  # what comes out of a layer in half precision is solved in full
    if x.dtype != weight.dtype:
        raise TypeError(f"{name} must have the dtype of the weights ({weight.dtype}), got {x.dtype}")
    return x
