"""Small recurrent networks, and sequences for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchpfc import FactorizedRNN, VanillaRNN

INPUT, BASIS, OUTPUT = 4, 6, 3
OPTIONS: dict[str, Any] = {"dtype": torch.float64, "init_range": (0.0, 0.4)}
SIGNED: dict[str, Any] = {"dtype": torch.float64, "nonnegative": False, "init_range": (-0.3, 0.4)}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_rnn(seed: int = 0, **options: Any) -> FactorizedRNN:
    return FactorizedRNN(INPUT, BASIS, OUTPUT, generator=generator(seed), **{**OPTIONS, **options})


def make_vanilla(seed: int = 0, **options: Any) -> VanillaRNN:
    return VanillaRNN(INPUT, BASIS, OUTPUT, generator=generator(seed), dtype=torch.float64, **options)


def make_input(batch: int = 3, slices: int = 5, seed: int = 1) -> Tensor:
    x = torch.rand(batch, slices, INPUT, generator=generator(seed), dtype=torch.float64)
    return x * torch.rand(batch, slices, 1, generator=generator(seed + 1), dtype=torch.float64)


def make_state(batch: int = 3, seed: int = 5) -> Tensor:
    return torch.rand(batch, BASIS, generator=generator(seed), dtype=torch.float64)


Maker = Callable[..., FactorizedRNN | VanillaRNN]
both = pytest.mark.parametrize("make", [make_rnn, make_vanilla], ids=["factorized", "vanilla"])
