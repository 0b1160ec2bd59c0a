from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor

from tests.solvers.plain import plain_loop, spectral_norm_squared
from torchpfc import ADMM, FISTA, Implicit, NonnegativeLeastSquares, ProjectedGradient, Truncated, Unrolled, nnls, solve
from torchpfc.solvers import Solver
from torchpfc.solvers.base import State
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.scaling import Bounds


def problem(n: int = 6, m: int = 12, r: int = 5) -> NonnegativeLeastSquares:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, m, generator=generator, dtype=torch.float64)
    return NonnegativeLeastSquares(x, 0.3 * torch.rand(m, r, generator=generator, dtype=torch.float64))


def test_the_paper_preset_takes_the_published_steps() -> None:
    given = problem()
    largest = spectral_norm_squared(given.W)
    start = torch.full((6, 5), 1e-5, dtype=torch.float64)
    expected = plain_loop(given.x, given.W, start, L=largest, steps=100, floor=1e-5, cap=True)
    torch.testing.assert_close(solve(given, FISTA.paper(), lipschitz=largest).h, expected, atol=1e-12, rtol=1e-12)


def test_no_steps_return_the_start() -> None:
    given = problem()
    start = torch.rand(6, 5, dtype=torch.float64)
    assert torch.equal(solve(given, FISTA(max_iter=0)).h, torch.zeros(6, 5, dtype=torch.float64))
    assert torch.equal(solve(given, FISTA(max_iter=0, floor=0.1, start="floor")).h, torch.full_like(start, 0.1))
    assert torch.equal(solve(given, FISTA(max_iter=0), warm_start=start).h, start)


def test_a_random_start_comes_from_the_generator() -> None:
    solver = FISTA(max_iter=0, start="random")
    first, second = (solve(problem(), solver, generator=torch.Generator().manual_seed(7)).h for _ in range(2))
    assert torch.equal(first, second)
    assert 0 < first.max() < 1e-2
    assert not torch.equal(first, solve(problem(), solver, generator=torch.Generator().manual_seed(8)).h)


def test_floor_and_cap_hold() -> None:
    given = problem()
    h = solve(given, FISTA(max_iter=50, floor=0.03)).h
    assert h.min() == 0.03
    capped = solve(given, FISTA(max_iter=50, cap=True)).h
    limit = given.x.amax(-1)
    free = solve(given, FISTA(max_iter=50)).h.amax(-1)
    assert (free > limit).any(), "without the cap some row must exceed its input"
    assert (capped.amax(-1) <= limit * (1 + 1e-12)).all()


def test_the_cap_of_a_signed_input_is_its_largest_magnitude() -> None:
    given = NonnegativeLeastSquares(torch.tensor([[-2.0, 1.0]]), torch.tensor([[-0.1], [0.0]]))
    assert solve(given, FISTA(max_iter=50, cap=True)).h.item() == pytest.approx(2.0)


def test_momentum_needs_fewer_steps() -> None:
    given = problem(m=40, r=20)
    slow = solve(given, ProjectedGradient(max_iter=50_000, tol=1e-6)).iterations
    fast = solve(given, FISTA(max_iter=50_000, tol=1e-6, restart=True)).iterations
    assert fast.double().mean() < 0.5 * slow.double().mean()


def test_diagnostics_without_a_tolerance() -> None:
    given = problem()
    few, many = solve(given, FISTA(max_iter=2)), solve(given, FISTA(max_iter=2000))
    assert (few.iterations == 2).all()
    assert not few.converged.any()
    assert many.converged.all()
    assert (many.kkt < few.kkt).all()
    torch.testing.assert_close(many.residual, (given.x - many.h @ given.W.T).norm(dim=-1))


def test_only_h_carries_gradients() -> None:
    given = problem()
    given.W.requires_grad_()
    solution = solve(given, FISTA(max_iter=50, tol=1e-1))
    assert solution.h.requires_grad
    assert not any(
        part.requires_grad for part in (solution.kkt, solution.residual, solution.iterations, solution.converged)
    )


def test_nothing_is_kept_for_a_backward_pass_that_cannot_come() -> None:
    given = problem()
    given.W.requires_grad_()
    with torch.no_grad():
        assert not solve(given, FISTA(max_iter=5)).h.requires_grad
    assert not solve(problem(), FISTA(max_iter=5)).h.requires_grad


def test_float32_is_close_to_float64() -> None:
    given = problem(m=50, r=20)
    single = nnls(given.x.float(), given.W.float())
    assert single.converged.all()
    assert single.h.dtype == torch.float32
    torch.testing.assert_close(single.h.double(), nnls(given.x, given.W).h, atol=1e-3, rtol=1e-3)


def test_autocast_leaves_a_solve_in_full_precision() -> None:
    given = problem()
    x, W = given.x.float(), given.W.float().requires_grad_()
    plain = solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=20)).h
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=20)).h
        (gradient,) = torch.autograd.grad(mixed.sum(), W)
    assert torch.equal(plain, mixed)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain.sum(), W)[0])


class NotDifferentiable(Solver):
    def init(self, descent: Descent, h: torch.Tensor) -> State:
        return State(h, None)

    def step(self, descent: Descent, bounds: Bounds, state: State, out: torch.Tensor | None = None) -> State:
        raise AssertionError("never reached")


def test_an_adjoint_that_the_solver_does_not_have() -> None:
    with pytest.raises(TypeError, match=r"adjoint must be one that NotDifferentiable has \(none\), got Unrolled"):
        solve(problem(), NotDifferentiable(), adjoint=Unrolled())


