import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.unlearning.trained import (
    BASIS,
    BATCHES,
    COLUMNS,
    IN,
    MAKERS,
    OUT,
    Trained,
    make_block,
    make_options,
    make_stream,
    seeded,
)
from torchpfc import ResidualPFC, keep_nonnegative
from torchpfc.training import SquaredErrors, fit
from torchpfc.unlearning import forget, keep_forgotten


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
