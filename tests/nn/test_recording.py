import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc import (
    MLP,
    Coupling,
    PFCBlock,
    ResidualPFC,
    reconstruction_loss,
    record_couplings,
    stack_models,
    warm_couplings,
)

OPTIONS: dict[str, Any] = {"init_range": (0.0, 0.5), "dtype": torch.float64}


def make_input(seed: int = 1) -> Tensor:
    return torch.rand(4, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_block() -> PFCBlock:
    return PFCBlock(8, 3, 5, **OPTIONS)


def make_residual() -> ResidualPFC:
    return ResidualPFC(8, 3, num_basis=5, **OPTIONS)


def assert_same(ours: Coupling, theirs: Coupling) -> None:
    for name in ("y", "x", "h", "target"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_a_block_itself_has_no_name() -> None:
    block, x = make_block().eval(), make_input()
    with record_couplings(block) as seen:
        y = block(x)
    assert list(seen) == [""] and len(seen[""]) == 1
    assert_same(seen[""][0], block.couple(x))
    assert seen[""][0].y is y


def test_names_are_those_in_the_model_in_the_order_of_the_model() -> None:
    model = nn.Sequential(nn.Identity(), nn.ModuleDict({"deep": make_residual()})["deep"], PFCBlock(3, 2, 4, **OPTIONS))
    with record_couplings(model) as seen:
        model(make_input())
    assert list(seen) == ["1.blocks.0", "1.blocks.1", "2"]
    assert [len(couplings) for couplings in seen.values()] == [1, 1, 1]


def test_several_calls_stand_in_their_order() -> None:
    block = make_block().eval()
    with record_couplings(block) as seen:
        for seed in (1, 2):
            block(make_input(seed))
        block.couple(make_input(3))
    assert len(seen[""]) == 3
    for seed, coupling in zip((1, 2, 3), seen[""], strict=True):
        assert torch.equal(coupling.target, make_input(seed))


def test_a_block_used_twice_in_one_model_has_two_couplings() -> None:
    block = PFCBlock(8, 8, 5, **OPTIONS)
    model = nn.Sequential(block, nn.ReLU(), block)
    with record_couplings(model) as seen:
        y = model(make_input())
    assert list(seen) == ["0"] and len(seen["0"]) == 2
    assert seen["0"][1].y is y
    assert torch.equal(seen["0"][1].target, torch.relu(seen["0"][0].y))


def test_recorders_may_be_nested() -> None:
    model = make_residual()
    with record_couplings(model) as outer:
        model(make_input(1))
        with record_couplings(model) as inner:
            model(make_input(2))
        with record_couplings(model.blocks[0]) as part:
            model(make_input(3))
        model(make_input(4))
    assert [len(couplings) for couplings in outer.values()] == [4, 4]
    assert [len(couplings) for couplings in inner.values()] == [1, 1]
    assert {name: len(couplings) for name, couplings in part.items()} == {"": 1}
    assert inner["blocks.0"][0] is outer["blocks.0"][1]
    assert part[""][0] is outer["blocks.0"][2]


def test_nothing_is_recorded_afterwards() -> None:
    block = make_block()
    with record_couplings(block) as seen:
        block(make_input())
    block(make_input())
    assert len(seen[""]) == 1


def test_an_exception_ends_the_recording() -> None:
    block = make_block()
    with pytest.raises(ValueError, match="x must have shape"), record_couplings(block) as seen:
        block(make_input())
        block(make_input()[:, :7])
    block(make_input())
    assert len(seen[""]) == 1
    pickle.dumps(block)


def test_a_model_can_be_pickled_and_copied_while_and_after_it_is_recorded() -> None:
    model = make_residual()
    with record_couplings(model) as seen:
        y = model(make_input())
        copies = [deepcopy(model), pickle.loads(pickle.dumps(model))]
    copies += [deepcopy(model), pickle.loads(pickle.dumps(model))]
    for copied in copies:
        torch.testing.assert_close(copied(make_input()), y)
        assert len(seen["blocks.0"]) == 1
        pickle.dumps(copied)  # nothing hangs on to the couplings of the original, nor collects its own


def test_without_recording_nothing_keeps_a_coupling_alive() -> None:
    block = make_block()
    block.couple(make_input())
    assert pickle.loads(pickle.dumps(block)).state_dict().keys() == block.state_dict().keys()


def test_the_loss_is_the_mean_squared_error_of_every_block() -> None:
    model = make_residual()
    with record_couplings(model) as seen:
        model(make_input())
    one, two = seen["blocks.0"][0], seen["blocks.1"][0]
    mse_one, mse_two = ((c.x - c.target).square().mean() for c in (one, two))
    torch.testing.assert_close(reconstruction_loss(seen), mse_one + mse_two)
    torch.testing.assert_close(reconstruction_loss(seen, 0.5), 0.5 * (mse_one + mse_two))
    weights = {"blocks.0": 2.0, "blocks.1": 0.25}
    torch.testing.assert_close(reconstruction_loss(seen, weights), 2 * mse_one + mse_two / 4)
    torch.testing.assert_close(reconstruction_loss(seen, {"blocks.1": 3.0}), 3 * mse_two)
    assert torch.equal(one.target, make_input())


def test_several_calls_are_averaged() -> None:
    block = make_block().eval()
    with record_couplings(block) as seen:
        for seed in (1, 2, 3):
            block(make_input(seed))
    errors = [(block.couple(make_input(seed)).x - make_input(seed)).square().mean() for seed in (1, 2, 3)]
    torch.testing.assert_close(reconstruction_loss(seen), sum(errors) / 3)


def test_gradients_are_those_of_the_loss_written_out() -> None:
    block = make_block().eval()
    with record_couplings(block) as seen:
        block(make_input())
    reconstruction_loss(seen).backward()
    assert block.weight_x.grad is not None and block.weight_x.grad.any()
    assert block.weight_y.grad is None
    (expected,) = torch.autograd.grad(F.mse_loss(block.couple(make_input()).x, make_input()), block.weight_x)
    torch.testing.assert_close(block.weight_x.grad, expected)


def test_the_loss_of_a_stack_that_shares_its_input() -> None:
    blocks = [make_block() for _ in range(3)]
    stack = stack_models(blocks)
    with record_couplings(stack) as seen:
        stack(make_input())
    assert seen[""][0].target.shape == seen[""][0].x.shape == (3, 4, 8)
    alone = sum(F.mse_loss(block.couple(make_input()).x, make_input()) for block in blocks)
    torch.testing.assert_close(reconstruction_loss(seen, weights=3), alone)


@pytest.mark.parametrize("model", [MLP(8, 3, 5), nn.Linear(8, 3), nn.Sequential()])
def test_a_model_without_a_block_is_refused(model: nn.Module) -> None:
    name = type(model).__name__
    with (
        pytest.raises(ValueError, match=f"model must contain a PFCBlock, got {name} without one"),
        record_couplings(model),
    ):
        pass


def test_a_weight_for_an_unknown_block_is_refused() -> None:
    model = make_residual()
    with record_couplings(model) as seen:
        model(make_input())
    with pytest.raises(
        ValueError, match=r"weights must name recorded blocks \['blocks.0', 'blocks.1'\], got \['oops'\]"
    ):
        reconstruction_loss(seen, {"oops": 1.0, "blocks.0": 1.0})


@pytest.mark.parametrize("weights", [1.0, {"blocks.0": 1.0}, {}])
def test_a_loss_of_nothing_is_refused(weights: float | dict[str, float]) -> None:
    with record_couplings(make_residual()) as seen:
        pass
    with pytest.raises(RuntimeError, match="seen must hold at least one coupling, got none: run the model inside"):
        reconstruction_loss(seen, weights)


# Warm starts


def test_blocks_start_where_they_are_told_and_only_while_they_are() -> None:
    model, x = make_residual().eval(), make_input()
    starts = {name: torch.rand(4, 5, dtype=torch.float64) for name in ("blocks.0", "blocks.1")}
    with record_couplings(model) as cold:
        model(x)
    with warm_couplings(model, starts), record_couplings(model) as warm:
        model(x)
    with record_couplings(model) as after:
        model(x)
    blocks = dict(model.named_modules())
    for name, start in starts.items():
        block: Any = blocks[name]
        assert_same(warm[name][0], block.couple(warm[name][0].target, warm_start=start))
        assert not torch.equal(warm[name][0].h, block.couple(warm[name][0].target).h)
        assert_same(after[name][0], cold[name][0])


def test_a_start_for_some_blocks_leaves_the_others_alone() -> None:
    model, x = make_residual().eval(), make_input()
    with record_couplings(model) as cold:
        model(x)
    with warm_couplings(model, {"blocks.1": torch.rand(4, 5, dtype=torch.float64)}), record_couplings(model) as warm:
        model(x)
    assert torch.equal(warm["blocks.0"][0].h, cold["blocks.0"][0].h)
    assert not torch.equal(warm["blocks.1"][0].h, cold["blocks.1"][0].h)


def test_a_start_of_the_call_goes_before_that_of_the_model() -> None:
    block, x = make_block().eval(), make_input()
    one, other = (torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
    expected = block.couple(x, warm_start=one)
    with warm_couplings(block, {"": other}):
        assert_same(block.couple(x, warm_start=one), expected)


def test_an_error_ends_the_warm_start_and_copies_do_not_have_it() -> None:
    block, x = make_block().eval(), make_input()
    expected = block.couple(x)
    with pytest.raises(RuntimeError, match="stop"), warm_couplings(block, {"": torch.ones(4, 5, dtype=torch.float64)}):
        for copy in (deepcopy(block), pickle.loads(pickle.dumps(block)), stack_models([block])):
            torch.testing.assert_close(copy(x).view(4, 3), expected.y, rtol=1e-12, atol=0)
        raise RuntimeError("stop")
    assert_same(block.couple(x), expected)


def test_a_start_for_an_unknown_block_is_refused() -> None:
    message = r"starts must name blocks of the model \['blocks.0', 'blocks.1'\], got \['oops'\]"
    with pytest.raises(ValueError, match=message), warm_couplings(make_residual(), {"oops": torch.ones(1)}):
        pass
    with pytest.raises(ValueError, match="model must contain a PFCBlock"), warm_couplings(MLP(8, 3, 5), {}):
        pass
