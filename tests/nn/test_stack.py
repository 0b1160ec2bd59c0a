from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchpfc import (
    FISTA,
    MLP,
    Implicit,
    PFCBlock,
    ResidualPFC,
    RMSprop,
    RMSpropSLW,
    keep_nonnegative,
    record_couplings,
    stack_models,
    unstack_models,
)
from torchpfc.nn.stack import select_models_

OPTIONS: dict[str, Any] = {"solver": FISTA.paper(15), "init_range": (0.0, 0.5), "dtype": torch.float64}

MAKERS: dict[str, Callable[[], nn.Module]] = {
    "PFCBlock": lambda: PFCBlock(8, 3, 5, **OPTIONS),
    "semi-NMF, implicit": lambda: PFCBlock(8, 3, 5, **OPTIONS, nonnegative=False, adjoint=Implicit()),
    "many parts": lambda: PFCBlock(8, 3, 40, **OPTIONS),
    "ResidualPFC": lambda: ResidualPFC(8, 3, num_basis=5, **OPTIONS),
    "Sequential": lambda: nn.Sequential(
        nn.Linear(8, 6, dtype=torch.float64),
        nn.ReLU(),
        PFCBlock(6, 4, 5, **OPTIONS),
        nn.Linear(4, 3, bias=False, dtype=torch.float64),
    ),
    "LayerNorm": lambda: nn.Sequential(
        nn.LayerNorm(8, dtype=torch.float64),
        nn.LayerNorm(8, bias=False, dtype=torch.float64),
        PFCBlock(8, 3, 5, **OPTIONS),
    ),
    "MLP": lambda: MLP(8, 3, hidden_features=5, dtype=torch.float64),
    "Linear": lambda: nn.Linear(8, 3, dtype=torch.float64),
}
every_model = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
models_with_blocks = pytest.mark.parametrize(
    "make", [MAKERS[name] for name in MAKERS if name not in ("MLP", "Linear")], ids=list(MAKERS)[:-2]
)


