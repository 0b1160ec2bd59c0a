import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from tests.stored import rewrite
from torchpfc.checkpoint import STATE_FILE, CorruptFileError, states
from torchpfc.sklearn import PFCClassifier, PFCRegressor, PFCTransformer
from torchpfc.sklearn.saving import labels_to_json

# What is looked at here does not need a model that has learned to the end.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def make_model(Estimator):
    X = np.random.default_rng(0).random((60, 5))
    y = np.array(["no", "yes"])[(X[:, 0] > 0.5).astype(int)] if Estimator is PFCClassifier else X[:, 0]
    return X, y, Estimator(n_components=4, random_state=0, max_iter=2, tol=0.0).fit(X, y)


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("Estimator", [PFCClassifier, PFCRegressor, PFCTransformer])
def test_what_is_loaded_is_what_was_saved(Estimator, by_batch, tmp_path):
    X, y, model = make_model(Estimator)
    if by_batch:
        model = Estimator(random_state=0).partial_fit(X[30:], y[30:]).partial_fit(X[:30], y[:30], batch_id=8)
    model.save_pretrained(tmp_path / "model")
    other = Estimator.from_pretrained(tmp_path / "model")
    assert sorted(p.suffix for p in (tmp_path / "model").iterdir()) == [".json", ".safetensors"]
    assert other.get_params() == model.get_params()
    assert np.array_equal(other.codes(X), model.codes(X))
    assert np.array_equal(other.recognition_score(X), model.recognition_score(X))
    if Estimator is not PFCTransformer:
        assert np.array_equal(other.predict(X), model.predict(X))
    if Estimator is PFCClassifier:
        assert np.array_equal(other.predict_proba(X), model.predict_proba(X))
    assert other.ledger_.state_dict() == model.ledger_.state_dict()
    if by_batch:
        for each in (model, other):
            each.forget(8)
            each.partial_fit(X, y)
        assert np.array_equal(other.codes(X), model.codes(X))


@pytest.mark.parametrize(
    "labels", [[3, 7], [0.5, 1.5], [False, True], ["a", "b"]], ids=["int", "float", "bool", "text"]
)
def test_labels_keep_their_type(labels, tmp_path):
    X = np.random.default_rng(0).random((40, 3))
    y = np.array(labels)[(X[:, 0] > 0.5).astype(int)]
    if y.dtype.kind == "f":
        y = y * 2  # continuous numbers are no classes
    PFCClassifier(max_iter=0, random_state=0).fit(X, y).save_pretrained(tmp_path)
    other = PFCClassifier.from_pretrained(tmp_path)
    assert other.classes_.dtype == y.dtype
    assert other.classes_.tolist() == np.unique(y).tolist()


