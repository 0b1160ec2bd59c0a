import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchpfc.optim import RMSprop, RMSpropSLW, Windowed


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@given(
    width=st.integers(1, 12),
    speed=st.floats(0, 1.5),
    steps=st.integers(0, 12),
    weight_decay=st.sampled_from([0.0, 1e-4, 0.1]),
)
def test_follows_the_rule(width: int, speed: float, steps: int, weight_decay: float) -> None:
    rows, num_columns, lr = 2, 30, 0.01
    start = random(rows, num_columns, seed=0, dtype=torch.float64)
    grads = random(steps, rows, num_columns, seed=1, dtype=torch.float64)
    weight = torch.nn.Parameter(start.clone())
    optimizer = RMSpropSLW([weight], lr, width=width, sweep_speed=speed, weight_decay=weight_decay)

    w, v, r = start.tolist(), [[0.0] * num_columns for _ in range(rows)], 0.0
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()

        a, b = math.floor(r), math.floor(r + width)
        r += speed
        for i in range(rows):
            for j in range(a, b):
                g = float(grad[i, j])
                v[i][j] = 0.99 * v[i][j] + 0.01 * g**2
                w[i][j] = w[i][j] - lr * g / (math.sqrt(v[i][j]) + 1e-8)
                w[i][j] = w[i][j] - weight_decay * w[i][j]

    torch.testing.assert_close(weight.detach(), torch.tensor(w, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    if steps:
        square_avg = optimizer.state[weight]["square_avg"]
        torch.testing.assert_close(square_avg, torch.tensor(v, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert optimizer.param_groups[0]["position"] == r


@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_full_width_equals_rmsprop_to_the_last_bit(weight_decay: float, device: str) -> None:
    results = []
    for make, window in ((RMSprop, {}), (RMSpropSLW, {"width": 9, "sweep_speed": 0})):
        params = [torch.nn.Parameter(random(*shape, seed=0).to(device)) for shape in ((4, 9), (2, 3, 9))]
        optimizer: Any = make(params, lr=1e-2, weight_decay=weight_decay, **window)
        for step in range(30):
            for p in params:
                p.grad = random(*p.shape, seed=step).to(device)
            optimizer.step()
        results.append([tensor for p in params for tensor in (p, optimizer.state[p]["square_avg"])])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_equals_a_window_around_rmsprop_to_the_last_bit() -> None:
    start, grads = random(4, 20, seed=0), random(30, 4, 20, seed=1)
    results = []
    for make in (
        lambda p: RMSpropSLW([p], lr=1e-2, weight_decay=1e-3, width=5, sweep_speed=0.4),
        lambda p: Windowed(RMSprop([p], lr=1e-2, weight_decay=1e-3), width=5, sweep_speed=0.4),
    ):
        weight = torch.nn.Parameter(start.clone())
        optimizer = make(weight)
        for grad in grads:
            weight.grad = grad.clone()
            optimizer.step()
        results.append((weight, optimizer.state[weight]["square_avg"]))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_stacks_learn_as_their_members_do() -> None:
    start, grads = random(3, 4, 10, seed=0), random(6, 3, 4, 10, seed=1)

    def learn(start: Tensor, grads: Tensor) -> Tensor:
        weight = torch.nn.Parameter(start.clone())
        optimizer = RMSpropSLW([weight], lr=0.1, width=4, sweep_speed=1, weight_decay=1e-3)
        for grad in grads:
            weight.grad = grad.clone()
            optimizer.step()
        return weight.detach()

    members = torch.stack([learn(start[s], grads[:, s]) for s in range(3)])
    assert torch.equal(learn(start, grads), members)


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"^lr must be non-negative, got -1$"):
        RMSpropSLW([torch.zeros(2, 3)], lr=-1, width=1, sweep_speed=0)
