import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.nn.recurrent.networks import (
    BASIS,
    INPUT,
    OUTPUT,
    SIGNED,
    Maker,
    both,
    generator,
    make_input,
    make_rnn,
    make_state,
    make_vanilla,
)
from torchpfc import (
    FISTA,
    FactorizedRNN,
    FactorizedRNNCell,
    Implicit,
    RMSprop,
    VanillaRNN,
    keep_nonnegative,
    record_couplings,
    rnn_reconstruction_loss,
    stack_models,
    unstack_models,
    warm_couplings,
)


def test_a_stack_equals_its_members() -> None:
    members = [make_rnn(seed).eval() for seed in range(3)]
    stack = stack_models(members)
    own = torch.stack([make_input(seed=seed) for seed in (1, 2, 3)])
    states = stack.random_state(3, generator=generator())
    assert states.shape == (3, 3, BASIS) and 0 <= states.min() <= states.max() < 1e-2
    lengths = [5, 1, 3]
    for x in (own, own[0]):
        with record_couplings(stack) as seen:
            y, last = stack(x, states, lengths)
        loss = y.square().sum() + 3 * rnn_reconstruction_loss(seen) + last.sum()
        gradients = torch.autograd.grad(loss, list(stack.parameters()))
        for i, member in enumerate(members):
            with record_couplings(member) as alone:
                expected, expected_last = member(x[i] if x.ndim == 4 else x, states[i], lengths)
            torch.testing.assert_close(y[i], expected)
            torch.testing.assert_close(last[i], expected_last)
            loss = expected.square().sum() + rnn_reconstruction_loss(alone) + expected_last.sum()
            for ours, theirs in zip(gradients, torch.autograd.grad(loss, list(member.parameters())), strict=True):
                torch.testing.assert_close(ours[i], theirs, rtol=1e-8, atol=1e-10)
    one, _ = stack(own[0, 0], lengths=torch.tensor(5))
    torch.testing.assert_close(one[2], members[2](own[0, 0])[0])
    for member, again in zip(members, unstack_models(stack), strict=True):
        torch.testing.assert_close(again(own[0])[0], member(own[0])[0])


def test_a_stack_of_vanilla_networks_equals_its_members() -> None:
    members = [make_vanilla(seed, bptt=False) for seed in range(3)]
    with torch.no_grad():
        for seed, member in enumerate(members):
            member.norm.weight.uniform_(0.5, 1.5, generator=generator(seed))
            member.norm.bias.uniform_(-0.5, 0.5, generator=generator(seed))
    stack = stack_models(members)
    own = torch.stack([make_input(seed=seed) for seed in (1, 2, 3)])
    states = torch.rand(3, 3, BASIS, generator=generator(), dtype=torch.float64)
    for x in (own, own[0]):
        y, last = stack(x, states, [5, 1, 3])
        gradients = torch.autograd.grad(y.square().sum(), list(stack.parameters()))
        for i, member in enumerate(members):
            alone, alone_last = member(x[i] if x.ndim == 4 else x, states[i], [5, 1, 3])
            torch.testing.assert_close(y[i], alone)
            torch.testing.assert_close(last[i], alone_last)
            for ours, theirs in zip(
                gradients, torch.autograd.grad(alone.square().sum(), list(member.parameters())), strict=True
            ):
                torch.testing.assert_close(ours[i], theirs)
    for member, again in zip(members, unstack_models(stack), strict=True):
        torch.testing.assert_close(again(own[0])[0], member(own[0])[0])


def test_parts_of_a_network_cannot_come_and_go() -> None:
    for rnn in (make_rnn(), deepcopy(make_rnn()), stack_models([make_rnn(), make_rnn(1)])):
        for change in (lambda block: block.add_basis(1), lambda block: block.remove_basis([0])):
            with pytest.raises(RuntimeError, match="need a block outside of an RNN, got one whose parts are also its"):
                change(rnn.block)
        assert rnn(make_input())[0].shape[-1] == OUTPUT


