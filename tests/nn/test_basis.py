"""Parts that come and go: the outside of a block stays, and the optimizer goes on."""

from collections.abc import Callable, Iterable
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from torchpfc import FISTA, PFCBlock, ResidualPFC, RMSprop, RMSpropSLW, Windowed, keep_nonnegative

MAKERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "Adam": lambda params: torch.optim.Adam(params, lr=1e-2),
    "SGD": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
    "RMSprop": lambda params: RMSprop(params, lr=1e-2, weight_decay=1e-3),
    "RMSpropSLW": lambda params: RMSpropSLW(params, lr=1e-2, width=2, sweep_speed=0.5),
    "Windowed Adam": lambda params: Windowed(torch.optim.Adam(params, lr=1e-2), width=2, sweep_speed=0.5),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_block(num_basis: int = 6, *, nonnegative: bool = True, solver: FISTA | None = None) -> PFCBlock:
    return PFCBlock(
        8,
        3,
        num_basis,
        nonnegative=nonnegative,
        solver=FISTA.paper(10) if solver is None else solver,
        init_range=(0.0, 1.0),
        generator=seeded(),
        dtype=torch.float64,
    )


def make_input() -> Tensor:
    return torch.rand(5, 8, generator=seeded(1), dtype=torch.float64)


def loss_of(block: torch.nn.Module) -> Tensor:
    return F.mse_loss(block(make_input()), torch.ones(5, 3, dtype=torch.float64))