def make_input(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_target(*shape: int) -> Tensor:
    return torch.rand(*shape, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def losses(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The loss of a model, or of each model of a stack: prediction and reconstruction."""
    if not any(isinstance(module, PFCBlock) for module in model.modules()):
        return (model(x) - target).square().mean((-2, -1))
    with record_couplings(model) as seen:
        loss: Tensor = (model(x) - target).square().mean((-2, -1))
    for couplings in seen.values():
        for coupling in couplings:
            loss = loss + (coupling.x - coupling.target).square().mean((-2, -1))
    return loss


@every_model
@pytest.mark.parametrize("own_inputs", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_stack_predicts_what_its_models_predict(
    make: Callable[[], nn.Module], own_inputs: bool, training: bool
) -> None:
    models = [make().train(training) for _ in range(4)]
    stack = stack_models(models)
    x = make_input(4, 6) if own_inputs else make_input(6)
    y = stack(x)
    assert y.shape == (4, 6, 3)
    for i, model in enumerate(models):
        torch.testing.assert_close(y[i], model(x[i] if own_inputs else x), rtol=1e-9, atol=1e-12)


@models_with_blocks
@pytest.mark.parametrize("own_inputs", [True, False])
def test_couplings_of_a_stack_are_those_of_its_models(make: Callable[[], nn.Module], own_inputs: bool) -> None:
    models = [make() for _ in range(3)]
    stack = stack_models(models)
    x = make_input(3, 6) if own_inputs else make_input(6)
    with record_couplings(stack) as together:
        stack(x)
    for i, model in enumerate(models):
        with record_couplings(model) as alone:
            model(x[i] if own_inputs else x)
        assert alone.keys() == together.keys()
        for name in alone:
            for part in ("y", "x", "h", "target"):
                ours, theirs = getattr(together[name][0], part)[i], getattr(alone[name][0], part)
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@every_model
@pytest.mark.parametrize("own_inputs", [True, False])
def test_gradients_of_summed_losses_are_those_of_each_model(make: Callable[[], nn.Module], own_inputs: bool) -> None:
    models = [make() for _ in range(3)]
    stack = stack_models(models)
    x, target = (make_input(3, 6), make_target(3, 6)) if own_inputs else (make_input(6), make_target(6))
    losses(stack, x, target).sum().backward()
    for i, model in enumerate(models):
        pair = (x[i], target[i]) if own_inputs else (x, target)
        losses(model, *pair).backward()
        for ours, theirs in zip(stack.parameters(), model.parameters(), strict=True):
            assert ours.grad is not None and theirs.grad is not None and theirs.grad.any()
            # A stack is multiplied in another order, and conjugate residuals make more of the last bits.
            torch.testing.assert_close(ours.grad[i], theirs.grad, rtol=1e-7, atol=1e-10)


@models_with_blocks
def test_a_stack_learns_what_its_models_learn(make: Callable[[], nn.Module]) -> None:
    models = [make() for _ in range(3)]
    stack = stack_models(models)

    def train(model: nn.Module, pick: slice | int) -> None:
        optimizer = RMSprop(model.parameters(), lr=1e-2, weight_decay=1e-3)
        if any(isinstance(module, PFCBlock) and module.nonnegative for module in model.modules()):
            keep_nonnegative(model, optimizer)
        for step in range(5):
            x, target = make_input(3, 6, seed=step)[pick], make_target(3, 6)[pick]
            optimizer.zero_grad()
            losses(model, x, target).sum().backward()
            optimizer.step()

    before = [deepcopy(p.detach()) for p in stack.parameters()]
    train(stack, slice(None))
    for i, (model, apart) in enumerate(zip(models, unstack_models(stack), strict=True)):
        train(model, i)
        for (name, ours), theirs in zip(apart.state_dict().items(), model.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6, msg=name)
        assert not torch.equal(before[0][i], next(model.parameters()))


def test_a_window_slides_over_a_stack() -> None:
    models = [PFCBlock(8, 3, 5, **OPTIONS) for _ in range(3)]
    stack = stack_models(models)
    for model, target in ((stack, make_target(3, 6)), *((m, make_target(3, 6)[i]) for i, m in enumerate(models))):
        optimizer = RMSpropSLW(model.parameters(), lr=1e-2, width=2, sweep_speed=1)
        keep_nonnegative(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            losses(model, make_input(6), target).sum().backward()
            optimizer.step()
    for i, model in enumerate(models):
        torch.testing.assert_close(stack.weight_x[i], model.weight_x, rtol=0, atol=1e-6)
        torch.testing.assert_close(stack.weight_y[i], model.weight_y, rtol=0, atol=1e-6)


def test_parts_come_and_go_in_a_stack() -> None:
    models = [PFCBlock(8, 3, 5, **OPTIONS) for _ in range(3)]
    stack = stack_models(models)
    optimizer = torch.optim.Adam(stack.parameters())
    losses(stack, make_input(6), make_target(6)).sum().backward()
    optimizer.step()
    stack.add_basis(4, optimizer=optimizer)
    assert stack.weight_x.shape == (3, 8, 9) and stack.power_vector.shape == (3, 9)
    stack.remove_basis([0, 8], optimizer=optimizer)
    losses(stack, make_input(6), make_target(6)).sum().backward()
    optimizer.step()
    for i, model in enumerate(unstack_models(stack)):
        assert model.num_basis == 7
        torch.testing.assert_close(stack(make_input(6))[i], model(make_input(6)), rtol=1e-9, atol=1e-12)


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(func)] += 1
        return func(*args, **(kwargs or {}))


@every_model
@pytest.mark.parametrize("own_inputs", [True, False])
def test_the_number_of_operations_does_not_grow_with_the_stack(make: Callable[[], nn.Module], own_inputs: bool) -> None:
    def operations(size: int) -> Counter[str]:
        stack = stack_models([make() for _ in range(size)])
        optimizer = RMSprop(stack.parameters(), lr=1e-3, weight_decay=1e-4)
        if any(isinstance(module, PFCBlock) and module.nonnegative for module in stack.modules()):
            keep_nonnegative(stack, optimizer)
        x = make_input(size, 6) if own_inputs else make_input(6)
        with _Calls() as calls:
            losses(stack, x, make_target(6)).sum().backward()
            optimizer.step()
        return calls.count

    two = operations(2)
    assert sum(two.values()) > 10
    assert operations(7) == two


@every_model
def test_round_trip(make: Callable[[], nn.Module]) -> None:
    models = [make().eval() for _ in range(3)]
    apart = unstack_models(stack_models(models))
    assert len(apart) == 3
    for ours, theirs in zip(apart, models, strict=True):
        assert repr(ours) == repr(theirs) and type(ours) is type(theirs)
        for module, other in zip(ours.modules(), theirs.modules(), strict=True):
            assert type(module) is type(other) and module.training == other.training
        assert list(ours.state_dict()) == list(theirs.state_dict())
        for name, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[name]), name
        assert torch.equal(ours(make_input(6)), theirs(make_input(6)))


@every_model
def test_stacks_and_models_share_no_memory(make: Callable[[], nn.Module]) -> None:
    models = [make() for _ in range(3)]
    before = [deepcopy(model.state_dict()) for model in models]
    stack = stack_models(models)
    apart = unstack_models(stack)
    with torch.no_grad():
        for p in stack.parameters():
            p.zero_()
    for model, other, old in zip(models, apart, before, strict=True):
        for name, value in old.items():
            assert torch.equal(model.state_dict()[name], value) and torch.equal(other.state_dict()[name], value)


@every_model
def test_a_stack_has_the_names_of_its_models_and_survives_copies(make: Callable[[], nn.Module]) -> None:
    models = [make() for _ in range(2)]
    stack = stack_models(models)
    assert list(stack.state_dict()) == list(models[0].state_dict())
    other = stack_models([make() for _ in range(2)])
    other.load_state_dict(deepcopy(stack).state_dict())
    assert torch.equal(other(make_input(6)), stack(make_input(6)))


def test_a_stack_has_the_class_of_its_models() -> None:
    model = ResidualPFC(8, 3, num_basis=5, nonnegative=False, rectify=False)
    stack = stack_models([model, deepcopy(model)])
    assert isinstance(stack, ResidualPFC) and not stack.rectify
    block = stack.blocks[0]
    assert isinstance(block, PFCBlock) and not block.nonnegative
    assert (block.in_features, block.out_features, block.num_basis) == (8, 8, 5)


def test_one_model_makes_a_stack_of_one() -> None:
    block = PFCBlock(8, 3, 5, **OPTIONS)
    assert stack_models([block])(make_input(6)).shape == (1, 6, 3)


def test_a_module_used_twice_stays_one_module() -> None:
    def make() -> nn.Sequential:
        block, linear = PFCBlock(8, 8, 5, **OPTIONS), nn.Linear(8, 8, dtype=torch.float64)
        return nn.Sequential(block, linear, nn.ReLU(), block, linear).eval()

    models = [make() for _ in range(3)]
    stack = stack_models(models)
    assert stack[0] is stack[3] and stack[1] is stack[4]
    apart = unstack_models(stack)
    for i, model in enumerate(models):
        torch.testing.assert_close(stack(make_input(6))[i], model(make_input(6)), rtol=1e-9, atol=1e-12)
        assert apart[i][0] is apart[i][3]
        assert torch.equal(apart[i](make_input(6)), model(make_input(6)))


def test_what_is_frozen_stays_frozen() -> None:
    models = [MAKERS["Sequential"]() for _ in range(2)]
    for model in models:
        for name in ("0.bias", "2.weight_x", "3.weight"):
            model.get_parameter(name).requires_grad_(False)
    stack = stack_models(models)
    for model in (stack, *unstack_models(stack)):
        learned = [name for name, p in model.named_parameters() if p.requires_grad]
        assert learned == ["0.weight", "2.weight_y"]


def test_models_are_stacked_while_they_are_recorded() -> None:
    models = [PFCBlock(8, 3, 5, **OPTIONS) for _ in range(2)]
    with record_couplings(models[0]) as seen:
        models[0](make_input(6))
        stack = stack_models(models)
        stack(make_input(6))
    assert len(seen[""]) == 1


DIFFERENT: dict[str, tuple[nn.Module, nn.Module]] = {
    "sizes": (PFCBlock(8, 3, 5), PFCBlock(8, 3, 6)),
    "classes": (MLP(8, 3, 5), PFCBlock(8, 3, 5)),
    "constraints": (PFCBlock(8, 3, 5), PFCBlock(8, 3, 5, nonnegative=False)),
    "solvers": (PFCBlock(8, 3, 5), PFCBlock(8, 3, 5, solver=FISTA.paper(7))),
    "adjoints": (PFCBlock(8, 3, 5), PFCBlock(8, 3, 5, adjoint=Implicit())),
    "activations": (nn.Sequential(nn.Linear(8, 3), nn.ReLU()), nn.Sequential(nn.Linear(8, 3), nn.Tanh())),
    "biases": (nn.Linear(8, 3), nn.Linear(8, 3, bias=False)),
    "dtypes": (PFCBlock(8, 3, 5), PFCBlock(8, 3, 5, dtype=torch.float64)),
    "depths": (ResidualPFC(8, 3, 5), ResidualPFC(8, 3, 5, num_blocks=3)),
}


@pytest.mark.parametrize("models", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_models_are_refused(models: tuple[nn.Module, nn.Module]) -> None:
    with pytest.raises(ValueError, match="models must share one architecture and its settings, got "):
        stack_models(models)


def test_no_models_are_refused() -> None:
    with pytest.raises(ValueError, match="models must hold at least one model, got none"):
        stack_models([])


@pytest.mark.parametrize("layer", [nn.LayerNorm((2, 8)), nn.BatchNorm1d(8), nn.Conv1d(1, 1, 1), nn.PReLU()])
def test_other_parameters_are_refused(layer: nn.Module) -> None:
    models = [nn.Sequential(deepcopy(layer), PFCBlock(8, 3, 5)) for _ in range(2)]
    name = type(layer).__name__
    with pytest.raises(TypeError, match=rf"made of PFCBlock, nn\.Linear and nn\.LayerNorm .* stacked, got {name}"):
        stack_models(models)


class _Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_linear_layer_that_does_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"models must be made of PFCBlock, nn\.Linear .*, got _Doubled"):
        stack_models([_Doubled(8, 3) for _ in range(2)])


@pytest.mark.parametrize(
    "model", [PFCBlock(5, 5, 5), MLP(3, 3, 3), nn.LayerNorm(3), nn.ReLU()], ids=lambda model: type(model).__name__
)
def test_what_is_not_a_stack_is_refused(model: nn.Module) -> None:
    name = type(model).__name__
    with pytest.raises(ValueError, match=f"stack must come from stack_models and have parameters, got {name}"):
        unstack_models(model)


def test_inputs_for_another_number_of_models_are_refused() -> None:
    stack = stack_models([PFCBlock(8, 3, 5, **OPTIONS) for _ in range(3)])
    with pytest.raises(ValueError, match=r"x must have leading dimensions that broadcast with those of W \(3,\), got"):
        stack(make_input(2, 6))
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., n, 8\) to match W, got \(8,\)"):
        stack(make_input())


# Letting go of some models


@every_model
def test_what_is_left_of_a_stack_is_the_stack_of_what_was_kept(make: Callable[[], nn.Module]) -> None:
    models = [make() for _ in range(4)]
    stack, kept = stack_models(models), stack_models([models[3], models[1]])
    parameters = list(stack.parameters())
    select_models_(stack, torch.tensor([3, 1]))
    assert all(now is before for now, before in zip(stack.parameters(), parameters, strict=True))
    assert stack.state_dict().keys() == kept.state_dict().keys()
    for name, value in kept.state_dict().items():
        assert torch.equal(stack.state_dict()[name], value)
    x = make_input(2, 6)
    assert torch.equal(stack.eval()(x), kept.eval()(x))
    assert [len(p) for p in stack.parameters()] == [2] * len(parameters)


@every_model
def test_the_models_that_are_kept_go_on_as_if_nothing_had_happened(make: Callable[[], nn.Module]) -> None:
    models = [make() for _ in range(3)]
    stack, kept = stack_models(models), stack_models([models[0], models[2]])
    target = make_target(6)

    def step(model: nn.Module, optimizer: RMSprop, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = losses(model, x, target)
        loss.sum().backward()
        optimizer.step()
        return loss

    first, second = (RMSprop(model.parameters(), lr=1e-2) for model in (stack, kept))
    x = make_input(3, 6)
    for _ in range(3):
        alive = step(stack, first, x)  # a loss that outlives the change
        step(kept, second, x[[0, 2]])
    select_models_(stack, torch.tensor([0, 2]), first)
    for _ in range(3):
        step(stack, first, x[[0, 2]])
        step(kept, second, x[[0, 2]])
    assert len(alive) == 3
    for name, value in kept.state_dict().items():
        torch.testing.assert_close(stack.state_dict()[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (torch.tensor([], dtype=torch.long), "members must be indices, at least one, got"),
        (torch.tensor([True, False, True]), "members must be indices, at least one, got"),
        (torch.tensor(1), "members must be indices, at least one, got"),
        (torch.tensor([0, 3]), r"members must be from 0 to 2, got \[0, 3\]"),
        (torch.tensor([-1]), r"members must be from 0 to 2, got \[-1\]"),
    ],
)
def test_members_that_are_not_there_are_refused(members: Tensor, message: str) -> None:
    stack = stack_models([MLP(8, 3, 5) for _ in range(3)])
    with pytest.raises(ValueError, match=message):
        select_models_(stack, members)
    assert all(len(p) == 3 for p in stack.parameters())


def test_only_a_stack_can_let_go() -> None:
    with pytest.raises(ValueError, match="stack must come from stack_models and have parameters, got MLP"):
        select_models_(MLP(8, 3, 5), torch.tensor([0]))
