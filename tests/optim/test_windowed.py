import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import Optimizer

from torchpfc.optim import ColumnsExhausted, RMSprop, RMSpropSLW, SlidingWindow, Windowed
from torchpfc.optim.resize import resize_state
from torchpfc.optim.windowed import WindowedOptimizer

MAKERS: dict[str, Callable[..., WindowedOptimizer]] = {
    "RMSpropSLW": lambda params, **window: RMSpropSLW(params, lr=0.1, weight_decay=1e-2, **window),
    "Adam": lambda params, **window: Windowed(torch.optim.Adam(params, lr=0.1), **window),
    "AdamW": lambda params, **window: Windowed(torch.optim.AdamW(params, lr=0.1, amsgrad=True), **window),
    "SGD": lambda params, **window: Windowed(torch.optim.SGD(params, lr=0.1, momentum=0.9), **window),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_params(num_columns: int = 10) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(random(*shape, num_columns)) for shape in ((3,), (2, 4))]


def tensors(optimizer: Optimizer) -> dict[tuple[int, str], Tensor]:
    """A copy of every weight and of all state that has a column for each of the weight's."""
    found = {}
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for key, value in {"weight": p, **optimizer.state.get(p, {})}.items():
            if value.shape == p.shape:
                found[i, key] = value.detach().clone()
    return found


def step(optimizer: Optimizer, seed: int = 0) -> None:
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        p.grad = random(*p.shape, seed=100 * seed + i)
    optimizer.step()


def same(before: dict[tuple[int, str], Tensor], after: dict[tuple[int, str], Tensor]) -> bool:
    return before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


class Grower:
    """What a model does when the optimizer asks it for columns."""

    def __init__(self, params: list[torch.nn.Parameter], extra: int = 0) -> None:
        self.params, self.extra, self.asked, self.optimizer = params, extra, list[int](), None

    def __call__(self, missing: int) -> None:
        self.asked.append(missing)
        for p in self.params:
            old_shape, p.data, p.grad = p.shape, pad(p.data, (0, missing + self.extra), value=0.5), None
            assert self.optimizer is not None
            resize_state(self.optimizer, p, old_shape, lambda tensor: pad(tensor, (0, missing + self.extra)))


# The window


@every_optimizer
@given(width=st.integers(1, 6), speed=st.floats(0, 1), steps=st.integers(1, 5))
def test_columns_outside_the_window_do_not_change_by_a_bit(
    make: Callable[..., WindowedOptimizer], width: int, speed: float, steps: int
) -> None:
    optimizer = make(make_params(12), width=width, sweep_speed=speed)
    for k in range(steps):
        before = tensors(optimizer)
        a, b = optimizer.window.columns.start, optimizer.window.columns.stop
        step(optimizer, seed=k)
        assert optimizer.param_groups[0]["window"] == (a, b)
        for key, after in tensors(optimizer).items():
            outside = torch.cat([torch.arange(a), torch.arange(b, 12)])
            start = before.get(key, torch.zeros_like(after))  # state that the step has made starts at zero
            assert torch.equal(start[..., outside], after[..., outside]), key
            assert not torch.equal(start[..., a:b], after[..., a:b]), key


@every_optimizer
def test_positions_are_those_of_a_sliding_window(make: Callable[..., WindowedOptimizer]) -> None:
    optimizer = make(make_params(), width=3, sweep_speed=0.1)
    start = optimizer.window
    assert start == SlidingWindow(3, 0.1)
    for k in range(30):
        assert optimizer.window == start.advance(k)
        step(optimizer)


def test_an_optimizer_needs_an_update_rule() -> None:
    with pytest.raises(TypeError, match="abstract"):
        WindowedOptimizer(make_params(), {}, width=3, sweep_speed=1)


@every_optimizer
def test_skip_moves_the_window_alone(make: Callable[..., WindowedOptimizer]) -> None:
    optimizer = make(make_params(), width=3, sweep_speed=1.5)
    step(optimizer)
    before = tensors(optimizer)
    optimizer.skip()
    assert same(before, tensors(optimizer))
    assert optimizer.param_groups[0]["position"] == 3.0
    a, b = optimizer.param_groups[0]["window"]
    assert a == b  # nothing that a hook could clip


@every_optimizer
def test_reset_window(make: Callable[..., WindowedOptimizer]) -> None:
    optimizer = make(make_params(), width=3, sweep_speed=1)
    for _ in range(4):
        step(optimizer)
    before = tensors(optimizer)
    optimizer.reset_window()
    assert optimizer.window == SlidingWindow(3, 1)
    optimizer.reset_window(2.5)
    assert optimizer.window == SlidingWindow(3, 1, position=2.5)
    assert same(before, tensors(optimizer))
    with pytest.raises(ValueError, match=r"position must be non-negative and finite, got -1"):
        optimizer.reset_window(-1)


