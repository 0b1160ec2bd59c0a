import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchpfc.optim import RMSprop


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def reference(w: list[float], grads: list[list[float]], lr: float, alpha: float, eps: float, wd: float) -> list[float]:
    """The paper's rule, one weight at a time."""
    w, v = list(w), [0.0] * len(w)
    for grad in grads:
        for i, g in enumerate(grad):
            v[i] = alpha * v[i] + (1 - alpha) * g**2
            w[i] = w[i] - lr * g / (math.sqrt(v[i]) + eps)
            w[i] = w[i] - wd * w[i]
    return w


@given(
    lr=st.floats(0, 1),
    alpha=st.floats(0, 0.999),
    eps=st.floats(1e-8, 1),
    weight_decay=st.floats(0, 0.5),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_follows_the_rule(lr: float, alpha: float, eps: float, weight_decay: float, scale: float) -> None:
    start = random(7, seed=0, dtype=torch.float64)
    grads = scale * random(20, 7, seed=1, dtype=torch.float64)
    weight = torch.nn.Parameter(start.clone())
    optimizer = RMSprop([weight], lr, alpha=alpha, eps=eps, weight_decay=weight_decay)
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    expected = reference(start.tolist(), grads.tolist(), lr, alpha, eps, weight_decay)
    assert weight.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_defaults_are_the_papers() -> None:
    assert RMSprop([torch.zeros(1)]).defaults == {"lr": 3e-4, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0}


def test_decay_does_not_depend_on_the_learning_rate() -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    weight.grad = torch.ones_like(weight)
    RMSprop([weight], lr=0.0, weight_decay=0.25).step()
    assert weight.tolist() == [0.75] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shapes", [[(5, 7)], [(3, 5, 7), (4,), ()]], ids=str)
def test_without_decay_equals_torch_to_the_last_bit(dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> None:
    ours = [torch.nn.Parameter(random(*shape, seed=0, dtype=dtype)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    optimizers = RMSprop(ours, lr=1e-2), torch.optim.RMSprop(theirs, lr=1e-2, alpha=0.99, eps=1e-8)
    for step in range(50):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = random(*p.shape, seed=step, dtype=dtype)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(optimizers[0].state[p]["square_avg"], optimizers[1].state[q]["square_avg"])


def test_lr_may_be_a_tensor() -> None:
    start, grads = random(4, 3, seed=0), random(5, 4, 3, seed=1)
    results = []
    for lr in (0.125, torch.tensor(0.125)):
        weight = torch.nn.Parameter(start.clone())
        optimizer = RMSprop([weight], lr=lr, weight_decay=0.01)
        for grad in grads:
            weight.grad = grad.clone()
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(results[0], results[1])


def test_step_of_a_tensor_lr_reads_its_present_value() -> None:
    weight, lr = torch.nn.Parameter(torch.ones(2)), torch.tensor(0.5)
    optimizer = RMSprop([weight], lr=lr)
    weight.grad = torch.ones(2)
    lr.zero_()
    optimizer.step()
    assert weight.tolist() == [1, 1]


def test_groups_have_their_own_settings() -> None:
    slow, fast = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    optimizer = RMSprop([slow], lr=0.01)
    optimizer.add_param_group({"params": [fast], "lr": 0.02})
    slow.grad = fast.grad = torch.ones_like(slow)
    optimizer.step()
    assert slow.tolist() == pytest.approx([0.9, 0.9], abs=1e-7)
    assert fast.tolist() == pytest.approx([0.8, 0.8], abs=1e-7)


BAD_SETTINGS = [
    ({"lr": -1}, "lr must be non-negative, got -1"),
    ({"lr": math.nan}, "lr must be non-negative, got nan"),
    ({"eps": -1e-8}, "eps must be non-negative, got -1e-08"),
    ({"alpha": 1.0}, "alpha must be at least 0 and less than 1, got 1.0"),
    ({"alpha": -0.1}, "alpha must be at least 0 and less than 1, got -0.1"),
    ({"weight_decay": -1e-4}, "weight_decay must be at least 0 and less than 1, got -0.0001"),
    ({"weight_decay": 1}, "weight_decay must be at least 0 and less than 1, got 1"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        RMSprop([torch.zeros(2)], **settings)


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_bad_settings_of_a_group(settings: dict[str, Any], message: str) -> None:
    optimizer = RMSprop([torch.zeros(2)])
    with pytest.raises(ValueError, match=f"^{message}$"):
        optimizer.add_param_group({"params": [torch.zeros(2)], **settings})
    assert len(optimizer.param_groups) == 1


@pytest.mark.gpu
def test_a_captured_step_replays_with_the_present_learning_rate() -> None:
    start, grads = random(64, 32, seed=0).cuda(), random(6, 64, 32, seed=1).cuda()
    eager, captured = (torch.nn.Parameter(start.clone()) for _ in range(2))
    lrs = torch.tensor(0.01, device="cuda"), torch.tensor(0.01, device="cuda")
    optimizers = [RMSprop([p], lr=lr, weight_decay=1e-3) for p, lr in zip((eager, captured), lrs, strict=True)]
    for p in (eager, captured):
        p.grad = grads[0].clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        optimizers[1].step()  # makes the state
    torch.cuda.current_stream().wait_stream(stream)
    optimizers[0].step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[1].step()
    for k, grad in enumerate(grads[1:]):
        for p, lr in zip((eager, captured), lrs, strict=True):
            p.grad.copy_(grad)
            lr.fill_(0.01 * k)
        optimizers[0].step()
        graph.replay()
    assert torch.equal(eager, captured)


@pytest.mark.gpu
def test_equals_torch_to_the_last_bit_on_a_gpu() -> None:
    ours = [torch.nn.Parameter(random(64, 32, seed=seed).cuda()) for seed in range(3)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    optimizers = RMSprop(ours, lr=1e-2), torch.optim.RMSprop(theirs, lr=1e-2)
    for step in range(20):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = random(64, 32, seed=step).cuda()
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))
