"""Reading a block's step size off what the block returns."""

from copy import deepcopy

import torch
from torch import Tensor

from torchpfc import FISTA, PFCBlock


def lipschitz_used(block: PFCBlock) -> Tensor:
    """The bound that the next call uses: one step from zero gives $h = max(W^T x, 0) / L$. The block stays as it is."""
    probe = deepcopy(block)
    probe.solver = FISTA(max_iter=1)
    x = torch.linspace(0.1, 1.0, block.in_features, dtype=block.weight_x.dtype)
    with torch.no_grad():
        return (x @ probe.weight_x).clamp(min=0).sum() / probe.couple(x).h.sum()
