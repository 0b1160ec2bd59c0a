from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchpfc import FactorizedRNN, VanillaRNN, record_couplings, rnn_reconstruction_loss, stack_models, unstack_models
from torchpfc.paper.recurrent_models import (
    NETWORKS,
    GatedRNN,
    ImageReader,
    Network,
    SequenceErrors,
    image_columns,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(name: str, seed: int = 0, init_high: float | None = None, **settings: Any) -> nn.Module:
    network = Network(model=name, num_basis=6, **{"iterations": 4, **settings})
    return network.build(5, 3, generator(seed), init_high=init_high).double()


def sequences(*shape: int) -> Tensor:
    return torch.rand(*shape, 7, 5, generator=generator(9), dtype=torch.float64)


@pytest.mark.parametrize(("kind", "layer"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_gated_networks_are_those_of_pytorch(kind: str, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
    ours = GatedRNN(5, 6, 3, kind=kind, generator=generator()).double()
    theirs = layer(5, 6, batch_first=True).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.input.weight)
        theirs.weight_hh_l0.copy_(ours.recurrent.weight)
        theirs.bias_ih_l0.copy_(ours.input.bias)
        theirs.bias_hh_l0.copy_(ours.recurrent.bias)
    x = sequences(4)
    expected, last = theirs(x)
    y, state = ours(x)
    torch.testing.assert_close(y, ours.output(expected))
    torch.testing.assert_close(state, torch.cat([part[0] for part in last], -1) if kind == "lstm" else last[0])
    torch.testing.assert_close(ours(x[:, 3:], ours(x[:, :3])[1])[0], y[:, 3:])
    mine = torch.autograd.grad(y.square().sum(), ours.recurrent.weight)[0]
    other = torch.autograd.grad(ours.output(expected).square().sum(), theirs.weight_hh_l0)[0]
    torch.testing.assert_close(mine, other)
    assert all(parameter.abs().max() <= 1 / 6**0.5 for parameter in ours.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_stack_of_networks_equals_its_members(name: str) -> None:
    members = [build(name, seed).eval() for seed in range(3)]
    stack = stack_models(members)
    own = sequences(3, 4)
    for x in (own, own[0]):
        y, state = stack(x)
        gradients = torch.autograd.grad(y.square().sum(), list(stack.parameters()))
        for i, member in enumerate(members):
            alone, alone_state = member(x[i] if x.ndim == 4 else x)
            torch.testing.assert_close(y[i], alone)
            torch.testing.assert_close(state[i], alone_state)
            expected = torch.autograd.grad(alone.square().sum(), list(member.parameters()))
            for found, wanted in zip(gradients, expected, strict=True):
                torch.testing.assert_close(found[i], wanted)
    for member, again in zip(members, unstack_models(stack), strict=True):
        assert type(again) is type(member)
        torch.testing.assert_close(again(own[0])[0], member(own[0])[0])


def test_networks_are_what_their_names_say() -> None:
    vanilla = build("vanilla", bptt=False)
    assert isinstance(vanilla, VanillaRNN) and not vanilla.bptt
    signed = build("factorized", nonnegative=False, init_high=0.4, bptt=False)
    assert isinstance(signed, FactorizedRNN) and not signed.bptt and not signed.block.nonnegative
    assert signed.block.init_range == (-0.2, 0.2) and signed.block.solver.max_iter == 4
    plain = build("factorized", init_high=0.4)
    assert isinstance(plain, FactorizedRNN) and plain.block.init_range == (0.0, 0.4)
    assert "kind=gru" in repr(build("gru"))
    for name in NETWORKS:
        one, other, third = (build(name, seed).state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(one[key], other[key]) for key in one)
        assert not any(torch.equal(one[key], third[key]) for key in one if key.endswith(("weight", "weight_x")) and "norm" not in key)  # fmt: skip  # noqa: E501


def test_images_are_read_column_by_column() -> None:
    image = torch.arange(2 * 3 * 4).double()
    columns = image_columns(image, (2, 3, 4))
    assert columns.shape == (4, 6)
    assert columns[1].tolist() == image.view(2, 3, 4)[:, :, 1].flatten().tolist()
    rnn = build("vanilla")
    reader = ImageReader(rnn, (1, 5, 7))
    x = torch.rand(4, 35, generator=generator(), dtype=torch.float64)
    y, _ = rnn(x.view(4, 5, 7).transpose(1, 2))
    torch.testing.assert_close(reader(x), y[:, -1])


def test_the_loss_has_three_terms_for_each_network() -> None:
    stack = stack_models([build("factorized", seed).eval() for seed in range(2)])
    x, target = sequences(2, 4), torch.rand(2, 4, 7, 3, generator=generator(), dtype=torch.float64)
    members = unstack_models(stack)
    scored = SequenceErrors(torch.tensor([1.0, 0.5]), torch.tensor([2.0, 3.0]))(stack, x, target)
    bare = SequenceErrors(2.0)(stack, x, target)
    for i, member in enumerate(members):
        with record_couplings(member) as seen:
            y, _ = member(x[i])
        error = (y - target[i]).square().mean()
        torch.testing.assert_close(
            scored.loss[i], (1.0, 0.5)[i] * error + (2.0, 3.0)[i] * rnn_reconstruction_loss(seen)
        )
        torch.testing.assert_close(bare.loss[i], 2 * error)
        torch.testing.assert_close(scored.y[i], y)
