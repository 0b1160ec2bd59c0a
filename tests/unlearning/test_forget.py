import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.unlearning.trained import (
    BASIS,
    BATCH_SIZE,
    BATCHES,
    COLUMNS,
    IN,
    KEPT,
    MAKERS,
    OUT,
    WINDOW,
    Trained,
    make_block,
    make_options,
    seeded,
)
from torchpfc import (
    ADMM,
    FISTA,
    CoordinateDescent,
    Multiplicative,
    PFCBlock,
    ProjectedGradient,
    RMSpropSLW,
    stack_models,
)
from torchpfc.checkpoint import CorruptFileError
from torchpfc.data.streams import Stream
from torchpfc.optim.ledger import Ledger
from torchpfc.solvers import Solver, default_adjoint
from torchpfc.training import WarmCodes
from torchpfc.unlearning import fingerprint, forget, load_ledger, save_ledger


def built_without(block: PFCBlock, columns: range) -> PFCBlock:
    """A new block with the columns that are to stay."""
    kept = [column for column in range(block.num_basis) if column not in columns]
    options = make_options(solver=block.solver, nonnegative=block.nonnegative, l1=block.l1)
    other = PFCBlock(IN, OUT, len(kept), **options)
    with torch.no_grad():
        other.weight_x.copy_(block.weight_x[:, kept])
        other.weight_y.copy_(block.weight_y[:, kept])
    other.reset_step_size()
    return other


# What is left


