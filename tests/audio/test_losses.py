import pytest
import torch
from torch import nn

from torchpfc import VanillaRNN
from torchpfc.audio import Features, SeparationErrors, soft_mask
from torchpfc.nn import stack_models

FEATURES = Features(bins=6, loudest=4.0)


class Answers(nn.Module):
    def __init__(self, y: torch.Tensor) -> None:
        super().__init__()
        self.y = nn.Parameter(y)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.y, None


def parts(seed: int = 0, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_without_the_mask_it_is_the_papers_loss() -> None:
    x, y, target = parts(0, 3, 2, 5, 6)
    loss, answer = SeparationErrors(FEATURES)(Answers(y), x, target)
    torch.testing.assert_close(loss, torch.nn.functional.mse_loss(y, target))
    assert torch.equal(answer, y)


@pytest.mark.parametrize("power", [1.0, 1.5])
def test_errors_of_the_masked_mixture_are_those_of_magnitudes(power: float) -> None:
    x = parts(0, 2, 5, 6)
    y, target = parts(1, 2, 2, 5, 12)
    v, a = (y[..., :6] ** 4) ** power, (y[..., 6:] ** 4) ** power
    missed = v / (v + a) * x**4 - target[..., :6] ** 4
    wanted = (y - target).square().mean() + 3.0 * missed.square().mean()
    torch.testing.assert_close(SeparationErrors(FEATURES, 3.0, power)(Answers(y), x, target).loss, wanted)


def test_a_perfect_answer_errs_by_what_its_mask_does() -> None:
    vocals, rest = parts(0, 2, 2, 5, 6)
    both, x = torch.cat([vocals, rest], -1), (vocals**4 + rest**4) ** 0.25  # magnitudes that add up
    assert SeparationErrors(FEATURES, 1.0)(Answers(both), x, both).loss.item() == pytest.approx(0, abs=1e-30)


@pytest.mark.parametrize("outputs", [6, 12])
def test_its_gradient(outputs: int) -> None:
    x, y, target = parts(0, 1, 3, 6), parts(1, 1, 3, outputs) - 0.2, parts(2, 1, 3, outputs)
    errors = SeparationErrors(FEATURES, 2.0, 1.5)

    def loss(y: torch.Tensor) -> torch.Tensor:
        model = nn.Module()
        model.forward = lambda x: (y, None)  # type: ignore[method-assign]
        return errors(model, x, target).loss

    assert torch.autograd.gradcheck(loss, y.requires_grad_())


def test_gradients_are_finite_where_nothing_sounds() -> None:
    x, target = torch.zeros(1, 3, 6), torch.zeros(1, 3, 12)
    for value in (0.0, -1.0, 1e-9, 1e-20):
        model = Answers(torch.full((1, 3, 12), value))
        SeparationErrors(FEATURES, 1.0, 1.5)(model, x, target).loss.backward()
        assert model.y.grad is not None and bool(model.y.grad.isfinite().all())
        mask = soft_mask(model.y, x, FEATURES, power=1.5)
        assert bool(((mask >= 0) & (mask <= 1)).all())


def test_each_network_of_a_stack_has_its_own() -> None:
    networks = [VanillaRNN(6, 4, 12, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    x, target = torch.rand(2, 3, 5, 6), torch.rand(2, 3, 5, 12)
    errors = SeparationErrors(FEATURES, 2.0)
    together = errors(stack_models(networks), x, target).loss
    alone = [errors(network, x[k], target[k]).loss for k, network in enumerate(networks)]
    torch.testing.assert_close(together, torch.stack(alone))