def test_a_stack_of_stacks() -> None:
    members = [make_rnn(seed).eval() for seed in range(6)]
    stack = stack_models([stack_models(members[:3]), stack_models(members[3:])])
    y, state = stack(make_input())
    assert y.shape == (2, 3, 3, 5, OUTPUT) and state.shape == (2, 3, 3, BASIS)
    torch.testing.assert_close(y[1, 2], members[5](make_input())[0])
    again, _ = stack(y.new_zeros(2, 3, 3, 5, INPUT) + make_input(), torch.zeros_like(state))
    torch.testing.assert_close(again, y)
    y.sum().backward()
    members[4](make_input())[0].sum().backward()
    expected, found = members[4].block.weight_x.grad, stack.block.weight_x.grad
    assert expected is not None and found is not None
    torch.testing.assert_close(found[1, 1], expected)


def test_each_member_of_a_stack_gets_gradients_of_its_own_with_every_adjoint() -> None:
    members = [make_rnn(seed, adjoint=Implicit(), solver=FISTA(max_iter=500)).eval() for seed in range(2)]
    stack = stack_models(members)
    y, _ = stack(make_input())
    for i, member in enumerate(members):
        torch.testing.assert_close(y[i], member(make_input())[0])


@pytest.mark.parametrize(
    "make", [make_rnn, lambda: make_rnn(**SIGNED), make_vanilla], ids=["NMF", "semi-NMF", "vanilla"]
)
def test_it_survives_what_modules_survive(make: Callable[[], nn.Module]) -> None:
    rnn, x = make(), make_input()
    rnn(x)[0].sum().backward()
    rnn.eval()
    y, _ = rnn(x)
    other = make()
    other.load_state_dict(rnn.state_dict())
    for twin in (other.eval(), deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        torch.testing.assert_close(twin(x)[0], y, rtol=1e-12, atol=0)
    single, _ = rnn.to(torch.float32)(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), y, rtol=1e-3, atol=1e-4)


def test_names_sizes_and_settings() -> None:
    rnn = make_rnn(bptt=False, batch_first=False)
    assert [name for name, _ in rnn.named_parameters()] == ["block.weight_x", "block.weight_y"]
    assert rnn.weight_y.shape == (OUTPUT, BASIS) and rnn.weight_h.shape == (BASIS, BASIS)
    assert rnn.weight_x.shape == (INPUT, BASIS) and (rnn.input_size, rnn.num_basis, rnn.output_size) == (4, 6, 3)
    assert torch.equal(torch.cat([rnn.weight_h, rnn.weight_x]), rnn.block.weight_x)
    assert "input_size=4, bptt=False, batch_first=False" in repr(rnn) and "num_basis=6" in repr(rnn)
    assert "batch_first=True, bptt=False" in repr(make_vanilla(bptt=False))
    assert rnn.block.solver == FISTA.paper(10)
    one, other = VanillaRNN(INPUT, BASIS, OUTPUT), VanillaRNN(INPUT, BASIS, OUTPUT)  # PyTorch's own random numbers
    assert not torch.equal(one.input.weight, other.input.weight)
    semi = FactorizedRNN(INPUT, 200, OUTPUT, nonnegative=False)
    assert -5e-3 <= semi.weight_h.min() < -4.9e-3 and 4.9e-3 < semi.weight_h.max() < 5e-3
    plain = FactorizedRNN(INPUT, 200, OUTPUT)
    assert plain.weight_h.min() >= 1e-5 and 9.9e-3 < plain.weight_h.max() < 1e-2
    before = plain.weight_h.detach().clone()
    plain.reset_parameters(generator(3))
    assert not torch.equal(plain.weight_h, before)


