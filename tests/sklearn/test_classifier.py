import copy

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torchpfc import ContinualPFC
from torchpfc.sklearn import PFCClassifier

# What is looked at here does not need a model that has learned to the end.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_digits_are_learned_well(fitted, digits):
    _, X, _, y = digits
    assert fitted.score(X, y) >= 0.96
    assert fitted.block_.nonnegative
    assert fitted.n_iter_ >= 1
    assert fitted.components_.shape == (fitted.n_components_, 64)
    assert (fitted.components_ >= 0).all()


def test_signed_tables_are_learned_as_well_as_by_a_linear_model():
    X, y = load_breast_cancer(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)
    model = make_pipeline(StandardScaler(), PFCClassifier(random_state=0)).fit(X, y)
    linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    assert not model[-1].block_.nonnegative
    assert model.score(X_test, y_test) >= linear.score(X_test, y_test) - 0.04


def test_classes_that_differ_in_size_alone_need_the_constant():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = rng.integers(0, 2, 300)
    X *= (1 + 2 * y)[:, None]
    assert PFCClassifier(random_state=0, l1=0.0).fit(X, y).score(X, y) > 0.95
    assert PFCClassifier(random_state=0, l1=0.0, fit_intercept=False).fit(X, y).score(X, y) < 0.75


def test_explanations_add_up_to_the_scores(fitted, digits):
    _, X, _, _ = digits
    explanation = fitted.explain(X[:20])
    scores = fitted.decision_function(X[:20])
    for i in range(20):
        added = sum(
            explanation.h[i, r].item() * explanation.weight_y[:, r].numpy() for r in range(len(fitted.components_))
        )
        assert np.abs(added - scores[i]).max() < 1e-5
    assert explanation.answers == [str(label) for label in fitted.predict(X[:20])]
    assert np.allclose(explanation.reconstruction.numpy() + explanation.rest.numpy(), X[:20])
    assert np.allclose(explanation.reconstruction.numpy(), fitted.reconstruct(X[:20]))
    assert np.allclose(fitted.codes(X[:20]) @ fitted.components_, fitted.reconstruct(X[:20]))
    assert "Answer: " in str(explanation)


def test_probabilities_are_calibrated(fitted, digits):
    _, X, _, y = digits
    found = log_loss(y, fitted.predict_proba(X))
    other = copy.copy(fitted)
    for factor in (0.25, 4.0):
        other.sharpness_ = factor * fitted.sharpness_
        assert log_loss(y, other.predict_proba(X)) > found
    confidence = fitted.predict_proba(X).max(1)
    right = fitted.predict(X) == y
    assert abs(confidence.mean() - right.mean()) < 0.03
    assert confidence[~right].mean() < confidence[right].mean() - 0.1


def test_probabilities_of_two_noisy_classes_follow_the_frequencies():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    y = rng.random(3000) < 1 / (1 + np.exp(-3 * X[:, 0]))
    model = PFCClassifier(random_state=0).fit(X[:1000], y[:1000])
    true, predicted = calibration_curve(y[1000:], model.predict_proba(X[1000:])[:, 1], n_bins=5)
    assert np.abs(true - predicted).max() < 0.12
    assert np.allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))


def test_inputs_unlike_the_training_are_not_recognised(fitted, digits):
    _, X, _, _ = digits
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(X, axis=1)
    like, unlike = fitted.recognition_score(X), fitted.recognition_score(shuffled)
    assert ((like > 0) & (like <= 1)).all()
    assert abs(np.mean(like <= 0.1) - 0.1) < 0.06  # as often as it says
    assert abs(np.mean(like) - 0.5) < 0.1
    assert roc_auc_score(np.repeat([1, 0], len(X)), np.concatenate([like, unlike])) > 0.95
    blank = fitted.recognition_score(np.zeros((1, 64)))
    assert blank < 0.05


def test_a_weight_of_two_is_the_same_as_two_rows(digits):
    X, _, y, _ = digits
    X, y = X[:120], y[:120]
    weight = np.random.default_rng(0).integers(0, 3, 120)
    settings = {"n_components": 20, "max_iter": 3, "random_state": 0}
    weighted = PFCClassifier(**settings).fit(X, y, sample_weight=weight)
    repeated = PFCClassifier(**settings).fit(X.repeat(weight, 0), y.repeat(weight))
    assert np.array_equal(weighted.components_, repeated.components_)
    assert weighted.sharpness_ == repeated.sharpness_
    other = PFCClassifier(**settings).fit(X, y)
    assert not np.allclose(weighted.components_, other.components_)


@pytest.mark.parametrize(
    "names",
    [np.array(["no", "yes"]), np.array([False, True]), np.array([-1, 1]), np.array(["a", "b"], dtype=object)],
    ids=["text", "bool", "int", "object"],
)
def test_labels_may_have_any_type(names):
    rng = np.random.default_rng(0)
    X = rng.random((60, 3))
    y = names[(X[:, 0] > 0.5).astype(int)]
    model = PFCClassifier(random_state=0, max_iter=2, fit_intercept=True).fit(X, y)
    assert model.classes_.tolist() == sorted(names.tolist())
    assert (model.predict(X) == y).mean() > 0.85
    assert model.predict(X).dtype == y.dtype


