"""The kernels in Triton's interpreter, which needs no device; `test_interpreted.py` runs this file."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.solvers.cuda.test_fused import distance, made, ready
from torchpfc import FISTA, Implicit, ProjectedGradient
from torchpfc.nn.recurrent.inference import RightUpdate
from torchpfc.solvers.adjoint import _solve_on_support
from torchpfc.solvers.base import Trace, iterate
from torchpfc.solvers.cuda import choice, fused, halves
from torchpfc.solvers.cuda.fused import Plan
from torchpfc.solvers.descent import Gram
from torchpfc.solvers.gradient import GradientSolver
from torchpfc.solvers.scaling import Bounds

triton, tl = pytest.importorskip("triton"), pytest.importorskip("triton.language")

STEPS = 4
CASES = [  # n, r, stack, solver
    pytest.param(1, 5, (), FISTA(max_iter=STEPS), id="tiny"),
    pytest.param(3, 20, (2,), FISTA.paper(STEPS), id="stack"),
    pytest.param(17, 70, (), FISTA(max_iter=STEPS, cap=True), id="capped"),
]
FLOAT, HALF = 1e-5, 2e-3


@triton.jit
def count(out, n):  # type: ignore[no-untyped-def]
    for k in tl.range(0, n):
        tl.store(out + k, k)


@pytest.fixture(scope="module", autouse=True)
def interpreter() -> None:
    """Older interpreters fail with a newer NumPy as soon as a loop ends at a number that the kernel is given."""
    try:
        count[(1,)](torch.zeros(3), 3)
    except triton.runtime.errors.InterpreterError as error:
        pytest.skip(f"this interpreter cannot run a loop: {error}")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets kernels take what is not on a device."""
    monkeypatch.setattr(torch.cuda, "device_of", lambda _: nullcontext())
    monkeypatch.setattr(halves, "_multiply", lambda a, b: a.float() @ b.float())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that take a row at a time, as they are launched."""
    names: list[str] = []
    launch = fused._launch_by_rows

    def noted(name: str, *arguments: Any, **options: Any) -> None:
        names.append(name)
        launch(name, *arguments, **options)

    monkeypatch.setattr(fused, "_launch_by_rows", noted)
    return names


def prepared(solver: GradientSolver, x: Tensor, W: Tensor) -> tuple[Gram, Bounds]:
    descent, bounds = ready(solver, x, W)  # type: ignore[arg-type]
    assert isinstance(descent, Gram)
    return replace(descent, half=(halves.C_SCALE * descent.C).half()), bounds


def gradient_like(start: Tensor) -> Tensor:
    return torch.randn(start.shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["kept", "kept, many rows", "fetched"])
@pytest.mark.parametrize(("n", "r", "stack", "solver"), CASES)
def test_all_steps_in_one(n: int, r: int, stack: tuple[int, ...], solver: FISTA, kind: str) -> None:
    tiles = -(-r // 64)
    plan = Plan(32 if "many" in kind else 16, 1, tiles, 64, 32, 2, 8, keep=kind != "fetched")
    tolerance = HALF if plan.keep else FLOAT
    x, W, start = made(n, r, stack)
    descent, bounds = prepared(solver, x, W)
    trace, expected_trace = Trace.of(start, STEPS), Trace.of(start, STEPS)
    outcome = fused.take_steps(STEPS, descent, bounds, start, trace, plan)
    assert torch.equal(outcome.h, fused.take_steps(STEPS, descent, bounds, start, None, plan).h)
    iterate(solver, descent, bounds, start, expected_trace)
    assert distance(trace.h, expected_trace.h) < tolerance
    assert distance(trace.scale, expected_trace.scale) < tolerance
    gradient = gradient_like(start)
    back = fused.pull_back(descent, bounds, trace, gradient, plan)
    for ours, expected in zip(back, solver.pull_back(descent, bounds, trace, None, gradient), strict=True):
        assert distance(ours, expected) < tolerance
    fast = Implicit.fast(3)
    u = fused.solve_on_support(3, fast.damping, descent, bounds, outcome, gradient, plan)
    assert distance(u, _solve_on_support(descent, bounds, outcome, gradient, fast)) < tolerance


@pytest.mark.parametrize("half", [False, True], ids=["float32", "half"])
@pytest.mark.parametrize("solver", [FISTA(max_iter=STEPS, cap=True), ProjectedGradient(max_iter=STEPS, floor=1e-5)])
@pytest.mark.parametrize(("n", "r", "stack"), [(5, 64, ()), (4, 40, (2,))])
def test_step_by_step(
    n: int,
    r: int,
    stack: tuple[int, ...],
    solver: GradientSolver,
    half: bool,
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, W, start = made(n, r, stack)
    descent, bounds = prepared(solver, x, W)
    gradient, fast = gradient_like(start), Implicit.fast(3)
    plain, ours = Trace.of(start, STEPS), Trace.of(start, STEPS)
    iterate(solver, descent, bounds, start, plain)
    monkeypatch.setattr(halves, "can_be_rounded", lambda rows: half)
    monkeypatch.setattr(choice, "applies_to_rows", lambda descent: True)
    monkeypatch.setattr(choice, "applies", lambda descent: False)
    outcome = iterate(solver, descent, bounds, start, ours)
    found = (
        ours.h,
        *solver.pull_back(descent, bounds, ours, None, gradient),
        _solve_on_support(descent, bounds, outcome, gradient, fast),
    )
    monkeypatch.setattr(choice, "applies_to_rows", lambda descent: False)
    expected = (
        plain.h,
        *solver.pull_back(descent, bounds, ours, None, gradient),
        _solve_on_support(descent, bounds, outcome, gradient, fast),
    )
    assert len(launched) >= 2 * STEPS + 3, "no kernel ran"
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < (HALF if half else FLOAT)
        assert distance(one, other) > 0 or not half


@pytest.mark.parametrize("half", [False, True], ids=["float32", "half"])
@pytest.mark.parametrize("over_batch", [False, True], ids=["over rows", "over the batch"])
@pytest.mark.parametrize("stack", [(), (2,)], ids=["single", "stack"])
def test_steps_without_momentum(
    stack: tuple[int, ...], over_batch: bool, half: bool, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, W, _ = made(5, 40, stack)
    descent, _ = prepared(ProjectedGradient(max_iter=STEPS), x, W)
    cap_over = (-2, -1) if over_batch else (-1,)
    update = RightUpdate(descent.C, torch.zeros(40, 40), W, 0.0, 1e-5, cap_over, descent.half)
    limit, state = 0.3 * update.largest(descent.offset), torch.zeros_like(descent.offset)
    expected = update.solve_slice(state, descent.offset, limit, STEPS)
    monkeypatch.setattr(halves, "can_be_rounded", lambda rows: half)
    monkeypatch.setattr(choice, "can_take", lambda rows: True)
    found = update.solve_slice(state, descent.offset, limit, STEPS)
    assert launched == ["plain_step"] * STEPS
    assert distance(found, expected) < (HALF if half else FLOAT)
