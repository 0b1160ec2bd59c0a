import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer

from torchpfc.optim import RMSpropSLW, Windowed


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make_params() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(random(*shape)) for shape in ((3, 8), (2, 4, 8))]


def step(optimizer: Optimizer, params: list[torch.nn.Parameter], seed: int = 0) -> None:
    for i, p in enumerate(params):
        p.grad = random(*p.shape, seed=100 * seed + i)
    optimizer.step()


INNER: dict[str, Callable[[Any], Optimizer]] = {
    "Adam": lambda params: Adam(params, lr=0.1),
    "Adam foreach": lambda params: Adam(params, lr=0.1, foreach=True),
    "Adam loop": lambda params: Adam(params, lr=0.1, foreach=False),
    "Adam amsgrad": lambda params: Adam(params, lr=0.1, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda params: AdamW(params, lr=0.1, weight_decay=0.1),
    "SGD": lambda params: SGD(params, lr=0.1),
    "SGD momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "SGD momentum foreach": lambda params: SGD(params, lr=0.1, momentum=0.9, dampening=0.1, foreach=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.1, centered=True, momentum=0.5),
    "Adagrad": lambda params: Adagrad(params, lr=0.1, initial_accumulator_value=0.1),
    "Adamax": lambda params: Adamax(params, lr=0.1),
    "NAdam": lambda params: NAdam(params, lr=0.1),
}


@pytest.mark.parametrize("make", INNER.values(), ids=INNER.keys())
def test_full_width_equals_the_bare_optimizer_to_the_last_bit(make: Callable[[Any], Optimizer]) -> None:
    params, bare_params = make_params(), make_params()
    optimizer, bare = Windowed(make(params), width=8, sweep_speed=0), make(bare_params)
    for k in range(8):
        step(optimizer, params, seed=k)
        step(bare, bare_params, seed=k)
        for p, q in zip(params, bare_params, strict=True):
            assert torch.equal(p, q)
            state, bare_state = optimizer.state.get(p, {}), bare.state.get(q, {})
            assert state.keys() == bare_state.keys()
            assert all(torch.equal(state[key], bare_state[key]) for key in state)


def test_adam_in_a_window_follows_its_rule() -> None:
    num_columns, width, speed, lr = 9, 3, 0.5, 0.1
    start, grads = random(num_columns, dtype=torch.float64), random(10, num_columns, seed=1, dtype=torch.float64)
    weight = torch.nn.Parameter(start.clone()[None])
    optimizer = Windowed(Adam([weight], lr=lr), width=width, sweep_speed=speed)

    w, m, v, r = start.tolist(), [0.0] * num_columns, [0.0] * num_columns, 0.0
    for t, grad in enumerate(grads, start=1):
        weight.grad = grad[None].clone()
        optimizer.step()

        for j in range(math.floor(r), math.floor(r + width)):
            g = float(grad[j])
            m[j] = 0.9 * m[j] + 0.1 * g
            v[j] = 0.999 * v[j] + 0.001 * g**2
            w[j] -= lr * (m[j] / (1 - 0.9**t)) / (math.sqrt(v[j] / (1 - 0.999**t)) + 1e-8)
        r += speed

    assert weight[0].tolist() == pytest.approx(w, rel=1e-9)
    assert optimizer.state[weight]["exp_avg"][0].tolist() == pytest.approx(m, rel=1e-9)


class Replacing(Optimizer):
    """Makes its state anew at each step, where others change it in place, and counts in its group."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"count": 0})

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                state = self.state[p]
                state["sum"] = state.get("sum", torch.zeros_like(p)) + p.grad
                state["steps"] = state.get("steps", 0) + 1
                p.sub_(state["sum"])


def test_state_made_anew_is_kept() -> None:
    weight = torch.nn.Parameter(torch.zeros(1, 4))
    optimizer = Windowed(Replacing([weight]), width=2, sweep_speed=1)
    for _ in range(3):
        weight.grad = torch.ones(1, 4)
        optimizer.step()
    assert optimizer.state[weight]["sum"].tolist() == [[1, 2, 2, 1]]
    assert optimizer.state[weight]["steps"] == 3
    assert weight.tolist() == [[-1, -3, -3, -1]]
    assert optimizer.param_groups[0]["count"] == 3


def test_an_optimizer_that_has_learned_already_goes_on() -> None:
    params, bare_params = make_params(), make_params()
    inner, bare = Adam(params, lr=0.1), Adam(bare_params, lr=0.1)
    step(inner, params)
    step(bare, bare_params)
    step(Windowed(inner, width=8, sweep_speed=0), params, seed=1)
    step(bare, bare_params, seed=1)
    assert all(torch.equal(p, q) for p, q in zip(params, bare_params, strict=True))


def test_a_scheduler_of_the_wrapped_optimizer_still_drives_it() -> None:
    params = make_params()
    inner = SGD(params, lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=1, gamma=0.1)
    optimizer = Windowed(inner, width=3, sweep_speed=0)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(optimizer, params)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_group_added_later_is_learned() -> None:
    first, second = make_params()
    optimizer = Windowed(Adam([first], lr=0.1), width=3, sweep_speed=0)
    optimizer.add_param_group({"params": [second], "lr": 0.2})
    before = second.detach().clone()
    step(optimizer, [first, second])
    moved = (second - before).detach().abs()[..., :3]
    torch.testing.assert_close(moved, torch.full_like(moved, 0.2))  # Adam's first step is lr long


def test_a_failing_step_leaves_the_groups_whole() -> None:
    params = make_params()
    inner = Adam(params, lr=0.1)
    optimizer = Windowed(inner, width=3, sweep_speed=1)
    step(optimizer, params)
    position = optimizer.window
    inner.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(ArithmeticError("stop")))
    with pytest.raises(ArithmeticError, match="stop"):
        step(optimizer, params)
    assert all(p is q for p, q in zip(optimizer.param_groups[0]["params"], params, strict=True))
    assert inner.state is optimizer.state
    assert optimizer.window == position


def test_a_refused_window_leaves_the_optimizer_as_it_was() -> None:
    params = make_params()
    inner = Adam(params, lr=0.1)
    with pytest.raises(ValueError, match=r"width must be at most the number of columns \(8\), got 80"):
        Windowed(inner, width=80, sweep_speed=1)
    assert "width" not in inner.param_groups[0]
    assert Windowed(inner, width=8, sweep_speed=1).window.width == 8


def test_a_second_wrapper_starts_at_the_first_column() -> None:
    params = make_params()
    inner = Adam(params, lr=0.1)
    step(Windowed(inner, width=3, sweep_speed=1), params)
    assert Windowed(inner, width=4, sweep_speed=1).window.columns == range(4)


@pytest.mark.parametrize("make", [torch.optim.LBFGS, torch.optim.Rprop, torch.optim.Adafactor])
def test_optimizers_that_mix_weights_are_refused(make: Callable[[Any], Optimizer]) -> None:
    message = f"optimizer must change each weight by its own gradient .*, got {make.__name__}$"
    with pytest.raises(TypeError, match=message):
        Windowed(make(make_params()), width=3, sweep_speed=1)


def test_one_window_is_enough() -> None:
    with pytest.raises(TypeError, match="optimizer must not have a window already, got RMSpropSLW"):
        Windowed(RMSpropSLW(make_params(), width=3, sweep_speed=1), width=3, sweep_speed=1)


def test_fused_optimizers_are_refused() -> None:
    with pytest.raises(ValueError, match="fused must be False for an optimizer with a window, got True"):
        Windowed(Adam(make_params(), fused=True), width=3, sweep_speed=1)


def test_fused_settings_that_arrive_later_change_nothing() -> None:
    params = make_params()
    optimizer = Windowed(Adam(params), width=3, sweep_speed=1)
    optimizer.load_state_dict(Adam(make_params(), fused=True).state_dict())
    before = [p.detach().clone() for p in params]
    with pytest.raises(ValueError, match="fused must be False"):
        step(optimizer, params)
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert all(p is q for p, q in zip(optimizer.param_groups[0]["params"], params, strict=True))
