"""A drop-in for NMF: the tests that scikit-learn has for it, as far as they apply, in other words, and those for gaps.

Not applicable, because the transformer has no such option: other solvers and losses (`solver`, `beta_loss`), the starts
from singular vectors (`init="nndsvd"` and its kin), penalties on both factors (`alpha_W`, `alpha_H`, `l1_ratio`),
sparse matrices, and the function `non_negative_factorization`.
"""

import copy
import warnings

import numpy as np
import pytest
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from torchpfc.sklearn import PFCTransformer

POSITIVE = np.abs(np.random.RandomState(42).randn(30, 10))


def planted(n: int = 60, seed: int = 0):
    rng = np.random.default_rng(seed)
    parts = rng.random((3, 12))
    return rng.random((n, 3)) @ parts


def test_the_error_is_that_of_nmf_or_less():
    ours = PFCTransformer(5, random_state=0, max_iter=500).fit(POSITIVE)
    theirs = NMF(5, init="nndsvda", max_iter=2000, tol=1e-6).fit(POSITIVE)
    assert ours.reconstruction_err_ <= 1.02 * theirs.reconstruction_err_
    rest = POSITIVE - ours.transform(POSITIVE) @ ours.components_
    assert ours.reconstruction_err_ == pytest.approx(np.linalg.norm(rest), rel=1e-6)


