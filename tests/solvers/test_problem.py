from __future__ import annotations

import pytest
import torch

from torchpfc import NonnegativeLeastSquares


def test_gradient_is_that_of_the_objective() -> None:
    generator = torch.Generator().manual_seed(0)
    x, W, h = (torch.rand(*s, generator=generator, dtype=torch.float64) for s in ((3, 5), (5, 4), (3, 4)))
    mask = torch.rand(3, 5, generator=generator) < 0.6
    h.requires_grad_()
    for seen in (None, mask):
        problem = NonnegativeLeastSquares(x, W, 0.2, 0.3, seen)
        (expected,) = torch.autograd.grad(problem.objective(h).sum(), h)
        torch.testing.assert_close(problem.gradient(h), expected)


def test_objective_by_hand() -> None:
    problem = NonnegativeLeastSquares(
        torch.tensor([[3.0, torch.nan]]),
        torch.tensor([[1.0, 2.0], [5.0, 5.0]]),
        l1=0.1,
        l2=0.5,
        mask=torch.tensor([[True, False]]),
    )
    h = torch.tensor([[1.0, 0.5]])  # W h = (2, ...), so 1 of the 3 is left
    assert problem.objective(h).item() == pytest.approx(0.5 * 1**2 + 0.1 * 1.5 + 0.25 * 1.25)
    assert torch.equal(problem.residual(h), torch.tensor([[1.0, 0.0]]))


@pytest.mark.parametrize(
    ("x", "W", "shape"),
    [
        ((5,), (5, 3), (3,)),
        ((7, 5), (5, 3), (7, 3)),
        ((2, 7, 5), (5, 3), (2, 7, 3)),
        ((7, 5), (4, 5, 3), (4, 7, 3)),
        ((2, 1, 7, 5), (4, 5, 3), (2, 4, 7, 3)),
    ],
)
def test_shape_of_the_solution(x: tuple[int, ...], W: tuple[int, ...], shape: tuple[int, ...]) -> None:
    assert NonnegativeLeastSquares(torch.rand(x), torch.rand(W)).shape == shape


X, PARTS = torch.rand(4, 5), torch.rand(5, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], PARTS), TypeError, r"x must be a torch\.Tensor, got list"),
        ((X, [1.0]), TypeError, r"W must be a torch\.Tensor, got list"),
        ((X.long(), PARTS), TypeError, r"x must be float32 or float64, got torch\.int64"),
        ((X.half(), PARTS), TypeError, r"x must be float32 or float64, got torch\.float16"),
        ((X, PARTS.double()), TypeError, r"W must have the dtype of x \(torch\.float32\), got torch\.float64"),
        ((X, PARTS.to("meta")), ValueError, r"W must be on the device of x \(cpu\), got meta"),
        ((X, torch.rand(5)), ValueError, r"W must have shape \(\.\.\., m, r\), got \(5,\)"),
        ((X, torch.rand(5, 0)), ValueError, r"W must have at least one row and one column, got shape \(5, 0\)"),
        ((torch.rand(4, 6), PARTS), ValueError, r"x must have shape \(\.\.\., 5\) to match W, got \(4, 6\)"),
        ((torch.tensor(1.0), PARTS), ValueError, r"x must have shape \(\.\.\., 5\) to match W, got \(\)"),
        ((X[0], torch.rand(2, 5, 3)), ValueError, r"x must have shape \(\.\.\., n, 5\) to match W, got \(5,\)"),
        (
            (torch.rand(3, 4, 5), torch.rand(2, 5, 3)),
            ValueError,
            r"x must have leading dimensions that broadcast with those of W \(2,\), got \(3,\)",
        ),
        ((X, PARTS, -1.0), ValueError, r"l1 must be non-negative and finite, got -1\.0"),
        ((X, PARTS, float("nan")), ValueError, r"l1 must be non-negative and finite, got nan"),
        ((X, PARTS, 0.0, float("inf")), ValueError, r"l2 must be non-negative and finite, got inf"),
        ((X, PARTS, 0.0, 0.0, X), TypeError, r"mask must be boolean \(True where x is observed\), got torch\.float32"),
        (
            (X, PARTS, 0.0, 0.0, X.bool().to("meta")),
            ValueError,
            r"mask must be on the device of x \(cpu\), got meta",
        ),
        (
            (X, PARTS, 0.0, 0.0, torch.ones(4, 4, dtype=torch.bool)),
            ValueError,
            r"mask must broadcast to the shape of x \(4, 5\), got \(4, 4\)",
        ),
        (
            (X, PARTS, 0.0, 0.0, torch.ones(2, 4, 5, dtype=torch.bool)),
            ValueError,
            r"mask must broadcast to the shape of x \(4, 5\), got \(2, 4, 5\)",
        ),
    ],
)
def test_bad_input(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        NonnegativeLeastSquares(*arguments)  # type: ignore[arg-type]
