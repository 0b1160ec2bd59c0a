from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls
from torch import Tensor

from tests.solvers.hard import FAMILIES, Array, make, residual, violation
from torchpfc import (
    ADMM,
    FISTA,
    ActiveSet,
    ConvergenceWarning,
    CoordinateDescent,
    NonnegativeLeastSquares,
    ProjectedGradient,
    nnls,
    solve,
)
from torchpfc.solvers import Solver, lawson_hanson

EXACT = ActiveSet(10**6, 1e-10, candidates=0)  # one part at a time from the beginning


def by_scipy(x: Array, W: Array) -> Array:
    return np.stack([scipy_nnls(W, row, maxiter=100 * W.shape[1])[0] for row in x])


def tensors(*arrays: Array) -> Sequence[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize("name", FAMILIES)
def test_as_exact_as_scipy_where_other_methods_stall(name: str) -> None:
    x, W = make(name, 50, 24, 12, seed=1)
    best = residual(x, W, by_scipy(x, W))
    problem = NonnegativeLeastSquares(*tensors(x, W))
    for solution in (nnls(problem.x, problem.W), solve(problem, EXACT)):
        h = solution.h.numpy()
        assert solution.converged.all()
        assert (h >= 0).all()
        assert (residual(x, W, h) <= best + 1e-8 * np.linalg.norm(x, axis=1)).all()
        assert violation(x, W, h).max() <= 1e-10


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_is_close_or_says_why_it_is_not(name: str) -> None:
    x, W = make(name, 50, 24, 12, seed=2)
    single_x, single_W = (tensor.float() for tensor in tensors(x, W))
    x, W = single_x.double().numpy(), single_W.double().numpy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = nnls(single_x, single_W)
    close = residual(x, W, solution.h.double().numpy()) <= residual(x, W, by_scipy(x, W)) + 1e-4 * np.linalg.norm(
        x, axis=1
    )
    assert (close | ~solution.converged.numpy()).all()
    norms = np.linalg.norm(W, axis=0)
    if np.linalg.cond(W[:, norms > 0] / norms[norms > 0]) < 1e4:
        assert solution.converged.all()
    assert bool(caught) == (not solution.converged.all())
    assert all("condition number" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("candidates", [16, 0])
def test_masks_penalties_and_floors_are_exact_where_parts_are_nearly_collinear(candidates: int) -> None:
    x, W = make("bumps, noise 0.01", 40, 20, 6)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    seen = np.random.default_rng(0).random(x.shape) < 0.7
    solver = ActiveSet(10**6, 1e-10, candidates=candidates)
    masked = solve(NonnegativeLeastSquares(*tensors(x, W), mask=torch.from_numpy(seen)), solver)
    for i, row in enumerate(seen):
        expected = residual(x[i : i + 1, row], W[row], by_scipy(x[i : i + 1, row], W[row]))
        assert float(masked.residual[i]) <= expected[0] + 1e-8 * norm[i, 0]
    floor = 0.05
    raised = solve(NonnegativeLeastSquares(*tensors(x, W)), ActiveSet(10**6, 1e-10, floor=floor, candidates=candidates))
    above = by_scipy(x - floor * W.sum(1), W)
    assert raised.h.min() >= floor
    assert (raised.residual.numpy() <= residual(x, W, above + floor) + 1e-8 * norm[:, 0]).all()
    l2 = 1e-6  # is more rows of W
    ridge = np.concatenate([W, np.sqrt(l2) * np.eye(20)])
    expected = by_scipy(np.pad(x, ((0, 0), (0, 20))), ridge)
    penalised = solve(NonnegativeLeastSquares(*tensors(x, W), l2=l2), solver)
    np.testing.assert_allclose(penalised.h.numpy(), expected, atol=1e-7)
    l1 = 0.01 * norm.min()
    shrunk = solve(NonnegativeLeastSquares(*tensors(x, W), l1=float(l1)), solver).h.numpy()
    gradient = (shrunk @ W.T - x) @ W + l1
    assert (gradient >= -1e-9).all()
    assert (np.abs(gradient[shrunk > 0]) <= 1e-9).all()


def test_penalties_for_single_entries() -> None:
    x, W = tensors(*make("uniform, noise 0.01", 20, 8, 5))
    l1, l2 = torch.rand(5, 8, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    problem = NonnegativeLeastSquares(x, W, l1, l2)
    masked = NonnegativeLeastSquares(x, W, l1, l2, torch.ones_like(x, dtype=torch.bool))
    solutions = [
        nnls(x, W, l1=l1, l2=l2).h,
        nnls(x, W, l1=l1, l2=l2, mask=masked.mask).h,
        solve(problem, FISTA(20_000, 1e-12, restart=True)).h,
        solve(problem, ADMM(20_000, 1e-12)).h,
        *(solve(given, CoordinateDescent(2000, 1e-12)).h for given in (problem, masked)),
        *(solve(problem, ActiveSet(1000, 1e-12, candidates=count)).h for count in (0, 3)),
    ]
    stacked = NonnegativeLeastSquares(torch.stack([x, x]), torch.stack([W, W]), l1, torch.stack([l2, l2])[:, None])
    for solver in (FISTA(20_000, 1e-12, restart=True), ADMM(20_000, 1e-12), ActiveSet(1000, 1e-12, candidates=0)):
        solutions += solve(stacked, solver).h
    for h in solutions:
        moved = (h - problem.gradient(h)).clamp(min=0)
        torch.testing.assert_close(moved, h, atol=1e-8, rtol=0)
        torch.testing.assert_close(problem.objective(h), problem.objective(solutions[0]))


SOLVERS = [
    pytest.param(None, id="nnls"),
    pytest.param(EXACT, id="one-by-one"),
    pytest.param(ActiveSet(1000, 1e-10), id="ActiveSet"),
    pytest.param(ADMM(2000, 1e-6), id="ADMM"),
    pytest.param(FISTA(2000, 1e-6, restart=True), id="FISTA"),
    pytest.param(ProjectedGradient(2000, 1e-3), id="ProjectedGradient"),
    pytest.param(CoordinateDescent(500, 1e-6), id="CoordinateDescent"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(-900, 900), columns=st.integers(-60, 60), penalty=st.booleans())
def test_no_scale_matters(dtype, solver: Solver | None, seed: int, rows: int, columns: int, penalty: bool) -> None:
    limit = 900 if dtype == torch.float64 else 100
    generator = torch.Generator().manual_seed(seed)
    x, W = torch.rand(4, 9, generator=generator, dtype=dtype), torch.rand(9, 6, generator=generator, dtype=dtype)
    a = torch.randint(-limit // 2, limit // 2, (4, 1), generator=generator) + rows * limit // 2000
    b = torch.randint(-limit // 10, limit // 10, (6,), generator=generator) + columns * limit // 1000
    l1 = 0.1 if penalty else 0.0
    power = 2.0 ** a.double(), 2.0 ** b.double()
    scaled_x, scaled_W = (x.double() * power[0]).to(dtype), (W.double() * power[1]).to(dtype)
    scaled_l1 = (l1 * power[0] * power[1]).to(dtype) if penalty else 0.0
    given = NonnegativeLeastSquares(x, W, torch.full((4, 6), l1, dtype=dtype) if penalty else 0.0)
    scaled = NonnegativeLeastSquares(scaled_x, scaled_W, scaled_l1)

    def found(problem: NonnegativeLeastSquares) -> tuple[Tensor, Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            solution = nnls(problem.x, problem.W, l1=problem.l1) if solver is None else solve(problem, solver)
        return solution.h, solution.converged

    (h, converged), (scaled_h, scaled_converged) = found(given), found(scaled)
    expected = h.double() * 2.0 ** (a - b).double()
    normal = expected.abs() > torch.finfo(dtype).tiny
    assert torch.equal(scaled_h.double().where(normal, 0.0), expected.where(normal, 0.0))
    assert torch.equal(scaled_converged, converged)


def test_the_smallest_and_largest_inputs_have_solutions() -> None:
    x, W = tensors(*make("uniform, noise 0.01", 20, 8, 5))
    h = nnls(x, W).h
    for size in (1e-300, 1e-30, 1e300):
        torch.testing.assert_close(nnls(size * x, W).h, size * h, rtol=1e-9, atol=1e-9 * size)
        torch.testing.assert_close(nnls(size * x, size * W).h, h, rtol=1e-9, atol=1e-9)
    single = nnls(x.float(), W.float())
    for size in (1e-25, 1e-20, 1e20, 1e30):
        scaled = nnls(size * x.float(), W.float())
        assert scaled.converged.all()
        torch.testing.assert_close(scaled.h / size, single.h, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    m=st.integers(1, 12),
    r=st.integers(1, 20),
    rank=st.integers(1, 12),
    noise=st.sampled_from([0.0, 1e-12, 1e-3, 1.0]),
    masked=st.booleans(),
)
def test_converged_means_that_the_conditions_hold(
    seed: int, m: int, r: int, rank: int, noise: float, masked: bool
) -> None:
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, r)) * 10.0 ** rng.integers(-3, 4, r)
    x = np.maximum(rng.standard_normal((5, r)), 0) @ W.T + noise * rng.standard_normal((5, m))
    mask = rng.random((5, m)) < 0.7 if masked else np.ones((5, m), dtype=bool)
    solution = nnls(*tensors(x, W), mask=torch.from_numpy(mask) if masked else None)
    assert solution.converged.all()
    h = solution.h.numpy()
    assert (h >= 0).all()
    for i, seen in enumerate(mask):
        if seen.any():
            gradient = (W[seen] @ h[i] - x[i, seen]) @ W[seen]
            scale = np.linalg.norm(W, axis=0) * max(np.linalg.norm(x[i, seen]), 1e-300)
            assert (np.where(h[i] > 0, np.abs(gradient), -gradient) <= 1e-9 * scale).all()


def test_the_gradient_is_that_of_the_optimum() -> None:
    generator = torch.Generator().manual_seed(0)
    x, W = (torch.rand(*shape, generator=generator).double().requires_grad_() for shape in ((4, 12), (12, 4)))
    mask = torch.rand(4, 12, generator=torch.Generator().manual_seed(0)) < 0.8
    for options in ({}, {"l1": 0.05}, {"l2": 0.1}, {"mask": mask}, {"mask": mask, "l1": 0.05, "l2": 0.1}):
        assert torch.autograd.gradcheck(lambda x, W, o=options: nnls(x, W, **o).h, (x, W))


def test_the_gradient_of_the_reconstruction_is_right_where_h_is_not_unique() -> None:
    x, W = tensors(*make("uniform, noise 0.01", 12, 4, 4))
    twice = torch.cat([W, W], dim=1)

    def fitted(x: Tensor, W: Tensor) -> Tensor:
        return nnls(x, W).h @ W.T

    expected = torch.autograd.functional.jacobian(lambda x: fitted(x, W), x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(lambda x: fitted(x, twice), x), expected)


def test_rows_are_solved_in_turns_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NonnegativeLeastSquares(*tensors(*make("bumps, noise 0.01", 40, 20, 30)))
    at_once = solve(problem, EXACT)
    monkeypatch.setattr(lawson_hanson, "_NUMBERS_AT_ONCE", 7 * 20**2)
    in_turns = solve(problem, EXACT)
    torch.testing.assert_close(in_turns.h, at_once.h, atol=1e-12, rtol=1e-9)
    assert torch.equal(in_turns.iterations, at_once.iterations)


def test_a_limit_of_steps_is_kept_and_said() -> None:
    x, W = tensors(*make("bumps, noise 0.01", 40, 20, 30))
    for steps in (1, 5, 12):
        with pytest.warns(
            ConvergenceWarning, match=rf"did not reach tol=1e-10 in {steps} steps; raise max_iter, or take"
        ):
            solution = nnls(x, W, max_iter=steps)
        assert (solution.h >= 0).all()
        assert (solution.iterations <= steps).all()
        assert not solution.converged.all()


def test_a_tolerance_of_ones_own_ends_sooner_and_rows_that_stall_are_handed_over() -> None:
    x, W = tensors(*make("bumps, noise 0.01", 300, 200, 8))
    loose = nnls(x, W, tol=1e-6)
    assert loose.converged.all()
    assert loose.kkt.max() <= 1e-6
    mixed = nnls(*tensors(*make("uniform, noise 0.01", 300, 200, 20)), tol=1e-3)
    assert mixed.converged.all()
    assert not mixed.one_by_one.any()


def test_a_solution_says_how_it_was_found() -> None:
    x, W = tensors(*make("bumps, noise 0.01", 40, 20, 30))
    solution = nnls(x, W)
    assert repr(solution).startswith("Solution of 30 rows over 20 parts, by ActiveSet:\n  all converged\n")
    assert "one part at a time; condition of the parts in use up to" in repr(solution)
    assert solution.one_by_one.any()
    row = int(solution.one_by_one.nonzero()[0])
    used = W[:, solution.h[row] > 0]
    expected = np.linalg.cond(used / used.norm(dim=0))
    assert solution.condition[row] == pytest.approx(expected, rel=1e-6)
    assert "of no rows over 20 parts" in repr(nnls(x[:0], W))
    stacked = nnls(torch.stack([x, x]), torch.stack([W, W]))
    torch.testing.assert_close(stacked.condition[1], solution.condition)


@pytest.mark.parametrize(
    ("x", "W", "options", "error", "message"),
    [
        ([[1, 2]], [[1.0], [2.0]], {}, TypeError, r"x must be float32 or float64, got torch\.int64"),
        ([[1.0, 2.0]], [[float("nan")], [2.0]], {}, ValueError, "W must be finite, got NaN or infinite entries"),
        ([[1.0, 2.0]], [[1.0], [float("inf")]], {}, ValueError, "W must be finite, got NaN or infinite entries"),
        ([[1.0, float("nan")]], [[1.0], [2.0]], {}, ValueError, "x must be finite, got NaN or infinite entries"),
        ([[1.0, 2.0]], [[1.0], [2.0]], {"l1": float("inf")}, ValueError, "l1 must be non-negative and finite, got inf"),
        ([[1.0, 2.0]], [[1.0], [2.0]], {"l1": "much"}, TypeError, "l1 must be a number or a tensor, got 'much'"),
        ([[1.0, 2.0]], [[], []], {}, ValueError, "W must have at least one row and one column"),
        ([[]], torch.zeros(0, 3), {}, ValueError, "W must have at least one row and one column"),
        ([[1.0, 2.0]], [[1.0], [2.0]], {"max_iter": 0}, ValueError, "max_iter must be at least 1, got 0"),
        ([[1.0, 2.0]], [[1.0], [2.0]], {"l2": torch.ones(3)}, ValueError, r"l2 must broadcast to \(1,\), got \(3,\)"),
        ([[1.0, 2.0]], [[1.0], [2.0]], {"l1": torch.ones(1).double()}, TypeError, "l1 must have the dtype and device"),
    ],
)
def test_bad_input(x, W, options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nnls(torch.as_tensor(x), torch.as_tensor(W), **options)


def test_an_entry_that_is_not_seen_may_hold_anything() -> None:
    x, mask = torch.tensor([[1.0, float("nan"), 3.0]]), torch.tensor([[True, False, True]])
    assert nnls(x, torch.tensor([[1.0], [1.0], [3.0]]), mask=mask).h.item() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="x must be finite where it is observed, got NaN or infinite entries"):
        nnls(x, torch.tensor([[1.0], [1.0], [3.0]]), mask=~mask)


def test_nothing_to_explain_and_nothing_in_common() -> None:
    W = torch.eye(3, dtype=torch.float64)[:, :2]
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 5.0], [-1.0, -2.0, 0.0]], dtype=torch.float64)
    solution = nnls(x, W)
    assert torch.equal(solution.h, torch.zeros(3, 2, dtype=torch.float64))
    assert solution.converged.all()