@pytest.mark.parametrize("nonnegative", [True, False])
@settings(max_examples=6)
@given(batches=st.sets(st.integers(0, BATCHES - 1), min_size=1, max_size=3), l1=st.sampled_from([0.0, 0.01]))
def test_the_output_is_that_of_a_block_built_without_the_columns(
    nonnegative: bool, batches: set[int], l1: float
) -> None:
    solver = FISTA(max_iter=1000)
    outputs, x = {}, torch.rand(9, IN, generator=seeded(5), dtype=torch.float64)
    for how in ("zero", "remove"):
        run = Trained(make_block(nonnegative=nonnegative, l1=l1), nonnegative=nonnegative)
        run.model.solver = solver
        asked = run.ledger.columns_of(batches)
        columns = [column for part in asked for column in part]
        reference = built_without(run.model, columns)
        report = run.forget(batches=batches, how=how)
        assert report.columns == tuple((part.start, part.stop) for part in asked)
        with torch.no_grad():
            outputs[how], expected = run.model.eval()(x), reference.eval()(x)
        if how == "remove":
            assert torch.equal(outputs[how], expected)
        torch.testing.assert_close(outputs[how], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "solver",
    [
        FISTA.paper(500),
        ProjectedGradient(max_iter=2000),
        Multiplicative(max_iter=2000),
        CoordinateDescent(max_iter=500),
        ADMM(max_iter=500),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_columns_of_zeros_do_not_disturb_any_solver(solver: Solver) -> None:
    """There are more parts than features, so h is not unique: the reconstruction is."""
    run = Trained(make_block())
    run.model.solver, run.model.adjoint = solver, default_adjoint(solver)
    reference = built_without(run.model, COLUMNS)
    run.forget()
    x = torch.rand(9, IN, generator=seeded(5), dtype=torch.float64)
    with torch.no_grad():
        found, expected = run.model.eval().couple(x), reference.eval().couple(x)
    torch.testing.assert_close(found.x, expected.x, rtol=1e-3, atol=1e-3)
    assert found.y.isfinite().all()


@pytest.mark.parametrize("how", ["zero", "reinitialize"])
def test_only_those_columns_change(how: str) -> None:
    run = Trained(make_block())
    before = [p.detach().clone() for p in run.model.parameters()]
    state = [value.clone() for value in run.column_state()]
    run.forget(how=how)
    assert len(state) == 2
    for old, new in zip(before + state, [*run.model.parameters(), *run.column_state()], strict=True):
        assert torch.equal(old[:, KEPT], new[:, KEPT])
        assert (old[:, COLUMNS] != new[:, COLUMNS]).any(0).all()
    for value in run.column_state() if how == "reinitialize" else [*run.model.parameters(), *run.column_state()]:
        assert not value[:, COLUMNS].any()


def test_removed_columns_leave_weights_state_codes_and_ledger() -> None:
    run = Trained(make_block())
    before = [value.clone() for value in [*run.model.parameters(), *run.column_state()]]
    codes = run.codes.state_dict()[""].clone()
    run.optimizer.reset_window(11)
    run.forget(how="remove")
    for old, new in zip(before, [*run.model.parameters(), *run.column_state()], strict=True):
        assert torch.equal(old[:, KEPT], new)
    spared = [row for row in range(len(codes)) if row not in range(8, 16)]  # the examples of the other batches
    assert torch.equal(run.codes.state_dict()[""][spared], codes[spared][:, KEPT])
    assert run.optimizer.window.position == 11 - len(COLUMNS)
    assert run.ledger.columns_of([2, 3]) == ()
    assert run.ledger.columns_of([1, 4]) == (range(2, 6),)
    assert run.model.num_basis == len(KEPT)


@pytest.mark.parametrize("how", ["zero", "reinitialize", "remove"])
def test_warm_codes_forget_the_columns_and_the_examples(how: str) -> None:
    run = Trained(make_block())
    floor = run.model.solver.floor
    before = run.codes.state_dict()[""].clone()
    run.forget(how=how)
    codes = run.codes.state_dict()[""]
    assert (codes[8:16] == floor).all()
    assert not (before[8:16] == floor).all()
    if how != "remove":
        assert (codes[:, COLUMNS] == floor).all()
        assert torch.equal(codes[:8, KEPT], before[:8, KEPT])
    run.stream = Stream(run.stream.x, run.stream.target, torch.arange(8), batch_size=BATCH_SIZE)
    run.train()  # the codes still fit the blocks


def test_fresh_weights_come_from_the_generator_and_respect_the_floor() -> None:
    weights = []
    for seed in (3, 3, 4):
        run = Trained(make_block())
        run.forget(how="reinitialize", generator=seeded(seed))
        weights.append(run.model.weight_x.detach()[:, COLUMNS])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].min() >= FISTA.paper().floor
    assert weights[0].max() < 0.5


def test_the_step_size_follows_in_training_mode() -> None:
    run = Trained(make_block())
    run.forget()
    fresh = make_block()
    fresh.load_state_dict(run.model.state_dict())
    fresh.reset_step_size()
    assert torch.equal(run.model.power_vector, fresh.power_vector)


def test_a_gradient_of_before_is_not_applied_later() -> None:
    run = Trained(make_block())
    run.model(run.stream.x).sum().backward()
    run.forget(how="reinitialize")
    assert all(p.grad is None for p in run.model.parameters())


# The report


def test_the_report_names_columns_batches_and_weights() -> None:
    run = Trained(make_block())
    before = fingerprint(run.model)
    report = run.forget()
    assert report.batches == (2, 3)
    assert report.unrecorded == ()
    assert report.columns == ((4, 10),)
    assert report.num_columns == 6
    assert report.share == 6 / 16
    assert report.others_affected == (1, 4)
    assert report.sha256_before == before != report.sha256_after == fingerprint(run.model)
    text = str(report)
    for words in (
        "Forgot 2 batches (zero)",
        "4 to 9; 6 in all, 37.5% of the model",
        before,
        "computed their gradients",
    ):
        assert words in text
    assert json.loads(json.dumps(report.to_dict()))["columns"] == [[4, 10]]


def test_the_report_says_what_was_not_given() -> None:
    run = Trained(make_block())
    alone = forget(run.model, run.ledger, batches=[0])
    assert not any("optimizer" in sentence for sentence in alone.guaranteed)
    assert [s for s in alone.not_guaranteed if "call keep_forgotten" in s]
    assert [s for s in alone.not_guaranteed if "No warm codes" in s]
    whole = run.forget(batches=[5])
    assert [s for s in whole.guaranteed if "leave these columns at 0" in s]
    assert not [s for s in whole.not_guaranteed if "given" in s]
    fresh = run.forget(batches=[3], how="reinitialize")
    assert not [s for s in fresh.guaranteed if "leave these columns at 0" in s]
    again = forget(run.model, run.ledger, batches=[3], how="remove")
    assert again.num_columns == 0
    assert "Columns: none" in str(again)


def test_the_report_names_parameters_outside_blocks() -> None:
    head = nn.Linear(BASIS, 2, bias=False, dtype=torch.float64)
    model = nn.ModuleDict({"block": make_block(), "head": head})
    optimizer = RMSpropSLW(model.parameters(), **WINDOW)
    ledger = Ledger()
    ledger.watch(optimizer)
    with ledger.batch(0):
        optimizer.step()
    before = head.weight.detach().clone()
    report = forget(model, ledger, batches=[0], optimizer=optimizer)
    assert [s for s in report.not_guaranteed if s.endswith("are as they were: head.weight.")]
    assert torch.equal(head.weight, before)


def test_examples_stand_for_the_batches_that_held_them() -> None:
    run = Trained(make_block())
    report = run.forget(examples=torch.tensor([9, 13]))
    assert report.batches == (2, 3)
    assert (run.codes.state_dict()[""][[9, 13]] == run.model.solver.floor).all()
    assert not (run.codes.state_dict()[""][8] == run.model.solver.floor).all()


def test_a_ledger_without_examples_is_enough_for_batches() -> None:
    block = make_block()
    optimizer = MAKERS["RMSpropSLW"](block.parameters())
    codes, ledger = WarmCodes(block, 4), Ledger()
    ledger.watch(optimizer)
    with ledger.batch(0):
        optimizer.step()
    codes.state_dict()[""].fill_(1)
    assert forget(block, ledger, batches=[0, 9], codes=codes).unrecorded == (9,)
    assert (codes.state_dict()[""][:, 4:] == 1).all()


def test_a_stack_forgets_in_all_its_models() -> None:
    stack = stack_models([make_block(seed) for seed in (0, 1)])
    optimizer = MAKERS["RMSpropSLW"](stack.parameters())
    codes, ledger = WarmCodes(stack, 4), Ledger()
    ledger.watch(optimizer)
    with ledger.batch(0):
        optimizer.step()
    forget(stack, ledger, batches=[0], optimizer=optimizer, codes=codes)
    assert not stack.weight_x[..., :4].any()
    assert stack.weight_x[..., 4:].all()
    assert codes.state_dict()[""].shape == (2, 4, BASIS)


def test_what_cannot_be_forgotten_is_refused() -> None:
    run = Trained(make_block(), "RMSprop")
    with pytest.raises(ValueError, match="how must be 'zero', 'reinitialize' or 'remove', got 'burn'"):
        run.forget(batches=[0], how="burn")
    with pytest.raises(ValueError, match="either batches or examples must be given, got neither"):
        forget(run.model, run.ledger)
    with pytest.raises(ValueError, match="either batches or examples must be given, got both"):
        forget(run.model, run.ledger, batches=[0], examples=[0])
    with pytest.raises(ValueError, match="batches must have been learned from, got none"):
        run.forget(batches=[77])
    with pytest.raises(ValueError, match="examples must have been learned from, got none"):
        run.forget(examples=[777])
    before = fingerprint(run.model)
    for how in ("zero", "remove"):
        with pytest.raises(ValueError, match="must leave at least one in every block, got all 16 of the block"):
            run.forget(batches=[0], how=how)
    assert fingerprint(run.model) == before
    report = run.forget(batches=[0], how="reinitialize")  # all there is, so this is a start from the beginning
    assert math.isclose(report.share, 1)


def test_forgetting_bit_by_bit_does_not_leave_a_block_of_zeros() -> None:
    run = Trained(make_block())
    run.optimizer.reset_window(12)
    with run.ledger.batch(100):
        run.optimizer.step()
    run.forget(batches=range(6))
    with pytest.raises(ValueError, match="must leave at least one in every block"):
        run.forget(batches=[100])


# Files


def test_a_ledger_can_be_saved_beside_the_weights(tmp_path: Path) -> None:
    run = Trained(make_block())
    save_ledger(tmp_path / "run" / "ledger.json", run.ledger)
    assert load_ledger(tmp_path / "run" / "ledger.json").state_dict() == run.ledger.state_dict()
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(CorruptFileError, match="must hold JSON"):
        load_ledger(tmp_path / "bad.json")


def test_a_fingerprint_follows_every_bit() -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(2, 3, dtype=torch.bfloat16)), "b": torch.zeros(())})
    before = fingerprint(model)
    assert fingerprint(model) == before
    with torch.no_grad():
        model["a"][0, 0] = -0.0
    assert fingerprint(model) != before
    assert fingerprint(nn.Linear(6, 1, bias=False)) != fingerprint(nn.Linear(3, 2, bias=False))


@pytest.mark.parametrize(
    "what", [{"batches": [1.7]}, {"batches": ["1"]}, {"examples": [0, 2.0]}, {"examples": torch.tensor([0.5])}]
)
def test_only_whole_numbers_are_forgotten(what: dict[str, Any]) -> None:
    """Cut off, 1.7 would be another batch."""
    run = Trained(make_block())
    before = fingerprint(run.model), run.ledger.state_dict()
    (name,) = what
    with pytest.raises(TypeError, match=f"{name} must be whole numbers, got "):
        run.forget(**what)
    assert (fingerprint(run.model), run.ledger.state_dict()) == before
