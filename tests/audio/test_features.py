import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchpfc.audio import Features, StreamingAnalysis, StreamingSynthesis


def signal(count: int, channels: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand(channels, count, generator=torch.Generator().manual_seed(seed)) - 0.5


def decibels(error: torch.Tensor, reference: torch.Tensor) -> float:
    return float(10 * torch.log10(error.abs().square().sum() / reference.abs().square().sum()))


def test_the_spectrogram_is_that_of_torch() -> None:
    x, features = signal(5 * 44_100), Features()
    theirs = torch.stft(
        x, 2048, 1024, window=torch.hann_window(2048), center=True, pad_mode="constant", return_complex=True
    )
    ours = features.analyze(x)
    assert ours.shape == (2, 216, 1025)  # five seconds, as published
    torch.testing.assert_close(ours, theirs.mT, atol=1e-4, rtol=1e-4)


def test_a_full_sine_has_the_feature_1() -> None:
    features = Features()
    x = torch.sin(2 * math.pi * 100 / 2048 * torch.arange(20_480)).unsqueeze(0)
    heard = features.of(features.analyze(x))[0, 5]
    assert heard.argmax() == 100
    assert heard[100] == pytest.approx((512 / 1024) ** 0.25, abs=1e-3)  # half of it is at the negative frequency
    constant = features.of(features.analyze(torch.ones(1, 20_480)))
    assert constant.max() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 2048, 50_000])
def test_every_sample_comes_back(count: int) -> None:
    x, features = signal(count), Features()
    spectrum = features.analyze(x, whole=True)
    same = features.synthesize(spectrum)
    assert spectrum.shape[1] == -(-count // 1024) + 1 and same.shape[1] >= count
    torch.testing.assert_close(same[:, :count], x, atol=1e-6, rtol=0)
    assert same[:, count:].abs().max() < 1e-6 if same.shape[1] > count else True


def test_synthesis_is_that_of_torch_where_frames_do_not_fit_together() -> None:
    features = Features()
    spectrum = torch.polar(torch.rand(2, 9, 1025), 6 * torch.rand(2, 9, 1025))
    spectrum[..., 0] = spectrum[..., -1] = 1.0  # real, or the two ignore the rest in different ways
    theirs = torch.istft(spectrum.mT, 2048, 1024, window=torch.hann_window(2048), length=8 * 1024)
    torch.testing.assert_close(features.synthesize(spectrum), theirs, atol=1e-6, rtol=1e-5)


def test_features_and_the_phase_give_the_kept_bins_back() -> None:
    """Without a model: below -60 dB, and far below."""
    features, x = Features(), signal(100_000)
    spectrum = features.analyze(x, whole=True)
    kept = spectrum.clone()
    kept[..., features.bins :] = 0
    back = features.invert(features.of(spectrum), spectrum)
    assert decibels(back - kept, kept) < -100
    assert decibels(features.synthesize(back) - features.synthesize(kept), features.synthesize(kept)) < -100


def test_a_signal_below_the_last_bin_comes_back_as_a_whole() -> None:
    features, t = Features(), torch.arange(88_200) / 44_100
    x = sum(0.1 * torch.sin(2 * math.pi * f * t + f) for f in (80.0, 440.0, 1234.5, 3000.0, 6500.0)).unsqueeze(0)
    x = x * torch.sin(math.pi * t / 2)  # it begins and ends softly
    spectrum = features.analyze(x, whole=True)
    back = features.synthesize(features.invert(features.of(spectrum), spectrum))[:, : x.shape[1]]
    assert decibels(back - x, x) < -60


def test_compression_has_an_inverse() -> None:
    features, magnitude = Features(), torch.tensor([0.0, 1e-6, 0.5, 1024.0, 2000.0])
    torch.testing.assert_close(features.expand(features.compress(magnitude)), magnitude)
    assert features.expand(torch.tensor(-0.5)) == 0


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5000), max_size=8))
def test_a_stream_gives_what_the_whole_gives(pieces: list[int]) -> None:
    features = Features()
    x = signal(sum(pieces) + 1)
    analysis, synthesis = StreamingAnalysis(features, 2), StreamingSynthesis(features)
    spectra = [analysis.push(piece) for piece in x.split([*pieces, 1], dim=-1)] + [analysis.finish()]
    whole = features.analyze(x, whole=True)
    torch.testing.assert_close(torch.cat(spectra, dim=-2), whole, atol=1e-5, rtol=0)
    parts = [synthesis.push(spectrum) for spectrum in spectra]
    torch.testing.assert_close(torch.cat(parts, dim=-1), features.synthesize(whole), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0}, "rate must be at least 1, got 0"),
        ({"hop": 512}, "window must be twice the hop, got 2048 and 512"),
        ({"bins": 1026}, "bins must be from 1 to 1025, got 1026"),
        ({"exponent": 0.0}, r"exponent must be positive, got 0\.0"),
        ({"loudest": -1.0}, r"loudest must be positive, got -1\.0"),
    ],
)
def test_bad_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Features(**settings)


def test_what_is_not_a_signal() -> None:
    with pytest.raises(ValueError, match=r"x must have at least one sample, got shape \(2, 0\)"):
        Features().analyze(torch.zeros(2, 0))
    with pytest.raises(TypeError, match=r"x must have a floating-point dtype, got torch\.int16"):
        Features().analyze(torch.zeros(2, 5000, dtype=torch.int16))
