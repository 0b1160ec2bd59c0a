from pathlib import Path

import pytest
import torch

from torchpfc import ADMM, FISTA, PFCBlock
from torchpfc.checkpoint import CorruptFileError
from torchpfc.optim.ledger import Ledger
from torchpfc.unlearning import fingerprint, load_model, save_model


def make(folder: Path) -> tuple[PFCBlock, Ledger]:
    block = PFCBlock(6, 3, 8, l1=0.1, nonnegative=False, solver=FISTA.paper(7), init_range=(-0.5, 0.5))
    ledger = Ledger()
    ledger.record(2, range(3, 5), rows=[1, 4])
    save_model(folder, block, ledger, {"seed": 3})
    return block, ledger


def test_a_model_comes_back_with_its_ledger(tmp_path: Path) -> None:
    block, ledger = make(tmp_path / "new")
    saved = load_model(tmp_path / "new")
    assert fingerprint(saved.block) == fingerprint(block) and saved.about == {"seed": 3}
    assert saved.ledger.state_dict() == ledger.state_dict()
    assert (saved.block.solver, saved.block.l1, saved.block.nonnegative) == (block.solver, 0.1, False)
    assert saved.block.init_range == (-0.5, 0.5)
    x = torch.rand(4, 6)
    assert torch.equal(saved.block.eval()(x), block.eval()(x))


def test_saving_again_replaces_what_was_there(tmp_path: Path) -> None:
    block, ledger = make(tmp_path)
    block.remove_basis([0, 1])
    save_model(tmp_path, block, ledger)
    assert load_model(tmp_path).block.num_basis == 6 and load_model(tmp_path).about == {}
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_another_solver_is_refused(tmp_path: Path) -> None:
    block = PFCBlock(6, 3, 8, solver=ADMM())
    with pytest.raises(TypeError, match="block must have FISTA for its solver to be saved, got ADMM"):
        save_model(tmp_path, block, Ledger())


@pytest.mark.parametrize("missing", ["state.json", "ledger.json"])
def test_a_folder_without_a_model_is_named(missing: str, tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(CorruptFileError, match=f"must be a folder with a model and its ledger, got no {missing}"):
        load_model(tmp_path)


def test_a_ledger_that_is_none_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "ledger.json").write_text("{}")
    with pytest.raises(CorruptFileError, match="must hold a model that save_model saved"):
        load_model(tmp_path)