def test_early_stopping_ends_early_and_keeps_the_best(digits):
    X, _, y, _ = digits
    settings = {"n_components": 30, "max_iter": 60, "learning_rate": 0.05, "random_state": 0}
    stopped = PFCClassifier(**settings, n_iter_no_change=2).fit(X[:400], y[:400])
    assert stopped.n_iter_ < 60
    never = PFCClassifier(**{**settings, "max_iter": 4}, early_stopping=False).fit(X[:400], y[:400])
    assert never.n_iter_ == 4


def test_one_class_after_another_is_kept(by_class, digits):
    X_train, X, y_train, y = digits
    assert by_class.score(X, y) >= 0.96
    perceptron = MLPClassifier(random_state=0)
    for label in range(10):
        for _ in range(20):
            perceptron.partial_fit(X_train[y_train == label], y_train[y_train == label], classes=np.arange(10))
    assert perceptron.score(X, y) < 0.3


def test_a_batch_changes_no_part_that_was_there(digits):
    X, _, y, _ = digits
    model = PFCClassifier(random_state=0).partial_fit(X[:100], y[:100], classes=np.arange(10))
    before = model.components_  # in units of the input; how the model sees them may change
    model.partial_fit(X[100:200], y[100:200])
    assert np.array_equal(model.components_[: len(before)], before)
    assert len(model.components_) > len(before)


def test_forgetting_a_batch_removes_its_parts_and_its_class(by_class, digits):
    _, X, _, y = digits
    model = copy.deepcopy(by_class)
    wrote = sum(map(len, model.ledger_.columns_of([103])))
    report = model.forget(103, how="zero")
    assert report.batches == (103,) and report.num_columns == wrote
    assert model.n_components_ == by_class.n_components_ - wrote and (~model.components_.any(1)).sum() == wrote
    assert not (model.predict(X) == 3).any() and not model.predict_proba(X)[:, 3].any()
    assert (model.predict(X[y != 3]) == y[y != 3]).mean() > 0.95
    assert len(model.held_out_.x) < len(by_class.held_out_.x)
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.recognition_score(X[y == 3]).mean() < 0.35


def test_a_class_can_be_forgotten_and_shown_again(by_class, digits):
    X_train, X, y_train, y = digits
    model = copy.deepcopy(by_class)
    model.forget([100, 105])
    model.partial_fit(X_train[y_train == 0], y_train[y_train == 0], batch_id=200)
    assert (model.predict(X[y == 0]) == 0).mean() > 0.9 and not (model.predict(X) == 5).any()
    with pytest.raises(ValueError, match=r"batch must be a new name, got 200, which was learned from; forget it first"):
        model.partial_fit(X[:5], y[:5], batch_id=200)


@pytest.mark.parametrize("random_state", [3, "a state"])
@pytest.mark.parametrize("gone", [["first"], [("in", "between")], [7.5], ["first", 7.5]])
def test_what_is_forgotten_was_never_there(digits, gone, random_state):
    X, X_test, y, _ = digits
    y = np.array(list("abcdefghij"))[y]
    names = ["first", ("in", "between"), 7.5]
    models = []
    for left_out in ([], gone):
        state = np.random.RandomState(3) if random_state == "a state" else random_state
        models.append(PFCClassifier(random_state=state))
        for k, name in enumerate(names):
            if name not in left_out:
                models[-1].partial_fit(X[80 * k : 80 * k + 80] * 10**k, y[80 * k : 80 * k + 80], batch_id=name)
    model, never = models
    empty = copy.deepcopy(model)
    empty.forget(gone, how="zero")
    model.forget(gone)
    assert np.array_equal(empty.predict_proba(X_test), never.predict_proba(X_test))
    assert np.array_equal(model.classes_, never.classes_) and np.array_equal(model.components_, never.components_)
    for ask in ("predict_proba", "recognition_score", "codes", "reconstruct"):
        assert np.array_equal(getattr(model, ask)(X_test), getattr(never, ask)(X_test))


def test_an_announced_class_that_is_not_known_has_no_probability(digits):
    X, X_test, y, _ = digits
    model = PFCClassifier(random_state=0).partial_fit(X[y < 3], y[y < 3], classes=np.arange(10), batch_id="a")
    probability = model.predict_proba(X_test)
    assert probability.shape == (len(X_test), 10) and not probability[:, 3:].any()
    assert np.allclose(probability.sum(1), 1) and set(model.predict(X_test)) == {0, 1, 2}
    with pytest.raises(ValueError, match=r"batches must leave at least one, got all 1; how='remove' takes all of them"):
        model.forget("a", how="zero")
    model.forget("a")
    with pytest.raises(NotFittedError):
        model.predict(X_test)
    assert model.partial_fit(X[y < 2], y[y < 2]).predict_proba(X_test).shape == (len(X_test), 10)


