"""The kernels against the plain loops, and where each of them runs."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from torchpfc import FISTA, Implicit, NonnegativeLeastSquares, ProjectedGradient, Unrolled, solve
from torchpfc.solvers import Adjoint
from torchpfc.solvers.adjoint import _solve_on_support
from torchpfc.solvers.base import Outcome, Trace, iterate
from torchpfc.solvers.cuda import choice, fused, kernels, tiles
from torchpfc.solvers.cuda.fused import Device, Plan, plan_for, plan_to_keep
from torchpfc.solvers.cuda.halves import C_SCALE, FEW_PARTS, KEPT_PARTS, can_be_rounded, half_of
from torchpfc.solvers.descent import Descent, Factored, Gram, prepare
from torchpfc.solvers.scaling import Bounds

H200 = Device(processors=132, shared=232_448)
SMALL = Device(processors=20, shared=101_376)

STACKS = [pytest.param((), id="single"), pytest.param((3,), id="stack")]
CASES = [  # n, r, stack, solver: few, since a kernel is compiled for each
    pytest.param(1, 5, (), FISTA(max_iter=30), id="tiny"),
    pytest.param(16, 64, (3,), FISTA.paper(30), id="small stack"),
    pytest.param(37, 301, (), FISTA.paper(30), id="odd sizes"),
    pytest.param(200, 300, (), FISTA.paper(30), id="one model"),
    pytest.param(200, 300, (8,), FISTA(max_iter=30), id="stack"),
    pytest.param(200, 512, (), FISTA.paper(30), id="many parts"),
    pytest.param(3000, 100, (), FISTA.paper(30), id="many rows"),
]
PRECISIONS = [pytest.param(False, id="float32"), pytest.param(True, id="tf32")]

# Whole rows, few and many slices, several tiles, enough rows for the matrix units of whole groups of warps, and C kept.
PLANS = [
    Plan(rows=16, slices=1, tiles=5, width=64, depth=64, stages=1, warps=8, keep=True),
    Plan(rows=32, slices=1, tiles=5, width=64, depth=64, stages=1, warps=8, keep=True),
    Plan(rows=16, slices=1, tiles=5, width=64, depth=32, stages=4, warps=8),
    Plan(rows=16, slices=2, tiles=3, width=64, depth=32, stages=4, warps=8),
    Plan(rows=16, slices=5, tiles=1, width=64, depth=64, stages=6, warps=8),
    Plan(rows=16, slices=10, tiles=1, width=32, depth=64, stages=6, warps=4),
    Plan(rows=32, slices=3, tiles=2, width=64, depth=32, stages=4, warps=8),
    Plan(rows=64, slices=4, tiles=3, width=32, depth=32, stages=4, warps=8),
]


def made(n: int, r: int, stack: tuple[int, ...] = (), device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Input, parts and a start, sparse as images are; one row is empty where there are several."""
    generator = torch.Generator().manual_seed(n + r)

    def sparse(*shape: int) -> Tensor:
        return torch.rand(*stack, *shape, generator=generator) * (torch.rand(*shape, generator=generator) < 0.3)

    x, W, start = sparse(n, 2 * r), sparse(2 * r, r), 0.1 * torch.rand(*stack, n, r, generator=generator)
    x[..., n // 2, :] *= n == 1
    # Small parts call for large amounts, which is where the cap holds.
    return x.to(device), (0.3 * W).to(device), start.to(device)


def ready(solver: FISTA, x: Tensor, W: Tensor) -> tuple[Descent, Bounds]:
    descent = prepare(NonnegativeLeastSquares(x, W), iterations=1, lipschitz=None, needs_gram=True)
    return descent, Bounds.of(x, floor=solver.floor, cap=solver.cap)


def in_double(descent: Descent) -> Descent:
    tensors = {f.name: getattr(descent, f.name) for f in fields(descent)}
    return replace(descent, **{name: t.double() for name, t in tensors.items() if isinstance(t, Tensor)})


def distance(a: Tensor | None, b: Tensor | None) -> float:
    if a is None or b is None:
        assert a is b
        return 0.0
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


@pytest.fixture
def tf32() -> None:
    """Allows products to be rounded."""
    torch.set_float32_matmul_precision("high")


class TestWhereTheKernelsApply:
    """What has CUDA tensors here has none of their memory, so this runs anywhere."""

    @pytest.fixture(autouse=True)
    def a_device_for_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choice, "_can_run_kernels", lambda device: True)

    @staticmethod
    def descent(
        kind: type[Descent] = Gram, device: str = "cuda", dtype: torch.dtype = torch.float32, n: int = 4, r: int = 3
    ) -> Descent:
        with FakeTensorMode():
            d, W = torch.empty(n, r, device=device, dtype=dtype), torch.empty(5, r, device=device, dtype=dtype)
        return kind(d, W, None, d, d, 0.0, 0.0, d)

    def test_to_the_gram_form_in_float32_on_cuda(self) -> None:
        assert choice.applies(self.descent())
        assert choice.applies(self.descent(r=FEW_PARTS))

    @pytest.mark.parametrize(
        "other",
        [{"kind": Factored}, {"device": "cpu"}, {"dtype": torch.float64}, {"n": 0}, {"r": FEW_PARTS + 1}],
        ids=["factored", "cpu", "float64", "empty", "many parts"],
    )
    def test_to_nothing_else(self, other: dict[str, object]) -> None:
        assert not choice.applies(self.descent(**other))  # type: ignore[arg-type]

    def test_row_by_row_to_all_forms_and_more_parts(self) -> None:
        assert choice.applies_to_rows(self.descent(kind=Factored))
        assert choice.applies_to_rows(self.descent(r=choice.LONGEST_ROW))
        assert not choice.applies_to_rows(self.descent(r=choice.LONGEST_ROW + 1))
        assert not choice.applies_to_rows(self.descent(device="cpu"))

    def test_in_half_precision_only_to_what_may_be_rounded(self, tf32: None, monkeypatch: pytest.MonkeyPatch) -> None:
        offset = self.descent(r=1000).offset
        assert can_be_rounded(offset)
        assert not can_be_rounded(self.descent(r=1001).offset)
        assert not can_be_rounded(self.descent(r=FEW_PARTS).offset)
        assert not can_be_rounded(self.descent(r=1000, device="cpu").offset)
        assert not can_be_rounded(self.descent(r=1000, dtype=torch.float64).offset)
        assert fused.halves_of(self.descent(r=1000, kind=Factored)) is None
        torch.set_float32_matmul_precision("highest")
        assert not can_be_rounded(offset)
        torch.set_float32_matmul_precision("high")
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not can_be_rounded(offset)

    def test_with_c_in_half_precision_where_it_can_be_kept_or_multiplied(self, tf32: None) -> None:
        def is_made(r: int, device: str = "cuda") -> bool:
            with FakeTensorMode():
                return half_of(torch.empty(r, r, device=device)) is not None

        assert is_made(KEPT_PARTS) and is_made(301) and is_made(1000)
        assert not is_made(KEPT_PARTS + 8) and not is_made(1001) and not is_made(300, device="cpu")
        torch.set_float32_matmul_precision("highest")
        assert not is_made(300)

    def test_not_while_compiling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not choice.applies(self.descent())

    def test_to_traces_that_a_kernel_left(self) -> None:
        h = torch.empty(3, 4, 3)
        assert choice.applies_to_trace(self.descent(), Trace(h, None, torch.empty(2, 1, 1), 2))
        assert not choice.applies_to_trace(self.descent(), Trace(h, None, [0.0, 0.3], 2))
        assert not choice.applies_to_trace(self.descent(), Trace(h, None, torch.empty(2, 4, 1), 2))  # restarted by rows

    @pytest.mark.parametrize(
        ("solver", "expected"),
        [
            (FISTA(max_iter=3), True),
            (FISTA(max_iter=3, restart=True), False),
            (FISTA(max_iter=3, tol=1e-3), False),
            (FISTA(max_iter=0), False),
        ],
        ids=["all steps", "restart", "tolerance", "no steps"],
    )
    def test_to_a_fixed_number_of_steps(self, solver: FISTA, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        taken: list[int] = []
        monkeypatch.setattr(fused, "take_steps", lambda steps, *_: taken.append(steps))
        descent = self.descent()
        solver.all_steps(descent, Bounds(), descent.offset, None)
        assert taken == ([3] if expected else [])


def test_without_triton_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    choice._can_run_kernels.cache_clear()
    assert not choice._can_run_kernels(torch.device("cuda", 0))
    choice._can_run_kernels.cache_clear()


def test_the_kernels_can_be_imported_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "triton" or name.startswith("triton.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert importlib.reload(tiles).triton is None
    importlib.reload(kernels)
    monkeypatch.undo()
    importlib.reload(tiles)
    importlib.reload(kernels)


@pytest.mark.parametrize("adjoint", [Unrolled(), Implicit.fast()], ids=["Unrolled", "Implicit"])
def test_on_the_cpu_the_plain_loops_run(adjoint: Adjoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a kernel was started")

    for name in ("take_steps", "pull_back", "solve_on_support"):
        monkeypatch.setattr(fused, name, fail)
    x, W, _ = made(4, 5)
    W.requires_grad_()
    solve(NonnegativeLeastSquares(x, W), FISTA.paper(5), adjoint=adjoint).h.sum().backward()
    assert W.grad is not None


@pytest.mark.parametrize("stack", STACKS)
def test_the_plain_backward_pass_reads_the_momentum_that_a_kernel_leaves(stack: tuple[int, ...]) -> None:
    x, W, start = made(4, 5, stack)
    solver = FISTA.paper(8)
    descent, bounds = ready(solver, x, W)
    trace = Trace.of(start, 8)
    iterate(solver, descent, bounds, start, trace)
    left_by_a_kernel = replace(trace, momentum=torch.tensor(trace.momentum).view(8, 1, 1))
    gradient = torch.rand(start.shape, generator=torch.Generator().manual_seed(0))
    for one, other in zip(
        solver.pull_back(descent, bounds, trace, None, gradient),
        solver.pull_back(descent, bounds, left_by_a_kernel, None, gradient),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@given(
    stack=st.integers(1, 40),
    n=st.integers(1, 5000),
    r=st.integers(1, FEW_PARTS),
    device=st.sampled_from([H200, SMALL]),
)
def test_a_plan_covers_the_columns_and_lets_those_run_together_that_wait_for_each_other(
    stack: int, n: int, r: int, device: Device
) -> None:
    plan = plan_for(stack, n, r, device)
    columns = plan.tiles * plan.width
    assert columns * (plan.slices - 1) < r <= columns * plan.slices
    assert plan.slices <= 16
    assert plan.slices == 1 or stack * math.ceil(n / plan.rows) * plan.slices <= device.processors
    for size in (plan.rows, plan.width, plan.depth):
        assert size >= 16 and size.bit_count() == 1
    in_flight = 4 * plan.depth * (plan.rows + columns) * (plan.stages - 1)
    assert plan.stages >= 2 and in_flight <= device.shared


@given(
    stack=st.integers(1, 40),
    n=st.integers(1, 5000),
    r=st.integers(1, FEW_PARTS),
    device=st.sampled_from([H200, SMALL]),
)
def test_a_plan_that_keeps_c_has_room_for_it(stack: int, n: int, r: int, device: Device) -> None:
    plan = plan_to_keep(stack, n, r, device)
    if plan is None:
        assert r > (KEPT_PARTS if device is H200 else 192)
    else:
        columns = plan.tiles * plan.width
        assert plan.keep and plan.slices == 1 and columns - plan.width < r <= columns
        assert 2 * columns**2 < device.shared


def test_plans_of_common_sizes() -> None:
    assert plan_to_keep(8, 200, 300, H200) == Plan(16, 1, 5, 64, 64, 1, 8, keep=True)
    assert plan_to_keep(1, 10_000, 300, H200) == Plan(32, 1, 5, 64, 64, 1, 8, keep=True)
    assert plan_for(1, 200, 300, H200)[:4] == (16, 10, 1, 32)
    assert plan_for(1, 10_000, 300, H200)[:4] == (16, 1, 5, 64)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on no kernel applies."""
    return lambda: monkeypatch.setattr(choice, "applies_to_rows", lambda descent: False)


@pytest.fixture(params=PRECISIONS)
def tolerance(request: pytest.FixtureRequest) -> float:
    """Sets the precision of products; the distance that it allows between two ways to take thirty steps."""
    torch.set_float32_matmul_precision("high" if request.param else "highest")
    return 1e-2 if request.param else 3e-5


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "r", "stack", "solver"), CASES)
def test_steps_equal_those_of_the_plain_loop(
    n: int, r: int, stack: tuple[int, ...], solver: FISTA, tolerance: float, plain: Callable[[], None]
) -> None:
    x, W, start = made(n, r, stack, "cuda")
    descent, bounds = ready(solver, x, W)
    assert choice.applies(descent)
    outcome, trace = iterate(solver, descent, bounds, start), Trace.of(start, 30)
    traced = iterate(solver, descent, bounds, start, trace)
    assert isinstance(trace.momentum, Tensor), "no kernel ran"
    plain()
    expected_trace = Trace.of(start, 30)
    expected = iterate(solver, descent, bounds, start, expected_trace)
    assert distance(outcome.h, expected.h) < tolerance
    assert distance(outcome.scale, expected.scale) < tolerance
    assert torch.equal(outcome.h, traced.h)
    assert distance(trace.h, expected_trace.h) < tolerance
    assert distance(trace.scale, expected_trace.scale) < tolerance
    torch.testing.assert_close(trace.momentum.flatten().cpu(), torch.tensor(expected_trace.momentum))
    if solver.cap and n > 1:
        assert not outcome.h[..., n // 2, :].any()


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "r", "stack", "solver"), CASES)
def test_gradients_equal_those_of_the_plain_loops(
    n: int, r: int, stack: tuple[int, ...], solver: FISTA, tolerance: float, plain: Callable[[], None]
) -> None:
    x, W, start = made(n, r, stack, "cuda")
    descent, bounds = ready(solver, x, W)
    trace = Trace.of(start, 30)
    outcome = iterate(solver, descent, bounds, start, trace)
    gradient = torch.randn(start.shape, generator=torch.Generator().manual_seed(1)).to("cuda")
    fast = Implicit.fast()
    through_steps = solver.pull_back(descent, bounds, trace, None, gradient)
    through_optimum = _solve_on_support(descent, bounds, outcome, gradient, fast)
    plain()
    for ours, expected in zip(through_steps, solver.pull_back(descent, bounds, trace, None, gradient), strict=True):
        assert distance(ours, expected) < tolerance
    # Ten steps of conjugate residuals magnify rounding, whoever takes them: both are held against double precision.
    theirs = _solve_on_support(descent, bounds, outcome, gradient, fast)
    free = (outcome.h * bounds.free(outcome.h, outcome.scale)).double()
    scale = None if outcome.scale is None else outcome.scale.double()
    exact = _solve_on_support(in_double(descent), Bounds(), Outcome(free, scale), gradient.double(), fast)
    assert distance(through_optimum, exact) < 2 * distance(theirs, exact) + max(tolerance, 3e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "r", "stack", "form"),
    [(200, 700, (), "Gram"), (50, 2000, (2,), "Gram"), (30, 5000, (), "factored"), (7, 20, (3,), "masked")],
    ids=str,
)
@pytest.mark.parametrize("kind", [FISTA, ProjectedGradient])
def test_row_by_row_all_equals_the_plain_loops(
    n: int,
    r: int,
    stack: tuple[int, ...],
    form: str,
    kind: type[FISTA | ProjectedGradient],
    plain: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(choice, "applies", lambda descent: False)
    x, W, start = made(n, r, stack, "cuda")
    mask = (
        torch.rand(x.shape, generator=torch.Generator().manual_seed(2)).to("cuda") < 0.7 if form == "masked" else None
    )
    problem = NonnegativeLeastSquares(x, W, mask=mask)
    descent = prepare(problem, iterations=1, lipschitz=None, needs_gram=form == "Gram")
    solver = kind(max_iter=20, floor=1e-5, cap=True)
    bounds = Bounds.of(x, floor=solver.floor, cap=True)
    gradient = torch.randn(start.shape, generator=torch.Generator().manual_seed(1)).to("cuda")

    def everything() -> list[Tensor | None]:
        trace = Trace.of(start, 20)
        outcome = iterate(solver, descent, bounds, start, trace)
        u = _solve_on_support(descent, bounds, outcome, gradient, Implicit.fast(3))
        return [*outcome[:2], trace.h, trace.scale, *solver.pull_back(descent, bounds, trace, None, gradient), u]

    assert choice.applies_to_rows(descent)
    ours = everything()
    plain()
    for found, expected in zip(ours, everything(), strict=True):
        assert distance(found, expected) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "r", "stack"), [(200, 2000, ()), (37, 1000, (3,)), (200, 300, ()), (200, 300, (12,)), (37, 64, ())], ids=str
)
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_in_half_precision_all_is_as_exact_as_in_tf32(
    n: int, r: int, stack: tuple[int, ...], size: float, tf32: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, W, start = made(n, r, stack, "cuda")
    x, start = size * x, size * start
    solver = FISTA(max_iter=30)
    descent, bounds = ready(solver, x, W)
    gradient = size * torch.randn(start.shape, generator=torch.Generator().manual_seed(1)).to("cuda")
    assert isinstance(descent, Gram) and descent.half is not None
    plain = replace(descent, half=None)
    exact, path = in_double(plain), Trace.of(start.double(), 30)
    iterate(solver, exact, bounds, start.double(), path)

    def everything(descent: Descent, start: Tensor, gradient: Tensor) -> list[Tensor]:
        trace = Trace.of(start, 30)
        outcome = iterate(solver, descent, bounds, start, trace)
        found = outcome.h.clone()
        trace.h.copy_(path.h)  # backwards along one path: where rounding puts an entry on the floor is chance
        outcome = outcome._replace(h=trace.slot(30))
        back = solver.pull_back(descent, bounds, trace, None, gradient)
        u = _solve_on_support(descent, bounds, outcome, gradient, Implicit.fast(3))
        return [found, *back, u, *descent.unrolled_gradients(trace.h[..., :30, :, :], back.v, back.total)]

    halves = everything(descent, start, gradient)
    monkeypatch.setattr("torchpfc.solvers.cuda.halves.can_be_rounded", lambda rows: False)
    singles = everything(plain, start, gradient)
    doubles = everything(exact, start.double(), gradient.double())
    for half, single, double in zip(halves, singles, doubles, strict=True):
        assert distance(half, single) > 0, "the same products"
        assert distance(half, double) < 1.5 * distance(single, double) + 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.rows}-{p.slices}x{p.tiles}x{p.width}{'-kept' * p.keep}")
def test_every_plan_gives_the_same_again_and_again(plan: Plan) -> None:
    solver = FISTA.paper(30)
    x, W, start = made(70, 300, (), "cuda")
    descent, bounds = ready(solver, x, W)
    assert isinstance(descent, Gram)
    descent = replace(descent, half=(C_SCALE * descent.C).half() if plan.keep else None)
    gradient = torch.randn(start.shape, generator=torch.Generator().manual_seed(1)).to("cuda")

    def results() -> tuple[Tensor, ...]:
        trace = Trace.of(start, 30)
        outcome = fused.take_steps(30, descent, bounds, start, trace, plan)
        back = fused.pull_back(descent, bounds, trace, gradient, plan)
        return *back, trace.h, fused.solve_on_support(10, 1e-3, descent, bounds, outcome, gradient, plan)

    first = results()
    for _ in range(20):  # a race would show as a difference
        for one, other in zip(results(), first, strict=True):
            assert torch.equal(one, other)
    trace = Trace.of(start, 30)
    fused.take_steps(30, replace(descent, half=None), bounds, start, trace)
    assert distance(first[3], trace.h) < (1e-2 if plan.keep else 3e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("adjoint", [Unrolled(), Implicit.fast()], ids=["Unrolled", "Implicit"])
def test_a_captured_solve_equals_an_eager_one(adjoint: Adjoint) -> None:
    x, W, start = made(200, 300, (), "cuda")
    inputs = [t.requires_grad_() for t in (x, W)]
    weights = torch.rand(start.shape, generator=torch.Generator().manual_seed(1)).to("cuda")

    def step() -> tuple[Tensor, ...]:
        h = solve(NonnegativeLeastSquares(x, W), FISTA.paper(10), adjoint=adjoint, warm_start=start).h
        return h.detach(), *torch.autograd.grad((weights * h).sum(), inputs)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        start.mul_(0.5)
        x.copy_(x.roll(1, 0))
    for _ in range(3):
        graph.replay()
        for ours, expected in zip(captured, step(), strict=True):
            assert distance(ours, expected) < 1e-3


@pytest.mark.gpu
def test_not_a_number_is_not_hidden() -> None:
    x, W, start = made(20, 30, (), "cuda")
    W[3, 4] = math.nan
    assert solve(NonnegativeLeastSquares(x, W), FISTA.paper(5), warm_start=start).h.isnan().all()
