"""Gradients against autograd through the plain loop, and against finite differences."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.solvers.plain import plain_loop, spectral_norm_squared
from torchpfc import (
    ADMM,
    FISTA,
    ActiveSet,
    CoordinateDescent,
    FactorizedRNN,
    Implicit,
    Multiplicative,
    NearestNeighbors,
    NonnegativeLeastSquares,
    PFCBlock,
    ProjectedGradient,
    Truncated,
    Unrolled,
    nnls,
    solve,
)
from torchpfc.solvers import Adjoint, Solver
from torchpfc.solvers.adjoint import Run
from torchpfc.solvers.base import Outcome
from torchpfc.solvers.units import Units

# n, m, r: a tall W, a wide one that has the r x r form of the gradient, and one so wide that it has the other.
SHAPES = [pytest.param((5, 9, 6), id="tall"), pytest.param((4, 5, 12), id="wide"), pytest.param((4, 2, 12), id="flat")]
BOUNDS = [
    pytest.param({}, id="plain"),
    pytest.param({"floor": 0.02}, id="floor"),
    pytest.param({"cap": True}, id="cap"),
    pytest.param({"floor": 0.02, "cap": True}, id="floor-cap"),
]
PENALTIES = [pytest.param({}, id="free"), pytest.param({"l1": 0.05, "l2": 0.1}, id="l1-l2")]
STACKS = [pytest.param((), id="single"), pytest.param((3,), id="stack")]

EXACT = Implicit(tol=1e-15, max_iter=200)


def made(shape: tuple[int, int, int], stack: tuple[int, ...] = (), seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    n, m, r = shape
    generator = torch.Generator().manual_seed(seed)
    x, W, start = (
        torch.rand(*stack, *size, generator=generator, dtype=torch.float64) for size in ((n, m), (m, r), (n, r))
    )
    # Small parts call for large amounts, which is where the cap holds.
    return x.requires_grad_(), (0.3 * W).requires_grad_(), start.requires_grad_()


def gradients(h: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.rand(h.shape, generator=torch.Generator().manual_seed(99), dtype=h.dtype)
    return torch.autograd.grad((weights * h).sum(), inputs, allow_unused=True)


def assert_all_close(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], atol: float = 1e-10) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=atol)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [False, True], ids=["seen", "masked"])
@pytest.mark.parametrize("kind", [FISTA, ProjectedGradient])
def test_unrolled_equals_autograd(kind, masked, shape, bounds, penalties, stack) -> None:
    x, W, start = made(shape, stack)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) < 0.7 if masked else None
    largest = spectral_norm_squared(W)
    L = largest + penalties.get("l2", 0.0)
    expected = plain_loop(x, W, start, L=L, steps=25, momentum=kind is FISTA, mask=mask, **bounds, **penalties)
    problem = NonnegativeLeastSquares(x, W, **penalties, mask=mask)
    h = solve(problem, kind(max_iter=25, **bounds), adjoint=Unrolled(), warm_start=start, lipschitz=largest).h
    torch.testing.assert_close(h, expected, atol=1e-12, rtol=1e-12)
    assert_all_close(gradients(h, x, W, start), gradients(expected, x, W, start))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("masked", [False, True], ids=["seen", "masked"])
@pytest.mark.parametrize("kind", [FISTA, ProjectedGradient])
def test_implicit_equals_autograd_at_convergence(kind, masked, bounds, stack) -> None:
    x, W, start = made((5, 9, 6), stack)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) < 0.8 if masked else None
    largest = spectral_norm_squared(W)
    penalties = {"l1": 0.02, "l2": 0.1}  # well conditioned, so that the loop converges to the last digit
    expected = plain_loop(
        x, W, start, L=largest + 0.1, steps=1500, momentum=kind is FISTA, mask=mask, **bounds, **penalties
    )
    problem = NonnegativeLeastSquares(x, W, **penalties, mask=mask)
    solution = solve(problem, kind(max_iter=1500, **bounds), adjoint=EXACT, warm_start=start, lipschitz=largest)
    assert solution.kkt.max() < 1e-12
    to_x, to_W, to_start = gradients(solution.h, x, W, start)
    assert_all_close((to_x, to_W), gradients(expected, x, W))
    assert to_start is None


def test_ignoring_the_cap_would_be_wrong() -> None:
    x, W, start = made((5, 9, 6))
    problem = NonnegativeLeastSquares(x, W)
    capped = solve(problem, FISTA(max_iter=1500, cap=True), adjoint=EXACT, warm_start=start).h
    assert (capped.amax(-1) >= x.amax(-1) - 1e-9).any(), "the cap must hold for the tests of its gradient to mean much"


def test_truncated_equals_a_fresh_unrolled_solve_from_where_the_first_phase_ends() -> None:
    x, W, start = made((5, 9, 6))
    largest = spectral_norm_squared(W)
    problem = NonnegativeLeastSquares(x, W)
    first = plain_loop(x, W, start, L=largest, steps=15).detach()
    expected = plain_loop(x, W, first, L=largest, steps=10)
    h = solve(problem, FISTA(max_iter=25), adjoint=Truncated(10), warm_start=start, lipschitz=largest).h
    torch.testing.assert_close(h, expected, atol=1e-12, rtol=1e-12)
    to_x, to_W, to_start = gradients(h, x, W, start)
    assert_all_close((to_x, to_W), gradients(expected, x, W))
    assert to_start is None


def test_truncated_to_no_steps_has_no_gradient() -> None:
    x, W, _ = made((5, 9, 6))
    h = solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=25), adjoint=Truncated(0)).h
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients(h, x, W))


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("restart", [False, True])
def test_unrolled_to_a_tolerance_equals_autograd_row_by_row(restart: bool, bounds) -> None:
    x, W, start = made((6, 9, 4))
    x = x.detach().clone()
    x[0] *= 0.1  # l1 makes it sparse
    if not bounds:  # with a tolerance and no bounds steps are taken in units, which are one here
        inside = Units.of(NonnegativeLeastSquares(x, W)).into(NonnegativeLeastSquares(x, W))
        x, W = inside.x, inside.W
    x, W = x.requires_grad_(), W.detach().requires_grad_()
    problem = NonnegativeLeastSquares(x, W, l1=0.02, l2=0.1)
    solver = FISTA(max_iter=300, tol=1e-4, check_every=4, restart=restart, **bounds)
    solution = solve(problem, solver, adjoint=Unrolled(), warm_start=start)
    assert len(solution.iterations.unique()) > 1, "rows must stop at different steps for this to test anything"
    together = gradients(solution.h, x, W, start)
    weights = torch.rand(solution.h.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    total = torch.zeros_like(W)
    for i, steps in enumerate(solution.iterations.tolist()):
        row, begin = x[i : i + 1].detach().requires_grad_(), start[i : i + 1].detach().requires_grad_()
        fixed = FISTA(max_iter=steps, restart=restart, **bounds)
        h = solve(NonnegativeLeastSquares(row, W, l1=0.02, l2=0.1), fixed, warm_start=begin).h
        to_x, to_W, to_start = torch.autograd.grad((weights[i] * h).sum(), (row, W, begin))
        torch.testing.assert_close(solution.h[i], h[0], atol=1e-12, rtol=1e-10)
        torch.testing.assert_close(together[0][i], to_x[0], atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(together[2][i], to_start[0], atol=1e-12, rtol=1e-9)
        total += to_W
    torch.testing.assert_close(together[1], total, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("floor", [0.0, 0.02])
@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("masked", [False, True], ids=["seen", "masked"])
@pytest.mark.parametrize("shape", SHAPES)
def test_unrolled_multiplicative_updates_equal_autograd(shape, masked, penalties, floor, stack) -> None:
    x, W, start = made(shape, stack)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) < (0.7 if masked else 1.0)
    mask[..., 0] = True  # a row of which nothing is seen divides zero by zero in the plain loop
    expected = start
    for _ in range(10):
        seen = (expected @ W.mT).where(mask, 0.0)
        below = seen @ W + penalties.get("l1", 0.0) + penalties.get("l2", 0.0) * expected
        expected = (expected * (x.where(mask, 0.0) @ W) / below).clamp(min=floor)
    problem = NonnegativeLeastSquares(x, W, **penalties, mask=mask if masked else None)
    h = solve(problem, Multiplicative(max_iter=10, floor=floor), warm_start=start).h
    torch.testing.assert_close(h, expected, atol=1e-12, rtol=1e-12)
    assert_all_close(gradients(h, x, W, start), gradients(expected, x, W, start))


def test_unrolled_multiplicative_updates_to_a_tolerance_equal_autograd_row_by_row() -> None:
    x, W, start = made((6, 9, 4))
    problem = NonnegativeLeastSquares(x, W, l1=0.02, l2=0.1)
    solution = solve(problem, Multiplicative(max_iter=3000, tol=1e-3, check_every=1), warm_start=start)
    assert len(solution.iterations.unique()) > 1
    together = gradients(solution.h, x, W, start)
    weights = torch.rand(solution.h.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    for i, steps in enumerate(solution.iterations.tolist()):
        row, begin = x[i : i + 1].detach().requires_grad_(), start[i : i + 1].detach().requires_grad_()
        alone = NonnegativeLeastSquares(row, W, l1=0.02, l2=0.1)
        h = solve(alone, Multiplicative(max_iter=steps), warm_start=begin).h
        to_x, to_start = torch.autograd.grad((weights[i] * h).sum(), (row, begin))
        torch.testing.assert_close(together[0][i], to_x[0], atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(together[2][i], to_start[0], atol=1e-12, rtol=1e-9)


CHECKED = [
    pytest.param(CoordinateDescent(max_iter=500, tol=1e-13), EXACT, id="implicit-coordinates"),
    pytest.param(ADMM(max_iter=5000, tol=1e-13), EXACT, id="implicit-admm"),
    pytest.param(ActiveSet(tol=1e-13), EXACT, id="implicit-active-set"),
    pytest.param(Multiplicative(max_iter=12), Unrolled(), id="unrolled-multiplicative"),
    pytest.param(FISTA(max_iter=15, floor=0.01, cap=True), Unrolled(), id="unrolled"),
    pytest.param(FISTA(max_iter=15, restart=True), Unrolled(), id="unrolled-restart"),
    pytest.param(ProjectedGradient(max_iter=15), Unrolled(), id="unrolled-gradient"),
    pytest.param(FISTA(max_iter=5000, tol=1e-14, restart=True), EXACT, id="implicit"),
    pytest.param(FISTA(max_iter=5000, tol=1e-14, floor=0.01, restart=True), EXACT, id="implicit-floor"),
]


@pytest.mark.parametrize(("solver", "adjoint"), CHECKED)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.filterwarnings("ignore::torchpfc.ConvergenceWarning")
def test_gradcheck(solver: Solver, adjoint: Adjoint, stack: tuple[int, ...]) -> None:
    x, W, start = made((3, 6, 4), stack)
    largest = spectral_norm_squared(W)  # constant for the gradient, as in the published code

    def codes(x: Tensor, W: Tensor, start: Tensor) -> Tensor:
        problem = NonnegativeLeastSquares(x, W, l1=0.01, l2=0.05)
        return solve(problem, solver, adjoint=adjoint, warm_start=start, lipschitz=largest).h

    if solver.cap:  # its scale counts as a constant, which finite differences do not know: keep the cap out of reach
        W = (10 * W.detach()).requires_grad_()
        start = (0.1 * start.detach()).requires_grad_()
        largest = spectral_norm_squared(W)
    inputs = (x, W, start if isinstance(adjoint, Unrolled) else start.detach())
    assert torch.autograd.gradcheck(codes, inputs, atol=1e-6, rtol=1e-4)


def test_implicit_gradient_of_nnls_equals_finite_differences() -> None:
    x, W, _ = made((3, 6, 4))
    assert torch.autograd.gradcheck(lambda x, W: nnls(x, W, tol=1e-14).h, (x, W), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("adjoint", [Unrolled(), EXACT], ids=["unrolled", "implicit"])
def test_a_row_of_zeros_has_no_code_and_no_gradient(adjoint: Adjoint) -> None:
    x, W, _ = made((5, 9, 6))
    x = x.detach().clone()
    x[2] = 0
    x.requires_grad_()
    h = solve(NonnegativeLeastSquares(x, W), FISTA.paper(max_iter=200), adjoint=adjoint).h
    to_x, to_W = gradients(h, x, W)
    assert torch.equal(h[2], torch.zeros_like(h[2]))
    assert torch.equal(to_x[2], torch.zeros_like(to_x[2]))
    assert to_x.isfinite().all() and to_W.isfinite().all()


def test_implicit_stays_bounded_where_parts_are_collinear() -> None:
    x, W, _ = made((5, 9, 6))
    W = torch.cat([W.detach(), W.detach()], dim=1).requires_grad_()
    h = solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=500, start="random"), adjoint=Implicit()).h
    single = torch.autograd.grad((h @ W.detach().T).sum(), (x, W), retain_graph=True)
    assert all(g.abs().max() < 1e3 for g in (*single, *gradients(h, x, W)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fast_preset_is_close_to_the_exact_gradient(dtype: torch.dtype) -> None:
    x, W, _ = (t.detach().to(dtype).requires_grad_() for t in made((20, 30, 15)))
    problem = NonnegativeLeastSquares(x, W)
    solver = FISTA(max_iter=300, floor=1e-5, cap=True)
    for fast, exact in zip(
        gradients(solve(problem, solver, adjoint=Implicit.fast()).h, x, W),
        gradients(solve(problem, solver, adjoint=Implicit()).h, x, W),
        strict=True,
    ):
        assert torch.cosine_similarity(fast.flatten(), exact.flatten(), dim=0) > 0.95


@pytest.mark.parametrize("adjoint", [Unrolled(), Truncated(5), Implicit()], ids=["unrolled", "truncated", "implicit"])
def test_a_second_derivative_raises(adjoint: Adjoint) -> None:
    x, W, _ = made((5, 9, 6))
    h = solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=20), adjoint=adjoint).h
    (gradient,) = torch.autograd.grad(h.sum(), x, create_graph=True)  # the loss is linear: easy to get silently wrong
    with pytest.raises(RuntimeError, match="a solve can be differentiated only once"):
        gradient.square().sum().backward()


def test_changing_a_saved_tensor_in_place_is_noticed() -> None:
    x, W, _ = made((5, 9, 6))
    h = solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=5)).h
    with torch.no_grad():
        W.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


@pytest.mark.parametrize("adjoint", [Unrolled(), Implicit()], ids=["unrolled", "implicit"])
def test_backward_twice_through_a_kept_graph_gives_the_same(adjoint: Adjoint) -> None:
    x, W, _ = made((5, 9, 6))
    h = solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=20), adjoint=adjoint).h
    once = torch.autograd.grad(h.sum(), (x, W), retain_graph=True)
    assert_all_close(torch.autograd.grad(h.sum(), (x, W)), once, atol=0)


def test_implicit_saves_the_same_bytes_however_many_steps() -> None:
    x, W, _ = made((5, 9, 6))

    def saved(adjoint: Adjoint, steps: int) -> int:
        sizes: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            sizes.append(tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=steps), adjoint=adjoint)
        return sum(sizes)

    assert saved(Implicit(), 800) == saved(Implicit(), 50)
    assert saved(Unrolled(), 800) > 10 * saved(Unrolled(), 50)


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="steps must be non-negative, got -1"):
        Truncated(-1)
    with pytest.raises(ValueError, match="max_iter must be at least 1 or None, got 0"):
        Implicit(max_iter=0)
    with pytest.raises(ValueError, match=r"tol must be non-negative or None, got -0\.1"):
        Implicit(tol=-0.1)
    with pytest.raises(ValueError, match=r"damping must be non-negative, got -1\.0"):
        Implicit(damping=-1.0)
    x, W, _ = made((5, 9, 6))
    with pytest.raises(ValueError, match=r"steps must be at most the solver's max_iter \(10\), got 11"):
        solve(NonnegativeLeastSquares(x, W), FISTA(max_iter=10), adjoint=Truncated(11))


def test_truncated_counts_the_steps_of_both_phases() -> None:
    x, W, _ = made((5, 9, 6))
    problem = NonnegativeLeastSquares(x, W, l1=0.02, l2=0.1)
    solution = solve(problem, FISTA(max_iter=400, tol=1e-4, restart=True), adjoint=Truncated(200))
    alone = solve(problem, FISTA(max_iter=400, tol=1e-4, restart=True))
    assert solution.converged.all()
    assert (solution.iterations > alone.iterations).all(), "the second phase takes at least one test of the tolerance"


# Adjoints of one's own


@dataclass(frozen=True)
class NewtonStep(Adjoint):
    """The gradient of a damped Newton step from the solution on its support, in plain PyTorch."""

    damping: float = 0.0

    def suits(self, solver: Solver) -> bool:
        return solver.minimizes

    def apply(self, run: Run, x: Tensor, W: Tensor, start: Tensor) -> Outcome:
        outcome = run.from_start(start)
        on = (outcome.h > 0).to(x.dtype)
        with torch.no_grad():
            G = W.mT @ W + self.damping * run.descent.L * torch.eye(W.shape[-1], dtype=W.dtype)
            matrix = on[:, :, None] * G * on[:, None, :] + torch.diag_embed(1 - on)
        step = torch.linalg.solve(matrix, on * ((x - outcome.h @ W.mT) @ W))
        return outcome._replace(h=outcome.h + step - step.detach())


class StraightThrough(Adjoint):
    def apply(self, run: Run, x: Tensor, W: Tensor, start: Tensor) -> Outcome:
        outcome, linear = run.from_start(start), x @ W
        return outcome._replace(h=outcome.h + linear - linear.detach())


ALL_STEPS = FISTA(max_iter=3000, tol=1e-14, restart=True)


def test_an_adjoint_of_ones_own_has_the_gradient_of_finite_differences() -> None:
    x, W, _ = made((3, 9, 4))

    def found(x: Tensor, W: Tensor) -> Tensor:
        return solve(NonnegativeLeastSquares(x, W), ALL_STEPS, adjoint=NewtonStep()).h

    assert torch.autograd.gradcheck(found, (x, W), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_an_adjoint_of_ones_own_works_in_a_block(damping: float) -> None:
    x = torch.rand(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    found = []
    for adjoint in (NewtonStep(damping), Implicit(tol=1e-15, max_iter=200, damping=damping)):
        block = PFCBlock(9, 3, 6, solver=ALL_STEPS, adjoint=adjoint, dtype=torch.float64)
        with torch.no_grad():
            block.weight_x.copy_(made((5, 9, 6))[1])
        out = block.eval().couple(x)
        found.append(gradients(out.h, x, block.weight_x))
        assert block.adjoint is adjoint
    assert_all_close(found[0], found[1], atol=1e-8)


@pytest.mark.parametrize(
    "solver", [FISTA(max_iter=5), Multiplicative(max_iter=5), ADMM(max_iter=5), NearestNeighbors()], ids=repr
)
def test_an_adjoint_that_asks_for_nothing_goes_with_every_solver(solver: Solver) -> None:
    x, W, _ = made((3, 5, 4))
    h = solve(NonnegativeLeastSquares(x, W), solver, adjoint=StraightThrough()).h
    with torch.no_grad():
        expected = solve(NonnegativeLeastSquares(x, W), solver).h
    torch.testing.assert_close(h, expected)
    assert_all_close(gradients(h, x, W), gradients(x @ W, x, W))


def test_a_network_over_time_uses_an_adjoint_of_ones_own() -> None:
    rnn = FactorizedRNN(4, 6, 2, solver=FISTA(max_iter=5), adjoint=StraightThrough(), bptt=False)
    x = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y, _ = rnn(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (rnn.weight_x @ rnn.weight_y.sum(0)).expand_as(x))


@pytest.mark.parametrize(
    ("solver", "known"),
    [
        (FISTA(), "Unrolled, Truncated, Implicit"),
        (ProjectedGradient(), "Unrolled, Truncated, Implicit"),
        (Multiplicative(), "Unrolled, Implicit"),
        (ADMM(), "Implicit"),
        (CoordinateDescent(), "Implicit"),
        (ActiveSet(), "Implicit"),
        (NearestNeighbors(), "none"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_solver_takes_the_adjoints_that_suit_it_and_no_others(solver: Solver, known: str) -> None:
    x, W, _ = made((3, 5, 4))
    given = NonnegativeLeastSquares(x, W)
    for adjoint in (Unrolled(), Truncated(steps=1), Implicit(), NewtonStep()):
        name = type(adjoint).__name__
        if name in known or (name == "NewtonStep" and "Implicit" in known):
            assert solve(given, solver, adjoint=adjoint).h.requires_grad
        else:
            message = rf"adjoint must be one that {type(solver).__name__} has \({known}\), got {name}"
            with pytest.raises(TypeError, match=message):
                solve(given, solver, adjoint=adjoint)
