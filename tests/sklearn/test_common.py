"""scikit-learn's own checks, all of them, and what its users do with any estimator."""

import importlib.util
import pickle
import sys

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import torchpfc.sklearn
from torchpfc.sklearn import PFCClassifier, PFCRegressor, PFCTransformer

ESTIMATORS = [PFCClassifier, PFCRegressor, PFCTransformer]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # what NMF says too, of 200 iterations
@parametrize_with_checks(
    [
        PFCClassifier(max_iter=2),
        PFCRegressor(max_iter=2),
        PFCTransformer(),
        PFCTransformer(nonnegative=False, max_iter=50),
    ]
)
def test_every_check_of_scikit_learn_passes(estimator, check):
    check(estimator)


def make_data(seed: int = 0, n: int = 60):
    rng = np.random.default_rng(seed)
    X = rng.random((n, 8))
    return X, (X[:, 0] > X[:, 1]).astype(int)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_the_same_seed_gives_the_same_model_and_another_seed_another(Estimator):
    X, y = make_data()
    first, second, third = (Estimator(n_components=6, random_state=seed).fit(X, y) for seed in (0, 0, 1))
    assert np.array_equal(first.components_, second.components_)
    assert not np.allclose(first.components_, third.components_)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
@pytest.mark.parametrize("copy", [lambda m: pickle.loads(pickle.dumps(m)), "joblib"], ids=["pickle", "joblib"])
def test_a_copy_goes_on_as_the_original(Estimator, copy, tmp_path):
    X, y = make_data()
    model = Estimator(n_components=6, random_state=0).partial_fit(X, y)
    if copy == "joblib":
        joblib.dump(model, tmp_path / "model")
        other = joblib.load(tmp_path / "model")
    else:
        other = copy(model)
    for each in (model, other):
        each.partial_fit(X[:30], y[:30])
    assert np.array_equal(model.codes(X), other.codes(X))
    assert other.ledger_.batches == [0, 1]


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_a_clone_has_the_settings_and_nothing_else(Estimator):
    X, y = make_data()
    model = clone(Estimator(n_components=3, l1=0.02).fit(X, y))
    assert model.get_params()["l1"] == 0.02
    assert not hasattr(model, "block_")


def test_estimators_work_in_pipelines_and_searches(digits):
    X, _, y, _ = digits
    X, y = X[:300], y[:300]
    parts = make_pipeline(MinMaxScaler(), PFCTransformer(12, random_state=0, tol=1e-2), PFCClassifier(max_iter=0))
    assert cross_val_score(parts, X, y, cv=2).mean() > 0.6
    search = GridSearchCV(
        make_pipeline(StandardScaler(), PFCRegressor(max_iter=0, random_state=0)),
        {"pfcregressor__n_components": [2, 40]},
        cv=2,
    ).fit(X, y)
    assert search.best_params_ == {"pfcregressor__n_components": 40}


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_progress_is_printed_when_asked_for(Estimator, capsys):
    X, y = make_data()
    Estimator(n_components=3, verbose=1, random_state=0).fit(X, y)
    assert f"[{Estimator.__name__}] " in capsys.readouterr().out
    Estimator(n_components=3, random_state=0).fit(X, y)
    assert capsys.readouterr().out == ""


class Frame:
    """As much of a data frame as scikit-learn asks for."""

    def __init__(self, values, columns):
        from narwhals import Implementation

        self.values, self.columns, self.shape = values, list(columns), values.shape
        self._implementation = Implementation.UNKNOWN

    def __narwhals_dataframe__(self):
        return self

    def _with_version(self, version):
        self._version = version
        return self

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_names_of_features_are_kept_and_compared(Estimator):
    X, y = make_data()
    names = [f"f{k}" for k in range(8)]
    model = Estimator(n_components=3, random_state=0).fit(Frame(X, names), y)
    assert model.feature_names_in_.tolist() == names
    model.codes(Frame(X, names))
    with pytest.raises(ValueError, match="feature names should match"):
        model.codes(Frame(X, names[::-1]))


@pytest.mark.parametrize("Estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, r"n_components must be at least 1, got 0"),
        ({"n_components": "many"}, r"n_components must be an int or 'auto', got 'many'"),
        ({"l1": -1.0}, r"l1 must be at least 0, got -1.0"),
        ({"validation_fraction": 0.7}, r"validation_fraction must be at least 0 and at most 0.5, got 0.7"),
        ({"nonnegative": "yes"}, r"nonnegative must be True.* or .*, got 'yes'"),
        ({"device": "nowhere"}, r"device must name a device of PyTorch or be None, got 'nowhere'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(Estimator, settings, message):
    X, y = make_data()
    with pytest.raises(ValueError, match=message):
        Estimator(**settings).fit(X, y)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_settings_of_a_wrong_type_are_refused(Estimator):
    X, y = make_data()
    with pytest.raises(TypeError, match=r"max_iter must be an int, got 2.5"):
        Estimator(max_iter=2.5).fit(X, y)
    with pytest.raises(TypeError, match=r"tol must be a number, got 'small'"):
        Estimator(tol="small").fit(X, y)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_a_device_that_is_not_there_is_refused(Estimator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    X, y = make_data()
    with pytest.raises(ValueError, match=r"device must be one that is there, got 'cuda' and no CUDA device"):
        Estimator(device="cuda").fit(X, y)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # three iterations are few
@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_a_gpu_gives_what_the_cpu_gives(Estimator, tmp_path):
    X, y = make_data()
    settings = {"n_components": 6, "random_state": 0, "max_iter": 3}
    here, there = Estimator(**settings).fit(X, y), Estimator(**settings, device="cuda").fit(X, y)
    assert there.block_.weight_x.is_cuda
    assert np.allclose(here.reconstruct(X), there.reconstruct(X), atol=1e-3)
    there.save_pretrained(tmp_path)
    assert np.allclose(Estimator.from_pretrained(tmp_path, device="cpu").codes(X), there.codes(X), atol=1e-6)
    assert np.allclose(there.explain(X).h.numpy(), there.codes(X))


def test_a_missing_package_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    spec = importlib.util.spec_from_file_location("without_sklearn", torchpfc.sklearn.__file__)
    with pytest.raises(
        ModuleNotFoundError, match=r'torchpfc.sklearn needs scikit-learn .*pip install "torchpfc\[sklearn\]"'
    ):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_data_frames_go_in_and_come_out():
    pandas = pytest.importorskip("pandas")
    X, y = make_data()
    frame = pandas.DataFrame(X, columns=[f"f{k}" for k in range(8)])
    labels = pandas.Series(np.array(["no", "yes"])[y])
    model = PFCClassifier(n_components=6, max_iter=0, random_state=0).fit(frame, labels)
    assert set(model.predict(frame)) <= {"no", "yes"}
    assert model.feature_names_in_.tolist() == list(frame.columns)
    codes = PFCTransformer(3, random_state=0, tol=1e-2).set_output(transform="pandas").fit_transform(frame)
    assert list(codes.columns) == ["pfctransformer0", "pfctransformer1", "pfctransformer2"]
    assert (codes.index == frame.index).all()
