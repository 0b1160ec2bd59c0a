import pytest
from fastapi.testclient import TestClient

from torchpfc.explorer.loading import ready_model
from torchpfc.explorer.server import create_app
from torchpfc.explorer.session import Session


@pytest.fixture(scope="session")
def loaded():
    """The model that is there without any file; nobody may change it, and sessions change copies only."""
    return ready_model()


@pytest.fixture
def session(loaded):
    return Session(loaded)


@pytest.fixture
def client(session):
    with TestClient(create_app(session), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield client
