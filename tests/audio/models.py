"""Small models, untrained, for tests that ask how they are used."""

import torch
from torch import nn

from torchpfc import FactorizedRNN, VanillaRNN
from torchpfc.audio import NMFSeparator


def small_model(kind: str) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    if kind == "factorized":
        return FactorizedRNN(350, 12, 350, nonnegative=False, generator=generator, init_range=(-0.2, 0.4))
    if kind == "vanilla":
        return VanillaRNN(350, 12, 350, generator=generator)
    return NMFSeparator(torch.rand(350, 8, generator=generator), num_vocals=3)


class Everything(nn.Module):
    """Takes all of the mixture for vocals."""

    def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, None]:
        return x, None
