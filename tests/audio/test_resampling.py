import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchpfc.audio import Resampler, resample


@pytest.mark.parametrize(("source", "target"), [(8_000, 44_100), (48_000, 44_100), (44_100, 96_000), (44_101, 44_100)])
def test_a_sine_stays_the_same_sine(source: int, target: int) -> None:
    f = 1_000.0
    x = torch.sin(2 * math.pi * f * torch.arange(source // 2, dtype=torch.float64) / source).float().unsqueeze(0)
    y = resample(x, source, target)[0]
    assert len(y) == math.ceil(x.shape[1] * target / source)
    wanted = torch.sin(2 * math.pi * f * torch.arange(len(y), dtype=torch.float64) / target).float()
    inner = slice(len(y) // 10, -len(y) // 10)
    assert (y[inner] - wanted[inner]).abs().max() < 1e-5


@pytest.mark.parametrize("rates", [(48_000, 44_100), (44_100, 48_000), (44_100, 8_000)])
def test_what_both_rates_can_hold_is_kept_up_to_nine_tenths(rates: tuple[int, int]) -> None:
    source, target = rates
    t = torch.arange(source, dtype=torch.float64) / source
    x = torch.sin(2 * math.pi * 0.45 * min(rates) * t).float().unsqueeze(0)
    wanted = torch.sin(2 * math.pi * 0.45 * min(rates) * torch.arange(target, dtype=torch.float64) / target).float()
    inner = slice(target // 10, -target // 10)
    assert (resample(x, *rates)[0] - wanted)[inner].abs().max() < 2e-3  # a fiftieth of a decibel


def test_frequencies_that_the_target_cannot_hold_are_gone() -> None:
    x = torch.sin(2 * math.pi * 6_000 * torch.arange(44_100, dtype=torch.float64) / 44_100).float().unsqueeze(0)
    assert resample(x, 44_100, 8_000)[0, 200:-200].abs().max() < 1e-6


def test_there_and_back() -> None:
    t = torch.arange(20_000) / 44_100
    x = torch.stack([torch.sin(2 * math.pi * f * t) for f in (200.0, 3_000.0)])
    back = resample(resample(x, 44_100, 48_000), 48_000, 44_100)[:, :20_000]
    assert (back - x)[:, 2_000:-2_000].abs().max() < 1e-4


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3000), max_size=6), st.sampled_from([(8_000, 44_100), (44_100, 8_000), (3, 2), (5, 5)]))
def test_pieces_give_what_the_whole_gives(pieces: list[int], rates: tuple[int, int]) -> None:
    x = torch.rand(2, sum(pieces) + 1, generator=torch.Generator().manual_seed(0)) - 0.5
    stream = Resampler(*rates, channels=2)
    parts = [stream.push(piece) for piece in x.split([*pieces, 1], dim=-1)] + [stream.finish()]
    whole = resample(x, *rates)
    assert torch.equal(torch.cat(parts, dim=-1), whole)
    assert whole.shape == (2, -(-x.shape[1] * rates[1] // rates[0]))


def test_bad_rates() -> None:
    with pytest.raises(ValueError, match="target must be at least 1, got 0"):
        Resampler(8_000, 0, channels=1)
