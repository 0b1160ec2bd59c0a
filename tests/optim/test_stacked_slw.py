import copy
import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchpfc import FISTA, PFCBlock, RMSpropSLW, keep_nonnegative, stack_models, unstack_models
from torchpfc.nn.stack import select_models_
from torchpfc.optim.ledger import Ledger
from torchpfc.optim.stacked_slw import StackedRMSpropSLW
from torchpfc.optim.windowed import WindowedOptimizer

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


def test_the_columns_that_windows_will_need_are_known_before() -> None:
    optimizer = StackedRMSpropSLW([nn.Parameter(torch.ones(2, 3, 10))], width=4, sweep_speed=0.5)
    assert optimizer.columns_after(0.0, 1) == 4 and optimizer.columns_after(3.0, 7) == 10


def test_models_can_leave() -> None:
    stack = stack_models([make_block(seed) for seed in range(3)])
    optimizer = StackedRMSpropSLW(stack.parameters(), width=3, sweep_speed=1)
    stack(torch.rand(2, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    select_models_(stack, torch.tensor([2]), optimizer)
    assert optimizer.positions == [1.0]
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


def learned(steps: range, optimizer: StackedRMSpropSLW | None = None) -> StackedRMSpropSLW:
    """A stack of two models after some steps, the second three columns ahead and one that passes it by."""
    if optimizer is None:
        optimizer = make_optimizer(nn.Parameter(torch.ones(2, 3, 20)))
        optimizer.reset_window([0.0, 3.0])
    (p,) = optimizer.param_groups[0]["params"]
    for step in steps:
        optimizer.passed_by.copy_(torch.tensor([False, step == 2]))
        p.grad = torch.randn(p.shape, generator=seeded(step))
        optimizer.step()
    return optimizer


def make_optimizer(p: nn.Parameter) -> StackedRMSpropSLW:
    return StackedRMSpropSLW([p], lr=0.1, width=3, sweep_speed=0.3, weight_decay=1e-3)


def assert_same(one: StackedRMSpropSLW, other: StackedRMSpropSLW) -> None:
    p, q = one.param_groups[0]["params"][0], other.param_groups[0]["params"][0]
    assert torch.equal(p, q) and torch.equal(one.state[p]["square_avg"], other.state[q]["square_avg"])
    assert one.windows == other.windows and torch.equal(one.inside(p), other.inside(q))


def test_a_stack_that_is_saved_and_loaded_goes_on_and_keeps_the_memory_of_its_windows() -> None:
    stopped, file = learned(range(4)), io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    resumed = make_optimizer(nn.Parameter(stopped.param_groups[0]["params"][0].detach().clone()))
    group = resumed.param_groups[0]
    before = [group["position"], *group["window"], resumed.passed_by]
    resumed.load_state_dict(torch.load(file, weights_only=True))
    group = resumed.param_groups[0]
    assert all(a is b for a, b in zip(before, [group["position"], *group["window"], resumed.passed_by], strict=True))
    assert resumed.windows == stopped.windows and resumed.positions != [0.0, 0.0]
    assert_same(learned(range(4, 9), resumed), learned(range(9)))


def test_a_copy_of_a_stack_goes_on_by_itself() -> None:
    optimizer = learned(range(4))
    twin = copy.deepcopy(optimizer)
    learned(range(4, 6), twin)
    assert_same(optimizer, learned(range(4)))
    assert_same(twin, learned(range(6)))


def test_the_windows_of_a_stack_are_those_of_its_groups() -> None:
    optimizer = learned(range(3))
    group = optimizer.param_groups[0]
    assert isinstance(optimizer, WindowedOptimizer) and optimizer.moves_on_device
    assert group["position"].tolist() == optimizer.positions == [window.position for window in optimizer.windows]
    first, end = group["window"]
    assert first.tolist() == [0, 3] and end.tolist() == [3, 3]  # the second model was passed by
    optimizer.skip()
    assert [edge.tolist() for edge in optimizer.param_groups[0]["window"]] == [[0, 3], [0, 3]]
    optimizer.reset_window()
    assert optimizer.positions == [0.0, 0.0]


def test_models_that_stay_keep_their_windows() -> None:
    optimizer = learned(range(2))
    expected = optimizer.windows[1]
    p = optimizer.param_groups[0]["params"][0]
    inside = optimizer.inside(p)[1]
    optimizer.select_(torch.tensor([1]))
    assert optimizer.windows == [expected] and torch.equal(optimizer.inside(p[1:])[0], inside)


def test_the_windows_of_a_stack_follow_removed_columns() -> None:
    optimizer = StackedRMSpropSLW([nn.Parameter(torch.ones(2, 3, 10))], width=2, sweep_speed=1.5)
    optimizer.reset_window([0.0, 3.0])
    optimizer.step()
    optimizer.columns_removed([0, 4])  # they are at 1.5 and 4.5, and were at 0 and 3
    assert optimizer.positions == [0.5, 3.5]
    assert [edge.tolist() for edge in optimizer.param_groups[0]["window"]] == [[0, 2], [1, 3]]


def test_the_ledger_enters_every_window_of_a_stack() -> None:
    weight = nn.Parameter(torch.ones(2, 3, 12))
    optimizer, ledger = StackedRMSpropSLW([weight], width=2, sweep_speed=1), Ledger()
    optimizer.reset_window([0.0, 6.0])
    ledger.watch(optimizer)
    for id in range(2):
        weight.grad = torch.ones_like(weight)
        with ledger.batch(id):
            optimizer.step()
    assert ledger.columns_of([1]) == (range(1, 3), range(7, 9))


def test_positions_of_a_stack_are_checked() -> None:
    optimizer = learned(range(1))
    with pytest.raises(ValueError, match="position must be a number or one for each of 2 models, got 3"):
        optimizer.reset_window([0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="position must be non-negative and finite, got -1"):
        optimizer.reset_window([0.0, -1.0])
    with pytest.raises(ValueError, match=r"width must be at most the number of columns \(3\), got 4"):
        StackedRMSpropSLW([nn.Parameter(torch.ones(2, 3))], width=4, sweep_speed=1)
