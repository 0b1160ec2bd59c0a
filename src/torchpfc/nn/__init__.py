"""Modules: the PFC block, networks made of it, and what it is compared with."""

from importlib import import_module
from typing import Any

from torchpfc.nn.attention import Attention, FactorizedAttention, attend
from torchpfc.nn.block import Coupling, PFCBlock
from torchpfc.nn.completion import Completion
from torchpfc.nn.constraints import keep_nonnegative
from torchpfc.nn.mlp import MLP
from torchpfc.nn.recording import count_use, reconstruction_loss, record_couplings, warm_couplings
from torchpfc.nn.recurrent import (
    NMFRNN,
    AllSlices,
    FactorizedRNN,
    FactorizedRNNCell,
    RecurrentCoupling,
    SliceBySlice,
    VanillaRNN,
    rnn_reconstruction_loss,
)
from torchpfc.nn.residual import ResidualPFC
from torchpfc.nn.stack import stack_models, unstack_models

__all__ = [
    "MLP",
    "NMFRNN",
    "AllSlices",
    "Attention",
    "Completion",
    "Coupling",
    "FactorizedAttention",
    "FactorizedRNN",
    "FactorizedRNNCell",
    "PFCBlock",
    "RecurrentCoupling",
    "ResidualPFC",
    "SliceBySlice",
    "VanillaRNN",
    "attend",
    "count_use",
    "keep_nonnegative",
    "reconstruction_loss",
    "record_couplings",
    "rnn_reconstruction_loss",
    "stack_models",
    "unstack_models",
    "warm_couplings",
]


def __getattr__(name: str) -> Any:
    if name == "ContinualPFC":  # a learner, no longer a module of this layer; still found where it was
        return getattr(import_module("torchpfc.continual"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
