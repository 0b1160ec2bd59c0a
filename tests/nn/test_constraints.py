from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc import FISTA, MLP, PFCBlock, ResidualPFC, RMSprop, RMSpropSLW, Windowed, keep_nonnegative
from torchpfc.nn.constraints import project_nonnegative_

MAKERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=10.0),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.3),
    "RMSprop": lambda params: RMSprop(params, lr=0.1),
    "RMSpropSLW": lambda params: RMSpropSLW(params, lr=0.1, width=6, sweep_speed=0),
    "Windowed SGD": lambda params: Windowed(torch.optim.SGD(params, lr=10.0), width=6, sweep_speed=0),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def make_block(**options: object) -> PFCBlock:
    settings: dict[str, object] = {"solver": FISTA.paper(10), "init_range": (0.0, 0.5), **options}
    return PFCBlock(8, 3, 6, generator=torch.Generator().manual_seed(0), **settings)  # type: ignore[arg-type]


def learn(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> None:
    """Steps that would make weights negative."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        F.mse_loss(model(torch.rand(5, 8, generator=generator)), torch.rand(5, 3, generator=generator)).backward()
        optimizer.step()


def smallest(model: nn.Module) -> float:
    return min(p.min().item() for p in model.parameters())


@every_optimizer
@pytest.mark.parametrize("floor", [1e-5, 0.01, 0.0])
def test_weights_stay_at_or_above_the_floor(make: Callable[..., Optimizer], floor: float) -> None:
    solver = FISTA(max_iter=10, floor=floor, cap=True)
    free, kept = make_block(solver=solver), make_block(solver=solver)
    learn(free, make(free.parameters()))
    assert smallest(free) < 0  # without the projection
    optimizer = make(kept.parameters())
    keep_nonnegative(kept, optimizer)
    learn(kept, optimizer)
    assert smallest(kept) == pytest.approx(floor)
    assert smallest(kept) >= torch.tensor(floor).item()


def test_the_step_is_projected_and_nothing_else() -> None:
    free, kept = make_block(), make_block()
    optimizer = torch.optim.SGD(kept.parameters(), lr=10.0)
    keep_nonnegative(kept, optimizer)
    learn(free, torch.optim.SGD(free.parameters(), lr=10.0), steps=1)
    learn(kept, optimizer, steps=1)
    for ours, theirs in zip(kept.parameters(), free.parameters(), strict=True):
        assert torch.equal(ours, theirs.clamp(min=1e-5)) and not torch.equal(ours, theirs)


def test_every_block_of_a_model_is_projected_and_nothing_else_is() -> None:
    semi = PFCBlock(6, 8, 5, nonnegative=False, init_range=(-0.5, 0.5))
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), semi, nn.ReLU(), ResidualPFC(8, 3, num_basis=6))
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    keep_nonnegative(model, optimizer)
    learn(model, optimizer, steps=1)
    assert smallest(model[0]) < 0 and smallest(semi) < 0
    assert smallest(model[-1]) == pytest.approx(1e-5)


@pytest.mark.parametrize("make", [MAKERS["SGD"], MAKERS["RMSprop"]])
def test_only_parameters_of_the_optimizer_are_projected(make: Callable[..., Optimizer]) -> None:
    block = make_block()
    with torch.no_grad():
        block.weight_x.sub_(0.25)
    before = block.weight_x.detach().clone()
    optimizer = make([block.weight_y])
    keep_nonnegative(block, optimizer)
    for weight in block.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert torch.equal(block.weight_x, before) and (before < 0).any()
    assert torch.equal(block.weight_y, torch.full_like(block.weight_y, 1e-5))


def make_windowed(block: PFCBlock, kind: str) -> RMSpropSLW | Windowed:
    if kind == "RMSpropSLW":
        return RMSpropSLW(block.parameters(), lr=0.1, width=2, sweep_speed=1)
    return Windowed(torch.optim.SGD(block.parameters(), lr=10.0), width=2, sweep_speed=1)


@pytest.mark.parametrize("kind", ["RMSpropSLW", "Windowed SGD"])
def test_columns_outside_the_window_do_not_change_by_a_bit(kind: str) -> None:
    block = make_block()
    optimizer = make_windowed(block, kind)
    keep_nonnegative(block, optimizer)
    with torch.no_grad():  # below the floor in every column: a projection of the whole matrix would be seen
        block.weight_x[0] = 1e-7
        block.weight_y[0] = -1e-3
    for step in range(4):
        before = [p.detach().clone() for p in block.parameters()]
        learn(block, optimizer, steps=1)
        for weight, old in zip(block.parameters(), before, strict=True):
            inside = slice(step, step + 2)
            assert torch.equal(weight[:, :step], old[:, :step]) and torch.equal(
                weight[:, step + 2 :], old[:, step + 2 :]
            )
            assert not torch.equal(weight[:, inside], old[:, inside])
            assert weight[:, inside].min() >= 1e-5


@pytest.mark.parametrize("kind", ["RMSpropSLW", "Windowed SGD"])
def test_after_a_skip_nothing_is_projected(kind: str) -> None:
    block = make_block()
    optimizer = make_windowed(block, kind)
    keep_nonnegative(block, optimizer)
    learn(block, optimizer, steps=1)
    with torch.no_grad():
        block.weight_x[0] = -1.0
    before = block.weight_x.detach().clone()
    optimizer.skip()
    assert torch.equal(block.weight_x, before)
    learn(block, optimizer, steps=1)  # the window has moved on by two columns
    assert (block.weight_x[0, [0, 1, 4, 5]] == -1.0).all() and (block.weight_x[:, 2:4] >= 1e-5).all()


def test_forgotten_columns_stay_zero() -> None:
    block = make_block()
    optimizer = RMSpropSLW(block.parameters(), lr=0.1, weight_decay=1e-3, width=2, sweep_speed=1)
    keep_nonnegative(block, optimizer)
    learn(block, optimizer, steps=2)
    with torch.no_grad():
        for weight in block.parameters():
            weight[:, :2] = 0.0  # what the window has passed
    learn(block, optimizer, steps=3)
    for weight in block.parameters():
        assert not weight[:, :2].any() and weight[:, 2:].min() >= 1e-5


@pytest.mark.parametrize("make", [MAKERS["SGD"], MAKERS["RMSpropSLW"]])
def test_the_projection_does_not_bring_a_forgotten_column_back(make: Callable[..., Optimizer]) -> None:
    block = make_block()
    optimizer = make(block.parameters())
    keep_nonnegative(block, optimizer)
    with torch.no_grad():
        for weight in block.parameters():
            weight[:, 4] = 0.0
    for weight in block.parameters():
        weight.grad = torch.ones_like(weight)
        weight.grad[:, 4] = 0.0  # inside the window, and the step leaves it where it is
    optimizer.step()
    for weight in block.parameters():
        assert not weight[:, 4].any()
        assert (weight[:, [0, 1, 2, 3, 5]] >= 1e-5).all()


@pytest.mark.parametrize("floor", [0.0, 0.25])
@pytest.mark.parametrize("stack", [(), (2,), (2, 3)])
def test_projection_of_a_matrix_and_of_stacks(floor: float, stack: tuple[int, ...]) -> None:
    weight = torch.randn(*stack, 4, 6, generator=torch.Generator().manual_seed(0))
    weight[..., 2] = 0.0
    if stack:
        weight[0, ..., 3] = 0.0  # forgotten in one member alone
    expected = weight.clamp(min=floor)
    expected[..., 2] = 0.0
    if stack:
        expected[0, ..., 3] = 0.0
    project_nonnegative_(weight, floor)
    assert torch.equal(weight, expected)


def test_removing_the_handle_ends_it() -> None:
    block = make_block()
    optimizer = torch.optim.SGD(block.parameters(), lr=10.0)
    handle = keep_nonnegative(block, optimizer)
    learn(block, optimizer, steps=1)
    assert smallest(block) > 0
    handle.remove()
    learn(block, optimizer)
    assert smallest(block) < 0


def test_it_goes_on_after_the_state_of_the_optimizer_is_loaded() -> None:
    block = make_block()
    optimizer = RMSprop(block.parameters(), lr=0.1)
    keep_nonnegative(block, optimizer)
    learn(block, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    learn(block, optimizer)
    assert smallest(block) == pytest.approx(1e-5)


def test_gradients_flow_after_a_projection() -> None:
    block = make_block()
    optimizer = torch.optim.SGD(block.parameters(), lr=10.0)
    keep_nonnegative(block, optimizer)
    learn(block, optimizer)
    assert all(p.is_leaf and p.requires_grad and p.grad is not None and p.grad.any() for p in block.parameters())


@pytest.mark.parametrize("model", [MLP(8, 3, 5), PFCBlock(8, 3, 5, nonnegative=False)])
def test_a_model_without_a_nonnegative_block_is_refused(model: nn.Module) -> None:
    name = type(model).__name__
    with pytest.raises(ValueError, match=f"model must contain a non-negative PFCBlock, got {name} without one"):
        keep_nonnegative(model, torch.optim.SGD(model.parameters(), lr=1.0))


def test_an_optimizer_of_another_model_is_refused() -> None:
    """It would never step these weights, and so nothing would keep them at or above the floor."""
    optimizer = torch.optim.SGD(make_block().parameters(), lr=1.0)
    with pytest.raises(ValueError, match="optimizer must be that of the model, got one that has no weight of its"):
        keep_nonnegative(make_block(), optimizer)
    assert not optimizer._optimizer_step_post_hooks
