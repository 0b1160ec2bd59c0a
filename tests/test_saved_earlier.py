"""What version 0.1.0 saved, in `tests/fixtures`, is read as it was written."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")
pytest.importorskip("lightning_fabric")

from torchpfc import sklearn as estimators
from torchpfc.checkpoint import CorruptFileError
from torchpfc.paper.devices import open_fabric
from torchpfc.paper.registry import Job, experiments
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import change
from torchpfc.unlearning import load_model

SAVED = Path(__file__).parent / "fixtures" / "0.1.0"
ANSWERS: dict[str, Any] = json.loads((SAVED / "answers.json").read_text())


@pytest.mark.parametrize(
    ("folder", "name", "ask"),
    [
        ("PFCClassifier", "PFCClassifier", "predict_proba"),
        ("PFCRegressor", "PFCRegressor", "predict"),
        ("PFCTransformer", "PFCTransformer", "transform"),
        ("partial_fit", "PFCClassifier", "predict_proba"),
    ],
)
def test_estimators_answer_as_they_did(folder: str, name: str, ask: str) -> None:
    model = getattr(estimators, name).from_pretrained(SAVED / "estimators" / folder)
    found = getattr(model, ask)(np.array(ANSWERS["x"]))
    np.testing.assert_allclose(found, ANSWERS[folder], rtol=1e-4, atol=1e-5)


def test_a_block_answers_as_it_did_and_its_ledger_knows_the_same_columns() -> None:
    saved = load_model(SAVED / "models" / "unlearning-0")
    x = torch.rand(3, saved.block.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(saved.block.eval()(x), torch.tensor(ANSWERS["block"]))
    reached = [[[r.start, r.stop] for r in saved.ledger.columns_of([id])] for id in saved.ledger.batches]
    assert reached == ANSWERS["ledger_batches"]


@pytest.mark.parametrize("name", ["pfc-image", "split-mnist", "copy-task"])
def test_a_run_that_an_older_version_began_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    shutil.copytree(SAVED / "checkpoints" / name, tmp_path / "begun")
    experiment = experiments()[name]
    config = change(experiment.config(), **json.loads((tmp_path / "begun" / "config.json").read_text()))
    context = Context(open_fabric("cpu", "32"), tmp_path / "begun", precision="32")
    with pytest.raises(
        CorruptFileError, match=r"of this version, got one of another; delete the folder .*begun"
    ) as found:
        list(experiment.run((Job(config, 0), Job(config, 1)), context))
    assert "\n" not in str(found.value) and (tmp_path / "begun" / "state.json").exists()
