import pytest
import torch
from torch import nn

from torchpfc import MLP


@pytest.mark.parametrize(("in_features", "hidden", "out_features"), [(784, 300, 10), (3, 1, 2)])
def test_number_of_parameters(in_features: int, hidden: int, out_features: int) -> None:
    model = MLP(in_features, out_features, hidden_features=hidden)
    expected = (in_features + 1) * hidden + (hidden + 1) * out_features
    assert sum(p.numel() for p in model.parameters()) == expected


def test_it_is_two_layers_with_gelu_between() -> None:
    model = MLP(8, 3, hidden_features=5, dtype=torch.float64)
    layers = nn.Sequential(nn.Linear(8, 5), nn.GELU(), nn.Linear(5, 3)).double()
    for ours, theirs in zip(layers.parameters(), model.parameters(), strict=True):
        ours.data.copy_(theirs.data)
    x = torch.randn(4, 8, dtype=torch.float64)
    assert torch.equal(model(x), layers(x))
    assert model(x[0]).shape == (3,) and model(x.view(2, 2, 8)).shape == (2, 2, 3)


def test_initial_weights_are_pytorch_s() -> None:
    torch.manual_seed(3)
    model = MLP(8, 3, hidden_features=5)
    torch.manual_seed(3)
    hidden, output = nn.Linear(8, 5), nn.Linear(5, 3)
    assert torch.equal(model.hidden.weight, hidden.weight) and torch.equal(model.output.bias, output.bias)


def test_device_and_dtype() -> None:
    model = MLP(8, 3, 5, device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.float64)}


def test_a_generator_makes_the_initial_weights_reproducible() -> None:
    def draw(seed: int) -> list[torch.Tensor]:
        return list(MLP(400, 30, 200, generator=torch.Generator().manual_seed(seed)).parameters())

    one, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(*pair) for pair in zip(one, again, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_weights_from_a_generator_fill_pytorch_s_range() -> None:
    model = MLP(400, 30, 200, generator=torch.Generator().manual_seed(1))
    for layer, bound in ((model.hidden, 1 / 20), (model.output, 1 / 200**0.5)):
        theirs = nn.Linear(layer.in_features, layer.out_features)
        for ours, reference in ((layer.weight, theirs.weight), (layer.bias, theirs.bias)):
            assert ours.abs().max() <= bound and ours.abs().max() > 0.9 * bound
            assert ours.std().item() == pytest.approx(bound / 3**0.5, rel=0.25)
            assert reference.abs().max() <= bound


def test_new_weights_can_be_drawn() -> None:
    model = MLP(8, 3, 5, generator=torch.Generator().manual_seed(1))
    before = model.hidden.weight.detach().clone()
    model.reset_parameters()
    assert not torch.equal(model.hidden.weight, before)
    model.reset_parameters(torch.Generator().manual_seed(1))
    assert torch.equal(model.hidden.weight, before)
