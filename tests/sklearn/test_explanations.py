"""What estimators say of their answers adds up to them, whatever the data, and names things."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from tests.sklearn.test_common import Frame
from torchpfc.sklearn import PFCClassifier, PFCRegressor

ROWS, FEATURES = 24, 4


def scores_of(model, X):
    """The outputs as `explain` has them, before two classes become one number."""
    y = model.predict(X) if isinstance(model, PFCRegressor) else model.decision_function(X)
    return y[:, None] if y.ndim == 1 else y


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["numbers", "classes", "in stages"]),
    form=st.sampled_from(["whole", "gaps", "sparse"]),
    scale=st.sampled_from(["auto", "features", "common", None]),
    signed=st.booleans(),
    sizes=st.lists(st.sampled_from([1e-6, 1.0, 1e6]), min_size=FEATURES, max_size=FEATURES),
)
def test_explanations_add_up_to_the_answers(seed, kind, form, scale, signed, sizes):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(ROWS, FEATURES)) if signed else rng.random((ROWS, FEATURES))) * sizes
    if form == "gaps":
        X[rng.random(X.shape) < 0.2] = np.nan
    elif form == "sparse":
        X = csr_matrix(np.where(rng.random(X.shape) < 0.5, 0.0, X))
    model = make_model(kind, X, rng, scale)
    asked = X[:6]
    explanation, scores = model.explain(asked), scores_of(model, asked)
    for row in range(6):
        plain = explanation.to_dict(row)
        for k in range(scores.shape[1]):
            added = [term["contributions"][k] for term in plain["terms"]]
            most = max(1.0, abs(plain["base"][k]) + sum(map(abs, added)))
            assert abs(plain["base"][k] + sum(added) - scores[row, k]) <= 1e-5 * most
    seen = explanation.x.nan_to_num(nan=0.0)
    rest = (explanation.reconstruction + explanation.rest - explanation.x).nan_to_num(nan=0.0)
    assert (rest.abs() <= 1e-5 * (seen.abs() + explanation.reconstruction.abs()) + 1e-12).all()


def make_model(kind, X, rng, scale):
    if kind == "numbers":
        return PFCRegressor(max_iter=0, scale=scale, random_state=0).fit(X, 100 * rng.normal(size=ROWS))
    model, y = PFCClassifier(max_iter=0, scale=scale, random_state=0), rng.permutation(np.arange(ROWS) % 3)
    if kind == "classes":
        return model.fit(X, y)
    for label in range(3):
        model.partial_fit(X[y == label], y[y == label], classes=range(3))
    return model


def test_features_have_the_names_of_the_columns_or_those_that_are_given():
    rng = np.random.default_rng(0)
    X = rng.random((ROWS, FEATURES))
    y = np.array(["no", "yes"])[(X[:, 0] > 0.5).astype(int)]
    names = ["length", "width", "weight", "age"]
    model = PFCClassifier(4, max_iter=0, random_state=0).fit(Frame(X, names), y)
    with_frame = model.explain(Frame(X[:1], names))
    assert with_frame.features == tuple(names) and with_frame.outputs == ("no", "yes")
    name = with_frame.to_dict()["terms"][0]["name"]
    assert set(name.partition(": ")[2].replace("-", "").split(", ")) <= set(names)
    plain = PFCClassifier(4, max_iter=0, random_state=0).fit(X, y)
    assert plain.explain(X[:1]).features == ()
    assert plain.explain(X[:1], features=np.array(names)).name_of(0).startswith("0: ")


def test_recognition_says_how_small_it_can_get_and_notices_size(digits, fitted):
    X = digits[1]
    smallest = fitted.smallest_p_value_
    assert smallest == pytest.approx(1 / (1 + float(fitted.held_out_.weight.sum())))
    found = fitted.recognition_score(np.concatenate([X[:50], 1000 * X[:50]]))
    assert np.median(found[:50]) > 0.2
    assert found[50:] == pytest.approx(smallest)


def test_recognition_can_say_that_something_is_odd_after_a_hundred_rows_or_a_few_small_batches():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 5)) + 3 * np.eye(5)[np.arange(100) % 5]
    y = np.arange(100) % 5
    odd = 20 * rng.normal(size=(20, 5))
    at_once = PFCClassifier(max_iter=0, random_state=0).fit(X, y)
    staged = PFCClassifier(random_state=0)
    for label in range(5):
        staged.partial_fit(X[y == label], y[y == label])
    for model in (at_once, staged):
        assert model.smallest_p_value_ < 0.05
        assert (model.recognition_score(odd) < 0.05).mean() > 0.8
        assert np.median(model.recognition_score(X)) > 0.2
