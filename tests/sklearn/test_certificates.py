"""Estimators forget exactly by default, and their certificates can be checked by a stranger."""

import copy
import dataclasses

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from torchpfc.checkpoint import CorruptFileError
from torchpfc.cli import main
from torchpfc.sklearn import PFCClassifier, PFCRegressor, PFCTransformer
from torchpfc.sklearn.verify import verify_estimator
from torchpfc.unlearning import Certificate, fingerprint, save_batch

NAMES = ("mo", 3, ("tu", 1), 0.5)
KINDS = {
    PFCClassifier: {"parts_per_batch": 4},
    PFCRegressor: {"parts_per_batch": 3},
    PFCTransformer: {"parts_per_batch": 2, "max_iter": 5, "tol": 0.0, "scale": "features"},
}


def batch_of(kind, seed, count=24):
    """A batch, the first of which is a thousand times as large as the others."""
    rng = np.random.default_rng(seed)
    X = rng.random((count, 4)) * (1000.0 if seed == 0 else 1.0)
    y = {PFCClassifier: np.array(["a", "b", "c"])[np.arange(count) % 3], PFCRegressor: X.sum(1) + rng.random(count)}
    return (X, y[kind]) if kind in y else (X,)


def taught(kind, seeds, random_state=0, **params):
    model = kind(random_state=random_state, **KINDS[kind] | params)
    for seed in seeds:
        model.partial_fit(*batch_of(kind, seed), batch_id=NAMES[seed])
    return model


def assert_same(one, other):
    assert fingerprint(one.bits()) == fingerprint(other.bits())
    X = batch_of(type(one), 9)[0]
    asks = ("codes", "reconstruct", "recognition_score", "predict", "predict_proba", "transform")
    for ask in asks:
        if hasattr(one, ask):
            assert np.array_equal(getattr(one, ask)(X), getattr(other, ask)(X)), ask


