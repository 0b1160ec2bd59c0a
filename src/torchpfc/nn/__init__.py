"""Modules: the PFC block, networks made of it, and what it is compared with."""

from torchpfc.nn.attention import Attention, FactorizedAttention, attend
from torchpfc.nn.block import Coupling, PFCBlock
from torchpfc.nn.completion import Completion
from torchpfc.nn.constraints import keep_nonnegative
from torchpfc.nn.mlp import MLP
from torchpfc.nn.recording import reconstruction_loss, record_couplings, warm_couplings
from torchpfc.nn.residual import ResidualPFC
from torchpfc.nn.stack import stack_models, unstack_models

__all__ = [
    "MLP",
    "Attention",
    "Completion",
    "Coupling",
    "FactorizedAttention",
    "PFCBlock",
    "ResidualPFC",
    "attend",
    "keep_nonnegative",
    "reconstruction_loss",
    "record_couplings",
    "stack_models",
    "unstack_models",
    "warm_couplings",
]