def test_amounts_are_those_of_nmf_for_the_same_parts():
    ours = PFCTransformer(4, random_state=0, max_iter=500).fit(POSITIVE)
    theirs = NMF(4, init="custom", max_iter=5000, tol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit_transform(POSITIVE, W=ours.transform(POSITIVE), H=ours.components_)
        theirs.components_ = ours.components_
        expected = theirs.transform(POSITIVE)
    assert np.allclose(ours.transform(POSITIVE), expected, atol=1e-4)


def test_an_exact_factorization_is_found():
    X = planted()
    model = PFCTransformer(3, random_state=0, max_iter=1000, tol=0)
    H = model.fit_transform(X)
    assert np.abs(model.inverse_transform(H) - X).max() < 0.02
    assert (H >= 0).all() and (model.components_ >= 0).all()


def test_fit_transform_is_fit_and_transform():
    model = PFCTransformer(3, random_state=0, tol=1e-6, max_iter=1000)
    assert np.allclose(model.fit_transform(POSITIVE), model.transform(POSITIVE), atol=1e-6)


def test_missing_entries_are_filled_in():
    X = planted(100)
    gaps = np.random.default_rng(1).random(X.shape) < 0.2
    seen = np.where(gaps, np.nan, X)
    model = PFCTransformer(3, random_state=0, max_iter=1000, tol=0)
    filled = model.inverse_transform(model.fit_transform(seen))
    assert np.abs(filled - X)[gaps].mean() < 0.05 * X.mean()
    assert np.abs(model.reconstruct(seen) - filled).max() < 1e-6
    assert model.reconstruction_err_ == pytest.approx(np.linalg.norm((seen - filled)[~gaps]), rel=1e-6)
    explanation = model.explain(seen)
    assert not explanation.rest.isnan().any()
    assert (explanation.unexplained < 0.05).all()
    assert (model.recognition_score(seen) > 0).all()
    nothing = model.transform(np.full((1, 12), np.nan))
    assert np.array_equal(nothing, np.zeros((1, 3)))


def test_signed_data_need_semi_nmf():
    rng = np.random.default_rng(0)
    X = rng.random((80, 3)) @ rng.normal(size=(3, 10))
    with pytest.raises(ValueError, match=r"Negative values in data passed to PFCTransformer\); nonnegative=False"):
        PFCTransformer(3).fit(X)
    model = PFCTransformer(3, nonnegative=False, random_state=0, max_iter=500, tol=0).fit(X)
    assert model.reconstruction_err_ < 0.05 * np.linalg.norm(X)
    assert (model.components_ < 0).any()


def test_a_penalty_makes_codes_sparse():
    dense, sparse = (PFCTransformer(8, l1=l1, random_state=0).fit_transform(POSITIVE) for l1 in (0.0, 0.1))
    assert (sparse == 0).mean() > (dense == 0).mean() + 0.1


@pytest.mark.parametrize(
    ("given", "result"), [(np.float32, np.float32), (np.float64, np.float64), (np.int64, np.float64)]
)
def test_the_type_of_the_data_is_kept(given, result):
    model = PFCTransformer(3, random_state=0, tol=1e-2)
    assert model.fit_transform((10 * POSITIVE).astype(given)).dtype == result
    assert model.components_.dtype == result


def test_single_and_double_precision_agree():
    single, double = (
        PFCTransformer(3, random_state=0, max_iter=1000).fit(POSITIVE.astype(kind)) for kind in (np.float32, np.float64)
    )
    assert single.reconstruction_err_ == pytest.approx(double.reconstruction_err_, rel=1e-3)


def test_more_parts_than_features_and_as_many_by_default():
    assert PFCTransformer(15, random_state=0, tol=1e-1).fit(POSITIVE).n_components_ == 15
    assert PFCTransformer(random_state=0, tol=1e-2).fit(POSITIVE).n_components_ == 10
    assert PFCTransformer(None, random_state=0, tol=1e-2).fit(POSITIVE).n_components_ == 10


def test_names_of_features_out():
    model = PFCTransformer(3, random_state=0, tol=1e-2).fit(POSITIVE)
    assert model.get_feature_names_out().tolist() == [f"pfctransformer{k}" for k in range(3)]


def test_a_start_can_be_given():
    rng = np.random.RandomState(0)
    W, H = np.abs(rng.randn(30, 4)), np.abs(rng.randn(4, 10))
    model = PFCTransformer(init="custom", tol=1e-3)
    model.fit_transform(POSITIVE, W=W, H=H)
    assert model.n_components_ == 4
    with pytest.raises(ValueError, match=r"W and H must both be given with init='custom', got no H"):
        model.fit_transform(POSITIVE, W=W)
    with pytest.raises(ValueError, match=r"W must have shape \(30, 4\), got \(29, 4\)"):
        model.fit_transform(POSITIVE, W=W[1:], H=H)
    with pytest.raises(TypeError, match=r"H and W should have the same dtype as X"):
        model.fit_transform(POSITIVE, W=W.astype(np.float32), H=H)
    with pytest.warns(RuntimeWarning, match=r"W and H are used with init='custom' only"):
        PFCTransformer(4, random_state=0, tol=1e-2).fit(POSITIVE, W=W, H=H)
    with pytest.raises(ValueError, match=r"init must be None, 'random' or 'custom', got 'nndsvd'"):
        PFCTransformer(4, init="nndsvd").fit(POSITIVE)


def test_too_few_iterations_are_reported():
    with pytest.warns(ConvergenceWarning, match=r"Maximum number of iterations 1 reached"):
        PFCTransformer(2, max_iter=1).fit(POSITIVE)


def test_tiny_numbers_do_no_harm():
    X = POSITIVE * 1e-150
    model = PFCTransformer(3, random_state=0, tol=1e-2).fit(X)
    assert np.isfinite(model.transform(X)).all() and np.isfinite(model.components_).all()


def test_batches_add_parts_and_can_be_forgotten():
    model = PFCTransformer(3, random_state=0, tol=1e-3)
    model.partial_fit(planted(seed=0), batch_id=4)
    first, size = model.components_, model.scale_.size
    model.partial_fit(10 * planted(seed=1), batch_id=9)
    assert model.n_components_ == 6 and model.scale_.size > 2 * size  # by which all parts are larger now
    assert np.allclose(model.components_[:3], first * (model.scale_.size / size))
    other = copy.deepcopy(model)
    report = other.forget(9)
    assert report.batches == (9,)
    assert np.array_equal(other.components_, first)
    with pytest.raises(ValueError, match=r"X must be non-negative"):
        model.partial_fit(-planted())


def test_held_out_rows_make_recognition_honest():
    X = planted(400)
    model = PFCTransformer(3, random_state=0, validation_fraction=0.25, max_iter=200, tol=0).fit(X)
    assert len(model.held_out_.x) == 100
    noise = np.random.default_rng(0).random((50, 12))
    assert (model.recognition_score(noise) < 0.05).mean() > 0.9
    assert model.recognition_score(planted(200)).mean() > 0.3


def test_amounts_of_a_wrong_number_are_refused():
    model = PFCTransformer(3, random_state=0, tol=1e-2).fit(POSITIVE)
    with pytest.raises(ValueError, match=r"X must have shape \(n, 3\), got \(2, 4\)"):
        model.inverse_transform(np.ones((2, 4)))
