"""What only a GPU can show: agreement with the CPU, and a whole training step captured as a CUDA graph."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    stack_models,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

IN, OUT, BASIS, BATCH = 64, 10, 30, 20
WARM_UP, REPLAYS = 3, 8

MAKERS: dict[str, Callable[..., nn.Module]] = {
    "block": lambda **options: PFCBlock(IN, OUT, num_basis=BASIS, **options),
    "semi-NMF": lambda **options: PFCBlock(IN, OUT, num_basis=BASIS, nonnegative=False, **options),
    "many parts": lambda **options: PFCBlock(IN, OUT, num_basis=4 * IN, **options),  # takes the factored form
    "two blocks": lambda **options: ResidualPFC(IN, OUT, num_basis=BASIS, **options),
    "stack": lambda **options: stack_models([PFCBlock(IN, OUT, num_basis=BASIS, **options) for _ in range(3)]),
}
every_model = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
both_adjoints = pytest.mark.parametrize("adjoint", [Unrolled(), Implicit.fast()], ids=["Unrolled", "Implicit"])


def batch(step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.rand(BATCH, IN, generator=generator, dtype=dtype)
    x[:, :5] = 0.0
    return x, torch.rand(BATCH, OUT, generator=generator, dtype=dtype)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with record_couplings(model) as seen:
        prediction: Tensor = model(x)
    return F.mse_loss(prediction, y.expand_as(prediction)) + reconstruction_loss(seen)


def optimizer_of(model: nn.Module) -> RMSprop:
    optimizer = RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-4)
    if any(isinstance(module, PFCBlock) and module.nonnegative for module in model.modules()):
        keep_nonnegative(model, optimizer)
    return optimizer


@every_model
@both_adjoints
def test_cpu_and_gpu_agree(make: Callable[..., nn.Module], adjoint: Any) -> None:
    on_cpu = make(solver=FISTA.paper(50), adjoint=adjoint, dtype=torch.float64)
    on_gpu = deepcopy(on_cpu).to("cuda")
    for training in (True, False):
        x, y = batch(0, torch.float64)
        x.requires_grad_()
        x_gpu, y_gpu = x.detach().to("cuda").requires_grad_(), y.to("cuda")
        loss, loss_gpu = loss_of(on_cpu.train(training), x, y), loss_of(on_gpu.train(training), x_gpu, y_gpu)
        torch.testing.assert_close(loss_gpu.cpu(), loss, rtol=1e-8, atol=0)
        gradients = torch.autograd.grad(loss, [x, *on_cpu.parameters()])
        gradients_gpu = torch.autograd.grad(loss_gpu, [x_gpu, *on_gpu.parameters()])
        for ours, theirs in zip(gradients_gpu, gradients, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-6, atol=1e-8 * theirs.abs().max().item())
    for (name, value), expected in zip(on_gpu.state_dict().items(), on_cpu.state_dict().values(), strict=True):
        assert value.device.type == "cuda", name
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-8, atol=1e-12)


@every_model
@both_adjoints
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_captured_training_step_learns_what_an_eager_one_does(
    make: Callable[..., nn.Module], adjoint: Any, dtype: torch.dtype
) -> None:
    captured = make(solver=FISTA.paper(20), adjoint=adjoint, device="cuda", dtype=dtype)
    eager = deepcopy(captured)
    optimizer, eager_optimizer = optimizer_of(captured), optimizer_of(eager)
    x, y = (tensor.to("cuda") for tensor in batch(0, dtype))  # what the graph reads: replays see what is copied in here

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(captured, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for k in range(WARM_UP):
            fill(x, y, k)
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    before = [p.detach().clone() for p in captured.parameters()]
    losses = []
    for k in range(WARM_UP, WARM_UP + REPLAYS):
        fill(x, y, k)
        graph.replay()
        losses.append(loss.clone())

    eager_losses = []
    for k in range(WARM_UP + REPLAYS):
        eager_x, eager_y = (tensor.to("cuda") for tensor in batch(k, dtype))
        eager_optimizer.zero_grad(set_to_none=True)
        eager_loss = loss_of(eager, eager_x, eager_y)
        eager_loss.backward()
        eager_optimizer.step()
        eager_losses.append(eager_loss.detach())

    assert not any(torch.equal(p, old) for p, old in zip(captured.parameters(), before, strict=True))
    torch.testing.assert_close(torch.stack(losses), torch.stack(eager_losses[WARM_UP:]), rtol=1e-4, atol=0)
    for (name, value), expected in zip(captured.state_dict().items(), eager.state_dict().values(), strict=True):
        same = (value - expected).abs() <= 1e-5
        # In single precision the sign of a gradient can hang on rounding, and RMSprop steps by the sign at first.
        assert same.all() if dtype == torch.float64 else same.float().mean() > 0.999, name


def fill(x: Tensor, y: Tensor, k: int) -> None:
    """Puts the k-th batch where the graph reads it."""
    for target, source in zip((x, y), batch(k, x.dtype), strict=True):
        target.copy_(source)


def test_evaluation_can_be_captured() -> None:
    block = PFCBlock(IN, OUT, num_basis=BASIS, device="cuda").eval()
    x = batch(0)[0].to("cuda")
    with torch.no_grad():
        expected = block(x)  # also finds the step size
        block(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = block(x)
        x.copy_(batch(1)[0])
        graph.replay()
        torch.testing.assert_close(y, block(batch(1)[0].to("cuda")), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(y, expected)


def test_parts_come_and_go_on_the_gpu() -> None:
    block = PFCBlock(IN, OUT, num_basis=BASIS, device="cuda")
    optimizer = optimizer_of(block)
    for change in (
        lambda: block.add_basis(5, optimizer=optimizer),
        lambda: block.remove_basis([0, 3], optimizer=optimizer),
    ):
        x, y = (tensor.to("cuda") for tensor in batch(0))
        old_loss = loss_of(block, x, y)
        old_loss.backward()
        optimizer.step()
        change()
        optimizer.zero_grad()
        loss_of(block, x, y).backward()
        optimizer.step()
    assert block.num_basis == BASIS + 3 and block.power_vector.device.type == "cuda"
    assert all(p.min() >= 1e-5 for p in block.parameters())


def test_an_input_on_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be on the device of the weights \(cuda:0\), got cpu"):
        PFCBlock(IN, OUT, num_basis=BASIS, device="cuda:0")(batch(0)[0])


def test_a_generator_on_the_gpu_makes_the_initial_weights_reproducible() -> None:
    one, same = (
        PFCBlock(IN, OUT, BASIS, device="cuda", generator=torch.Generator("cuda").manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(one.weight_x, same.weight_x) and torch.equal(one.weight_y, same.weight_y)