def learn(block: torch.nn.Module, optimizer: Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(block).backward()
        optimizer.step()


def block_of(weight_x: Tensor, weight_y: Tensor, solver: FISTA | None = None) -> PFCBlock:
    """A block that never had other columns."""
    block = make_block(weight_x.shape[1], solver=solver)
    with torch.no_grad():
        block.weight_x.copy_(weight_x)
        block.weight_y.copy_(weight_y)
    block.reset_step_size()
    return block


@pytest.mark.parametrize("first", [0, 4])
def test_parts_that_are_put_in_are_those_of_a_block_that_never_had_others(first: int) -> None:
    block = make_block()
    fresh_x, fresh_y = (torch.rand(size, 6 - first, generator=seeded(size), dtype=torch.float64) for size in (8, 3))
    kept_x, kept_y = block.weight_x.detach()[:, :first], block.weight_y.detach()[:, :first]
    expected = block_of(torch.cat([kept_x, fresh_x], 1), torch.cat([kept_y, fresh_y], 1))
    block.set_parts_(fresh_x, fresh_y, first)
    assert torch.equal(block(make_input()), expected(make_input()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_empty_new_parts_change_nothing(training: bool, nonnegative: bool) -> None:
    block = make_block(nonnegative=nonnegative, solver=FISTA(max_iter=20_000, tol=1e-12)).train(training)
    before = block.couple(make_input())
    block.add_basis(4)
    with torch.no_grad():
        block.weight_x[:, -4:] = 0.0
        block.weight_y[:, -4:] = 0.0
    after = block.couple(make_input())
    torch.testing.assert_close(after.y, before.y, rtol=1e-9, atol=0)
    torch.testing.assert_close(after.x, before.x, rtol=1e-9, atol=0)
    torch.testing.assert_close(after.h[:, :6], before.h, rtol=0, atol=1e-9)
    assert not after.h[:, 6:].any()


def test_new_parts_are_drawn_like_the_first_and_old_ones_stay() -> None:
    block = make_block()
    before = deepcopy(block)
    block.add_basis(200, generator=seeded(5))
    assert (block.in_features, block.out_features, block.num_basis) == (8, 3, 206)
    assert block.power_vector.shape == (206,)
    for weight, old in zip(block.parameters(), before.parameters(), strict=True):
        assert torch.equal(weight[:, :6], old)
        fresh = weight[:, 6:]
        assert 1e-5 <= fresh.min() < 0.02 and 0.98 < fresh.max() < 1.0
    twin = deepcopy(before)
    twin.add_basis(200, generator=seeded(5))
    assert torch.equal(twin.weight_x, block.weight_x) and torch.equal(twin.weight_y, block.weight_y)


def test_new_parts_of_nmf_respect_the_floor() -> None:
    block = PFCBlock(50, 50, 2)
    block.add_basis(100)
    assert (block.weight_x[:, 2:] == 1e-5).any() and block.weight_x.min() >= 1e-5
    assert (block.weight_y[:, 2:] == 1e-5).any() and block.weight_y.min() >= 1e-5


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("columns", [[0], [5], [1, 3], [3, 1, 3], range(5), torch.tensor([4, 2]), np.array([4, 2])])
def test_a_block_that_lost_parts_never_had_them(columns: Iterable[int], training: bool) -> None:
    block = make_block().train(training)
    block(make_input())
    lost = {int(column) for column in columns}
    kept = [column for column in range(6) if column not in lost]
    fresh = block_of(block.weight_x[:, kept], block.weight_y[:, kept]).train(training)
    block.remove_basis(columns)
    assert block.num_basis == len(kept)
    for name, value in fresh.state_dict().items():
        assert torch.equal(block.state_dict()[name], value), name
    ours, theirs = block.couple(make_input()), fresh.couple(make_input())
    assert torch.equal(ours.y, theirs.y) and torch.equal(ours.x, theirs.x) and torch.equal(ours.h, theirs.h)
    for mine, expected in zip(
        torch.autograd.grad(ours.y.sum(), list(block.parameters())),
        torch.autograd.grad(theirs.y.sum(), list(fresh.parameters())),
        strict=True,
    ):
        assert torch.equal(mine, expected)


def test_removing_nothing_changes_nothing() -> None:
    block = make_block()
    before = deepcopy(block.state_dict())
    optimizer = RMSpropSLW(block.parameters(), width=2, sweep_speed=1)
    block.remove_basis([], optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    assert optimizer.window.position == 0


@every_optimizer
def test_parameters_stay_the_same_objects(make: Callable[..., Optimizer]) -> None:
    block = make_block()
    optimizer = make(block.parameters())
    learn(block, optimizer)
    weights = block.weight_x, block.weight_y
    block.add_basis(3, optimizer=optimizer)
    block.remove_basis([0, 4], optimizer=optimizer)
    assert block.weight_x is weights[0] and block.weight_y is weights[1]
    assert [p for group in optimizer.param_groups for p in group["params"]] == list(weights)
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad and p.grad is None for p in block.parameters())
    before = deepcopy(block.state_dict())
    learn(block, optimizer)
    assert not torch.equal(block.weight_x, before["weight_x"])
    assert not torch.equal(block.weight_y, before["weight_y"])


@every_optimizer
def test_state_of_the_optimizer_grows_with_the_weights(make: Callable[..., Optimizer]) -> None:
    block = make_block()
    optimizer = make(block.parameters())
    learn(block, optimizer)
    before = {p: dict(optimizer.state[p]) for p in block.parameters()}
    block.add_basis(3, optimizer=optimizer)
    for p in block.parameters():
        assert optimizer.state[p].keys() == before[p].keys()
        for key, old in before[p].items():
            value = optimizer.state[p][key]
            if isinstance(old, Tensor) and old.ndim == 2:
                assert torch.equal(value[:, :6], old) and old.any()
                assert value.shape == p.shape and not value[:, 6:].any()
            else:
                assert value == old


@every_optimizer
def test_state_of_the_optimizer_shrinks_with_the_weights(make: Callable[..., Optimizer]) -> None:
    block = make_block()
    optimizer = make(block.parameters())
    learn(block, optimizer)
    before = {p: dict(optimizer.state[p]) for p in block.parameters()}
    block.remove_basis([0, 3], optimizer=optimizer)
    for p in block.parameters():
        for key, old in before[p].items():
            value = optimizer.state[p][key]
            if isinstance(old, Tensor) and old.ndim == 2:
                assert torch.equal(value, old[:, [1, 2, 4, 5]])
            else:
                assert value == old


@every_optimizer
@pytest.mark.parametrize("grow", [True, False])
def test_training_goes_on_as_if_the_columns_had_always_been_so(make: Callable[..., Optimizer], grow: bool) -> None:
    """A part that is not used has no influence: with it or without it, the others learn the same."""
    plain = FISTA(max_iter=10)
    small = make_block(solver=plain)
    large = block_of(F.pad(small.weight_x, (0, 2)), F.pad(small.weight_y, (0, 2)), solver=plain)
    small_optimizer, large_optimizer = make(small.parameters()), make(large.parameters())
    learn(small, small_optimizer, 2)
    learn(large, large_optimizer, 2)
    if grow:
        small.add_basis(2, optimizer=small_optimizer)
        with torch.no_grad():
            for weight in small.parameters():
                weight[:, 6:] = 0.0
    else:
        large.remove_basis([6, 7], optimizer=large_optimizer)
    learn(small, small_optimizer, 2)
    learn(large, large_optimizer, 2)
    for ours, theirs in zip(small.parameters(), large.parameters(), strict=True):
        torch.testing.assert_close(ours[:, :6], theirs[:, :6], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("removed", "position"), [([0], 2.0), ([0, 2], 1.0), ([3], 3.0), ([5], 3.0), ([0, 1, 5], 1.0)])
def test_the_window_stays_on_its_columns(removed: list[int], position: float) -> None:
    block = make_block()
    optimizer = RMSpropSLW(block.parameters(), lr=1e-2, width=2, sweep_speed=1)
    learn(block, optimizer, 3)
    assert optimizer.window.columns == range(3, 5)
    marked = block.weight_x[:, 3:5].detach().clone()
    block.remove_basis(removed, optimizer=optimizer)
    assert optimizer.window.position == position
    if 3 not in removed:
        columns = optimizer.window.columns
        assert torch.equal(block.weight_x[:, columns.start : columns.stop], marked)


def test_the_window_follows_once_every_block_has_lost_the_columns() -> None:
    model = ResidualPFC(8, 3, num_basis=6, solver=FISTA.paper(5), dtype=torch.float64)
    optimizer = RMSpropSLW(model.parameters(), lr=1e-2, width=2, sweep_speed=1)
    keep_nonnegative(model, optimizer)
    learn(model, optimizer, 3)
    for block in model.blocks:
        assert isinstance(block, PFCBlock)
        block.remove_basis([0, 1], optimizer=optimizer)
    assert optimizer.window.columns == range(1, 3)
    learn(model, optimizer, 2)
    assert optimizer.window.columns == range(3, 5)


@pytest.mark.parametrize("change", [lambda block: block.add_basis(2), lambda block: block.remove_basis([1])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_old_loss_that_is_still_alive_does_no_harm(change: Callable[[PFCBlock], None], dtype: torch.dtype) -> None:
    block = make_block().to(dtype)
    x = make_input().to(dtype)
    old_loss = block(x).sum()
    old_loss.backward(retain_graph=True)
    change(block)
    assert block.weight_x.grad is None and block.weight_x.dtype == dtype
    block(x).sum().backward()
    assert block.weight_x.grad is not None and block.weight_x.grad.shape == block.weight_x.shape
    fresh = block_of(block.weight_x.detach(), block.weight_y.detach()).to(dtype)
    fresh(x).sum().backward()
    torch.testing.assert_close(block.weight_x.grad, fresh.weight_x.grad, rtol=1e-4, atol=1e-6)
    assert old_loss.grad_fn is not None


@pytest.mark.parametrize("projected", [True, False])
def test_a_window_grows_its_block_when_columns_run_out(projected: bool) -> None:
    block = make_block(4)
    optimizer = RMSpropSLW(
        block.parameters(),
        lr=1e-2,
        width=2,
        sweep_speed=0.75,
        grow=lambda missing: block.add_basis(missing + 10, optimizer=optimizer),
    )
    if projected:
        keep_nonnegative(block, optimizer)
    first = loss_of(block).item()
    untouched = block.weight_x[:, 0].detach().clone()
    learn(block, optimizer, 40)
    assert block.num_basis > 30 and optimizer.window.columns.start == 30
    assert loss_of(block).item() < first
    assert not torch.equal(block.weight_x[:, 0], untouched)
    assert {optimizer.state[p]["square_avg"].shape for p in block.parameters()} == {p.shape for p in block.parameters()}
    learned = optimizer.state[block.weight_y]["square_avg"].any(0)
    assert learned[:30].all() and not learned[32:].any()
    assert not projected or min(p.min().item() for p in block.parameters()) >= 1e-5


@pytest.mark.parametrize("count", [0, -1])
def test_adding_no_parts_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"count must be at least 1, got {count}"):
        make_block().add_basis(count)


@pytest.mark.parametrize(("columns", "got"), [([6], "6 to 6"), ([-1, 2], "-1 to 2"), ([0, 100], "0 to 100")])
def test_columns_that_are_not_there_are_refused(columns: list[int], got: str) -> None:
    block = make_block()
    with pytest.raises(ValueError, match=rf"columns must lie in \[0, 6\), got {got}"):
        block.remove_basis(columns)
    assert block.num_basis == 6


def test_removing_every_part_is_refused() -> None:
    with pytest.raises(ValueError, match="columns must leave at least one of the 6 parts, got all of them"):
        make_block().remove_basis(range(6))


def test_fractions_of_columns_are_refused() -> None:
    with pytest.raises(TypeError):
        make_block().remove_basis([1.5])  # type: ignore[list-item]


def test_a_boolean_mask_is_not_taken_for_indices() -> None:
    with pytest.raises(TypeError, match="columns must be indices, got a boolean mask"):
        PFCBlock(6, 2, num_basis=4).remove_basis(torch.tensor([True, False, False, True]))
