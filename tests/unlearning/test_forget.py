import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc import (
    ADMM,
    FISTA,
    CoordinateDescent,
    Multiplicative,
    PFCBlock,
    ProjectedGradient,
    ResidualPFC,
    RMSprop,
    RMSpropSLW,
    Windowed,
    keep_nonnegative,
    stack_models,
)
from torchpfc.checkpoint import CorruptFileError
from torchpfc.data.streams import Stream
from torchpfc.optim.ledger import Ledger
from torchpfc.solvers import Solver, default_adjoint
from torchpfc.training import SquaredErrors, WarmCodes, fit
from torchpfc.unlearning import fingerprint, forget, keep_forgotten, load_ledger, save_ledger

IN, OUT, BASIS, BATCHES, BATCH_SIZE = 6, 3, 16, 6, 4
WINDOW: dict[str, Any] = {"width": 4, "sweep_speed": 2}
COLUMNS = range(4, 10)  # what batches 2 and 3 could write
KEPT = [0, 1, 2, 3, *range(10, 16)]

MAKERS: dict[str, Callable[..., Optimizer]] = {
    "RMSprop": lambda params: RMSprop(params, lr=1e-2, weight_decay=1e-3),
    "RMSpropSLW": lambda params: RMSpropSLW(params, lr=1e-2, weight_decay=1e-3, **WINDOW),
    "windowed Adam": lambda params: Windowed(torch.optim.Adam(params, lr=1e-2, amsgrad=True), **WINDOW),
    "SGD": lambda params: torch.optim.SGD(params, lr=1e-1, momentum=0.9),
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_options(**options: Any) -> dict[str, Any]:
    return {"solver": FISTA.paper(8), "init_range": (0.0, 0.5), "dtype": torch.float64, **options}


def make_block(seed: int = 0, **options: Any) -> PFCBlock:
    return PFCBlock(IN, OUT, BASIS, generator=seeded(seed), **make_options(**options))


def make_stream() -> Stream:
    count = BATCHES * BATCH_SIZE
    x = torch.rand(count, IN, generator=seeded(1), dtype=torch.float64)
    return Stream(x, torch.eye(OUT, dtype=torch.float64).repeat(count, 1)[:count], batch_size=BATCH_SIZE)


class Trained:
    """A model after one epoch through a window."""

    def __init__(self, model: nn.Module, kind: str = "RMSpropSLW", *, nonnegative: bool = True) -> None:
        self.model, self.stream, self.ledger = model, make_stream(), Ledger()
        self.codes = WarmCodes(model, len(self.stream.x))
        self.optimizer = MAKERS[kind](model.parameters())
        if nonnegative:
            keep_nonnegative(model, self.optimizer)
        self.ledger.watch(self.optimizer)
        self.train()

    def train(self) -> None:
        batches = self.ledger.follow(self.stream)
        list(fit(self.model, self.optimizer, batches, SquaredErrors(), epochs=1, codes=self.codes))
        if isinstance(self.optimizer, RMSpropSLW | Windowed):
            self.optimizer.reset_window()

    def forget(self, **what: Any) -> Any:
        if "examples" not in what:
            what.setdefault("batches", [2, 3])
        return forget(self.model, self.ledger, optimizer=self.optimizer, codes=self.codes, **what)

    def column_state(self) -> list[Tensor]:
        return [
            value
            for p in self.model.parameters()
            for value in self.optimizer.state[p].values()
            if isinstance(value, Tensor) and value.shape == p.shape
        ]


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


# Coming back


@pytest.mark.parametrize("kind", ["RMSprop", "RMSpropSLW"])
def test_without_a_keeper_training_brings_columns_back(kind: str) -> None:
    """Why `keep_forgotten` is there: codes at the floor give columns of zeros a gradient."""
    run = Trained(make_block(), "RMSpropSLW")
    forget(run.model, run.ledger, batches=[2, 3])
    optimizer = MAKERS[kind](run.model.parameters())
    keep_nonnegative(run.model, optimizer)
    list(fit(run.model, optimizer, run.stream, SquaredErrors(), epochs=1))
    assert run.model.weight_y[:, COLUMNS].any()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("nonnegative", ["before", "after", "never"])
def test_training_on_does_not_bring_columns_back(kind: str, nonnegative: str) -> None:
    run = Trained(make_block(nonnegative=nonnegative != "never"), nonnegative=nonnegative != "never")
    run.forget()
    run.optimizer = MAKERS[kind](run.model.parameters())
    run.ledger.watch(run.optimizer)
    if nonnegative == "before":
        keep_nonnegative(run.model, run.optimizer)
    keep_forgotten(run.model, run.optimizer)
    if nonnegative == "after":
        keep_nonnegative(run.model, run.optimizer)
    before = run.model.weight_x.detach().clone()
    for _ in range(3):
        run.train()
    assert not torch.equal(before, run.model.weight_x)
    for value in [*run.model.parameters(), *run.column_state()]:
        assert not value[:, COLUMNS].any()


@settings(max_examples=10)
@given(
    batches=st.sets(st.integers(0, BATCHES - 1), min_size=1, max_size=3),
    residual=st.booleans(),
    position=st.floats(0, 12),
    growing=st.booleans(),
)
def test_forgotten_columns_stay_zero_wherever_the_window_goes(
    batches: set[int], residual: bool, position: float, growing: bool
) -> None:
    model = ResidualPFC(IN, OUT, BASIS, generator=seeded(0), **make_options()) if residual else make_block()
    run = Trained(model)
    blocks = list(model.blocks) if residual else [model]

    def grow(missing: int) -> None:
        for block in blocks:
            block.add_basis(missing, optimizer=run.optimizer, generator=seeded(block.num_basis))

    columns = [column for part in run.ledger.columns_of(batches) for column in part]
    run.forget(batches=batches)
    run.codes = None
    run.optimizer.grow = grow
    run.optimizer.reset_window(position if growing else 0)
    run.train()
    for value in [*model.parameters(), *run.column_state()]:
        assert not value[:, columns].any()
    assert all(p[:, BASIS:].all() for p in model.parameters())  # the new ones are none of them


def test_a_closure_does_not_bring_columns_back() -> None:
    run = Trained(make_block())
    run.forget()

    def closure() -> float:
        run.optimizer.zero_grad()
        loss = F.mse_loss(run.model(run.stream.x), run.stream.target)
        loss.backward()
        return loss.item()

    run.optimizer.reset_window(COLUMNS.start)
    with run.ledger.batch(100):
        run.optimizer.step(closure)
    assert not run.model.weight_y[:, COLUMNS].any()


@pytest.mark.parametrize("name", ["weight_x", "weight_y"])
def test_a_column_that_is_zero_in_one_weight_is_not_forgotten(name: str) -> None:
    block = make_block(nonnegative=False)
    with torch.no_grad():
        block.get_parameter(name)[:, 0] = 0
    optimizer = MAKERS["RMSprop"](block.parameters())
    keep_forgotten(block, optimizer)
    F.mse_loss(block(make_stream().x), make_stream().target).backward()
    optimizer.step()
    assert block.weight_y[:, 0].any()


def test_keeping_is_done_once_and_ends_with_its_handle() -> None:
    block = make_block()
    optimizer = MAKERS["RMSprop"](block.parameters())
    keeper = keep_forgotten(block, optimizer)
    assert keep_forgotten(block, optimizer) is keeper
    assert keep_forgotten(nn.Sequential(block), optimizer) is not keeper
    keeper.remove()
    keep_forgotten(block, optimizer).remove()
    optimizer = MAKERS["RMSprop"](block.parameters())
    keep_forgotten(block, optimizer).remove()
    with torch.no_grad():
        for p in block.parameters():
            p[:, 0] = 0
    F.mse_loss(block(make_stream().x), make_stream().target).backward()
    optimizer.step()
    assert block.weight_y[:, 0].any()


def test_a_column_that_was_drawn_anew_may_learn() -> None:
    run = Trained(make_block())
    run.forget(how="reinitialize")
    assert run.ledger.columns_of([2, 3]) == ()
    before = run.model.weight_x.detach().clone()
    run.train()
    assert (before != run.model.weight_x)[:, COLUMNS].any(0).all()
    assert run.ledger.columns_of([2, 3]) == (COLUMNS,)


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