def test_the_weights_of_a_network_stay_nonnegative() -> None:
    rnn = make_rnn()
    optimizer = RMSprop(rnn.parameters(), lr=0.1)
    keep_nonnegative(rnn, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(rnn(make_input())[0], torch.zeros(3, 5, OUTPUT, dtype=torch.float64)).backward()
        optimizer.step()
    for weight in (rnn.weight_y, rnn.weight_h, rnn.weight_x):
        assert weight.min().item() == pytest.approx(1e-5)


def test_the_step_size_follows_the_weights_in_training_alone() -> None:
    rnn, x = make_rnn(), make_input()
    before = rnn.block.power_vector.clone()
    rnn.eval()(x)
    assert torch.equal(rnn.block.power_vector, before)
    rnn.train()(x)
    assert not torch.equal(rnn.block.power_vector, before)


def test_half_precision_around_a_network() -> None:
    rnn = FactorizedRNN(INPUT, BASIS, OUTPUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = rnn(make_input().bfloat16())
        y.sum().backward()
    assert rnn.block.weight_x.grad is not None and rnn.block.weight_x.grad.any()


# Bad input


@both
def test_bad_sequences(make: Maker) -> None:
    rnn = make()
    with pytest.raises(ValueError, match=r"x must have shape \(..., T, 4\), got \(3, 5, 3\)"):
        rnn(torch.rand(3, 5, 3))
    with pytest.raises(ValueError, match=r"x must have shape \(T, ..., 4\), got \(4,\)"):
        make(batch_first=False)(torch.rand(4))
    with pytest.raises(ValueError, match=r"x must have at least one slice, got shape \(3, 0, 4\)"):
        rnn(make_input(slices=0))
    with pytest.raises(ValueError, match=r"x must have at least one slice, got shape \(0, 4\)"):
        rnn(make_input()[0, :0])
    with pytest.raises(TypeError, match=r"x must have the dtype of the weights \(torch.float64\), got torch.float32"):
        rnn(make_input().float())
    with pytest.raises(ValueError, match=r"x must be on the device of the weights \(cpu\), got meta"):
        rnn(make_input().to("meta"))


@both
def test_bad_states(make: Maker) -> None:
    rnn = make()
    with pytest.raises(ValueError, match=r"state must have shape \(3, 6\), got \(3, 5\)"):
        rnn(make_input(), make_state()[:, :5])
    with pytest.raises(ValueError, match=r"state must have shape \(6,\), got \(1, 6\)"):
        rnn(make_input()[0], make_state(1))
    with pytest.raises(
        TypeError, match=r"state must have the dtype of the weights \(torch.float64\), got torch.float32"
    ):
        rnn(make_input(), make_state().float())
    with pytest.raises(ValueError, match=r"state must be on the device of the weights \(cpu\), got meta"):
        rnn(make_input(), make_state().to("meta"))


@both
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5, 6, 1], "lengths must be from 1 to the 5 slices of x, got 1 to 6"),
        ([5, 0, 1], "lengths must be from 1 to the 5 slices of x, got 0 to 5"),
        ([5, 1], r"lengths must have shape \(3,\), got \(2,\)"),
    ],
)
def test_bad_lengths(make: Maker, lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()(make_input(), lengths=lengths)


def test_lengths_of_another_kind() -> None:
    with pytest.raises(TypeError, match=r"lengths must be integers, got torch.float32"):
        make_rnn()(make_input(), lengths=torch.ones(3))
    with pytest.raises(ValueError, match="lengths must be on the CPU, got meta"):
        make_rnn()(make_input(), lengths=torch.ones(3, dtype=torch.int64, device="meta"))


def test_bad_sizes_and_calls() -> None:
    for name, sizes in (("input_size", (0, 6, 3)), ("num_basis", (4, 0, 3)), ("output_size", (4, 6, 0))):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            FactorizedRNN(*sizes)
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
        VanillaRNN(4, 0, 3)
    with pytest.raises(ValueError, match=r"x must have shape \(..., 4\), got \(3, 5\)"):
        FactorizedRNNCell(4, 6, 3)(torch.rand(3, 5))
    stack = stack_models([make_rnn(seed) for seed in range(2)])
    with pytest.raises(ValueError, match=r"x must have no leading dimensions or those of the stack \(2,\), got \(3,\)"):
        stack(torch.stack([make_input()] * 3))
    rnn = make_rnn()
    with (
        warm_couplings(rnn, {"block": make_state()}),
        pytest.raises(RuntimeError, match="must name blocks outside of RNNs"),
    ):
        rnn(make_input())
