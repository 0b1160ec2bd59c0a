import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

from torchpfc.running_sums import FourierRidge, NearestMean, StreamingLDA

GENERATOR = torch.Generator().manual_seed(0)
CENTRES = torch.randn(4, 6, generator=GENERATOR, dtype=torch.float64)
LABEL = torch.arange(80) % 4
X = CENTRES[LABEL] + 0.8 * torch.randn(80, 6, generator=GENERATOR, dtype=torch.float64)


def taught(model, *, pieces: int):
    """A classifier that has seen all examples, in some number of portions by class."""
    for portion in LABEL.argsort(stable=True).tensor_split(pieces):
        model.learn(X[portion], LABEL[portion])
    return model


def ridge(**settings) -> FourierRidge:
    return FourierRidge(6, generator=torch.Generator().manual_seed(1), **settings)


def test_the_nearest_mean_is_that_of_scikit_learn() -> None:
    expected = NearestCentroid().fit(X.numpy(), LABEL.numpy()).predict(X.numpy())
    assert np.array_equal(taught(NearestMean(6), pieces=7).scores(X).argmax(-1).numpy(), expected)


def test_streaming_lda_is_that_of_scikit_learn() -> None:
    found = taught(StreamingLDA(6, shrinkage=1e-9), pieces=7)
    expected = LinearDiscriminantAnalysis(solver="lsqr", priors=np.full(4, 0.25)).fit(X.numpy(), LABEL.numpy())
    assert np.array_equal(found.scores(X).argmax(-1).numpy(), expected.predict(X.numpy()))


@pytest.mark.parametrize("make", [NearestMean, StreamingLDA])
def test_sums_depend_neither_on_the_portions_nor_on_classes_known_of_before(make) -> None:
    one, other = taught(make(6), pieces=1), taught(make(6, 4), pieces=9)
    torch.testing.assert_close(one.scores(X), other.scores(X))
    assert one.bytes_kept() == other.bytes_kept() == 4 * (4 + 24 + (36 if make is StreamingLDA else 0))


def test_ridge_is_that_of_all_examples_at_once() -> None:
    found = taught(ridge(num_features=30, ridge=0.3), pieces=4)
    features, target = found.features(X), torch.nn.functional.one_hot(LABEL).double()
    weight = torch.linalg.solve(features.T @ features + 0.3 * torch.eye(30, dtype=torch.float64), features.T @ target)
    torch.testing.assert_close(found.scores(X), features @ weight)
    found.learn(X[:0], LABEL[:0])
    assert torch.equal(found.counts, torch.full((4,), 20, dtype=torch.float64))


def test_random_features_approximate_a_normal_kernel() -> None:
    found = ridge(num_features=20_000)
    found.scale = 0.7
    x = torch.rand(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    features = found.features(x)
    expected = torch.exp(-torch.cdist(x, x).square() / (2 * 0.7**2))
    torch.testing.assert_close(features @ features.T, expected, rtol=0, atol=0.03)


def test_the_first_batch_decides_the_width_of_the_kernel() -> None:
    found = ridge()
    assert not found.scores(X).any()
    found.learn(X[:1], LABEL[:1])
    assert found.scale == pytest.approx(0.5 * 2**0.5 * float(X[0].norm()))
    zeros = ridge()
    zeros.learn(torch.zeros(3, 6), LABEL[:3])
    assert zeros.scale == 0.5 and zeros.scores(X).isfinite().all()


@pytest.mark.parametrize("model", [NearestMean(6, 9), StreamingLDA(6, 9)])
def test_a_class_that_was_never_seen_is_never_the_answer(model) -> None:
    assert set(taught(model, pieces=2).scores(10 * X).argmax(-1).tolist()) == {0, 1, 2, 3}


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shrinkage must be greater than 0 and at most 1, got 0"):
        StreamingLDA(6, shrinkage=0)
    with pytest.raises(ValueError, match=r"bandwidth and ridge must be positive, got 0.5 and 0"):
        FourierRidge(6, ridge=0)
    with pytest.raises(ValueError, match=r"num_features must be at least 1, got 0"):
        FourierRidge(6, num_features=0)
