"""What estimators say of their answers adds up to them, whatever the data, and names things."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sklearn.test_common import Frame
from torchpfc.sklearn import PFCClassifier, PFCRegressor

ROWS, FEATURES = 24, 4


def scores_of(model, X):
    """The outputs as `explain` has them, before two classes become one number."""
    y = model.predict(X) if isinstance(model, PFCRegressor) else model.decision_function(X)
    return y[:, None] if y.ndim == 1 else y


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    regression=st.booleans(),
    signed=st.booleans(),
    sizes=st.lists(st.sampled_from([1e-6, 1e-2, 1.0, 1e3, 1e6]), min_size=FEATURES, max_size=FEATURES),
)
def test_explanations_add_up_to_the_answers(seed, regression, signed, sizes):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(ROWS, FEATURES)) if signed else rng.random((ROWS, FEATURES))) * sizes
    options = {"max_iter": 1, "early_stopping": False, "random_state": 0}
    model = PFCRegressor(**options) if regression else PFCClassifier(**options)
    y = 100 * rng.normal(size=ROWS) if regression else rng.permutation(np.arange(ROWS) % 3)
    model.fit(X, y)
    asked = X[:6]
    explanation, scores = model.explain(asked), scores_of(model, asked)
    for row in range(6):
        plain = explanation.to_dict(row)
        for k in range(scores.shape[1]):
            added = [term["contributions"][k] for term in plain["terms"]]
            scale = max(1.0, abs(plain["base"][k]) + sum(map(abs, added)))
            assert abs(plain["base"][k] + sum(added) - scores[row, k]) <= 1e-5 * scale
    rest = explanation.pieces.sum(1) + explanation.rest - explanation.x
    assert (rest.abs() <= 1e-5 * explanation.x.abs().amax(1, keepdim=True) + 1e-12).all()


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