def test_batches_teach_as_much_as_the_learner_itself(digits):
    X, X_test, y, y_test = digits
    model, learner = PFCClassifier(random_state=0, validation_fraction=0), ContinualPFC(64, scale="auto")
    for c in range(10):
        model.partial_fit(X[y == c], y[y == c])
        learner.learn(X[y == c], y[y == c])
    reached = (learner(X_test).argmax(1).numpy() == y_test).mean()
    assert reached > 0.96 and model.score(X_test, y_test) == pytest.approx(reached, abs=0.01)


def test_what_was_never_learned_or_is_everything_cannot_be_forgotten(by_class, fitted):
    with pytest.raises(ValueError, match=r"batches must have been learned from, got 7"):
        copy.deepcopy(by_class).forget(7)
    with pytest.raises(ValueError, match=r"the columns to forget must leave at least one"):
        copy.deepcopy(fitted).forget(0)


def test_parts_know_their_batches(by_class, digits):
    X, _, y, _ = digits
    report = by_class.describe_parts(X[:200], y[:200])
    for column in report.columns:
        label = int(np.argmax(column.profile))
        assert column.batches == (100 + label,)
        assert column.first_step == label


def test_explanations_after_batches_add_up_to_the_scores(by_class, digits):
    _, X, _, _ = digits
    explanation = by_class.explain(X[:20])
    scores = by_class.decision_function(X[:20])
    assert np.allclose(explanation.base + explanation.contributions.sum(2), scores, atol=1e-5)
    assert explanation.answers == [str(label) for label in by_class.predict(X[:20])]
    assert (explanation.unexplained < 0.5).all()
    rest = np.linalg.norm(by_class.reconstruct(X) - X) / np.linalg.norm(X)
    assert rest < 0.5


def test_bad_calls_are_refused_and_change_nothing():
    X, y = np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
    model = PFCClassifier(random_state=0).partial_fit(X, y, classes=[0, 1])
    before = model.predict_proba(X)
    for message, arguments in [
        (r"classes must be those of the first call \(\[0, 1\]\), got others", (X, y, [0, 1, 2])),
        (r"y must hold labels of classes \(\[0, 1\]\), got \[2\]", (X, y + 1)),
        (r"X has 2 features, but PFCClassifier is expecting 3", (X[:, :2], y)),
        (r"contains infinity", (X * np.inf, y)),
        (r"sample_weight must be finite and non-negative", (X, y, None, -np.ones(20))),
    ]:
        with pytest.raises(ValueError, match=message):
            model.partial_fit(*arguments)
        assert np.array_equal(model.predict_proba(X), before)
    with pytest.raises(ValueError, match=r"y must hold labels like those before \(\[0, 1\]\), got \['a', 'a'\]"):
        PFCClassifier().partial_fit(X, y).partial_fit(X, ["a"] * 20)
    with pytest.raises(ValueError, match=r"y must hold labels that can be sorted, got int and str"):
        PFCClassifier().fit(X, np.array([1, "a"] * 10, dtype=object))
    with pytest.raises(ValueError, match=r"y must hold at least two classes, got 1 class"):
        PFCClassifier().fit(X, np.zeros(20))
    with pytest.raises(ValueError, match=r"fit_intercept must be True, False or 'auto', got 'maybe'"):
        PFCClassifier(fit_intercept="maybe").fit(X, y)
    with pytest.raises(ValueError, match=r"scale must be 'auto', 'features', 'common' or None, got 'robust'"):
        PFCClassifier(scale="robust").fit(X, y)
    with pytest.warns(UserWarning, match=r"partial_fit begins anew, without what fit had learned"):
        PFCClassifier(max_iter=0).fit(X, y).partial_fit(X, y)
    assert PFCClassifier().partial_fit(X, np.zeros(20)).predict(X).tolist() == [0] * 20


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(20), r"sample_weight must hold a weight that is not zero, got zeros only"),
        (-np.ones(20), r"sample_weight must be finite and non-negative"),
        (np.ones(19), r"sample_weight must have shape \(20,\), got \(19,\)"),
    ],
)
def test_bad_weights_are_refused(weight, message):
    X, y = np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
    with pytest.raises(ValueError, match=message):
        PFCClassifier().fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("batches", [1.7, [1.7], np.array([0.0])])
def test_only_whole_numbers_are_forgotten(batches):
    """Cut off, 1.7 would be another batch."""
    X = np.random.default_rng(0).random((30, 4))
    model = PFCClassifier(3, max_iter=0, random_state=0).fit(X, X[:, 0] > 0.5)
    with pytest.raises(TypeError, match="batches must be whole numbers, got "):
        model.forget(batches)
