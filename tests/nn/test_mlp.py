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
