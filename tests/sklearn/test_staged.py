"""Regressor and transformer batch by batch: what a batch leaves depends on it alone, so it can be taken out exactly."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.exceptions import NotFittedError

from torchpfc.sklearn import PFCRegressor, PFCTransformer

NAMES = ("mo", 3, ("tu", 1), 0.5, "we")
SIZE = 4
STREAMS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 6, 60]), st.booleans()), min_size=2, max_size=5
)


def batch_of(seed: int, count: int, *, signed: bool, gaps: bool, first: bool = False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, SIZE)) + rng.integers(0, 3, (count, 1))
    X[:, 1] = 7.0  # a constant feature
    if gaps:
        X[rng.random(X.shape) < 0.2] = np.nan
        X[:, 2] = np.nan  # a feature that is never observed
    X = (X if signed else np.abs(X)) * (1000.0 if first else 1.0)
    return X, np.stack([np.nansum(X, 1), rng.normal(size=count)], 1)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def assert_same_bits(one, other, *, features: int = SIZE) -> None:
    assert one.get_params() == other.get_params() and one.block_.nonnegative == other.block_.nonnegative
    for name, value in one.block_.state_dict().items():
        assert torch.equal(value, other.block_.state_dict()[name]), name
    assert one.scale_.size == other.scale_.size and one.scale_.constant == other.scale_.constant
    for name in ("center", "spread"):
        first, second = getattr(one.scale_, name), getattr(other.scale_, name)
        assert (first is None) == (second is None) and (first is None or torch.equal(first, second))
    assert all(same(a.numpy(), b.numpy()) for a, b in zip(one.held_out_, other.held_out_, strict=True))
    for name in ("base_", "output_scale_"):
        assert same(np.array(getattr(one, name, 0)), np.array(getattr(other, name, 0)))
    X = batch_of(99, 9, signed=False, gaps=True)[0][:, :features]
    for ask in ("codes", "reconstruct", "recognition_score", *(("predict",) if hasattr(one, "predict") else ())):
        assert same(getattr(one, ask)(X), getattr(other, ask)(X)) and np.isfinite(getattr(one, ask)(X)).all()
    assert one.ledger_.state_dict() == other.ledger_.state_dict()


def make(Estimator, **given):
    if Estimator is PFCTransformer:
        given = {"parts_per_batch": 2, "max_iter": 5, "tol": 0.0, "scale": "features"} | given
    return Estimator(random_state=3, **given)


@settings(max_examples=8, phases=(Phase.generate,))
@pytest.mark.parametrize("Estimator", [PFCRegressor, PFCTransformer])
@given(
    st.sampled_from(["common", "features", "auto", None]),
    st.booleans(),
    st.booleans(),
    STREAMS,
    st.data(),
)
def test_forgetting_gives_the_bits_of_never_having_seen(Estimator, scale, signed, gaps, stream, data):
    signs = {"nonnegative": not signed} if Estimator is PFCTransformer else {}
    model, never = (make(Estimator, scale=scale, **signs) for _ in range(2))
    kept_one = data.draw(st.integers(0, len(stream) - 1))
    for k, (seed, count, kept) in enumerate(stream):
        X, y = batch_of(seed, count, signed=signed and k % 2 == 0, gaps=gaps, first=k == 0)
        model.partial_fit(X, y, batch_id=NAMES[k])
        if kept or k == kept_one:
            never.partial_fit(X, y, batch_id=NAMES[k])
    gone = [NAMES[k] for k, (_, _, kept) in enumerate(stream) if not (kept or k == kept_one)]
    empty = copy.deepcopy(model)
    empty.forget(gone, how="zero")
    report = model.forget(gone)
    assert report.batches == tuple(gone) and (report.num_columns > 0) == bool(gone)
    assert report.sha256_after != report.sha256_before or not gone
    assert_same_bits(model, never)
    columns = empty._taught.known
    assert torch.equal(empty.block_.weight_x[:, columns], never.block_.weight_x)
    assert torch.equal(empty.block_.weight_y[:, columns], never.block_.weight_y)
    assert not empty.block_.weight_x[:, ~columns].any() and not empty.block_.weight_y[:, ~columns].any()
    X, y = batch_of(5, 12, signed=signed, gaps=gaps)
    for each in (model, never):  # and what comes later is the same too
        each.partial_fit(X, y, batch_id="later")
    assert_same_bits(model, never)


@pytest.mark.parametrize("state", [lambda: 3, lambda: np.random.RandomState(3)])
def test_a_batch_leaves_the_same_whenever_it_comes(state):
    X, y = load_diabetes(return_X_y=True)
    early, late = (PFCRegressor(random_state=state()) for _ in range(2))
    late.partial_fit(X[:100], y[:100], batch_id="a")
    for each in (early, late):
        each.partial_fit(X[100:200], y[100:200], batch_id="b")
    one, other = (each._taught.summaries["b"] for each in (early, late))
    assert torch.equal(one.parts, other.parts) and torch.equal(one.held, other.held)
    late.forget("a")
    assert np.array_equal(early.predict(X), late.predict(X))
    assert 0 < len(one.held) < 20  # a share of them, the others are in means alone
    assert not (one.parts[:10].mT.unsqueeze(1) == torch.tensor(X[100:200])).all(2).any()


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize(("size", "least"), [(60, 0.65), (6, 0.5), (2, 0.4)])
def test_batches_of_any_size_and_order_are_learned_from(sort, size, least):
    X, y = make_friedman1(400, noise=0.5, random_state=0)
    count = {60: 240, 6: 120, 2: 80}[size]
    rows = np.argsort(y[:count], kind="stable") if sort else np.arange(count)
    model = PFCRegressor(random_state=0)
    for own in np.array_split(rows, count // size):
        model.partial_fit(X[own], y[own])
    assert model.score(X[240:], y[240:]) > least


@pytest.mark.parametrize("scale", ["common", "features"])
@pytest.mark.parametrize("size", [2.0**-990, 2.0**600])
def test_the_size_of_numbers_changes_nothing(scale, size):
    X, y = load_diabetes(return_X_y=True)
    one, other = PFCRegressor(random_state=0, scale=scale), PFCRegressor(random_state=0, scale=scale)
    for rows in (slice(0, 60), slice(60, 120)):
        one.partial_fit(X[rows], y[rows])
        other.partial_fit(size * X[rows], size * y[rows])
    assert np.allclose(one.predict(X) * size, other.predict(size * X), rtol=1e-4)
    assert np.isfinite(other.components_).all() and np.isfinite(other.recognition_score(size * X)).all()
    small, large = (PFCTransformer(3, nonnegative=False, scale=scale, random_state=0, max_iter=20) for _ in range(2))
    for rows in (slice(0, 60), slice(60, 120)):
        small.partial_fit(X[rows])
        large.partial_fit(size * X[rows])
    assert np.allclose(small.transform(X), large.transform(size * X), atol=1e-4)


def test_scales_and_base_are_those_of_all_rows():
    X, y = load_diabetes(return_X_y=True)
    model = PFCRegressor(random_state=0, validation_fraction=0)
    for rows in np.array_split(np.argsort(y), 4):
        model.partial_fit(X[rows], y[rows])
    assert model.base_ == pytest.approx(y.mean()) and model.output_scale_ == pytest.approx(y.std())
    seen = model.scale_.encode(torch.tensor(X))[:, :-1]
    assert float(seen.square().sum(1).mean()) == pytest.approx(1.0)
    rows = PFCTransformer(2, random_state=0, max_iter=20).partial_fit(X - X.min()).partial_fit(3 * (X - X.min()))
    assert rows.scale_.size == pytest.approx(np.sqrt(5 * ((X - X.min()) ** 2).sum(1).mean()))


def test_one_negative_batch_gives_signs_to_all_and_takes_them_with_it():
    rng = np.random.default_rng(0)
    X, y = rng.random((60, 3)), rng.random(60)
    model = PFCRegressor(scale="common", random_state=0).partial_fit(X, y)
    before = model.predict(X)
    assert model.block_.nonnegative and model.base_ == y.min()
    model.partial_fit(-X, y, batch_id="signs")
    assert not model.block_.nonnegative and model.base_ == pytest.approx(y.mean())
    model.forget("signs")
    assert model.block_.nonnegative and np.array_equal(model.predict(X), before)


def test_all_can_be_forgotten_and_learning_begins_anew():
    X, y = batch_of(0, 20, signed=True, gaps=False)
    model = make(PFCRegressor).partial_fit(X[:, :3], y[:, 0], batch_id="a")
    with pytest.raises(ValueError, match=r"batches must leave at least one, got all 1; how='remove' takes all of them"):
        model.forget("a", how="zero")
    report = model.forget(["a"])
    assert report.share == 1 and report.sha256_after == "" and "Model after:  sha256 none" in str(report)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert_same_bits(model.partial_fit(X, y), make(PFCRegressor).partial_fit(X, y))


@pytest.mark.parametrize("Estimator", [PFCRegressor, PFCTransformer])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bad_calls_are_refused_and_change_nothing(Estimator):
    X, y = batch_of(0, 30, signed=False, gaps=False)
    signless = {"nonnegative": True, "max_iter": 2, "n_components": 2}
    fitted, taught = make(Estimator, **signless).fit(X, y), make(Estimator, **signless)
    taught.partial_fit(X, y, batch_id=("a", 1))
    for error, message, inputs, name in [
        (ValueError, r"X must be non-negative for non-negative parts, got an entry of -", -X, "b"),
        (ValueError, r"must be non-negative|X has 3 features", -X[:, :3], "b"),
        (ValueError, r"contains infinity", X * np.inf, "b"),
        (ValueError, r"batch must be a new name, got \('a', 1\), which was learned from", X, ("a", 1)),
        (TypeError, r"batch must be hashable, got \[1\]", X, [1]),
    ]:
        for model in (fitted, taught) if name == "b" else (taught,):
            before = model.codes(X)
            with pytest.raises(error, match=message):
                model.partial_fit(inputs, y, batch_id=name)
            assert np.array_equal(model.codes(X), before) and model.n_features_in_ == SIZE
    with pytest.raises(ValueError, match=r"batches must have been learned from, got 'b'"):
        taught.forget([("a", 1), "b"])
    with pytest.raises(ValueError, match=r"how must be 'zero' or 'remove' after partial_fit, got 'reinitialize'"):
        taught.forget([("a", 1)], how="reinitialize")
    assert taught.ledger_.batches == [0]


@pytest.mark.parametrize("Estimator", [PFCRegressor, PFCTransformer])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_and_partial_fit_begin_anew_after_each_other(Estimator):
    X, y = batch_of(0, 30, signed=False, gaps=False)
    settings = {"max_iter": 2, "n_components": 2}
    model = make(Estimator, **settings).fit(X, y)
    with pytest.warns(UserWarning, match=r"partial_fit begins anew, without what fit had learned from all rows"):
        model.partial_fit(X[:, :3], y)
    assert not hasattr(model, "reconstruction_err_")
    assert_same_bits(model, make(Estimator, **settings).partial_fit(X[:, :3], y), features=3)
    assert_same_bits(model.fit(X, y), make(Estimator, **settings).fit(X, y))


@pytest.mark.parametrize("Estimator", [PFCRegressor, PFCTransformer])
def test_what_batches_left_is_saved(Estimator, tmp_path):
    model = make(Estimator, **({"nonnegative": False} if Estimator is PFCTransformer else {}))
    for k, count in enumerate([20, 1, 60, 5]):
        X, y = batch_of(k, count, signed=True, gaps=True)
        model.partial_fit(X, y, batch_id=np.int64(3) if k == 1 else NAMES[k])
    model.forget(NAMES[2])
    if Estimator is PFCRegressor:
        model.set_params(l1=0.5)  # what comes back is what was learned before
    model.save_pretrained(tmp_path / "model")
    other = Estimator.from_pretrained(tmp_path / "model")
    assert_same_bits(model, other)
    assert other.ledger_.state_dict() == model.ledger_.state_dict()
    X, y = batch_of(8, 9, signed=True, gaps=True)
    for each in (model, other):
        each.forget([3])
        each.partial_fit(X, y, batch_id=NAMES[2])
    assert_same_bits(model, other)
    model.partial_fit(X, y, batch_id=frozenset({1}))
    with pytest.raises(TypeError, match=r"batch must be text, a number or a tuple of these to be saved"):
        model.save_pretrained(tmp_path / "other")
