import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stored import rewrite
from torchpfc import PFCBlock
from torchpfc.checkpoint import CorruptFileError, states
from torchpfc.optim.ledger import Ledger
from torchpfc.solvers import (
    ADMM,
    FISTA,
    ActiveSet,
    Adjoint,
    CoordinateDescent,
    Implicit,
    Multiplicative,
    NearestNeighbors,
    ProjectedGradient,
    Solver,
    Truncated,
    Unrolled,
)
from torchpfc.unlearning import fingerprint, forget, load_ledger, load_model, save_ledger, save_model


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


@pytest.mark.parametrize(
    "solver",
    [
        FISTA.paper(7),
        ADMM(max_iter=9, penalty=0.3),
        ActiveSet(tol=1e-4),
        CoordinateDescent(max_iter=3),
        Multiplicative(floor=1e-3),
        NearestNeighbors(2, "cosine"),
        ProjectedGradient(start="random"),
    ],
    ids=lambda solver: type(solver).__name__,
)
@pytest.mark.parametrize("adjoint", [None, Implicit.fast(), Truncated(2)], ids=repr)
def test_every_solver_and_adjoint_comes_back(solver: Solver, adjoint: Adjoint | None, tmp_path: Path) -> None:
    block = PFCBlock(6, 3, 8, solver=solver, adjoint=adjoint)
    save_model(tmp_path, block, Ledger())
    found = load_model(tmp_path).block
    assert (found.solver, found.adjoint) == (block.solver, block.adjoint)


@dataclass(frozen=True)
class Slow(FISTA):
    pass


@dataclass(frozen=True)
class Own(Unrolled):
    pass


@pytest.mark.parametrize(("name", "value"), [("solver", Slow()), ("adjoint", Own())])
def test_a_class_of_ones_own_is_refused_before_anything_is_written(name: str, value: Any, tmp_path: Path) -> None:
    block = PFCBlock(6, 3, 8, **{name: value})
    message = f"{name} must be one of torchpfc.solvers to be saved, got {type(value).__name__}"
    with pytest.raises(TypeError, match=message):
        save_model(tmp_path / "model", block, Ledger())
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "solver",
    [
        {"name": "nnls"},
        {"name": "Solver"},
        {"name": ["FISTA"]},
        {"max_iter": -1},
        {"max_iter": 10**15},
        {"max_iter": 5.0},
        {"cap": "yes"},
        {"steps": 3},
    ],
)
def test_a_solver_that_there_is_not_is_named(solver: Any, tmp_path: Path) -> None:
    make(tmp_path)
    rewrite(tmp_path, lambda content: content["state"]["block"].update(solver=solver))
    with pytest.raises(CorruptFileError, match="must hold a model that save_model saved") as found:
        load_model(tmp_path)
    assert "\n" not in str(found.value)


def test_weights_and_ledger_are_replaced_in_one_stroke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop after any of the files leaves the old weights with the old ledger, or the new with the new."""
    block, ledger = make(tmp_path)
    old = fingerprint(block), ledger.state_dict()
    forget(block, ledger, batches=[2])
    new = fingerprint(block), ledger.state_dict()
    write, written = states.write_atomically, []

    def stop_after(path: Path, content: str | bytes) -> None:
        saved = load_model(tmp_path)
        assert (fingerprint(saved.block), saved.ledger.state_dict()) == old
        write(path, content)
        written.append(path.name)
        saved = load_model(tmp_path)
        assert (fingerprint(saved.block), saved.ledger.state_dict()) == (new if path.name == "state.json" else old)

    monkeypatch.setattr(states, "write_atomically", stop_after)
    save_model(tmp_path, block, ledger)
    assert len(written) == 2 and written[1] == "state.json"


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match=r"must be a folder with a model and its ledger, got no state\.json"):
        load_model(tmp_path)


def test_a_ledger_that_is_none_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    rewrite(tmp_path, lambda content: content["state"].update(ledger={}))
    with pytest.raises(CorruptFileError, match="must hold a model that save_model saved"):
        load_model(tmp_path)


ENTRY = {"id": 2, "first_step": 0, "columns": [[3, 5]], "rows": None}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_columns": 10**12}, "Expected `int` <= 16777216"),
        ({"steps": 10**15}, "Expected `int` <= 1099511627776"),
        ({"batches": [{**ENTRY, "columns": [[0, 10**12]]}]}, "Expected `int` <= 16777216"),
        ({"batches": [{**ENTRY, "columns": [[3, 9]]}]}, "batch 2 has columns 3 to 9 of 5"),
        ({"batches": [{**ENTRY, "columns": [[4, 4]]}]}, "batch 2 has columns 4 to 4 of 5"),
        ({"batches": [{**ENTRY, "first_step": 7}]}, "batch 2 begins with step 7 of 1"),
        ({"batches": [ENTRY, ENTRY]}, "a batch that has two entries"),
    ],
)
def test_a_ledger_that_cannot_have_come_about_is_refused(change: Any, reason: str, tmp_path: Path) -> None:
    make(tmp_path)
    rewrite(tmp_path, lambda content: content["state"]["ledger"].update(change))
    with pytest.raises(CorruptFileError, match=f"must hold a model that save_model saved .{reason}"):
        load_model(tmp_path)


def test_a_ledger_of_other_weights_is_refused(tmp_path: Path) -> None:
    """It would name other columns, as after a removal."""
    block, _ = make(tmp_path / "model")
    other, ledger_of_other = make(tmp_path / "other")
    save_ledger(tmp_path / "ledger.json", ledger_of_other, other)
    assert load_ledger(tmp_path / "ledger.json", other).state_dict() == ledger_of_other.state_dict()
    assert load_ledger(tmp_path / "ledger.json").state_dict() == ledger_of_other.state_dict()
    with pytest.raises(CorruptFileError, match="the ledger must be of these weights, got that of others"):
        load_ledger(tmp_path / "ledger.json", block)
    foreign = json.loads((tmp_path / "other" / "state.json").read_text())["state"]["ledger"]
    rewrite(tmp_path / "model", lambda content: content["state"].update(ledger=foreign))
    with pytest.raises(CorruptFileError, match="the ledger must be of these weights, got that of others"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("name", ["weight_x", "weight_y", "power_vector"])
def test_weights_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    block, ledger = make(tmp_path)
    block.state_dict()[name].view(-1)[0] = torch.nan
    save_model(tmp_path, block, ledger)
    with pytest.raises(CorruptFileError, match=f"{name} must be finite, got NaN or infinity"):
        load_model(tmp_path)


# Of version 0.1.0, which kept the ledger in a file of its own


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    folder = Path(__file__).parents[1] / "fixtures" / "0.1.0" / "models" / "unlearning-0"
    return Path(shutil.copytree(folder, tmp_path / "earlier"))


def test_saving_over_an_earlier_model_takes_its_ledger_along(earlier: Path) -> None:
    before = load_model(earlier)
    save_model(earlier, *before)
    after = load_model(earlier)
    assert not (earlier / "ledger.json").exists()
    assert fingerprint(after.block) == fingerprint(before.block) and after.about == before.about
    assert after.ledger.state_dict() == before.ledger.state_dict() and after.ledger.batches


def test_an_earlier_model_without_its_ledger_is_named(earlier: Path) -> None:
    (earlier / "ledger.json").unlink()
    with pytest.raises(CorruptFileError, match=r"must hold a model that save_model saved .*ledger\.json"):
        load_model(earlier)