@every_optimizer
def test_a_saved_window_is_loaded(make: Callable[..., WindowedOptimizer]) -> None:
    optimizer = make(make_params(), width=3, sweep_speed=1.5)
    step(optimizer)
    step(optimizer)
    other = make(make_params(), width=2, sweep_speed=0)
    other.load_state_dict(optimizer.state_dict())
    assert other.window == SlidingWindow(3, 1.5, position=3.0)
    assert other.param_groups[0]["window"] == (1, 4)


def test_state_of_an_optimizer_without_window_loads_at_the_first_column() -> None:
    params = make_params()
    optimizer = RMSpropSLW(params, width=3, sweep_speed=1.5)
    plain = RMSprop(params, lr=0.5)
    step(plain)
    step(optimizer)
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.window == SlidingWindow(3, 1.5)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(optimizer.state[params[0]]["square_avg"], plain.state[params[0]]["square_avg"])


# Groups and shapes


@every_optimizer
def test_groups_share_one_window(make: Callable[..., WindowedOptimizer]) -> None:
    first, second = make_params()
    optimizer = make([{"params": [first]}], width=3, sweep_speed=1)
    step(optimizer)
    optimizer.add_param_group({"params": [second], "lr": 0.2})
    before = second.detach().clone()
    step(optimizer)
    assert not torch.equal(second[..., 1:4], before[..., 1:4])
    assert torch.equal(second[..., :1], before[..., :1])
    assert torch.equal(second[..., 4:], before[..., 4:])
    assert [group["position"] for group in optimizer.param_groups] == [2.0, 2.0]
    assert [group["window"] for group in optimizer.param_groups] == [(1, 4), (1, 4)]


@every_optimizer
def test_a_group_cannot_have_a_window_of_its_own(make: Callable[..., WindowedOptimizer]) -> None:
    optimizer = make(make_params(), width=3, sweep_speed=1)
    with pytest.raises(ValueError, match=r"width must be the same in every group \(3\), got 4"):
        optimizer.add_param_group({"params": make_params(), "width": 4})
    assert len(optimizer.param_groups) == 1


@every_optimizer
@pytest.mark.parametrize(
    ("shapes", "window", "message"),
    [
        ([(3, 10)], {"width": 15}, r"width must be at most the number of columns \(10\), got 15"),
        ([(3, 10)], {"width": 0}, "width must be at least 1, got 0"),
        ([(3, 10)], {"sweep_speed": -0.5}, "sweep_speed must be non-negative and finite, got -0.5"),
        (
            [(3, 10), (10,)],
            {},
            r"params must be matrices with the same number of columns, got shapes \[\(3, 10\), \(10,\)\]",
        ),
        (
            [(3, 10), (3, 9)],
            {},
            r"params must be matrices with the same number of columns, got shapes \[\(3, 10\), \(3, 9\)\]",
        ),
    ],
)
def test_bad_input(
    make: Callable[..., WindowedOptimizer], shapes: list[tuple[int, ...]], window: dict[str, Any], message: str
) -> None:
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    with pytest.raises(ValueError, match=f"^{message}$"):
        make(params, **{"width": 3, "sweep_speed": 1, **window})


def test_a_fractional_width_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"width must be an int, got 2\.5"):
        RMSpropSLW(make_params(), width=2.5, sweep_speed=1)


@every_optimizer
def test_a_refused_group_leaves_the_others(make: Callable[..., WindowedOptimizer]) -> None:
    optimizer = make(make_params(), width=3, sweep_speed=1)
    with pytest.raises(ValueError, match="same number of columns"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2, 11))]})
    step(optimizer)
    assert len(optimizer.param_groups) == 1


# When the columns run out


@every_optimizer
@pytest.mark.parametrize("move", [step, WindowedOptimizer.skip], ids=["step", "skip"])
def test_exhaustion_changes_nothing(
    make: Callable[..., WindowedOptimizer], move: Callable[[WindowedOptimizer], None]
) -> None:
    optimizer = make(make_params(), width=3, sweep_speed=1)
    for _ in range(8):
        step(optimizer)
    before, groups = tensors(optimizer), copy.deepcopy(optimizer.state_dict()["param_groups"])
    with pytest.raises(ColumnsExhausted, match=r"last of 10 columns, got columns 8 to 10; .* reset_window\(\).* grow="):
        move(optimizer)
    assert same(before, tensors(optimizer))
    assert optimizer.state_dict()["param_groups"] == groups


def test_exhaustion_comes_before_the_closure() -> None:
    optimizer = RMSpropSLW(make_params(), width=10, sweep_speed=1)
    optimizer.skip()
    with pytest.raises(ColumnsExhausted):
        optimizer.step(lambda: pytest.fail("the closure ran"))


