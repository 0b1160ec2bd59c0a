import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchpfc.sklearn import NearestMeanClassifier, RandomFeaturesClassifier, StreamingLDAClassifier

BASELINES = [NearestMeanClassifier(), StreamingLDAClassifier(), RandomFeaturesClassifier(60, random_state=0)]
X, NUMBERS = load_iris(return_X_y=True)
Y = np.array(["setosa", "versicolor", "virginica"])[NUMBERS]


@parametrize_with_checks(BASELINES)
def test_every_check_of_scikit_learn_passes(estimator, check):
    check(estimator)


@pytest.mark.parametrize("model", BASELINES, ids=lambda model: type(model).__name__)
def test_classes_may_come_one_after_another_in_any_order(model):
    at_once = clone(model).fit(X, Y)
    staged = clone(model)
    for own in (NUMBERS == 2, NUMBERS == 0, NUMBERS == 1):
        staged = pickle.loads(pickle.dumps(staged.partial_fit(X[own], Y[own])))
    assert staged.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert at_once.score(X, Y) > 0.9 and staged.score(X, Y) > 0.9
    if not isinstance(model, RandomFeaturesClassifier):  # of which the first batch decides the width of the kernel
        assert np.allclose(staged.decision_function(X), at_once.decision_function(X))
    staged.partial_fit(X[:3], ["amaryllis"] * 3)  # in front of those that are known
    assert staged.classes_.tolist()[0] == "amaryllis" and staged.score(X[3:], Y[3:]) > 0.6


@pytest.mark.parametrize("model", BASELINES, ids=lambda model: type(model).__name__)
def test_a_class_that_was_only_announced_has_a_score_and_is_not_the_answer(model):
    model = clone(model).partial_fit(X[:50], Y[:50], classes=np.unique(Y))
    assert model.decision_function(X[:2]).shape == (2, 3)
    assert set(model.predict(X[:50])) == {"setosa"}


def test_one_class_is_enough_in_stages_and_too_little_at_once():
    model = NearestMeanClassifier().partial_fit(X[:50], Y[:50])
    assert set(model.predict(X)) == {"setosa"} and model.decision_function(X).shape == (150, 1)
    with pytest.raises(ValueError, match=r"y must hold at least two classes, got 1 class"):
        NearestMeanClassifier().fit(X[:50], Y[:50])
