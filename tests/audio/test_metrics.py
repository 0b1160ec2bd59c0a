import math

import pytest
import torch

from tests.audio.models import small_model
from torchpfc import FactorizedRNN
from torchpfc.audio import (
    NMFSeparator,
    Scores,
    Separated,
    TrackScores,
    bss_eval,
    feature_mse,
    median_scores,
    metrics,
    sdr,
    superposition_error,
)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_error_of_features_is_a_mean_over_everything() -> None:
    assert feature_mse(torch.full((3, 5, 2), 0.5), torch.zeros(3, 5, 2)) == 0.25
    with pytest.raises(ValueError, match=r"estimate must have the shape of target \(3,\), got \(2,\)"):
        feature_mse(torch.zeros(2), torch.zeros(3))


def test_the_ratio_of_a_signal_to_its_error() -> None:
    s, e = noise(1, 1000), noise(1, 1000, seed=1)
    e = e * s.norm() / e.norm() / 10
    assert sdr(s, s + e) == pytest.approx(20, abs=1e-4) and sdr(s, s) > 100
    assert math.isnan(sdr(torch.zeros(5), torch.ones(5)))
    with pytest.raises(ValueError, match=r"estimate must have the shape of reference \(3,\), got \(2,\)"):
        sdr(torch.zeros(3), torch.zeros(2))


def test_bss_eval_tells_interference_from_artifacts() -> None:
    rate, v, a = 4_000, noise(1, 12_000), noise(1, 12_000, seed=1)
    mixed = bss_eval(Separated(v, a), Separated(v + 0.1 * a, a), rate)
    assert mixed.vocals.sdr == pytest.approx(20, abs=1) and mixed.vocals.sir == pytest.approx(20, abs=1)
    assert mixed.vocals.sar > 40
    rough = bss_eval(Separated(v, a), Separated(v + 0.1 * noise(1, 12_000, seed=2), a + 1e-4 * v), rate)
    assert rough.vocals.sir > rough.vocals.sar + 5 and rough.vocals.sdr == pytest.approx(20, abs=1)
    assert rough.accompaniment.sdr == pytest.approx(80, abs=1)


def test_who_has_no_museval_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics._museval_metrics.cache_clear()
    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: None)
    v = noise(1, 8_000)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package museval: pip install 'torchpfc\[audio\]'"):
        bss_eval(Separated(v, v), Separated(v, v), 4_000)


def test_silent_windows_do_not_count() -> None:
    rate, v, a = 4_000, noise(1, 12_000), noise(1, 12_000, seed=1)
    v[:, 4_000:8_000] = 0
    scores = bss_eval(Separated(v, a), Separated(v + 0.1 * a, a), rate)
    assert scores.vocals.sdr == pytest.approx(20, abs=1)


def test_a_silent_part_has_no_ratios() -> None:
    v = noise(1, 8_000)
    for truth, found in ((Separated(0 * v, v), Separated(v, v)), (Separated(v, v), Separated(v, 0 * v))):
        assert all(math.isnan(score) for part in bss_eval(truth, found, 4_000) for score in part)


def test_channels_that_are_all_the_same_count_once() -> None:
    v, a = noise(1, 8_000), noise(1, 8_000, seed=1)
    mono = bss_eval(Separated(v, a), Separated(v + 0.1 * a, a - 0.1 * v), 4_000)
    stereo = bss_eval(
        Separated(v.expand(2, -1), a.expand(2, -1)),
        Separated((v + 0.1 * a).expand(2, -1), (a - 0.1 * v).expand(2, -1)),
        4_000,
    )
    assert stereo == mono


def test_what_cannot_be_scored() -> None:
    v = noise(1, 8_000)
    with pytest.raises(ValueError, match="all parts must have the same shape"):
        bss_eval(Separated(v, v), Separated(v[:, 1:], v), 4_000)


def test_medians_leave_out_what_is_not_defined() -> None:
    scores = [TrackScores(Scores(x, 0.0, x), Scores(0.0, 0.0, 0.0)) for x in (1.0, math.nan, 3.0)]
    assert median_scores(scores).vocals == Scores(2.0, 0.0, 2.0)
    assert math.isnan(median_scores(scores[1:2]).vocals.sdr)
    with pytest.raises(ValueError, match="tracks must have at least one track, got none"):
        median_scores([])


def test_superposition_holds_where_sources_have_columns_of_their_own() -> None:
    """A network whose columns each stand for one input, without memory: the answer to a sum is the sum of answers."""
    size = 6
    rnn = FactorizedRNN(size, size, size, nonnegative=True)
    with torch.no_grad():
        rnn.block.weight_x.zero_()
        rnn.weight_x.copy_(torch.eye(size))
        rnn.block.weight_y.copy_(torch.rand(size, size, generator=torch.Generator().manual_seed(0)))
    x1, x2 = torch.zeros(2, 4, size), torch.zeros(2, 4, size)
    x1[..., :3], x2[..., 3:] = 0.5, 0.8
    assert superposition_error(rnn.eval(), x1, x2, 0.7, 1.2) < 1e-3
    assert superposition_error(small_model("vanilla"), *noise(2, 3, 5, 350).abs()) > 0.01
    with pytest.raises(ValueError, match=r"x2 must have the shape of x1"):
        superposition_error(rnn, x1, x2[:1])


def test_bad_nmf() -> None:
    with pytest.raises(ValueError, match=r"weight_x must have shape \(350, r\), got \(3, 4\)"):
        NMFSeparator(torch.rand(3, 4), 2)
    with pytest.raises(ValueError, match="num_vocals must be from 1 to 3, got 4"):
        NMFSeparator(torch.rand(350, 4), 4)
    with pytest.raises(ValueError, match=r"accompaniment must have shape \(\.\.\., 350\), got \(5, 3\)"):
        NMFSeparator.fit(torch.rand(5, 350), torch.rand(5, 3), (1, 1))
    assert "num_vocals=3, num_basis=8" in repr(small_model("nmf"))
