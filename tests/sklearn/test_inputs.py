"""Inputs as people have them: columns in any unit, gaps, sparse ones, of any size, with classes of any weight."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_diabetes, load_wine
from sklearn.preprocessing import StandardScaler

from torchpfc.sklearn import PFCClassifier, PFCRegressor, PFCTransformer
from torchpfc.sklearn.rows import distinct, feature_scale, sketched

FIT = {"random_state": 0}


@pytest.mark.parametrize(("Estimator", "load"), [(PFCClassifier, load_wine), (PFCRegressor, load_diabetes)])
def test_a_raw_table_is_learned_as_a_standardised_one(Estimator, load):
    X, y = load(return_X_y=True)
    X = X * 10.0 ** np.arange(X.shape[1])  # no two columns of one size
    scaled = StandardScaler().fit_transform(X)
    models = [Estimator(**FIT).fit(given[::2], y[::2]) for given in (X, scaled)]
    scores = [model.score(given[1::2], y[1::2]) for model, given in zip(models, (X, scaled), strict=True)]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)
    assert scores[0] > (0.9 if Estimator is PFCClassifier else 0.35)
    explanation = models[0].explain(X[:3])  # in the units of the table, around the medians
    assert np.allclose(explanation.x.numpy() + np.median(X[::2], 0), X[:3], rtol=0.2)
    assert np.allclose(models[0].reconstruct(X).std(0) / X.std(0), 1, atol=0.5)


def test_what_has_one_unit_is_told_from_what_has_many():
    rng = np.random.default_rng(0)
    pixels, counts = rng.random((100, 64)), rng.poisson(0.3 * rng.random(40), (200, 40)).astype(float)
    table = rng.random((100, 20)) * 10.0 ** np.arange(20)
    for x, features in [(pixels, False), (counts, False), (table, True), (-pixels, True), (pixels[:, :8], True)]:
        assert (feature_scale(sketched(x), "auto", around_zero=False) is not None) == features
    assert feature_scale(sketched(table), "common", around_zero=False) is None
    assert (feature_scale(sketched(pixels), "features", around_zero=True).center == 0).all()


@pytest.mark.parametrize("Estimator", [PFCClassifier, PFCRegressor])
@pytest.mark.parametrize("scale", ["features", "common"])
def test_gaps_are_left_out(Estimator, scale):
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X) if scale == "common" else X
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    model = Estimator(**FIT, scale=scale).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.8
    nothing = np.full((1, 13), np.nan)
    for ask in (model.predict, model.reconstruct, model.codes, model.recognition_score):
        assert np.isfinite(ask(X)).all() and np.isfinite(ask(nothing)).all()
    explanation = model.explain(X[:5])
    assert np.allclose(explanation.base + explanation.contributions.sum(2), explanation.y, atol=1e-5)


@pytest.mark.parametrize("Estimator", [PFCClassifier, PFCRegressor, PFCTransformer])
def test_sparse_arrays_are_taken(Estimator):
    rng = np.random.default_rng(0)
    X, y = rng.random((60, 20)) * (rng.random((60, 20)) < 0.3), np.arange(60) % 2
    settings = {"random_state": 0, "max_iter": 50} if Estimator is PFCTransformer else FIT
    dense, sparse = (Estimator(n_components=4, **settings, **TOL[Estimator]).fit(x, y) for x in (X, csr_array(X)))
    assert np.array_equal(dense.codes(X), sparse.codes(csr_array(X)))
    fresh = Estimator(random_state=0, **TOL[Estimator])
    assert np.isfinite(fresh.partial_fit(csr_array(X), y).codes(csr_array(X))).all()


TOL = {PFCClassifier: {}, PFCRegressor: {}, PFCTransformer: {"tol": 1e-2}}


@pytest.mark.parametrize("Estimator", [PFCClassifier, PFCRegressor])
@pytest.mark.parametrize("scale", ["features", "common"])
@pytest.mark.parametrize("size", [2.0**-990, 2.0**600])  # about 1e-298 and 1e180; exact, so that nothing rounds anew
def test_the_size_of_inputs_changes_nothing(Estimator, scale, size):
    X, y = load_wine(return_X_y=True)
    one, other = (Estimator(**FIT, scale=scale).fit(x, y) for x in (X, size * X))
    assert np.allclose(one.predict(X), other.predict(size * X), rtol=1e-4)
    assert np.isfinite(other.components_).all() and np.isfinite(other.recognition_score(size * X)).all()
    if Estimator is PFCClassifier:
        one, other = (Estimator(random_state=0, scale=scale).partial_fit(x, y) for x in (X, size * X))
        assert np.allclose(one.predict_proba(X), other.predict_proba(size * X), atol=1e-4)


@pytest.mark.parametrize("scale", ["features", "common", "auto", None])
def test_columns_that_say_nothing_do_no_harm(scale):
    X, y = load_wine(return_X_y=True)
    X[:, 3], X[:, 5] = 7.0, np.nan
    for model in (PFCClassifier(**FIT, scale=scale).fit(X, y), PFCRegressor(**FIT, scale=scale).fit(X, y)):
        assert np.isfinite(model.predict(X)).all() and np.isfinite(model.components_).all()
    model = PFCClassifier(scale=scale).partial_fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all() and np.isfinite(model.components_).all()


def test_a_class_counts_what_it_is_given():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = (X[:, 0] + rng.normal(size=400) > 1.5).astype(int)  # few of the second
    found = [
        PFCClassifier(**FIT, class_weight=weight).fit(X, y).predict(X).mean()
        for weight in ({0: 20, 1: 1}, None, "balanced")
    ]
    assert found[0] < found[1] < found[2]


def test_rows_are_sorted_by_value_so_that_units_do_not_matter():
    X = np.random.default_rng(0).normal(size=(50, 3))
    X[::5, 0] = np.nan
    y = np.arange(50.0)[:, None]
    for dtype in (np.float32, np.float64):
        x, _, _ = distinct(X.astype(dtype), y, np.ones(50))
        order = np.lexsort(X.astype(dtype).T[::-1])
        assert np.array_equal(x, X.astype(dtype)[order], equal_nan=True)


def test_an_input_may_have_several_labels(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)) * [1, 100, 1e-3, 1, 1]
    Y = (X > 0).astype(int)[:, :3]
    model = PFCClassifier(random_state=0).fit(X[:300], Y[:300])
    probability = model.predict_proba(X[300:])
    assert probability.shape == (100, 3) and ((probability > 0.5) == model.predict(X[300:])).all()
    assert (model.predict(X[300:]) == Y[300:]).mean() > 0.85
    assert ((model.decision_function(X[300:]) > 0) == model.predict(X[300:])).all()
    assert np.allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    assert abs(probability.mean() - Y[300:].mean()) < 0.05
    assert "Answer" not in str(model.explain(X[:1]))
    model.save_pretrained(tmp_path)
    assert np.array_equal(PFCClassifier.from_pretrained(tmp_path).predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match=r"y must hold zeros and ones where it has several columns, got \[0, 1, 2\]"):
        PFCClassifier().fit(X, Y + Y[:, ::-1])
