import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_wine

from torchpfc.checkpoint import CorruptFileError
from torchpfc.data.formats import DataError
from torchpfc.explorer.examples import MOST_EXAMPLES
from torchpfc.explorer.loading import load
from torchpfc.explorer.session import Session
from torchpfc.nn.block import PFCBlock
from torchpfc.optim import RMSpropSLW
from torchpfc.optim.ledger import Ledger
from torchpfc.sklearn import PFCClassifier, PFCRegressor, PFCTransformer
from torchpfc.solvers import FISTA
from torchpfc.unlearning import save_model


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    x, y = load_wine(return_X_y=True)
    folder = tmp_path_factory.mktemp("models") / "wine"
    names = np.array(["red", "white", "rosé"])
    PFCClassifier(n_components=12, max_iter=0, random_state=0).fit(
        (x - x.mean(0)) / x.std(0), names[y]
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A block that learned digits inside a window, with its ledger."""
    x, y = load_digits(return_X_y=True)
    x, target = torch.tensor(x[:400] / 16, dtype=torch.float32), torch.eye(10)[torch.tensor(y[:400])]
    block = PFCBlock(64, 10, 60, solver=FISTA.paper(20), generator=torch.Generator().manual_seed(0))
    optimizer, ledger = RMSpropSLW(block.parameters(), lr=1e-2, width=10, sweep_speed=2), Ledger()
    ledger.watch(optimizer)
    for id, rows in enumerate(torch.arange(400).split(20)):
        out = block.couple(x[rows])
        optimizer.zero_grad()
        ((out.y - target[rows]).square().mean() + (out.x - x[rows]).square().mean()).backward()
        with ledger.batch(id):
            optimizer.step()
    folder = tmp_path_factory.mktemp("models") / "windowed"
    save_model(folder, block, ledger, {"config": {"dataset": "digits"}})
    return folder


def everything(loaded):
    """Asks for all that the page asks for."""
    session = Session(loaded)
    session.parts()
    session.part(0)
    session.time()
    session.list_examples(0, 10, wrong=True)
    view = session.explain(example=0, factors={1: 0.5}, adapt=True)
    total = np.array(view.base) + view.others.contributions + sum(np.array(term.contributions) for term in view.terms)
    assert total == pytest.approx(view.y, abs=1e-5)
    assert 0 < view.recognition <= 1
    return session


def test_an_estimator_brings_the_rows_that_it_held_out(wine):
    session = everything(load(wine))
    model = session.model()
    assert (model.kind, model.name, model.shape) == ("PFCClassifier", "wine", None)
    assert set(model.outputs) == {"red", "white", "rosé"}
    assert model.source == "rows that the model keeps"
    assert model.accuracy.overall > 0.8


def test_a_copy_of_an_estimator_is_whole(wine):
    subject = load(wine).subject
    copied = subject.copy()
    assert copied.block is copied.estimator.block_ is not subject.block
    assert copied.ledger is copied.estimator.ledger_ is not subject.ledger


EARLIER = Path(__file__).parents[1] / "fixtures" / "0.1.0"


def test_what_version_0_1_0_saved_can_be_looked_at():
    session = everything(load(EARLIER / "estimators" / "PFCClassifier"))
    assert session.model().kind == "PFCClassifier"
    assert everything(load(EARLIER / "models" / "unlearning-0")).model().kind == "PFCBlock"


def test_a_second_model_has_other_numbers_everywhere(wine, session):
    first, second = session, Session(load(wine))
    for ask in ("model", "parts", "time", "batches"):
        assert getattr(first, ask)() != getattr(second, ask)()
    assert first.explain(example=0).y != second.explain(example=0).y


def test_one_batch_only_cannot_be_forgotten(wine):
    session = Session(load(wine))
    assert len(session.time().stages) == 1
    with pytest.raises(ValueError, match="must leave at least one"):
        session.preview([0])


def test_a_regressor_has_outputs_but_no_accuracy(tmp_path):
    x, y = load_diabetes(return_X_y=True)
    PFCRegressor(n_components=20, max_iter=0, random_state=0).fit(x, y).save_pretrained(tmp_path / "model")
    model = everything(load(tmp_path / "model")).model()
    assert (model.classes, model.accuracy.overall, model.labelled) == (False, None, False)


def test_a_factorization_takes_gaps(tmp_path):
    x = load_digits(return_X_y=True)[0][:60].copy()
    x[:, 10] = np.nan
    estimator = PFCTransformer(8, max_iter=20, tol=0, random_state=0).fit(x)
    estimator.save_pretrained(tmp_path / "model")
    np.savez(tmp_path / "data.npz", X=x)
    loaded = load(tmp_path / "model", str(tmp_path / "data.npz"))
    session = everything(loaded)
    assert session.model().outputs == ()
    assert not session.can_adapt
    view = session.explain(example=0)
    assert view.input[10] is None
    json.dumps(view.input, allow_nan=False)


def test_names_of_features_are_kept(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, y = load_wine(return_X_y=True)
    frame = pandas.DataFrame(x, columns=[f"f{k}" for k in range(13)])
    PFCClassifier(n_components=6, max_iter=0, random_state=0).fit(frame, y).save_pretrained(tmp_path / "model")
    assert everything(load(tmp_path / "model")).model().features[0] == "f0"


def test_a_block_is_looked_at_with_the_images_that_it_was_trained_on(windowed):
    session = everything(load(windowed))
    model, time = session.model(), session.time()
    assert (model.kind, model.num_examples, model.shape) == ("PFCBlock", 360, (1, 8, 8))
    assert not time.exact
    assert time.stages[-1].accuracy == model.accuracy
    preview = session.preview([5])
    assert preview.report.others_affected
    assert session.forget([5]) == preview
    assert session.explain(example=0).recognition > 0


def test_recognition_of_a_block_is_a_share_of_the_examples(windowed):
    session = Session(load(windowed))
    values = [session.explain(example=k).recognition for k in range(0, 360, 4)]
    assert 0.3 < np.mean(values) < 0.7
    noise = np.random.default_rng(0).random(64).tolist()
    assert session.explain(values=noise).recognition < 0.05


def test_examples_come_from_files(wine, tmp_path):
    x, y = load_wine(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    np.savez(tmp_path / "data.npz", x=np.tile(x, (6, 1)), y=np.tile(np.array(["red", "white", "rosé"])[y], 6))
    loaded = load(wine, str(tmp_path / "data.npz"))
    assert len(loaded.examples) == MOST_EXAMPLES
    assert loaded.examples.source == "data.npz"
    assert Session(loaded).model().accuracy.overall > 0.8


def test_images_in_a_file_keep_their_shape(tmp_path, windowed):
    x, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "data.npz", x=x[:20].reshape(20, 4, 16) / 16, y=y[:20])
    assert load(windowed, str(tmp_path / "data.npz")).examples.shape == (1, 4, 16)
    assert load(windowed, str(tmp_path / "data.npz"), shape=(16, 4)).examples.shape == (1, 16, 4)
    with pytest.raises(DataError, match=r"--shape must be that of 64 numbers, got 5x5"):
        load(windowed, shape=(5, 5))


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"z": np.ones(3)}, "must hold numbers x of shape"),
        ({"x": np.ones(3)}, "must hold numbers x of shape"),
        ({"x": np.array([["a"]])}, "must hold numbers x of shape"),
        ({"x": np.ones((2, 5))}, "must have 13 numbers each, as the model takes them, got 5"),
        ({"x": np.full((2, 13), np.inf)}, "must hold finite numbers"),
        ({"x": np.full((2, 13), np.nan)}, "must have no gaps"),
        ({"x": np.ones((2, 13)), "y": np.array(["red", "green"])}, "must have the classes of the model, .*, got green"),
        ({"x": np.ones((2, 13)), "y": np.array(["red"])}, "must have one y for each of the 2 rows"),
        ({"x": np.array([{}], dtype=object)}, "without pickled objects"),
    ],
)
def test_examples_that_do_not_fit_are_refused(wine, tmp_path, arrays, problem):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError, match=problem):
        load(wine, str(tmp_path / "data.npz"))


def test_a_file_that_is_no_archive_is_refused(wine, tmp_path):
    for content in (b"", b"text", b"PK\x03\x04 damaged"):
        (tmp_path / "data.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"must be an \.npz file"):
            load(wine, str(tmp_path / "data.npz"))
    with pytest.raises(DataError, match=r"--data must be one of digits, .*, or an \.npz file, got 'nothing'"):
        load(wine, "nothing")


def test_negative_examples_do_not_fit_a_model_without_signs(windowed, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.full((2, 64), -1.0))
    with pytest.raises(DataError, match="must not be negative for this model, got -1"):
        load(windowed, str(tmp_path / "data.npz"))
    np.savez(tmp_path / "data.npz", x=np.ones((2, 5)))
    with pytest.raises(DataError, match="must have 64 numbers each"):
        load(windowed, str(tmp_path / "data.npz"))


def test_a_block_that_does_not_say_what_it_learned_needs_examples(tmp_path):
    save_model(tmp_path / "model", PFCBlock(8, 3, num_basis=5), Ledger())
    with pytest.raises(DataError, match="--data must be given"):
        load(tmp_path / "model")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((20, 8)))
    session = Session(load(tmp_path / "model", str(tmp_path / "data.npz")))
    assert session.model().accuracy.overall is None
    assert session.time().stages == []


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(CorruptFileError, match=re.escape(f"got {str(tmp_path)!r}")):
        load(tmp_path)
    for name, content in (("config.json", {"estimator": "os.system"}), ("state.json", {"state": {"estimator": "os"}})):
        (tmp_path / name).write_text(json.dumps(content))
        with pytest.raises(CorruptFileError, match="must be of an estimator"):
            load(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(CorruptFileError, match="must hold an estimator that save_pretrained wrote"):
        load(tmp_path)


def test_data_alone_are_refused():
    with pytest.raises(DataError, match="--data must come with a model"):
        load(None, "digits")
