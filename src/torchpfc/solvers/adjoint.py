"""How gradients pass through a solve: through its steps, through the last of them, or through the optimum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd import Function

from torchpfc.solvers.base import Outcome, Solver, Trace, iterate
from torchpfc.solvers.cuda import choice
from torchpfc.solvers.descent import Descent
from torchpfc.solvers.scaling import Bounds


class Run(NamedTuple):
    """A solve made ready."""

    solver: Solver
    descent: Descent
    bounds: Bounds

    def from_start(self, start: Tensor, trace: Trace | None = None) -> Outcome:
        """Runs it."""
        with torch.no_grad():
            return iterate(self.solver, self.descent, self.bounds, start, trace)


class Adjoint(ABC):
    """A way to differentiate a solve.

    One of your own is a subclass with `apply`, which calls `run.from_start` and gives h gradients; with `suits` too,
    where it needs something of the solver.

    Example:
        Gradients as if every part were free and apart from all others:

        >>> class StraightThrough(Adjoint):
        ...     def apply(self, run, x, W, start):
        ...         outcome = run.from_start(start)
        ...         linear = x @ W
        ...         return outcome._replace(h=outcome.h + linear - linear.detach())
        >>> from torchpfc import PFCBlock
        >>> x = torch.rand(5, 8, requires_grad=True)
        >>> PFCBlock(8, 3, num_basis=4, adjoint=StraightThrough())(x).sum().backward()
        >>> x.grad.shape
        torch.Size([5, 8])
    """

    def suits(self, solver: Solver) -> bool:
        """Whether this can differentiate what a solver does; unless a subclass says otherwise, any solver."""
        return True

    @abstractmethod
    def apply(self, run: Run, x: Tensor, W: Tensor, start: Tensor) -> Outcome:
        """Solves; the h that comes out carries gradients to x, W and, where the adjoint has one, the start."""


@dataclass(frozen=True)
class Unrolled(Adjoint):
    """Differentiates every step, as the published code does.

    The only adjoint whose gradient reaches the warm start. Keeps every iterate for the backward pass.
    """

    def suits(self, solver: Solver) -> bool:
        """Whether a solver has a way back through its steps."""
        return solver.unrolls

    def apply(self, run: Run, x: Tensor, W: Tensor, start: Tensor) -> Outcome:
        """Solves; the h that comes out carries gradients to x, W and, where the adjoint has one, the start."""
        return Outcome(*_Unrolled.apply(x, W, start, run))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Truncated(Adjoint):
    """Takes most steps without a gradient and differentiates the last few.

    Momentum starts anew where the gradient begins. The warm start gets no gradient.

    Args:
        steps: How many of the solver's steps to differentiate.
    """

    steps: int

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.steps < 0:
            raise ValueError(f"steps must be non-negative, got {self.steps}")

    def suits(self, solver: Solver) -> bool:
        """Whether a solver has a way back through its last steps, taken by themselves."""
        return solver.unrolls and solver.goes_on

    def apply(self, run: Run, x: Tensor, W: Tensor, start: Tensor) -> Outcome:
        """Solves; the h that comes out carries gradients to x, W and, where the adjoint has one, the start."""
        total = run.solver.max_iter
        if self.steps > total:
            raise ValueError(f"steps must be at most the solver's max_iter ({total}), got {self.steps}")
        first = run._replace(solver=replace(run.solver, max_iter=total - self.steps)).from_start(start)
        last = run._replace(solver=replace(run.solver, max_iter=self.steps))
        outcome = Unrolled().apply(last, x, W, first.h)
        if first.iterations is None or outcome.iterations is None:
            return outcome
        return outcome._replace(iterations=first.iterations + outcome.iterations)


@dataclass(frozen=True)
class Implicit(Adjoint):
    r"""Differentiates the optimum itself, whatever steps led there; memory does not grow with the steps.

    On the support $A$ of h, where it lies above the floor, h solves a linear system, so the gradient $g$ passes through
    $(G_{AA} + l_2 + L \tfrac{1 - s}{s}) u = g_A$ with $G = W^\top W$, solved by conjugate residuals. A row that the cap
    holds down by a factor s behaves as if it had a ridge penalty of that size. Right as far as h has converged.

    Args:
        max_iter: Conjugate-residual steps at most; None allows one per part, which is enough in exact arithmetic.
        tol: Stop once every row's residual is below this, relative to $g_A$. None chooses by the precision, 0 takes
            every step and never waits for the device.
        damping: Ridge added to the system, relative to L. Shortens the solve where parts are nearly collinear, at the
            price of a bias.
    """

    max_iter: int | None = None
    tol: float | None = None
    damping: float = 0.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.max_iter is not None and self.max_iter < 1:
            raise ValueError(f"max_iter must be at least 1 or None, got {self.max_iter}")
        if self.tol is not None and self.tol < 0:
            raise ValueError(f"tol must be non-negative or None, got {self.tol}")
        if self.damping < 0:
            raise ValueError(f"damping must be non-negative, got {self.damping}")

    def suits(self, solver: Solver) -> bool:
        """Whether what a solver finds is an optimum."""
        return solver.minimizes

    @classmethod
    def fast(cls, max_iter: int = 10, damping: float = 1e-3) -> Self:
        """A fixed number of conjugate-residual steps, lightly damped: for training."""
        return cls(max_iter=max_iter, tol=0.0, damping=damping)

    def apply(self, run: Run, x: Tensor, W: Tensor, start: Tensor) -> Outcome:
        """Solves; the h that comes out carries gradients to x, W and, where the adjoint has one, the start."""
        return Outcome(*_Implicit.apply(x, W, start.detach(), run, self))  # type: ignore[no-untyped-call]


class _Unrolled(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, start: Tensor, run: Run) -> Outcome:
        trace = Trace.of(start, run.solver.max_iter)
        outcome = run.from_start(start, trace)
        save_records(ctx, (x, W, start), run.descent, run.bounds, trace, (outcome.iterations,))
        ctx.solver = run.solver
        return _end(ctx, outcome)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        inputs, descent, bounds, trace, (iterations,) = restore_records(ctx)
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            back = ctx.solver.pull_back(descent, bounds, trace, iterations, gradient)
            to_x, to_W = descent.unrolled_gradients(trace.h[..., : trace.steps, :, :], back.v, back.total)
        return *only_once((to_x, to_W, back.start), gradient, *inputs), None


class _Implicit(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, start: Tensor, run: Run, adjoint: Implicit) -> Outcome:
        outcome = run.from_start(start)
        save_records(ctx, (x, W), run.descent, run.bounds, outcome)
        ctx.adjoint = adjoint
        return _end(ctx, outcome)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        inputs, descent, bounds, outcome = restore_records(ctx)
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            u = _solve_on_support(descent, bounds, outcome, gradient, ctx.adjoint)
            to_x, to_W = descent.implicit_gradients(outcome.h, u)
        return *only_once((to_x, to_W), gradient, *inputs), None, None, None


def _end(ctx: Any, outcome: Outcome) -> Outcome:
    """Makes h the only differentiable output, and a copy, since a view would keep the whole trace alive."""
    ctx.mark_non_differentiable(*(part for part in outcome[1:] if part is not None))
    # A copy made here, outside of no_grad: the compiler of torch 2.11 sends no gradient to what was made inside.
    return outcome._replace(h=outcome.h.clone())


def save_records(ctx: Any, *records: Any) -> None:
    """Saves every tensor in some records through autograd, so that its hooks see them and can free them."""
    tensors: list[Tensor] = []
    ctx.records = []
    for record in records:
        values = list(record) if isinstance(record, tuple) else [getattr(record, f.name) for f in fields(record)]
        places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        tensors += [values[i] for i in places]
        ctx.records.append((type(record), [None if i in places else v for i, v in enumerate(values)], places))
    ctx.save_for_backward(*tensors)


def restore_records(ctx: Any) -> list[Any]:
    """The records that were saved."""
    tensors = iter(ctx.saved_tensors)
    restored = []
    for kind, rest, places in ctx.records:
        values = [next(tensors) if i in places else value for i, value in enumerate(rest)]
        restored.append(tuple(values) if kind is tuple else kind(*values))
    return restored


def _solve_on_support(
    descent: Descent, bounds: Bounds, outcome: Outcome, gradient: Tensor, adjoint: Implicit
) -> Tensor:
    r"""Solves $(G_{AA} + l_2 + L ((1 - s) / s + \mathrm{damping})) u = g_A$ for each row by conjugate residuals.

    In units of L the matrix is C plus a ridge, with eigenvalues of C in [0, 1]. Where collinear parts make it singular,
    conjugate residuals settle on a least-squares solution; conjugate gradients would diverge.
    """
    steps = adjoint.max_iter or gradient.shape[-1]
    if adjoint.tol == 0:
        by_kernels = choice.solve_on_support(steps, adjoint.damping, descent, bounds, outcome, gradient)
        if by_kernels is not None:  # gpu-only: a kernel took the steps
            return by_kernels
    tiny = torch.finfo(gradient.dtype).tiny
    support, scale = bounds.free(outcome.h, outcome.scale), outcome.scale
    ridge = torch.full_like(gradient[..., :1], adjoint.damping)
    if scale is not None:
        ridge += (1 - scale) / scale.clamp(min=tiny)

    def multiply(v: Tensor) -> Tensor:
        return descent.product(v).addcmul_(v, ridge).mul_(support)

    residual = gradient * support
    image = multiply(residual)
    direction, direction_image = residual, image
    u = torch.zeros_like(residual)
    curvature = _row_dot(residual, image)
    tol = adjoint.tol if adjoint.tol is not None else 100 * torch.finfo(gradient.dtype).eps
    target = tol * tol * _row_dot(residual, residual)
    for k in range(steps):
        length = curvature / _row_dot(direction_image, direction_image).clamp(min=tiny)
        u = torch.addcmul(u, direction, length)
        residual = torch.addcmul(residual, direction_image, length, value=-1)
        if tol > 0 and k % 5 == 4 and not (_row_dot(residual, residual) > target).any():
            break
        image = multiply(residual)
        # What is left once only collinear parts disagree has no curvature: stop there instead of chasing rounding.
        left = _row_dot(residual, image)
        left = left.where(left > torch.finfo(left.dtype).eps * _row_dot(residual, residual), 0.0)
        ratio = left / curvature.clamp(min=tiny)
        direction = torch.addcmul(residual, direction, ratio)
        direction_image = torch.addcmul(image, direction_image, ratio)
        curvature = left
    return u.div_(descent.L)


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def only_once(gradients: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Makes a second differentiation raise instead of silently counting these gradients as constants."""
    if not torch.is_grad_enabled():
        return gradients
    return tuple(_OnlyOnce.apply(gradient, *inputs) for gradient in gradients)  # type: ignore[no-untyped-call]


class _OnlyOnce(Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(
            "a solve can be differentiated only once: its backward pass is not itself differentiable. "
            "For second derivatives, write the steps out in plain PyTorch"
        )
