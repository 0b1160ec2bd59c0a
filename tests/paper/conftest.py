from importlib.util import find_spec

import pytest

# Fabric is a package of its own, or a part of the larger one.
if not (find_spec("lightning_fabric") or find_spec("lightning")) or not find_spec("safetensors"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def made_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts made-up images in the place of all data sets."""
    from tests.paper.made import made_images

    monkeypatch.setattr("torchpfc.paper.components.load_images", made_images)
