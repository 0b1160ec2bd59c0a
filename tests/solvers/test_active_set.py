from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls
from sklearn.datasets import load_digits
from torch import Tensor

from torchpfc import FISTA, ActiveSet, NonnegativeLeastSquares, nnls, solve
from torchpfc.solvers import active_set


def digits(n: int = 20, r: int = 60) -> NonnegativeLeastSquares:
    """Images explained by other images: solutions use few of them."""
    images = torch.from_numpy(load_digits().data / 16)
    return NonnegativeLeastSquares(images[:n], images[100 : 100 + r].T)


def mixtures(n: int = 20, m: int = 50, r: int = 40) -> NonnegativeLeastSquares:
    """Solutions use many parts."""
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(m, r, generator=generator, dtype=torch.float64)
    return NonnegativeLeastSquares(torch.rand(n, r, generator=generator, dtype=torch.float64) @ W.T, W)


def by_scipy(problem: NonnegativeLeastSquares) -> Tensor:
    return torch.from_numpy(np.stack([scipy_nnls(problem.W.numpy(), row)[0] for row in problem.x.numpy()]))


@pytest.mark.parametrize("candidates", [1, 5, 16, 1000])
@pytest.mark.parametrize("problem", [digits(), mixtures()], ids=["digits", "mixtures"])
def test_any_number_of_candidates_leads_to_the_solution(problem: NonnegativeLeastSquares, candidates: int) -> None:
    solution = solve(problem, ActiveSet(tol=1e-12, candidates=candidates))
    assert solution.converged.all()
    torch.testing.assert_close(solution.h, by_scipy(problem), atol=1e-8, rtol=0)


def test_a_step_with_all_parts_as_candidates_is_exact() -> None:
    problem = digits()
    torch.testing.assert_close(solve(problem, ActiveSet(1, candidates=60)).h, by_scipy(problem), atol=1e-9, rtol=0)


def test_the_objective_never_rises() -> None:
    problem = mixtures()
    objectives = torch.stack([problem.objective(solve(problem, ActiveSet(k, candidates=3)).h) for k in range(12)])
    assert (objectives.diff(dim=0) <= 1e-9).all()
    assert (objectives.diff(dim=0)[0] < 0).all()


def test_few_steps_are_enough_where_few_parts_are_used() -> None:
    solution = solve(digits(50, 1000), ActiveSet(tol=1e-10))
    assert solution.converged.all()
    assert solution.iterations.max() <= 5
    assert (solution.h > 0).sum(-1).max() < 30


def test_rows_are_taken_in_turns_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = digits(50, 100)
    at_once = solve(problem, ActiveSet(tol=1e-12))
    monkeypatch.setattr(active_set, "_NUMBERS_AT_ONCE", 3 * 20**2)
    in_turns = solve(problem, ActiveSet(tol=1e-12))
    torch.testing.assert_close(in_turns.h, at_once.h, atol=1e-12, rtol=0)
    assert torch.equal(in_turns.iterations, at_once.iterations)


def test_floor_and_warm_start_below_it() -> None:
    problem = digits()
    solver = ActiveSet(tol=1e-10, floor=0.01)
    h = solve(problem, solver, warm_start=torch.zeros(20, 60, dtype=torch.float64)).h
    exact = FISTA(max_iter=50_000, tol=1e-12, floor=0.01, restart=True)
    torch.testing.assert_close(h, solve(problem, exact).h, atol=1e-6, rtol=0)
    assert h.min() == 0.01


def test_a_warm_start_at_the_solution_stays_there() -> None:
    problem = mixtures(10, 100, 60)
    cold = solve(problem, ActiveSet(tol=1e-10))
    warm = solve(problem, ActiveSet(tol=1e-10), warm_start=cold.h)
    torch.testing.assert_close(warm.h, cold.h, atol=1e-9, rtol=0)
    assert (warm.iterations == 1).all()
    assert cold.iterations.max() > 1


def test_rows_that_find_no_end_of_exchanges_descend(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = mixtures()
    before = solve(problem, ActiveSet(1, candidates=3)).h
    monkeypatch.setattr(active_set, "_PATIENCE", -1)
    after = solve(problem, ActiveSet(1), warm_start=before).h
    assert (problem.objective(after) < problem.objective(before)).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-8)], ids=str)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), m=st.integers(1, 12), r=st.integers(1, 30), rank=st.integers(1, 12))
def test_collinear_parts_do_no_harm(dtype: torch.dtype, tolerance: float, seed: int, m: int, r: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    made = (
        torch.rand if dtype == torch.float32 else torch.randn
    )  # signed parts cancel, which half the digits do not bear
    W = made(m, rank, generator=generator, dtype=dtype) @ made(rank, r, generator=generator, dtype=dtype)
    W[:, 0] = 0
    W[:, -1] = W[:, r // 2]
    problem = NonnegativeLeastSquares(torch.randn(5, m, generator=generator, dtype=dtype), W)
    solution = solve(problem, ActiveSet(max_iter=2000, tol=tolerance, candidates=3))
    gradient = (solution.h @ W.T - problem.x) @ W
    scale = (problem.x @ W).norm(dim=-1, keepdim=True)
    assert solution.converged.all()
    assert (solution.h >= 0).all()
    assert (gradient >= -10 * r * tolerance * scale).all()


def test_nnls_tries_whether_few_parts_are_used() -> None:
    for problem, method in ((digits(40, 200), "ActiveSet"), (mixtures(40, 80, 200), "ADMM, then ActiveSet")):
        solution = nnls(problem.x, problem.W)
        assert f"by {method}:" in repr(solution)
        assert solution.converged.all()
        torch.testing.assert_close(
            problem.objective(solution.h), problem.objective(by_scipy(problem)), atol=1e-8, rtol=1e-8
        )


def test_bad_candidates() -> None:
    with pytest.raises(ValueError, match="candidates must be non-negative and finite, got -1"):
        ActiveSet(candidates=-1)
