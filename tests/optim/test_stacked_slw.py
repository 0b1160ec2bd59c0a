from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchpfc import FISTA, ColumnsExhausted, PFCBlock, RMSpropSLW, keep_nonnegative, stack_models, unstack_models
from torchpfc.nn.stack import select_models_
from torchpfc.optim.stacked_slw import StackedRMSpropSLW

STEPS = 5


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_block(seed: int, num_basis: int = 9) -> PFCBlock:
    return PFCBlock(4, 2, num_basis, solver=FISTA.paper(4), generator=seeded(seed), dtype=torch.float64)


def gradients(seed: int, p: Tensor) -> list[Tensor]:
    generator = seeded(seed)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for _ in range(STEPS)]


@settings(max_examples=30)
@given(
    places=st.lists(st.floats(0, 3), min_size=1, max_size=3),
    width=st.integers(1, 4),
    speed=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.3]),
    decay=st.sampled_from([0.0, 1e-2]),
)
def test_each_model_learns_as_it_would_with_an_optimizer_of_its_own(
    places: list[float], width: int, speed: float, decay: float
) -> None:
    start = [torch.rand(3, 9, generator=seeded(i)) for i in range(len(places))]
    stacked = nn.Parameter(torch.stack(start))
    optimizer = StackedRMSpropSLW([stacked], lr=0.1, width=width, sweep_speed=speed, weight_decay=decay)
    optimizer.reset_window(places)
    steps = gradients(7, stacked)
    for grad in steps:
        stacked.grad = grad.clone()
        optimizer.step()
    for i, place in enumerate(places):
        alone = nn.Parameter(start[i].clone())
        own = RMSpropSLW([alone], lr=0.1, width=width, sweep_speed=speed, weight_decay=decay)
        own.reset_window(place)
        for grad in steps:
            alone.grad = grad[i].clone()
            own.step()
        assert torch.equal(stacked[i], alone)
        assert torch.equal(optimizer.state[stacked]["square_avg"][i], own.state[alone]["square_avg"])
        assert optimizer.positions[i] == own.window.position


def test_blocks_of_a_stack_learn_as_they_would_alone_and_stay_non_negative() -> None:
    stack = stack_models([make_block(seed) for seed in range(2)])
    optimizer = StackedRMSpropSLW(stack.parameters(), lr=0.05, width=3, sweep_speed=1, weight_decay=1e-3)
    keep_nonnegative(stack, optimizer)
    optimizer.reset_window([0.0, 2.0])
    x = torch.rand(6, 4, generator=seeded(3), dtype=torch.float64)
    for _ in range(3):
        optimizer.zero_grad()
        stack(x).square().sum().backward()
        optimizer.step()
    for seed, found in enumerate(unstack_models(stack)):
        block = make_block(seed)
        own = RMSpropSLW(block.parameters(), lr=0.05, width=3, sweep_speed=1, weight_decay=1e-3)
        own.reset_window(2.0 * seed)
        keep_nonnegative(block, own)
        for _ in range(3):
            own.zero_grad()
            block(x).square().sum().backward()
            own.step()
        torch.testing.assert_close(found.weight_x, block.weight_x, rtol=1e-9, atol=1e-12)
        outside = [column for column in range(9) if not 2 * seed <= column < 2 * seed + 5]
        assert torch.equal(found.weight_x[:, outside], make_block(seed).weight_x[:, outside])
        assert (found.weight_x >= 1e-5).all()


def test_a_model_that_is_passed_by_keeps_its_weights_and_its_window_moves_on() -> None:
    weight = nn.Parameter(torch.ones(2, 3, 6))
    optimizer = StackedRMSpropSLW([weight], width=2, sweep_speed=1)
    optimizer.passed_by.copy_(torch.tensor([True, False]))
    weight.sum().backward()
    optimizer.step()
    assert (weight[0] == 1).all() and (weight[1, :, :2] != 1).all()
    assert optimizer.positions == [1.0, 1.0]
    assert not optimizer.state[weight]["square_avg"][0].any()


def test_a_group_may_count_its_units_in_another_dimension() -> None:
    rows, columns = nn.Parameter(torch.ones(1, 4, 3)), nn.Parameter(torch.ones(1, 2, 4))
    groups: list[dict[str, Any]] = [{"params": [rows], "dim": -2}, {"params": [columns]}]
    optimizer = StackedRMSpropSLW(groups, width=2, sweep_speed=1)
    optimizer.reset_window(1.0)
    (rows.sum() + columns.sum()).backward()
    optimizer.step()
    assert (rows != 1).any(-1).tolist() == (columns != 1).any(-2).tolist() == [[False, True, True, False]]


def test_windows_that_would_leave_the_matrix_are_found_before() -> None:
    optimizer = StackedRMSpropSLW([nn.Parameter(torch.ones(2, 3, 10))], width=4, sweep_speed=0.5)
    optimizer.reset_window([0.0, 3.0])
    assert optimizer.columns_after(0.0, 1) == 4 and optimizer.columns_after(3.0, 7) == 10
    optimizer.check_room(7)
    with pytest.raises(ColumnsExhausted, match="9 steps of model 1 must end within 10 columns, got 11"):
        optimizer.check_room(9)


def test_models_can_leave() -> None:
    stack = stack_models([make_block(seed) for seed in range(3)])
    optimizer = StackedRMSpropSLW(stack.parameters(), width=3, sweep_speed=1)
    stack(torch.rand(2, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    select_models_(stack, torch.tensor([2]), optimizer)
    optimizer.reset_window([5.0])
    before = stack.weight_x.detach().clone()
    optimizer.zero_grad()
    stack(torch.rand(2, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    changed = (stack.weight_x != before).any(-2)[0].nonzero()[:, 0].tolist()
    assert changed == [5, 6, 7] and optimizer.positions == [6.0] and len(optimizer.passed_by) == 1


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match=r"params must be stacks of as many models, got \[\(2, 3\), \(1, 3\)\]"):
        StackedRMSpropSLW([nn.Parameter(torch.ones(n, 3)) for n in (2, 1)], width=1, sweep_speed=1)
    with pytest.raises(ValueError, match="lr must be non-negative, got -1"):
        StackedRMSpropSLW([nn.Parameter(torch.ones(2, 3))], lr=-1.0, width=1, sweep_speed=1)


def test_a_closure_is_called() -> None:
    weight = nn.Parameter(torch.ones(1, 2, 3))

    def closure() -> float:
        loss = weight.sum()
        loss.backward()
        return loss.item()

    assert StackedRMSpropSLW([weight], width=1, sweep_speed=1).step(closure) == 6.0