def test_saving_again_replaces_the_model_and_leaves_nothing_behind(tmp_path):
    X, y, model = make_model(PFCClassifier)
    model.save_pretrained(tmp_path)
    model.set_params(n_components=5).fit(X, y).save_pretrained(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert PFCClassifier.from_pretrained(tmp_path).n_components_ == model.n_components_


def test_a_stop_between_the_files_leaves_the_old_model(tmp_path, monkeypatch):
    X, y, model = make_model(PFCClassifier)
    model.save_pretrained(tmp_path)
    before = model.codes(X)
    model.set_params(n_components=5).fit(X, y)
    write = states.write_atomically

    def fail(path, content):
        if path.name == STATE_FILE:
            raise OSError("the disk is full")
        write(path, content)

    monkeypatch.setattr(states, "write_atomically", fail)
    with pytest.raises(OSError, match="the disk is full"):
        model.save_pretrained(tmp_path)
    assert np.array_equal(PFCClassifier.from_pretrained(tmp_path).codes(X), before)


def test_corrupt_files_are_named(tmp_path):
    _, _, model = make_model(PFCClassifier)
    model.save_pretrained(tmp_path)
    path, tensors = tmp_path / "state.json", next(tmp_path.glob("*.safetensors"))
    text, data = path.read_text(), tensors.read_bytes()

    tensors.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptFileError, match=rf"{tensors.name} must have the checksum"):
        PFCClassifier.from_pretrained(tmp_path)
    tensors.unlink()
    with pytest.raises(CorruptFileError, match=rf"must hold the tensors that state.json names .*{tensors.name}"):
        PFCClassifier.from_pretrained(tmp_path)
    tensors.write_bytes(data)

    path.write_text(text[: len(text) // 2])
    with pytest.raises(CorruptFileError, match=r"state.json must hold JSON"):
        PFCClassifier.from_pretrained(tmp_path)
    for broken in (
        {"params": {"colour": "red"}},
        {"extra": {}},
        {"scale": None},
        {"block": {}},
        {"weights": {}},
    ):
        path.write_text(text)
        rewrite(tmp_path, lambda content: content["state"].update(broken))  # noqa: B023
        with pytest.raises(CorruptFileError, match=r"must hold (an estimator|a checkpoint)") as found:
            PFCClassifier.from_pretrained(tmp_path)
        assert "\n" not in str(found.value)
    path.write_text(text)
    rewrite(tmp_path, lambda content: content["state"].update(format=99))
    with pytest.raises(CorruptFileError, match=r"must have format 2, got 99"):
        PFCClassifier.from_pretrained(tmp_path)


EARLIER = Path(__file__).parents[1] / "fixtures" / "0.1.0" / "estimators"


def test_saving_over_a_model_of_version_0_1_0_leaves_nothing_of_it(tmp_path):
    shutil.copytree(EARLIER / "PFCClassifier", tmp_path / "model")
    model = PFCClassifier.from_pretrained(tmp_path / "model")
    x = np.random.default_rng(0).random((5, 6))
    model.save_pretrained(tmp_path / "model")
    assert len(list((tmp_path / "model").iterdir())) == 2 and not (tmp_path / "model" / "config.json").exists()
    assert np.array_equal(PFCClassifier.from_pretrained(tmp_path / "model").predict_proba(x), model.predict_proba(x))


def test_a_config_of_version_0_1_0_cannot_name_a_file_elsewhere(tmp_path):
    shutil.copytree(EARLIER / "PFCClassifier", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    content = json.loads(path.read_text())
    (tmp_path / "model" / content["tensors"]).rename(tmp_path / content["tensors"])
    path.write_text(json.dumps({**content, "tensors": f"../{content['tensors']}"}))
    with pytest.raises(CorruptFileError, match=r"must hold the tensors that config.json names .*Expected `str`"):
        PFCClassifier.from_pretrained(tmp_path / "model")


def test_what_a_block_was_fitted_with_comes_back_though_parameters_have_changed(tmp_path):
    X, _, model = make_model(PFCClassifier)
    codes = model.codes(X)
    model.set_params(l1=5.0, inference_steps=1).save_pretrained(tmp_path)
    other = PFCClassifier.from_pretrained(tmp_path)
    assert (other.l1, other.inference_steps) == (5.0, 1) and np.array_equal(other.codes(X), codes)


def test_what_cannot_be_saved_or_loaded_is_said(tmp_path):
    _, _, model = make_model(PFCClassifier)
    with pytest.raises(FileNotFoundError, match=r"folder must hold a state.json that save_pretrained wrote"):
        PFCClassifier.from_pretrained(tmp_path)
    with pytest.raises(NotFittedError):
        PFCClassifier().save_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"folder must hold a PFCRegressor, got a PFCClassifier"):
        PFCRegressor.from_pretrained(tmp_path / "model")
    model.random_state = np.random.RandomState(0)
    with pytest.raises(TypeError, match=r"random_state must be a plain value to be saved as JSON"):
        model.save_pretrained(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_names_and_plain_numbers_of_any_kind_are_saved(tmp_path):
    X, y, _ = make_model(PFCClassifier)
    model = PFCClassifier(np.int64(4), l1=np.float32(0.5), max_iter=0, random_state=0, device=torch.device("cpu")).fit(
        X, y
    )
    model.feature_names_in_ = np.array(list("abcde"), dtype=object)
    model.save_pretrained(tmp_path)
    other = PFCClassifier.from_pretrained(tmp_path)
    assert other.feature_names_in_.tolist() == list("abcde")
    assert (other.n_components, other.l1, other.device) == (4, 0.5, "cpu")


def test_labels_that_json_does_not_know_are_refused():
    with pytest.raises(TypeError, match=r"classes must be numbers, strings or booleans to be saved, got \['tuple'\]"):
        labels_to_json(np.array([(1, 2), None], dtype=object)[:1])
