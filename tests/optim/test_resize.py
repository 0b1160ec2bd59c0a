from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import Optimizer

from torchpfc.optim import RMSpropSLW
from torchpfc.optim.resize import resize_state

MAKERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1),
    "RMSpropSLW": lambda params: RMSpropSLW(params, lr=0.1, width=5, sweep_speed=0),
}


def learn(optimizer: Optimizer, params: list[torch.nn.Parameter], steps: int, columns: Tensor | None = None) -> None:
    """Take steps with gradients that depend on nothing but the step and the column."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for p in params:
            grad = torch.randn(*p.shape[:-1], 8, generator=generator)
            p.grad = grad[..., : p.shape[-1]] if columns is None else grad[..., columns]
        optimizer.step()


@pytest.mark.parametrize("name", MAKERS)
def test_added_columns_leave_the_others_learning_as_before(name: str) -> None:
    small, large = torch.nn.Parameter(torch.ones(3, 5)), torch.nn.Parameter(torch.ones(3, 8))
    optimizers = MAKERS[name]([small]), MAKERS[name]([large])
    learn(optimizers[0], [small], 4)
    learn(optimizers[1], [large], 4)
    old_shape, small.data, small.grad = small.shape, pad(small.data, (0, 3), value=1.0), None
    resize_state(optimizers[0], small, old_shape, lambda tensor: pad(tensor, (0, 3)))
    learn(optimizers[0], [small], 4)
    learn(optimizers[1], [large], 4)
    assert torch.equal(small[:, :5], large[:, :5])
    shapes = {key: value.shape for key, value in optimizers[0].state[small].items()}
    assert shapes == {key: value.shape for key, value in optimizers[1].state[large].items()}


@pytest.mark.parametrize("name", MAKERS)
def test_kept_columns_learn_as_before(name: str) -> None:
    keep = torch.tensor([0, 2, 3, 4, 6])  # the first four are inside the window before and after
    whole, part = torch.nn.Parameter(torch.ones(3, 8)), torch.nn.Parameter(torch.ones(3, 8))
    optimizers = MAKERS[name]([whole]), MAKERS[name]([part])
    learn(optimizers[0], [whole], 4)
    learn(optimizers[1], [part], 4)
    resize_state(optimizers[1], part, part.shape, lambda tensor: tensor[..., keep])  # may come before the parameter
    part.data, part.grad = part.data[..., keep], None
    learn(optimizers[0], [whole], 4)
    learn(optimizers[1], [part], 4, columns=keep)
    assert torch.equal(part[:, :4], whole[:, keep[:4]])


def test_a_parameter_without_state_stays_without() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 5))
    optimizer = torch.optim.Adam([weight])
    resize_state(optimizer, weight, weight.shape, lambda tensor: pad(tensor, (0, 3)))
    assert len(optimizer.state) == 0