@every_optimizer
def test_growth_happens_at_the_end_of_the_step_before(make: Callable[..., WindowedOptimizer]) -> None:
    params, reference = make_params(), make_params(14)
    for p, q in zip(params, reference, strict=True):
        q.data = pad(p.data, (0, 4), value=0.5)
    grow = Grower(params)
    optimizer = grow.optimizer = make(params, width=4, sweep_speed=2, grow=grow)
    roomy = make(reference, width=4, sweep_speed=2)
    for k in range(6):  # the windows end at columns 4, 6, 8, 10, 12, 14
        generator = torch.Generator().manual_seed(k)
        for p, q in zip(params, reference, strict=True):
            q.grad = torch.randn(q.shape, generator=generator)
            p.grad = q.grad[..., : p.shape[-1]].clone()
        optimizer.step()
        roomy.step()
        assert params[0].shape[-1] == max(10, 6 + 2 * k)
        assert optimizer.param_groups[0]["window"] == (2 * k, 2 * k + 4)
    assert grow.asked == [2, 2, 2]
    for p, q in zip(params, reference, strict=True):
        assert torch.equal(p[..., :14], q)
        for key, value in roomy.state[q].items():
            grown = optimizer.state[p][key]
            assert torch.equal(grown[..., :14] if grown.shape == p.shape else grown, value), key


@every_optimizer
def test_grow_may_add_more_than_it_is_asked_for(make: Callable[..., WindowedOptimizer]) -> None:
    params = make_params()
    grow = Grower(params, extra=5)
    optimizer = grow.optimizer = make(params, width=10, sweep_speed=1, grow=grow)
    for _ in range(8):
        step(optimizer)
    assert grow.asked == [1, 1]
    assert params[0].shape[-1] == 22


@pytest.mark.parametrize(
    ("move", "missing"), [(WindowedOptimizer.skip, 2), (lambda optimizer: optimizer.reset_window(5.5), 5)]
)
def test_every_move_grows(move: Callable[[WindowedOptimizer], None], missing: int) -> None:
    params = make_params()
    grow = Grower(params)
    optimizer = grow.optimizer = RMSpropSLW(params, width=10, sweep_speed=2, grow=grow)
    move(optimizer)
    assert grow.asked == [missing]
    step(optimizer)


def test_growth_that_falls_short_says_so() -> None:
    optimizer = RMSpropSLW(make_params(), width=10, sweep_speed=2, grow=lambda missing: None)
    with pytest.raises(ColumnsExhausted, match=r"grow\(2\) must leave at least 12 columns, got 10"):
        step(optimizer)


def test_grow_stays_with_the_optimizer_it_was_given_to() -> None:
    params = make_params()
    grow = Grower(params)
    optimizer = RMSpropSLW(params, width=10, sweep_speed=2, grow=grow)
    optimizer.load_state_dict(RMSpropSLW(make_params(), width=10, sweep_speed=2).state_dict())
    assert optimizer.grow is grow
    assert copy.deepcopy(optimizer).grow is None


# When columns are removed


@pytest.mark.parametrize(
    ("removed", "position", "window"),
    [
        ([], 4.5, (3, 6)),
        ([0, 2, 2], 2.5, (1, 4)),
        ([3], 3.5, (3, 5)),
        ([4, 8], 4.5, (3, 5)),
        (torch.tensor([0, 1, 2, 3, 4, 5]), 0.5, (0, 0)),
    ],
)
def test_the_window_follows_removed_columns(
    removed: list[int] | Tensor, position: float, window: tuple[int, int]
) -> None:
    optimizer = RMSpropSLW(make_params(20), width=3, sweep_speed=1.5)
    for _ in range(3):
        step(optimizer)
    assert (optimizer.window.position, optimizer.param_groups[0]["window"]) == (4.5, (3, 6))
    optimizer.columns_removed(removed)
    assert (optimizer.window.position, optimizer.param_groups[0]["window"]) == (position, window)


def test_removed_columns_are_counted_from_the_left() -> None:
    optimizer = RMSpropSLW(make_params(), width=3, sweep_speed=1.5)
    with pytest.raises(ValueError, match="columns must be non-negative, got -1"):
        optimizer.columns_removed([2, -1])


def test_removal_grows_where_the_window_no_longer_fits() -> None:
    params = make_params()
    grow = Grower(params)
    optimizer = grow.optimizer = RMSpropSLW(params, width=10, sweep_speed=0, grow=grow)
    step(optimizer)
    for p in params:
        resize_state(optimizer, p, p.shape, lambda tensor: tensor[..., 2:])
        p.data = p.data[..., 2:]
    optimizer.columns_removed([0, 1])
    assert grow.asked == [2]
    step(optimizer)
