import copy

import numpy as np
import pytest
from sklearn.datasets import make_friedman1
from sklearn.linear_model import LinearRegression

from torchpfc.sklearn import PFCRegressor

# What is looked at here does not need a model that has learned to the end.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def bent(n: int = 400, seed: int = 0, *, signed: bool = True):
    """Two outputs, bent and not."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) if signed else rng.random((n, 3))
    return X, np.stack([np.abs(X[:, 0]) + X[:, 1], 2 * X[:, 2] - 5], 1)


def test_several_outputs_of_signed_inputs_are_learned():
    (X, y), (X_test, y_test) = bent(), bent(seed=1)
    model = PFCRegressor(random_state=0).fit(X, y)
    assert not model.block_.nonnegative
    assert model.predict(X_test).shape == (400, 2)
    assert model.score(X_test, y_test) > 0.9
    assert LinearRegression().fit(X, y).score(X_test, y_test) < model.score(X_test, y_test)


def test_non_negative_inputs_are_explained_by_parts_that_only_add():
    (X, y), (X_test, y_test) = bent(signed=False), bent(seed=1, signed=False)
    model = PFCRegressor(random_state=0, scale="common").fit(X, y)
    explanation = model.explain(X_test)
    assert model.block_.nonnegative
    assert (explanation.weight_x >= 0).all() and (explanation.weight_y >= 0).all()
    assert np.allclose(model.base_, y.min(0))
    assert model.score(X_test, y_test) > 0.8


def test_friedman_is_learned():
    X, y = make_friedman1(600, noise=0.5, random_state=0)
    model = PFCRegressor(random_state=0).fit(X[:400], y[:400])
    assert model.predict(X).shape == (600,)
    assert model.score(X[400:], y[400:]) > 0.7


def test_explanations_add_up_to_predictions_in_the_units_of_y():
    X, y = bent()
    model = PFCRegressor(random_state=0, max_iter=2).fit(X, 1000 * y)
    explanation = model.explain(X[:10])
    for i in range(10):
        added = explanation.base.numpy() + sum(
            explanation.h[i, r].item() * explanation.weight_y[:, r].numpy() for r in range(model.n_components_)
        )
        assert np.allclose(added, model.predict(X[i : i + 1])[0], atol=1e-5 * np.abs(1000 * y).max())
    assert explanation.outputs == ("y0", "y1")
    assert "base" in str(explanation[0])


def test_a_weight_of_two_is_the_same_as_two_rows():
    X, y = bent(80)
    weight = np.random.default_rng(0).integers(0, 3, 80)
    settings = {"n_components": 10, "max_iter": 3, "random_state": 0}
    weighted = PFCRegressor(**settings).fit(X, y, sample_weight=weight)
    repeated = PFCRegressor(**settings).fit(X.repeat(weight, 0), y.repeat(weight, 0))
    assert np.array_equal(weighted.predict(X), repeated.predict(X))


def test_batches_add_up_and_can_be_forgotten():
    X, y = bent(900)
    model = PFCRegressor(random_state=0)
    for k in range(3):
        model.partial_fit(X[300 * k : 300 * k + 300], y[300 * k : 300 * k + 300], batch_id=k)
    X_test, y_test = bent(seed=1)
    before = model.score(X_test, y_test)
    assert before > 0.7
    smaller = copy.deepcopy(model)
    smaller.forget([1, 2])
    alone = PFCRegressor(random_state=0).partial_fit(X[:300], y[:300], batch_id=0)
    assert np.allclose(smaller.predict(X_test), alone.predict(X_test))


def test_outputs_must_stay_the_same():
    X, y = bent(50)
    model = PFCRegressor(random_state=0).partial_fit(X, y)
    with pytest.raises(ValueError, match=r"y must have 2 outputs, as in the first call, got 1"):
        model.partial_fit(X, y[:, 0])
    with pytest.raises(ValueError, match=r"y must be None for a PFCRegressor, which has no classes, got one"):
        model.describe_parts(X, y[:, 0])
    assert len(model.describe_parts(X).columns) == model.n_components_


def test_recognition_knows_the_range_of_the_data():
    X, y = bent(600)
    model = PFCRegressor(random_state=0).fit(X[:400], y[:400])
    assert model.recognition_score(X[400:]).mean() > 0.3
