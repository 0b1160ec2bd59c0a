"""What every solver must do, whatever its rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls
from torch import Tensor

from torchpfc import (
    ADMM,
    FISTA,
    ActiveSet,
    ConvergenceWarning,
    CoordinateDescent,
    FewParts,
    Multiplicative,
    NonnegativeLeastSquares,
    ProjectedGradient,
    nnls,
    solve,
)
from torchpfc.solvers import Solver

MASKED = [
    pytest.param(FISTA(max_iter=20_000, tol=1e-12, restart=True), id="FISTA-restart"),
    pytest.param(FISTA(max_iter=20_000, tol=1e-10), id="FISTA"),
    pytest.param(ProjectedGradient(max_iter=50_000, tol=1e-12), id="ProjectedGradient"),
    pytest.param(Multiplicative(max_iter=50_000, tol=1e-6, check_every=20), id="Multiplicative"),
    pytest.param(CoordinateDescent(max_iter=2_000, tol=1e-12), id="CoordinateDescent"),
]
APPROACHING = [*MASKED, pytest.param(ADMM(max_iter=20_000, tol=1e-12), id="ADMM")]  # the solution, step by step
SOLVERS = [
    *APPROACHING,
    pytest.param(ActiveSet(tol=1e-12), id="ActiveSet"),
    pytest.param(FewParts(20_000, tol=1e-10), id="FewParts"),
    pytest.param(ActiveSet(tol=1e-12, candidates=1), id="ActiveSet-one-by-one"),
]


def accuracy(solver: Solver) -> float:
    return 1e-4 if isinstance(solver, Multiplicative) else 1e-6  # its steps shrink with h: zeros are approached slowly


def well_posed(n: int = 7, m: int = 20, r: int = 8, *, stack: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(*stack, n, m, generator=generator, dtype=torch.float64)
    return x, torch.rand(*stack, m, r, generator=generator, dtype=torch.float64)


def by_scipy(x: Tensor, W: Tensor) -> Tensor:
    return torch.from_numpy(np.stack([scipy_nnls(W.numpy(), row)[0] for row in x.numpy()]))


@pytest.mark.parametrize("solver", SOLVERS)
def test_agrees_with_scipy(solver: Solver) -> None:
    x, W = well_posed()
    solution = solve(NonnegativeLeastSquares(x, W), solver)
    assert solution.converged.all()
    torch.testing.assert_close(solution.h, by_scipy(x, W), atol=accuracy(solver), rtol=0)
    assert (by_scipy(x, W) == 0).any(), "a case without an active constraint would prove nothing"


@pytest.mark.parametrize("solver", SOLVERS)
def test_recovers_planted_factors(solver: Solver) -> None:
    _, W = well_posed()
    planted = torch.rand(7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).sub(0.5)
    # Without noise the gradient vanishes at a planted zero too, and a multiplicative update never gets there.
    planted.clamp_(min=0.05 if isinstance(solver, Multiplicative) else 0.0)
    solution = solve(NonnegativeLeastSquares(planted @ W.T, W), solver)
    torch.testing.assert_close(solution.h, planted, atol=accuracy(solver), rtol=0)
    assert solution.residual.max() < accuracy(solver)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("l1", "l2"), [(0.3, 0.0), (0.0, 0.5), (0.3, 0.5)])
def test_penalties_agree_with_an_augmented_problem(solver: Solver, l1: float, l2: float) -> None:
    # 1/2 |x - W h|^2 + l1 sum(h) + l2/2 |h|^2 is the plain problem for W' = [W; sqrt(l2) I; a 1^T] once completed to a
    # square: SciPy solves it through G' = W^T W + l2 I and c' = W^T x - l1, by way of a Cholesky factor.
    x, W = well_posed()
    gram = W.T @ W + l2 * torch.eye(8, dtype=torch.float64)
    factor = torch.linalg.cholesky(gram)  # gram = factor factor^T
    right = torch.linalg.solve_triangular(factor, (x @ W - l1).T, upper=False).T
    solution = solve(NonnegativeLeastSquares(x, W, l1, l2), solver)
    torch.testing.assert_close(solution.h, by_scipy(right, factor.T), atol=accuracy(solver), rtol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_stack_equals_its_members(solver: Solver) -> None:
    x, W = well_posed(stack=(2, 3))
    together = solve(NonnegativeLeastSquares(x, W), solver)
    for i in range(2):
        for j in range(3):
            alone = solve(NonnegativeLeastSquares(x[i, j], W[i, j]), solver)
            torch.testing.assert_close(together.h[i, j], alone.h, atol=accuracy(solver), rtol=0)
            assert (together.iterations[i, j] - alone.iterations).abs().max() <= solver.check_every
            torch.testing.assert_close(together.residual[i, j], alone.residual, atol=accuracy(solver), rtol=0)
    assert together.kkt.shape == together.converged.shape == (2, 3, 7)


@pytest.mark.parametrize("solver", SOLVERS)
def test_leading_dimensions_broadcast(solver: Solver) -> None:
    x, W = well_posed()
    stacked = torch.stack([W, 2 * W])
    shared = solve(NonnegativeLeastSquares(x, stacked), solver).h
    torch.testing.assert_close(shared[0], 2 * shared[1], atol=2 * accuracy(solver), rtol=0)
    batched = solve(NonnegativeLeastSquares(x.reshape(7, 1, 1, 20), W), solver).h
    torch.testing.assert_close(batched.reshape(7, 8), shared[0], atol=accuracy(solver), rtol=0)
    single = solve(NonnegativeLeastSquares(x[0], W), solver)
    assert single.h.shape == (8,)
    assert single.iterations.shape == single.kkt.shape == single.residual.shape == ()


@pytest.mark.parametrize("solver", [*MASKED, pytest.param(FewParts(20_000, tol=1e-12), id="FewParts")])
def test_masked_entries_change_nothing(solver: Solver) -> None:
    x, W = well_posed()
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.7
    mask[3] = False  # a row of which nothing is seen
    garbage = x.where(mask, torch.nan)
    solution = solve(NonnegativeLeastSquares(garbage, W, mask=mask), solver)
    for i, (row, seen) in enumerate(zip(x, mask, strict=True)):
        expected = by_scipy(row[None, seen], W[seen])[0] if seen.any() else torch.zeros(8, dtype=torch.float64)
        torch.testing.assert_close(solution.h[i], expected, atol=accuracy(solver), rtol=0)
        torch.testing.assert_close(
            solution.residual[i], (row - W @ expected)[seen].norm(), atol=accuracy(solver), rtol=0
        )


@pytest.mark.parametrize("solver", APPROACHING)
def test_warm_start_at_the_solution_stays_there(solver: Solver) -> None:
    x, W = well_posed()
    problem = NonnegativeLeastSquares(x, W)
    solution = solve(problem, solver)
    again = solve(problem, solver, warm_start=solution.h)
    torch.testing.assert_close(again.h, solution.h, atol=accuracy(solver), rtol=0)
    assert (again.iterations < solution.iterations).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_rows(solver: Solver) -> None:
    _, W = well_posed()
    solution = solve(NonnegativeLeastSquares(W.new_empty(0, 20), W), solver)
    assert solution.h.shape == (0, 8)
    assert solution.kkt.shape == solution.iterations.shape == solution.converged.shape == (0,)


@pytest.mark.parametrize("solver", APPROACHING)
def test_warns_where_it_stops_short(solver: Solver) -> None:
    from dataclasses import replace

    x, W = well_posed()
    with pytest.warns(ConvergenceWarning, match=r"7 of 7 rows did not reach tol=.* in 3 steps"):
        solution = solve(NonnegativeLeastSquares(x, W), replace(solver, max_iter=3))
    assert not solution.converged.any()
    assert (solution.iterations == 3).all()


exponents = st.integers(-6, 6)


@st.composite
def problems(draw: st.DrawFn) -> NonnegativeLeastSquares:
    """Problems of every rank and scale, with zero columns, zero rows, duplicate columns, and no rows at all."""
    n, m, r = draw(st.integers(0, 6)), draw(st.integers(1, 12)), draw(st.integers(1, 15))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))

    def made(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64) - (0.5 if signed else 0.0)

    signed = draw(st.booleans())
    rank = draw(st.integers(1, min(m, r)))
    W = made(m, rank) @ made(rank, r) if draw(st.booleans()) else made(m, r)
    x = made(n, m)
    if draw(st.booleans()):
        W[:, draw(st.integers(0, r - 1))] = 0
    if draw(st.booleans()):
        W[:, draw(st.integers(0, r - 1))] = W[:, draw(st.integers(0, r - 1))]
    if n and draw(st.booleans()):
        x[draw(st.integers(0, n - 1))] = 0
    x_scale, W_scale = 10.0 ** draw(exponents), 10.0 ** draw(exponents)
    # Penalties of the size of the terms that they compete with.
    l1 = draw(st.sampled_from([0.0, 0.1])) * x_scale * W_scale
    l2 = draw(st.sampled_from([0.0, 0.1])) * W_scale**2
    return NonnegativeLeastSquares(x * x_scale, W * W_scale, l1, l2)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_kkt_conditions_hold(problem: NonnegativeLeastSquares) -> None:
    solution = nnls(problem.x, problem.W, l1=problem.l1, l2=problem.l2, tol=1e-7, max_iter=100_000)
    h = solution.h
    gradient = (h @ problem.W.T - problem.x) @ problem.W + problem.l1 + problem.l2 * h
    scale = (problem.x @ problem.W - problem.l1).norm(dim=-1, keepdim=True)
    assert solution.converged.all()
    assert (h >= 0).all()
    assert (gradient >= -1e-6 * scale).all(), "the gradient points into the feasible set"
    assert (gradient.where(h > 1e-6 * h.amax(-1, keepdim=True), 0.0).abs() <= 1e-5 * scale).all(), (
        "the gradient vanishes where h is positive"
    )
    assert (solution.kkt <= 1e-7).all()


@settings(max_examples=50, deadline=None)
@given(problems(), st.integers(-20, 20))
def test_solution_scales_with_the_input(problem: NonnegativeLeastSquares, exponent: int) -> None:
    factor = 2.0**exponent  # a power of two changes no mantissa, so equality is exact
    for solver in (FISTA(max_iter=30), FISTA(max_iter=30, cap=True), ProjectedGradient(max_iter=30)):
        h = solve(NonnegativeLeastSquares(problem.x, problem.W), solver).h
        scaled = solve(NonnegativeLeastSquares(factor * problem.x, problem.W), solver).h
        assert torch.equal(scaled, factor * h)


def test_a_solver_that_takes_no_mask_says_so() -> None:
    x, W = well_posed()
    with pytest.raises(ValueError, match="mask must be None for ADMM, got one; FISTA takes masks"):
        solve(NonnegativeLeastSquares(x, W, mask=torch.ones_like(x, dtype=torch.bool)), ADMM())


@pytest.mark.parametrize("kind", [Multiplicative, CoordinateDescent, ADMM, ActiveSet, FewParts])
def test_only_the_gradient_solvers_take_a_cap(kind: type[Solver]) -> None:
    with pytest.raises(ValueError, match=f"cap must be False for {kind.__name__}, got True"):
        kind(cap=True)


def test_one_hard_row_does_not_hold_the_rest() -> None:
    W = torch.tensor([[1.0, 0.999], [0.0, 0.03]], dtype=torch.float64)
    easy, hard = torch.tensor([[-1.0, -1.0]], dtype=torch.float64), torch.tensor([[1.0, 0.01]], dtype=torch.float64)
    solver = FISTA(max_iter=100_000, tol=1e-12, restart=True)
    together = solve(NonnegativeLeastSquares(torch.cat([easy, hard, easy]), W), solver)
    assert together.iterations[0] == together.iterations[2] == solver.check_every
    assert together.iterations[1] > 10 * solver.check_every
    assert together.converged.all()
    torch.testing.assert_close(together.h[1:2], by_scipy(hard, W), atol=1e-6, rtol=0)
