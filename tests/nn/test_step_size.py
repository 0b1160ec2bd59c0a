"""The bound on the largest eigenvalue: it sets the solver's step, so it has to hold wherever the weights come from."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.nn.probe import lipschitz_used
from torchpfc import FISTA, Implicit, PFCBlock, RMSprop, keep_nonnegative
from torchpfc.solvers import largest_eigenvalue

both_kinds = pytest.mark.parametrize("nonnegative", [True, False], ids=["NMF", "semi-NMF"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_block(nonnegative: bool = True, seed: int = 0, **options: object) -> PFCBlock:
    low = 0.0 if nonnegative else -1.0
    settings: dict[str, object] = {"generator": seeded(seed), "dtype": torch.float64, "init_range": (low, 1.0)}
    return PFCBlock(12, 4, 9, nonnegative=nonnegative, **{**settings, **options})  # type: ignore[arg-type]


def largest(weight: Tensor) -> float:
    return float(torch.linalg.eigvalsh(weight.detach().mT @ weight.detach())[-1])


def is_bound(block: PFCBlock) -> bool:
    """Whether the step is short enough, and not shorter than the margin on an estimate from below explains."""
    margin = 1.02 if block.nonnegative else 1.05
    return 1.0 <= lipschitz_used(block).item() / largest(block.weight_x) <= margin + 1e-9


@both_kinds
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("training", [True, False])
def test_a_fresh_block_has_a_bound(nonnegative: bool, seed: int, training: bool) -> None:
    assert is_bound(make_block(nonnegative, seed).train(training))


@both_kinds
def test_a_block_of_examples_has_a_bound(nonnegative: bool) -> None:
    x = torch.zeros(9, 12, dtype=torch.float64)
    x.fill_diagonal_(0.8 if nonnegative else -0.8)
    x[3, 3] = 1.0  # the one part that counts, and the vector needs more than two iterations to find it
    block = PFCBlock.from_examples(x, torch.ones(9, 4, dtype=torch.float64), nonnegative=nonnegative)
    assert is_bound(block.train())
    assert is_bound(block.eval())


@both_kinds
def test_the_bound_follows_training(nonnegative: bool) -> None:
    block = make_block(nonnegative, solver=FISTA.paper(20), init_range=(0.0, 1e-2))
    optimizer = RMSprop(block.parameters(), lr=3e-3, weight_decay=1e-4)
    if nonnegative:
        keep_nonnegative(block, optimizer)
    x, y = (torch.rand(32, size, generator=seeded(1), dtype=torch.float64) for size in (12, 4))
    before = largest(block.weight_x)
    for step in range(150):
        out = block.couple(x)
        optimizer.zero_grad()
        (F.mse_loss(out.y, y) + F.mse_loss(out.x, x)).backward()
        optimizer.step()
        if step % 10 == 0:
            assert is_bound(block)
    assert largest(block.weight_x) > 5 * before  # the weights did move away from where the vector was found
    assert is_bound(block.eval())


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_after_a_first_step_from_small_weights(seed: int) -> None:
    """That step is as large as the weights are, and makes another direction the largest by far."""
    options: dict[str, Any] = {"init_range": (-5e-3, 5e-3), "generator": seeded(seed), "dtype": torch.float64}
    block = PFCBlock(80, 40, 50, nonnegative=False, **options)
    optimizer = RMSprop(block.parameters(), lr=2e-4)
    x, y = (torch.rand(20, size, generator=seeded(seed), dtype=torch.float64) for size in (80, 40))
    before = largest(block.weight_x)
    out = block.couple(x)
    (F.mse_loss(out.y, y) + F.mse_loss(out.x, x)).backward()
    optimizer.step()
    assert largest(block.weight_x) > 3 * before
    assert is_bound(block)


def test_a_part_that_takes_over_is_noticed() -> None:
    """With parts that share no pixel, nothing but the block itself brings the second into the vector."""
    block = make_block(solver=FISTA())
    with torch.no_grad():
        block.weight_x.zero_()
        block.weight_x[0, 0] = 1.0
        block.weight_x[1, 1] = 0.01
    block.reset_step_size()
    for _ in range(60):
        block(torch.rand(12, dtype=torch.float64))
    with torch.no_grad():
        block.weight_x[1, 1] = 1.0
    for _ in range(60):
        block(torch.rand(12, dtype=torch.float64))
        with torch.no_grad():
            block.weight_x[1, 1] *= 1.02
    assert is_bound(block.train())
    assert is_bound(block.eval())


@pytest.mark.parametrize("training", [True, False])
def test_weights_that_were_all_zero_can_be_learned_again(training: bool) -> None:
    block = make_block().train()
    learned = block.weight_x.detach().clone()
    with torch.no_grad():
        block.weight_x.zero_()
        out = block.couple(torch.rand(3, 12, generator=seeded(), dtype=torch.float64))
        assert out.y.isfinite().all() and not out.x.any()
        block.weight_x.copy_(learned)
    for _ in range(10):
        block(torch.rand(3, 12, generator=seeded(), dtype=torch.float64))
    assert is_bound(block.train(training))


def test_only_training_moves_the_vector() -> None:
    block, x = make_block(), torch.rand(3, 12, generator=seeded(), dtype=torch.float64)
    other = make_block(seed=1)
    with torch.no_grad():
        block.weight_x.copy_(other.weight_x)
    block.eval()
    before = deepcopy(block.state_dict())
    block(x)
    block.couple(x)
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    block.train()(x)
    assert not torch.equal(block.power_vector, before["power_vector"])


@both_kinds
def test_the_step_does_not_count_in_the_gradient(nonnegative: bool) -> None:
    block = make_block(nonnegative)
    block(torch.rand(3, 12, dtype=torch.float64)).sum().backward()
    assert not block.power_vector.requires_grad and block.power_vector.grad_fn is None


def grow(block: PFCBlock) -> None:
    with torch.no_grad():
        block.weight_x.mul_(3.0)


def copy(block: PFCBlock) -> None:
    with torch.no_grad():
        block.weight_x.copy_(5.0 * make_block(seed=7).weight_x)


def load(block: PFCBlock) -> None:
    other = make_block(seed=7)
    with torch.no_grad():
        other.weight_x.mul_(4.0)
    block.load_state_dict(other.state_dict())


def load_and_assign(block: PFCBlock) -> None:
    other = make_block(seed=7)
    block.load_state_dict({**other.state_dict(), "weight_x": 2.0 * other.weight_x.detach()}, assign=True)


def take_a_step(block: PFCBlock) -> None:
    block.weight_x.grad = -torch.ones_like(block.weight_x)
    RMSprop([block.weight_x], lr=0.1).step()


def write_past_autograd(block: PFCBlock) -> None:
    block.weight_x.data.mul_(3.0)  # leaves no trace: the block has to be told
    block.reset_step_size()


def replace_columns(block: PFCBlock) -> None:
    block.add_basis(3)
    with torch.no_grad():
        block.weight_x[:, -3:] *= 9.0
    block.remove_basis([0, 1, 2])


CHANGES = [grow, copy, load, load_and_assign, take_a_step, write_past_autograd, replace_columns]


@pytest.mark.parametrize("change", CHANGES)
def test_evaluation_follows_changes_of_the_weights(change: Callable[[PFCBlock], None]) -> None:
    block, x = make_block().eval(), torch.rand(3, 12, generator=seeded(), dtype=torch.float64)
    before = block(x)
    change(block)
    fresh = make_block(solver=block.solver).eval()
    with torch.no_grad():
        fresh.weight_x.copy_(block.weight_x)
        fresh.weight_y.copy_(block.weight_y)
    assert not torch.allclose(block(x), before)
    torch.testing.assert_close(block(x), fresh(x), rtol=1e-6, atol=0)
    assert is_bound(block)


def test_evaluation_finds_the_eigenvalue_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any) -> tuple[Tensor, Tensor]:
        calls.append(arguments)
        return largest_eigenvalue(*arguments)

    monkeypatch.setattr("torchpfc.nn.block.largest_eigenvalue", counted)
    block, x = make_block().eval(), torch.rand(3, 12, dtype=torch.float64)
    calls.clear()
    for _ in range(3):
        block(x)
    assert len(calls) == 1
    grow(block)
    for _ in range(3):
        block(x)
    assert len(calls) == 2


def test_other_weights_at_the_same_address_are_told_apart() -> None:
    def make() -> PFCBlock:
        return PFCBlock(500, 4, 200, solver=FISTA.paper(10), generator=seeded(), dtype=torch.float64).eval()

    block, x = make(), torch.rand(3, 500, generator=seeded(), dtype=torch.float64)
    weight, sizes = block.weight_x.detach().clone(), [1.0, 10.0, 0.1, 3.0, 0.5, 20.0, 0.2, 7.0]
    with torch.no_grad():
        # Each tensor of weights is freed before the next is made: large ones then often come to lie at the same place.
        predictions = [torch.func.functional_call(block, {"weight_x": size * weight}, (x,)) for size in sizes]
        for size, y in zip(sizes, predictions, strict=True):
            fresh = make()
            fresh.weight_x.mul_(size)
            torch.testing.assert_close(y, fresh(x), rtol=1e-6, atol=0)


def test_a_copy_of_an_evaluated_block_has_its_own_step() -> None:
    block, x = make_block().eval(), torch.rand(3, 12, generator=seeded(), dtype=torch.float64)
    block(x)
    twin = deepcopy(block)
    grow(twin)
    assert is_bound(twin) and is_bound(block)
    assert not torch.allclose(twin(x), block(x))


def test_a_block_made_in_inference_mode_works() -> None:
    block, x = make_block().eval(), torch.rand(3, 12, generator=seeded(), dtype=torch.float64)
    with torch.inference_mode():
        copied = deepcopy(block)
        assert copied.weight_x.is_inference()
        torch.testing.assert_close(copied(x), block(x))
        assert torch.equal(block.train()(x), copied.train()(x))


def test_what_inference_mode_found_serves_gradients_too() -> None:
    block, x = make_block().eval(), torch.rand(3, 12, generator=seeded(), dtype=torch.float64)
    with torch.inference_mode():
        y = block(x)
    again = block(x)
    again.sum().backward()
    torch.testing.assert_close(again, y)
    assert block.weight_x.grad is not None and block.weight_x.grad.any()


def test_huge_weights_do_not_blow_up() -> None:
    block = make_block(solver=FISTA(max_iter=500), adjoint=Implicit())
    with torch.no_grad():
        block.weight_x.mul_(1e6)
    block.reset_step_size()
    x = torch.rand(3, 12, generator=seeded(), dtype=torch.float64)
    residual = (block.couple(x).x - x).norm()
    assert residual <= x.norm()


def test_a_change_that_autograd_does_not_see_is_noticed_at_the_next_evaluation():
    x = torch.rand(5, 20, generator=torch.Generator().manual_seed(0))
    block = PFCBlock(20, 3, num_basis=6, init_range=(0.0, 1.0), generator=torch.Generator().manual_seed(1)).eval()
    block(x)
    block.train()
    block.weight_x.data.mul_(3)  # as the replay of a CUDA graph does it
    fresh = deepcopy(block).eval()
    assert torch.equal(block.eval()(x), fresh(x))