@pytest.mark.parametrize("gone", [[0], [1], [3], [0, 2]], ids=["first", "middle", "last", "several"])
@pytest.mark.parametrize("state", [0, "RandomState", None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_poisoned_batch_leaves_with_all_that_came_of_it(kind, state, gone):
    models = []
    for seeds in (range(4), [seed for seed in range(4) if seed not in gone]):
        np.random.seed(5)  # what None stands for
        random_state = np.random.RandomState(3) if state == "RandomState" else state
        models.append(taught(kind, seeds, random_state))
    model, never = models
    certificate = model.forget([NAMES[seed] for seed in gone])
    assert certificate.how == "remove" and certificate.exact
    assert_same(model, never)
    for each in models:
        each.partial_fit(*batch_of(kind, 7), batch_id="later")
    assert_same(model, never)


@settings(max_examples=5, phases=(Phase.generate,), deadline=None)
@given(st.permutations(range(4)), st.sets(st.integers(0, 3), max_size=3), st.booleans(), st.booleans())
def test_any_batches_of_any_stream_of_a_classifier_were_never_there(order, gone, announced, weighted):
    models = []
    for seeds in (order, [seed for seed in order if seed not in gone]):
        models.append(PFCClassifier(random_state=1, **KINDS[PFCClassifier]))
        for seed in seeds:
            X, y = batch_of(PFCClassifier, seed, count=5 + 9 * seed)
            rows = y != "abc"[seed - 1] if seed else np.isin(y, ["a", "b", "c"])
            weight = np.random.default_rng(seed).random(rows.sum()) if weighted else None
            options = {"classes": list("abcd")} if announced else {}
            models[-1].partial_fit(X[rows], y[rows], sample_weight=weight, batch_id=NAMES[seed], **options)
    model, never = models
    assert model.forget({NAMES[seed] for seed in gone}).exact
    assert_same(model, never)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_asked_once_however_often_all_is_forgotten(kind):
    model, never = (taught(kind, [], np.random.RandomState(3)) for _ in range(2))
    model.partial_fit(*batch_of(kind, 0), batch_id="a")
    model.forget("a")
    for each in (model, never):
        each.partial_fit(*batch_of(kind, 1), batch_id="b")
    assert_same(model, never)


@pytest.mark.parametrize("how", ["remove", "zero"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_of_an_estimator_is_confirmed_by_a_stranger(kind, how, tmp_path, capsys):
    model = taught(kind, [])
    for seed, name in enumerate(NAMES):
        X, *y = batch_of(kind, seed)
        given = {} if kind is PFCTransformer or seed != 1 else {"sample_weight": np.arange(24.0)}
        y = [y[0].astype(object)] if kind is PFCClassifier else y
        model.partial_fit(X.tolist() if seed == 2 else X, *y, batch_id=name, **given)
        save_batch(tmp_path / f"{seed}.npz", X, *y, **({"weight": given["sample_weight"]} if given else {}))
    certificate = model.forget(["mo", 0.5], how=how)
    certificate.save(tmp_path / "certificate.json")
    assert Certificate.load(tmp_path / "certificate.json") == certificate
    assert main(["verify", str(tmp_path / "certificate.json"), "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("confirmed: ") == 3
    wrong = dataclasses.replace(certificate, settings=certificate.settings | {"classes": None}, sha256_before="0" * 64)
    assert not verify_estimator(wrong, tmp_path).holds
    text = (tmp_path / "certificate.json").read_text()
    (tmp_path / "certificate.json").write_text(text.replace('"rows": 24', '"rows": 25', 1))
    with pytest.raises(CorruptFileError, match="must be as it was written"):
        Certificate.load(tmp_path / "certificate.json")
    assert "optimizer" not in str(certificate) and "gradient" not in str(certificate)


def test_what_was_saved_and_loaded_is_certified_too(tmp_path):
    for kind in KINDS:
        model = taught(kind, range(3))
        model.save_pretrained(tmp_path / kind.__name__)
        other = kind.from_pretrained(tmp_path / kind.__name__)
        one, two = (each.forget("mo") for each in (model, other))
        assert one == two and len(one.learned) == 3 and "'mo'" not in str(model.bits())


@pytest.mark.parametrize("kind", KINDS)
def test_parts_that_were_forgotten_do_not_count(kind):
    model = taught(kind, range(3))
    before, X = model.n_components_, batch_of(kind, 9)[0]
    gone = model.forget(3, how="zero").num_columns
    assert gone > 0 and model.n_components_ == before - gone
    assert model.codes(X).shape == (24, before) == (24, len(model.components_))
    if kind is PFCTransformer:
        assert model.inverse_transform(model.transform(X)).shape == X.shape
        assert len(model.get_feature_names_out()) == before


def test_a_tuple_is_a_name_or_several():
    for kind in KINDS:
        model = taught(kind, range(4))
        assert model.forget(("tu", 1)).batches == (("tu", 1),)
        assert model.forget((3, 0.5)).batches == (3, 0.5)
        again = taught(kind, range(2))
        assert again.forget(again._taught.batches).batches == NAMES[:2]
        assert taught(kind, range(2)).forget(name for name in ["mo"]).batches == ("mo",)


@pytest.mark.parametrize("how", ["remove", "zero"])
def test_a_class_that_was_forgotten_has_no_probability(how):
    X, y = batch_of(PFCClassifier, 1)
    model = PFCClassifier(random_state=0)
    for label in "abc":
        model.partial_fit(X[y == label], y[y == label], classes=list("abc"), batch_id=label)
    model.forget("b", how=how)
    assert model.classes_.tolist() == list("abc") and (model.predict_proba(X)[:, 1] == 0).all()
    assert (model.decision_function(X)[:, 1] == -np.inf).all() and not (model.predict(X) == "b").any()
    assert (model.predict_log_proba(X)[:, 1] == -np.inf).all()
    assert np.allclose(model.predict_proba(X).sum(1), 1)
    with pytest.raises(ValueError, match=r"batches must leave at least one, got all 2"):
        model.forget(("a", "c"), how="zero")


def test_an_example_that_waits_can_be_forgotten_and_is_no_part():
    X, y = batch_of(PFCClassifier, 1)
    model = PFCClassifier(random_state=0, wait=True).partial_fit(X[:1], y[:1], batch_id="alone")
    certificate = copy.deepcopy(model).forget("alone")
    assert certificate.exact and certificate.num_columns == 0
    model.partial_fit(X[1:], y[1:], batch_id="others")
    assert model.forget(["alone", "others"]).exact


def test_fit_is_not_certified_as_exact():
    X, y = batch_of(PFCClassifier, 1)
    model = PFCClassifier(random_state=0, max_iter=0).fit(X, y)
    certificate = model.forget(0, how="reinitialize")
    assert not certificate.exact and "by gradients" in certificate.not_guaranteed[0]
    assert "optimizer" not in str(certificate) and certificate.learner == "PFCClassifier"
    assert not verify_estimator(certificate, "nowhere").holds


def test_parameters_without_a_plain_form_are_named():
    X, y = batch_of(PFCClassifier, 1)
    model = PFCClassifier(random_state=0, class_weight={"a": 2.0, "b": 1.0, "c": 1.0})
    model.partial_fit(X, y, batch_id=1).partial_fit(X, y, batch_id=2)
    certificate = model.forget(1)
    assert certificate.exact and certificate.settings is None
    assert "class_weight must be a plain value" in certificate.obstacle