@pytest.mark.parametrize("solver", [FISTA(max_iter=20), ProjectedGradient(max_iter=20)])
@pytest.mark.parametrize("adjoint", [Unrolled(), Truncated(5), Implicit()])
def test_every_adjoint_of_the_gradient_solvers(solver: Solver, adjoint) -> None:
    given = problem()
    given.W.requires_grad_()
    solve(given, solver, adjoint=adjoint).h.sum().backward()
    assert given.W.grad is not None
    assert given.W.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": -1}, "max_iter must be non-negative, got -1"),
        ({"tol": 0.0}, r"tol must be positive and finite or None, got 0\.0"),
        ({"tol": float("nan")}, "tol must be positive and finite or None, got nan"),
        ({"floor": -0.1}, r"floor must be non-negative and finite, got -0\.1"),
        ({"start": "ones"}, "start must be one of 'zeros', 'floor', 'random', got 'ones'"),
        ({"check_every": 0}, "check_every must be at least 1, got 0"),
    ],
)
def test_bad_settings(options: dict[str, object], message: str) -> None:
    for kind in (FISTA, ProjectedGradient):
        with pytest.raises(ValueError, match=message):
            kind(**options)  # type: ignore[arg-type]


def test_solvers_are_values() -> None:
    assert FISTA(max_iter=5) == FISTA(max_iter=5) != FISTA(max_iter=6)
    with pytest.raises(FrozenInstanceError):
        FISTA().max_iter = 3  # type: ignore[misc]


def test_bad_arguments() -> None:
    given = problem()
    with pytest.raises(TypeError, match="solver must be a Solver, got 'fista'"):
        solve(given, "fista")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="adjoint must be an Adjoint, got <class"):
        solve(given, adjoint=Unrolled)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"warm_start must have the shape of the solution \(6, 5\), got \(5, 6\)"):
        solve(given, warm_start=torch.rand(5, 6))
    with pytest.raises(ValueError, match=r"warm_start must have the dtype and device of x \(torch.float64, cpu\), got"):
        solve(given, warm_start=torch.rand(6, 5))
    with pytest.raises(ValueError, match=r"lipschitz must have the leading dimensions of W \(\), got \(3,\)"):
        solve(given, lipschitz=torch.ones(3))


def test_nnls_needs_no_choice() -> None:
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(40, 30, generator=generator, dtype=torch.float64)
    wide = torch.rand(40, 400, generator=generator, dtype=torch.float64)
    x = torch.rand(8, 40, generator=generator, dtype=torch.float64)
    for rows, weight in (
        (x, W),
        (x, torch.stack([W, W])),
        (x, wide),
        (x[0], wide),
        (x[:0], W),
        (x.expand(9, 8, 40), wide),
    ):
        for tol in (None, 1e-3):
            solution = nnls(rows, weight, tol=tol)
            assert solution.converged.all()
            assert solution.h.shape == (*rows.shape[:-1], weight.shape[-1]) or weight.ndim == 3
    mask = torch.ones_like(x, dtype=torch.bool)
    masked = nnls(x, W, mask=mask)
    torch.testing.assert_close(masked.h, nnls(x, W).h, atol=1e-6, rtol=0)


def parts_of_all_kinds() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def uniform(m: int, r: int) -> Tensor:
        return torch.rand(m, r, generator=generator)

    tall, square, wide = (torch.randn(*shape, generator=generator) for shape in ((200, 50), (60, 50), (50, 200)))
    return {
        "uniform": uniform(200, 50),
        "sparse": uniform(200, 50) ** 4,
        "apart": torch.block_diag(*(uniform(4, 1) for _ in range(50))),
        "orthonormal": torch.linalg.qr(tall).Q,
        "signed, tall": tall,
        "signed, almost square": square,
        "signed, wide": wide,
        "uniform, wide": uniform(50, 200),
        "of unequal norm": uniform(200, 50) ** 4 * torch.logspace(-2, 2, 50),
        "nearly the same twice": torch.cat([uniform(200, 25) ** 4] * 2, dim=1) + 0.01 * uniform(200, 50),
        "all the same": torch.ones(20, 3),
        "one": uniform(20, 1),
    }


@pytest.mark.parametrize("kind", parts_of_all_kinds())
def test_admm_finds_a_penalty_with_which_it_is_hardly_ever_worse_than_fista(kind: str) -> None:
    W = parts_of_all_kinds()[kind]
    generator = torch.Generator().manual_seed(1)
    h = torch.rand(60, W.shape[1], generator=generator)
    x = (h * (h > 0.7)) @ W.T
    x += 0.1 * x.std() * torch.randn(x.shape, generator=generator)
    given, options = NonnegativeLeastSquares(x, W), {"max_iter": 5000, "tol": 1e-3, "check_every": 1}
    admm = solve(given, ADMM(**options))
    fista = solve(given, FISTA(**options, restart=True))
    assert admm.converged.all()
    few = 8.0  # where the parts are orthogonal, or all the same, FISTA is there at once
    assert admm.iterations.double().mean() <= few + 1.1 * fista.iterations.double().mean()


def test_any_penalty_leads_to_the_same_solution() -> None:
    generator = torch.Generator().manual_seed(0)
    W = torch.rand(20, 8, generator=generator, dtype=torch.float64)
    given = NonnegativeLeastSquares(torch.rand(5, 20, generator=generator, dtype=torch.float64), W)
    found, expected = (solve(given, ADMM(max_iter=3000, tol=1e-10, penalty=p)).h for p in (3.0, None))
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


def test_bad_penalty() -> None:
    with pytest.raises(ValueError, match=r"penalty must be positive or None, got 0\.0"):
        ADMM(penalty=0.0)
