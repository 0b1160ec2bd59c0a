"""What PyTorch's own tools expect of an optimizer, of each optimizer here."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from torchpfc.optim import Age, ColumnRates, RMSprop, RMSpropSLW, Windowed

MAKERS: dict[str, Callable[..., Optimizer]] = {
    "RMSprop": lambda params: RMSprop(params, lr=0.01, weight_decay=1e-3),
    "RMSpropSLW": lambda params: RMSpropSLW(params, lr=0.01, weight_decay=1e-3, width=4, sweep_speed=0.3),
    "Windowed Adam": lambda params: Windowed(torch.optim.Adam(params, lr=0.01), width=4, sweep_speed=0.3),
    "Windowed SGD": lambda params: Windowed(torch.optim.SGD(params, lr=0.01, momentum=0.9), width=4, sweep_speed=0.3),
    "ColumnRates Adam": lambda params: ColumnRates(torch.optim.Adam(params, lr=0.01), half_after=3, measure=Age()),
}
COUNTS = ("use", "seen")  # lists of tensors
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def make_params() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(rows, 10, generator=generator)) for rows in (5, 3)]


def learn(optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for p in parameters(optimizer):
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()


def parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def assert_same(ours: Optimizer, theirs: Optimizer) -> None:
    """Weights, state and settings are equal to the last bit."""
    for p, q in zip(parameters(ours), parameters(theirs), strict=True):
        assert torch.equal(p, q)
        assert ours.state[p].keys() == theirs.state[q].keys()
        for key, value in ours.state[p].items():
            assert torch.equal(value, theirs.state[q][key]), key
    for group, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        apart = dict.fromkeys(("params", *COUNTS))
        assert {**group, **apart} == {**other, **apart}
        for key in COUNTS:
            assert all(map(torch.equal, group.get(key, ()), other.get(key, ())))


def saved_and_loaded(state_dict: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@every_optimizer
def test_closure_runs_with_gradients_and_its_loss_comes_back(make: Callable[..., Optimizer]) -> None:
    params = make_params()
    optimizer = make(params)
    before = params[0].detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum((p**2).sum() for p in params)
        loss.backward()
        return loss.detach()

    first = optimizer.step(closure)
    second = optimizer.step(closure)
    assert 0 < second < first
    assert not torch.equal(before, params[0])


@every_optimizer
def test_without_a_closure_nothing_is_returned(make: Callable[..., Optimizer]) -> None:
    assert make(make_params()).step() is None


@every_optimizer
def test_parameters_without_gradient_are_skipped(make: Callable[..., Optimizer]) -> None:
    moving, still = make_params()
    optimizer = make([moving, still])
    before = moving.detach().clone(), still.detach().clone()
    moving.grad = torch.ones_like(moving)
    optimizer.step()
    assert not torch.equal(moving, before[0])
    assert torch.equal(still, before[1])
    assert still not in optimizer.state


@every_optimizer
def test_a_scheduler_drives_it(make: Callable[..., Optimizer]) -> None:
    optimizer, by_hand = make(make_params()), make(make_params())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    for step in range(6):
        learn(optimizer, range(step, step + 1))
        scheduler.step()
        by_hand.param_groups[0]["lr"] = 0.01 * 0.1 ** (step // 2)
        learn(by_hand, range(step, step + 1))
    for p, q in zip(parameters(optimizer), parameters(by_hand), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-8)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-5)


@every_optimizer
def test_a_resumed_run_equals_one_never_stopped(make: Callable[..., Optimizer]) -> None:
    uninterrupted = make(make_params())
    learn(uninterrupted, range(12))

    stopped = make(make_params())
    learn(stopped, range(7))
    saved = saved_and_loaded(stopped.state_dict())
    params = [torch.nn.Parameter(p.detach().clone()) for p in parameters(stopped)]
    resumed = make(params)
    resumed.load_state_dict(saved)
    learn(resumed, range(7, 12))

    assert_same(resumed, uninterrupted)


@every_optimizer
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_on_by_itself(make: Callable[..., Optimizer], copied: Callable[[Any], Any]) -> None:
    optimizer = make(make_params())
    learn(optimizer, range(5))
    twin = copied(optimizer)
    assert_same(twin, optimizer)
    before = [p.detach().clone() for p in parameters(optimizer)]
    learn(twin, range(5, 9))
    assert all(torch.equal(p, q) for p, q in zip(before, parameters(optimizer), strict=True))
    learn(optimizer, range(5, 9))
    assert_same(twin, optimizer)


@every_optimizer
def test_clearing_the_state_is_a_fresh_start(make: Callable[..., Optimizer]) -> None:
    optimizer = make(make_params())
    learn(optimizer, range(5))
    optimizer.state.clear()

    fresh = make([torch.nn.Parameter(p.detach().clone()) for p in parameters(optimizer)])
    for key in ("position", "window", *COUNTS):  # the window carries on, and so does use
        if key in optimizer.param_groups[0]:
            fresh.param_groups[0][key] = copy.deepcopy(optimizer.param_groups[0][key])
    learn(optimizer, range(5, 8))
    learn(fresh, range(5, 8))
    assert_same(optimizer, fresh)


@every_optimizer
def test_a_step_is_a_new_version_of_the_weight(make: Callable[..., Optimizer]) -> None:
    optimizer = make(make_params())
    versions = [p._version for p in parameters(optimizer)]
    learn(optimizer, range(1))
    assert all(p._version > version for p, version in zip(parameters(optimizer), versions, strict=True))


@every_optimizer
def test_hooks_run_after_each_step(make: Callable[..., Optimizer]) -> None:
    optimizer, seen = make(make_params()), []
    optimizer.register_step_post_hook(lambda self, args, kwargs: seen.append(self))
    learn(optimizer, range(3))
    assert seen == [optimizer] * 3


@every_optimizer
def test_sparse_gradients_are_refused_before_anything_changes(make: Callable[..., Optimizer]) -> None:
    params = make_params()
    optimizer, before = make(params), [p.detach().clone() for p in params]
    params[0].grad = torch.ones_like(params[0])
    params[1].grad = torch.ones_like(params[1]).to_sparse()
    with pytest.raises(TypeError, match=r"gradients must be dense, got torch.sparse_coo for a .* shape \(3, 10\)"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
