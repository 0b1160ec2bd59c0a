"""What PyTorch's own tools expect of a module, of each module here."""

import os
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc import (
    FISTA,
    MLP,
    FactorizedRNN,
    Implicit,
    PFCBlock,
    ResidualPFC,
    RMSprop,
    VanillaRNN,
    keep_nonnegative,
    record_couplings,
)

SOLVER = FISTA.paper(10)


class Reader(nn.Module):
    """Reads a row as four slices, and answers after the last."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.rnn(x.unflatten(-1, (4, -1)))[0]
        return y[..., -1, :]


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "PFCBlock": lambda: PFCBlock(8, 3, num_basis=5, solver=SOLVER),
    "semi-NMF PFCBlock": lambda: PFCBlock(8, 3, num_basis=5, nonnegative=False, solver=SOLVER, adjoint=Implicit.fast()),
    "ResidualPFC": lambda: ResidualPFC(8, 3, num_basis=5, solver=SOLVER),
    "MLP": lambda: MLP(8, 3, hidden_features=5),
    "FactorizedRNN": lambda: Reader(FactorizedRNN(2, 5, 3, solver=SOLVER)),
    "FactorizedRNN without BPTT": lambda: Reader(FactorizedRNN(2, 5, 3, solver=SOLVER, bptt=False, nonnegative=False)),
    "VanillaRNN": lambda: Reader(VanillaRNN(2, 5, 3)),
    "Sequential": lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), PFCBlock(6, 4, 5, solver=SOLVER), nn.Linear(4, 3)),
}
every_module = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def make_input(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)


def train(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(make_input()), torch.ones(6, 3)).backward()
        optimizer.step()


def assert_same(one: nn.Module, other: nn.Module) -> None:
    """Weights, buffers and predictions are equal to the last bit, in training and in evaluation."""
    x = make_input(next(one.parameters()).dtype)
    for training in (False, True):
        assert torch.equal(one.train(training)(x), other.train(training)(x))
    for (name, value), (other_name, other_value) in zip(
        one.state_dict().items(), other.state_dict().items(), strict=True
    ):
        assert name == other_name and torch.equal(value, other_value), name


@every_module
def test_state_dict_round_trip(make: Callable[[], nn.Module]) -> None:
    model, other = make(), make()
    train(model)
    assert not torch.equal(model.eval()(make_input()), other.eval()(make_input()))
    missing = other.load_state_dict(model.state_dict(), strict=True)
    assert not missing.missing_keys and not missing.unexpected_keys
    assert_same(other, model)


@every_module
def test_saved_weights_load_without_running_code(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model, other = make(), make()
    train(model)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert_same(other, model)


def test_names_in_the_state_dict() -> None:
    block = PFCBlock(8, 3, 5)
    assert list(block.state_dict()) == ["weight_x", "weight_y", "power_vector"]
    assert [name for name, _ in block.named_parameters()] == ["weight_x", "weight_y"]
    weight_x, weight_y = block.parameters()
    assert weight_x is block.weight_x and weight_y is block.weight_y
    names = [name for name, _ in ResidualPFC(8, 3, 5).named_parameters()]
    assert names == [f"blocks.{i}.weight_{side}" for i in (0, 1) for side in "xy"]


def test_weights_of_another_size_are_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch for weight_x"):
        PFCBlock(8, 3, 5).load_state_dict(PFCBlock(8, 3, 6).state_dict())


@every_module
@pytest.mark.parametrize("evaluated", [False, True])
def test_deepcopy_is_equal_and_apart(make: Callable[[], nn.Module], evaluated: bool) -> None:
    model = make()
    train(model)
    if evaluated:
        model.eval()(make_input())
    twin = deepcopy(model)
    assert twin.training == model.training
    assert_same(twin, model)
    before = deepcopy(model.state_dict())
    train(twin)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(twin.eval()(make_input()), model.eval()(make_input()))


@every_module
def test_modules_can_be_pickled(make: Callable[[], nn.Module]) -> None:
    model = make()
    train(model)
    model.eval()(make_input())
    assert_same(pickle.loads(pickle.dumps(model)), model)


@every_module
def test_whole_modules_can_be_saved(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = make()
    train(model)
    model.eval()(make_input())
    torch.save(model, tmp_path / "model.pt")
    assert_same(torch.load(tmp_path / "model.pt", weights_only=False), model)


@every_module
def test_to_another_dtype(make: Callable[[], nn.Module]) -> None:
    model = make()
    single = model.eval()(make_input())
    double = model.to(torch.float64)(make_input(torch.float64))
    assert {value.dtype for value in model.state_dict().values()} == {torch.float64}
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-3, atol=1e-5)


@every_module
def test_every_parameter_gets_a_gradient_and_loses_it(make: Callable[[], nn.Module]) -> None:
    model = make()
    model(make_input()).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@every_module
def test_frozen_modules_pass_gradients_on(make: Callable[[], nn.Module]) -> None:
    model, x = make().requires_grad_(False), make_input().requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None and x.grad.any()
    assert all(p.grad is None for p in model.parameters())


@every_module
def test_nothing_but_buffers_is_kept_by_a_call(make: Callable[[], nn.Module]) -> None:
    model = make()
    kept = [{key: id(value) for key, value in module.__dict__.items()} for module in model.modules()]
    model(make_input())
    assert kept == [{key: id(value) for key, value in module.__dict__.items()} for module in model.modules()]


def test_inside_a_sequential_a_block_is_one_of_the_layers() -> None:
    first, block, last = nn.Linear(8, 6), PFCBlock(6, 4, 5), nn.Linear(4, 3)
    model = nn.Sequential(first, nn.ReLU(), block, last).eval()
    x = make_input()
    assert torch.equal(model(x), last(block(torch.relu(first(x)))))
    model(x).sum().backward()
    assert first.weight.grad is not None and first.weight.grad.any()


def test_a_learning_rate_scheduler_drives_the_training_of_a_block() -> None:
    def weights(schedule: Callable[[int], float]) -> tuple[Tensor, float]:
        block = PFCBlock(8, 3, 5, solver=SOLVER, generator=torch.Generator().manual_seed(0))
        optimizer = RMSprop(block.parameters(), lr=1e-3)
        keep_nonnegative(block, optimizer)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        for _ in range(4):
            optimizer.zero_grad()
            F.mse_loss(block(make_input()), torch.ones(6, 3)).backward()
            optimizer.step()
            scheduler.step()
        return block.weight_y.detach().clone(), optimizer.param_groups[0]["lr"]

    steady, _ = weights(lambda _: 1.0)
    stopped, last = weights(lambda step: float(step < 2))
    started, _ = weights(lambda step: float(step >= 2))
    assert last == 0.0
    assert not torch.equal(steady, stopped) and not torch.equal(stopped, started)
    assert (steady - stopped).abs().max() > 1e-4


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(os.name == "nt", reason="gloo on Windows needs another store")
@pytest.mark.parametrize("name", ["PFCBlock", "semi-NMF PFCBlock", "ResidualPFC", "Sequential"])
def test_distributed_training_gives_the_same_gradients(name: str, one_process: None) -> None:
    bare = MAKERS[name]()
    wrapped = nn.parallel.DistributedDataParallel(deepcopy(bare))
    for _ in range(2):
        for model in (bare, wrapped):
            model.zero_grad()
            with record_couplings(model) as seen:
                loss = F.mse_loss(model(make_input()), torch.ones(6, 3))
            loss = loss + sum(F.mse_loss(c.x, c.target) for couplings in seen.values() for c in couplings)
            loss.backward()
        for ours, theirs in zip(bare.parameters(), wrapped.parameters(), strict=True):
            assert ours.grad is not None and theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad) and ours.grad.any()
    for buffer, same in zip(bare.buffers(), wrapped.buffers(), strict=True):
        assert torch.equal(buffer, same)
