from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls as scipy_nnls
from sklearn.datasets import load_digits
from torch import Tensor

from torchpfc import FISTA, FewParts, NonnegativeLeastSquares, PFCBlock, solve
from torchpfc.solvers import few_parts


def digits(n: int = 30, r: int = 300, dtype: torch.dtype = torch.float64, l1: float = 0.0) -> NonnegativeLeastSquares:
    """Images explained by many other images, of which each uses few."""
    images = torch.from_numpy(load_digits().data / 16).to(dtype)
    return NonnegativeLeastSquares(images[:n], images[1000 : 1000 + r].T, l1)


def by_scipy(problem: NonnegativeLeastSquares) -> Tensor:
    x, W = problem.x.double().numpy(), problem.W.double().numpy()
    return torch.from_numpy(np.stack([scipy_nnls(W, row)[0] for row in x]))


def test_a_few_rounds_end_at_the_exact_solution() -> None:
    problem = digits()
    solution = solve(problem, FewParts(tol=1e-10))
    torch.testing.assert_close(solution.h @ problem.W.T, by_scipy(problem) @ problem.W.T, atol=1e-6, rtol=0)
    assert solution.iterations.max() <= 6 and solution.converged.all()


def test_single_precision_gets_as_far_as_thousands_of_steps() -> None:
    problem = digits(50, 100, torch.float32, l1=0.1)
    exact = solve(digits(50, 100, l1=0.1), FISTA(20_000, 1e-11, restart=True)).h
    assert (solve(problem, FewParts()).h - exact).abs().max() < 1e-3 * exact.max()
    assert (solve(problem, FISTA(50)).h - exact).abs().max() > 0.1 * exact.max(), "steps are not there by then"


def test_groups_and_portions_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = digits(40, 100, l1=0.1)
    together = solve(problem, FewParts()).h
    monkeypatch.setattr(few_parts, "_FEWEST_IN_GROUPS", 4)
    monkeypatch.setattr(few_parts, "_NUMBERS_AT_ONCE", 1)
    torch.testing.assert_close(solve(problem, FewParts()).h, together, atol=1e-9, rtol=0)


def test_more_parts_than_features_and_copies_of_parts_do_no_harm() -> None:
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(3, 40, generator=generator)
    problem = NonnegativeLeastSquares(torch.rand(200, 3, generator=generator), torch.cat([W, W], 1), l1=0.01)
    solution = solve(problem, FewParts())
    assert solution.h.isfinite().all()
    assert solution.kkt.max() < 1e-2


def test_a_warm_start_at_the_solution_takes_no_round() -> None:
    problem = digits(l1=0.1)
    found = solve(problem, FewParts()).h
    again = solve(problem, FewParts(), warm_start=found)
    assert (again.iterations == 0).all()
    assert torch.equal(again.h, found)


def test_no_rounds_leave_the_start() -> None:
    problem = digits()
    assert not solve(problem, FewParts(max_iter=0)).h.any()
    one = solve(problem, FewParts(max_iter=1))
    assert (one.iterations == 1).all() and ((one.h > 0).sum(1) <= 16).all()


def test_gradients_are_those_of_the_optimum() -> None:
    problem = digits(5, 20, l1=0.1)
    blocks = [PFCBlock(64, 3, num_basis=20, l1=0.1, solver=s, dtype=torch.float64) for s in (FewParts(), FISTA(5000))]
    gradients = []
    for block in blocks:
        block.set_parts_(problem.W, torch.ones(3, 20, dtype=torch.float64))
        block.reset_parameters(torch.Generator().manual_seed(0))
        block(problem.x).square().sum().backward()
        gradients.append(block.weight_x.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-3)
