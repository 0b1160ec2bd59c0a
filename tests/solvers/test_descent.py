from __future__ import annotations

import pytest
import torch

from torchpfc import NonnegativeLeastSquares
from torchpfc.solvers import largest_eigenvalue
from torchpfc.solvers.descent import COLD_ITERATIONS, Factored, Gram, cold_start, prepare


@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", [(30, 10), (10, 30)])
def test_largest_eigenvalue_from_below(stack: tuple[int, ...], signed: bool, shape: tuple[int, int]) -> None:
    W = torch.rand(*stack, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    W = W - 0.5 if signed else W
    exact = torch.linalg.eigvalsh(W.mT @ W)[..., -1]
    value, vector = largest_eigenvalue(W, cold_start(W), 2000)
    torch.testing.assert_close(value, exact, rtol=1e-6, atol=0)
    image = (W.mT @ (W @ vector.unsqueeze(-1))).squeeze(-1)
    torch.testing.assert_close(image, exact.unsqueeze(-1) * vector, rtol=1e-2, atol=1e-2)
    early, _ = largest_eigenvalue(W, cold_start(W), COLD_ITERATIONS)
    assert (early <= exact * (1 + 1e-12)).all()
    assert (early > 0.9 * exact).all()


def test_largest_eigenvalue_of_nothing_is_zero() -> None:
    value, vector = largest_eigenvalue(torch.zeros(4, 3), torch.ones(3), 5)
    assert value == 0
    assert vector.isfinite().all()


@pytest.mark.parametrize(
    ("n", "m", "r", "iterations", "form"),
    [
        (200, 784, 300, 100, Gram),  # one n r r product a step instead of two n m r
        (200, 784, 2000, 100, Factored),
        (1, 784, 500, 1, Factored),  # too few steps to pay for the Gram matrix
        (1, 784, 500, 1000, Gram),
        (0, 784, 300, 100, Factored),
    ],
)
def test_cost_picks_the_form(n: int, m: int, r: int, iterations: int, form: type) -> None:
    problem = NonnegativeLeastSquares(torch.rand(n, m), torch.rand(m, r))
    assert type(prepare(problem, iterations=iterations, lipschitz=torch.tensor(1.0))) is form


def test_a_mask_needs_the_factored_form() -> None:
    problem = NonnegativeLeastSquares(torch.rand(20, 30), torch.rand(30, 5), mask=torch.ones(20, 30, dtype=torch.bool))
    assert type(prepare(problem, iterations=100, lipschitz=None)) is Factored


@pytest.mark.parametrize("stack", [(), (2,)])
@pytest.mark.parametrize("l2", [0.0, 0.4])
def test_both_forms_take_the_gradient_step(stack: tuple[int, ...], l2: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, W, y = (torch.rand(*stack, *s, generator=generator, dtype=torch.float64) for s in ((6, 9), (9, 4), (6, 4)))
    problem = NonnegativeLeastSquares(x, W, 0.1, l2)
    largest = torch.linalg.matrix_norm(W, 2).square()
    expected = y - problem.gradient(y) / (largest + l2).reshape(*stack, 1, 1)
    gram = prepare(problem, iterations=1000, lipschitz=largest)
    assert isinstance(gram, Gram)
    factored = Factored(gram.x, W, None, gram.L, gram.offset, 0.1, l2, W / gram.L)
    for form in (gram, factored):
        torch.testing.assert_close(form.step(y), expected)
        out = torch.empty_like(y)
        assert form.step(y, out=out).data_ptr() == out.data_ptr()
        torch.testing.assert_close(out, expected)
