"""Whole training steps against the block of a textbook, which shares no code with the library."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.nn.probe import lipschitz_used
from tests.nn.textbook import RMSpropAndClip, fista
from torchpfc import (
    FISTA,
    Implicit,
    PFCBlock,
    ResidualPFC,
    RMSprop,
    Unrolled,
    keep_nonnegative,
    reconstruction_loss,
    record_couplings,
)

STEPS, ITERATIONS = 5, 30


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.rand(7, 12, generator=generator, dtype=torch.float64)
    x[:, :3] = 0.0  # pixels that are always dark
    x[2] = 0.0  # and an example that is
    return x, torch.rand(7, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("nonnegative", [True, False], ids=["NMF", "semi-NMF"])
@pytest.mark.parametrize("reconstruction", [0.5, 0.0])
@pytest.mark.parametrize("init_range", [(0.0, 1e-2), (0.0, 1.0)], ids=["cap on", "cap mostly off"])
def test_loss_gradients_and_weights_are_the_textbook_s(
    nonnegative: bool, reconstruction: float, init_range: tuple[float, float]
) -> None:
    block = PFCBlock(
        12,
        4,
        num_basis=9,
        nonnegative=nonnegative,
        init_range=init_range,
        solver=FISTA.paper(ITERATIONS),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    optimizer = RMSprop(block.parameters(), lr=1e-2, weight_decay=1e-4)
    if nonnegative:
        keep_nonnegative(block, optimizer)
    W_x, W_y = (weight.detach().clone().requires_grad_() for weight in (block.weight_x, block.weight_y))
    plain = RMSpropAndClip([W_x, W_y], lr=1e-2, weight_decay=1e-4, nonnegative=nonnegative)
    clipped = False
    for step in range(STEPS):
        x, y = batch(step)
        L = lipschitz_used(block)

        out = block.couple(x)
        loss = (1 - reconstruction) * F.mse_loss(out.y, y) + reconstruction * F.mse_loss(out.x, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        h = fista(x, W_x, L, ITERATIONS)
        mse_y, mse_x = (h @ W_y.T - y).square().mean(), (h @ W_x.T - x).square().mean()
        expected = (1 - reconstruction) * mse_y + reconstruction * mse_x
        gradients = torch.autograd.grad(expected, [W_x, W_y])
        plain.step(list(gradients))

        torch.testing.assert_close(out.h, h, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
        for weight, gradient in zip((block.weight_x, block.weight_y), gradients, strict=True):
            torch.testing.assert_close(weight.grad, gradient, rtol=1e-10, atol=1e-10 * gradient.abs().max().item())
        torch.testing.assert_close(block.weight_x, W_x, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(block.weight_y, W_y, rtol=1e-9, atol=1e-12)
        clipped |= bool((W_x == 1e-5).any())
    assert clipped == nonnegative  # else the clip would not have been tested


def test_two_blocks_are_the_textbook_s() -> None:
    model = ResidualPFC(
        12,
        4,
        num_basis=9,
        solver=FISTA.paper(ITERATIONS),
        generator=torch.Generator().manual_seed(0),
        init_range=(0.0, 0.3),
        dtype=torch.float64,
    )
    W_x1, W_y1, W_x2, W_y2 = (weight.detach().clone().requires_grad_() for weight in model.parameters())
    x, y = batch(0)
    x.requires_grad_()
    one, two = model.blocks
    assert isinstance(one, PFCBlock) and isinstance(two, PFCBlock)
    L1, L2 = lipschitz_used(one), lipschitz_used(two)

    with record_couplings(model) as seen:
        prediction = model(x)
    loss = F.mse_loss(prediction, y) + reconstruction_loss(seen)
    ours = torch.autograd.grad(loss, [x, *model.parameters()])

    h1 = fista(x, W_x1, L1, ITERATIONS)
    rest = torch.clamp(x - h1 @ W_y1.T, min=1e-5)
    h2 = fista(rest, W_x2, L2, ITERATIONS)
    expected = (h2 @ W_y2.T - y).square().mean()
    expected = expected + (h1 @ W_x1.T - x).square().mean() + (h2 @ W_x2.T - rest).square().mean()
    theirs = torch.autograd.grad(expected, [x, W_x1, W_y1, W_x2, W_y2])
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    for gradient, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-10 * other.abs().max().item())


def test_implicit_gradients_approach_the_unrolled_ones() -> None:
    def gradients(adjoint: Unrolled | Implicit) -> list[Tensor]:
        block = PFCBlock(
            12,
            4,
            num_basis=5,
            solver=FISTA(max_iter=3000),
            adjoint=adjoint,
            init_range=(0.0, 1.0),
            generator=torch.Generator().manual_seed(0),
            dtype=torch.float64,
        )
        x, y = batch(0)
        out = block.couple(x)
        return list(torch.autograd.grad(F.mse_loss(out.y, y) + F.mse_loss(out.x, x), list(block.parameters())))

    for implicit, unrolled in zip(gradients(Implicit()), gradients(Unrolled()), strict=True):
        torch.testing.assert_close(implicit, unrolled, rtol=1e-7, atol=1e-10)
