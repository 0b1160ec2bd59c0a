import pytest
from fastapi.testclient import TestClient

from torchpfc.explorer.loading import Loaded, ready_model
from torchpfc.explorer.server import create_app
from torchpfc.explorer.session import Session
from torchpfc.explorer.subjects import EstimatorSubject
from torchpfc.sklearn import PFCClassifier


@pytest.fixture(scope="session")
def loaded():
    """The model that is there without any file; nobody may change it, and sessions change copies only."""
    return ready_model()


@pytest.fixture(scope="session")
def together(loaded):
    """A model whose parts explain an input together, not each class by itself: others can make the best of a change."""
    x, label = loaded.examples.x, loaded.examples.labels
    estimator = PFCClassifier(n_components=30, max_iter=0, random_state=0).fit(x.numpy(), label.numpy())
    return Loaded(EstimatorSubject(estimator, "learned together"), loaded.examples)


@pytest.fixture
def session(loaded):
    return Session(loaded)


@pytest.fixture
def client(session):
    with TestClient(create_app(session), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield client
