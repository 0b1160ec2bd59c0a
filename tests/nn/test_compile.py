"""A model that contains a block compiles as one graph, in evaluation; so does a factorized RNN."""

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from torchpfc import FISTA, FactorizedRNN, Implicit, PFCBlock, Truncated, Unrolled
from torchpfc.solvers import Adjoint

# PyTorch's compiler uses, of PyTorch itself, what PyTorch advises against.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

ADJOINTS = [Unrolled(), Truncated(1), Implicit.fast(max_iter=2)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def make_model(adjoint: Adjoint | None = None, *, nonnegative: bool = True) -> nn.Sequential:
    block = PFCBlock(8, 3, 5, nonnegative=nonnegative, solver=FISTA.paper(2), adjoint=adjoint, init_range=(0.0, 1.0))
    return nn.Sequential(block, nn.Linear(3, 2)).eval()


def make_input(seed: int = 1) -> Tensor:
    return torch.rand(4, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=lambda adjoint: type(adjoint).__name__)
def test_gradients_of_a_compiled_model_are_those_of_the_model(adjoint: Adjoint) -> None:
    model, x = make_model(adjoint), make_input().requires_grad_()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    y, expected = compiled(x), model(x)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    inputs = [x, *model.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bptt", [True, False])
def test_gradients_of_a_compiled_network_are_those_of_the_network(bptt: bool) -> None:
    rnn = FactorizedRNN(4, 5, 3, bptt=bptt, solver=FISTA.paper(2), init_range=(0.0, 1.0)).eval()
    x, state = make_input().view(4, 2, 4).requires_grad_(), torch.rand(4, 5).requires_grad_()
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager")
    inputs = [x, state, *rnn.parameters()]
    found, expected = (
        [*outputs, *torch.autograd.grad(outputs[0].square().sum(), inputs)]
        for outputs in (compiled(x, state), rnn(x, state))
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_compiled_model_follows_its_weights_and_keeps_its_buffers() -> None:
    model = make_model(nonnegative=False)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.no_grad():
        for factor in (1.0, 4.0):
            for weight in model.parameters():
                weight.mul_(factor)
            for seed in (1, 2):
                torch.testing.assert_close(compiled(make_input(seed)), model(make_input(seed)), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


@pytest.mark.slow  # most of it is the C++ compiler
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_inductor_compiles_a_model() -> None:
    model, x = make_model(), make_input()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
