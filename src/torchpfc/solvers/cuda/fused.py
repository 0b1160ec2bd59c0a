"""Steps of a solve as kernels, on a CUDA device: all of them in one for up to a few hundred parts, else one for each.

With few parts, a step keeps the device busy for a microsecond or two, less than it takes to start one of the several
operations that a step in PyTorch consists of. The kernels of `torchpfc.solvers.cuda.kernels` take all steps at once.
Where products may be rounded and C in half precision has room on one processor, it is fetched once, and a row never
leaves the processor; else processors share rows. With more parts, a step is one product, as in PyTorch, and one kernel
for all the rest of it. They do what the plain loops do, up to rounding; `torchpfc.solvers.cuda.choice` says where.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple, Self

import torch
from torch import Tensor

from torchpfc.solvers.base import Outcome, Pullback, Trace
from torchpfc.solvers.cuda.halves import C_SCALE, Halves
from torchpfc.solvers.descent import Descent, Gram
from torchpfc.solvers.scaling import Bounds

_ROWS = (16, 32, 64)  # of a group, as many more as there are rows
_FEWEST_SLICES = 5  # of a row, where it is cut at all: below that, waiting for each other costs more than it saves
_WHOLE = 128  # columns of a row that is never cut
_MOST_SLICES = 16  # of a row: what the kernels have room for
_MOST_STAGES = 6
_BESIDE_C = 10_240  # bytes of memory on a processor that rows on their way to a product take


class Plan(NamedTuple):
    """How the work of a kernel is divided; `torchpfc.solvers.cuda.kernels` explains the words."""

    rows: int
    """Rows of a group of programs."""
    slices: int
    """Programs of a group; each has a slice of the columns."""
    tiles: int
    """Tiles of columns of a program."""
    width: int
    """Columns of a tile."""
    depth: int
    """Rows of C that are fetched at a time."""
    stages: int
    """How many such fetches are under way at once."""
    warps: int
    """A thirty-second of the threads of a program."""
    keep: bool = False
    """Whether C, in half precision, stays in the memory of a processor."""


class Device(NamedTuple):
    """What a plan depends on."""

    processors: int
    shared: int
    """Bytes of memory on each processor that a program can use."""

    @classmethod
    @cache
    def of(cls, device: torch.device) -> Device:  # gpu-only: asks the driver
        """The properties of a device."""
        properties = torch.cuda.get_device_properties(device)
        shared: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
        return cls(properties.multi_processor_count, shared)


def plan_to_keep(stack: int, n: int, r: int, device: Device) -> Plan | None:
    """Gives whole rows to each program, and all of C; None where that has no room."""
    width, warps = 64, 8  # each warp has eight columns of every tile, as many as the matrix units take at a time
    tiles = math.ceil(r / width)
    if 2 * (tiles * width) ** 2 + _BESIDE_C > device.shared:
        return None
    rows = 16 if stack * math.ceil(n / 16) <= device.processors else 32
    return Plan(rows, 1, tiles, width, width, 1, warps, keep=True)


def plan_for(stack: int, n: int, r: int, device: Device) -> Plan:
    """Cuts rows into as many slices as there are processors for; where those are few, a program takes whole rows."""
    for rows in _ROWS if r > _WHOLE else ():
        width = 64 if rows == 32 else 32  # Triton gives the threads of a tile to its longer side
        most = min(math.ceil(r / width), _MOST_SLICES)
        slices = min(device.processors // (stack * math.ceil(n / rows)), most)
        if slices >= min(_FEWEST_SLICES, most):
            break
    else:
        rows, slices, width = 16, 1, 64
    columns = width * math.ceil(r / (slices * width))  # of a program
    if rows != 32 and columns % 64 == 0:
        width = 64
    depth = 64 if rows == 16 and columns == width else 32
    stages = min(device.shared // (4 * depth * (rows + columns)), math.ceil(r / depth) + 1, _MOST_STAGES)
    warps = 4 if rows == 16 and width == 32 else 8
    return Plan(rows, math.ceil(r / columns), columns // width, width, depth, max(stages, 2), warps)


def take_steps(  # gpu-only: starts a kernel
    steps: int, descent: Descent, bounds: Bounds, start: Tensor, trace: Trace | None = None, plan: Plan | None = None
) -> Outcome:
    """Takes all steps of FISTA without restarts.

    Args:
        steps: How many; at least one.
        descent: The step.
        bounds: The projection.
        start: The first iterate.
        trace: Where to keep the iterates.
        plan: How to divide the work; that of `plan_for` by default.
    """
    task = _Task.of(descent, plan)
    rows, d = start.shape[:-1], descent.offset
    h = d.new_empty(d.shape) if trace is None else trace.h
    scale = None
    if bounds.limit is not None:
        scale = d.new_empty((*rows, 1) if trace is None else (*rows[:-1], steps, rows[-1], 1))
    momentum = None if trace is None else d.new_empty((steps, 1, 1))
    task.launch(
        "fista",
        *(h, scale, momentum, start, task.C, d, bounds.limit),
        *(task.exchange(2), task.shares(2), task.counters(), bounds.floor),
        steps=steps,
        CAP=scale is not None,
        TRACE=trace is not None,
    )
    if trace is None:
        return Outcome(h, scale)
    assert momentum is not None
    trace.scale, trace.momentum, trace.steps = scale, momentum, steps
    return Outcome(trace.slot(steps), trace.scale_of(steps - 1))


def pull_back(  # gpu-only: starts a kernel
    descent: Descent, bounds: Bounds, trace: Trace, gradient: Tensor, plan: Plan | None = None
) -> Pullback:
    """Sends a gradient with respect to the result back through every step that `take_steps` took.

    Args:
        descent: The step.
        bounds: The projection.
        trace: The iterates.
        gradient: The gradient with respect to the result.
        plan: How to divide the work; that of `plan_for` by default.
    """
    assert isinstance(trace.momentum, Tensor)
    task = _Task.of(descent, plan)
    d = descent.offset
    v = d.new_empty((*d.shape[:-2], trace.steps, *d.shape[-2:]))
    total, start = d.new_empty(d.shape), d.new_empty(d.shape)
    task.launch(
        "pull_back",
        *(v, total, start, gradient, trace.h, trace.scale, trace.momentum, task.C, task.counters(), bounds.floor),
        steps=trace.steps,
        CAP=trace.scale is not None,
    )
    return Pullback(v, total, start)


def take_step(  # gpu-only: starts a kernel
    ahead: Tensor,
    last: Tensor,
    halves: Halves | None,
    descent: Descent,
    bounds: Bounds,
    momentum: float,
    out: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Takes a gradient step, as a product and a kernel.

    Args:
        ahead: The point that the step starts from.
        last: The iterate before.
        halves: The point in half precision; the one that the next step starts from takes its place.
        descent: The step.
        bounds: The projection.
        momentum: How far the next step starts beyond the iterate.
        out: Where to write the iterate.

    Returns:
        The iterate, what the cap scaled it by, and where the next step starts.
    """
    d, last = descent.offset, _by_rows(last)
    h = torch.empty_like(d) if out is None else out
    scale = None if bounds.limit is None else d.new_empty((*d.shape[:-1], 1))
    goes_on = torch.empty_like(d)
    product = descent.product(ahead) if halves is None else halves.product()
    _launch_by_rows(
        "finish_step",
        d,
        *(product, ahead.contiguous(), d, last, bounds.limit, h, goes_on, scale),
        *(*_room(halves), bounds.floor, momentum),
        sizes=(d.shape[-2], _stack_stride(last), _stack_stride(h)),
        HALF=halves is not None,
        CAP=scale is not None,
    )
    return h, scale, goes_on


def halves_of(descent: Descent, rows: Tensor | None = None) -> Halves | None:  # gpu-only: for kernels alone
    """Room for what products are made of in half precision, where they may be; with these rows in it, if given."""
    halves = Halves.of(descent.half, descent.offset) if isinstance(descent, Gram) else None
    if halves is not None and rows is not None:
        _launch_by_rows("store_half", rows, rows.contiguous(), *_room(halves))
    return halves


def pull_back_by_rows(  # gpu-only: a kernel
    descent: Descent, bounds: Bounds, trace: Trace, gradient: Tensor
) -> Pullback:
    """Sends a gradient with respect to the result back through every step, with a product and a kernel for each.

    Args:
        descent: The step.
        bounds: The projection.
        trace: The iterates, with a number for the momentum of each step.
        gradient: The gradient with respect to the result.
    """
    d, halves = descent.offset, halves_of(descent)
    v = d.new_empty((*d.shape[:-2], trace.steps, *d.shape[-2:]))
    total, later = torch.empty_like(d), torch.empty_like(d)
    base, product = gradient.contiguous(), d.new_empty(0)
    for k in reversed(range(trace.steps)):
        here, h, scale = v[..., k, :, :], trace.slot(k + 1), trace.scale_of(k)
        before, after = trace.momentum_after(k - 1) if k else 0.0, trace.momentum_after(k)
        _launch_by_rows(
            "pull_back_step",
            d,
            *(base, product, h, scale, later, here, total, *_room(halves), bounds.floor, before, after),
            sizes=(d.shape[-2], *map(_stack_stride, (base, h, d if scale is None else scale, here))),
            LAST=k == trace.steps - 1,
            HALF=halves is not None,
            CAP=scale is not None,
        )
        base, product = here, descent.product(here) if halves is None else halves.product()
    if halves is not None:
        product = product.mul_(halves.factors.unsqueeze(-1))
    return Pullback(v, total, base - product)


def solve_on_support_by_rows(  # gpu-only: starts a kernel
    steps: int, damping: float, descent: Descent, bounds: Bounds, outcome: Outcome, gradient: Tensor
) -> Tensor:
    """As `solve_on_support`, with a product and a kernel for each step.

    Args:
        steps: How many to take.
        damping: Ridge added to the system, relative to L.
        descent: The step.
        bounds: The projection.
        outcome: Where the solve ended.
        gradient: The gradient with respect to h.
    """
    h, scale = outcome.h.contiguous(), None if outcome.scale is None else outcome.scale.contiguous()
    residual = bounds.free(h, scale).mul_(gradient)
    halves = halves_of(descent, residual)
    u, direction, image = (torch.empty_like(residual) for _ in range(3))
    curvature = residual.new_empty(residual.shape[:-1])
    for k in range(steps):
        product = descent.product(residual) if halves is None else halves.product()
        _launch_by_rows(
            "conjugate_residual_step",
            residual,
            *(product, h, scale, u, residual, direction, image, curvature, *_room(halves), bounds.floor, damping),
            FIRST=k == 0,
            HALF=halves is not None,
            CAP=scale is not None,
        )
    return u.div_(descent.L)


def take_plain_steps(  # gpu-only: starts kernels
    steps: int, C: Tensor, half: Tensor | None, offset: Tensor, limit: Tensor, floor: float, *, over_batch: bool
) -> Tensor:
    r"""Takes steps without momentum from zero, $h \leftarrow s \max(h - C h + d, f)$, as a product and a kernel each.

    Args:
        steps: How many; at least one.
        C: The matrix.
        half: The same for products in half precision, where they may be rounded.
        offset: What a step adds, d.
        limit: The largest value that an entry may take; s sees to it.
        floor: The smallest value of an entry before that, f.
        over_batch: Whether one s serves all rows of a problem, or each row has its own.

    Shape:
        - C: $(r, r)$ or $(s, r, r)$
        - offset and the result: $(n, r)$ or $(s, n, r)$
        - limit: $(*, 1, 1)$ over the batch, $(*, n, 1)$ otherwise
    """
    d, limit = offset.contiguous(), limit.contiguous()
    h, halves = torch.empty_like(d), Halves.of(half, d)
    peaks = d.new_zeros((steps, *limit.shape))
    product: Tensor | None = None
    for k in range(steps):
        if k:
            product = h @ C if halves is None else halves.product()
        _launch_by_rows(
            "plain_step",
            d,
            *(product, h, d, limit, peaks[max(k - 1, 0)], peaks[k], *_room(halves), floor),
            sizes=(d.shape[-2],),
            FIRST=k == 0,
            OVER_BATCH=over_batch,
            HALF=halves is not None,
        )
    return h.mul_((limit / peaks[-1].clamp_(min=torch.finfo(h.dtype).tiny)).clamp_(max=1.0))


def _room(halves: Halves | None) -> tuple[Tensor | None, Tensor | None]:  # gpu-only: for kernels alone
    """What kernels write to."""
    return (None, None) if halves is None else (halves.rows, halves.factors)


def _launch_by_rows(  # gpu-only: starts a kernel
    name: str, like: Tensor, *arguments: Tensor | float | None, sizes: tuple[int, ...] = (), **constants: bool
) -> None:
    """Starts a kernel with a program for each row; None stands for an argument that it will not look at."""
    from torchpfc.solvers.cuda import row_kernels

    r = like.shape[-1]
    block, align = 1 << (r - 1).bit_length(), math.gcd(r, 16)
    given = [like if a is None else a for a in arguments]
    with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
        getattr(row_kernels, name)[(like.shape[:-1].numel(),)](
            *(*given, r // align, *sizes),
            **constants,
            ALIGN=align,
            C_SCALE=C_SCALE,
            BLOCK=block,
            num_warps=min(max(block // 512, 1), 16),
        )


def _by_rows(tensor: Tensor) -> Tensor:  # gpu-only: for kernels alone
    """The tensor, or a copy of it, with the entries of each problem of a stack in order."""
    return tensor if tensor.stride()[-2:] == (tensor.shape[-1], 1) else tensor.contiguous()


def _stack_stride(tensor: Tensor) -> int:  # gpu-only: for kernels alone
    """From one problem of a stack to the next, each of which is contiguous."""
    return tensor.stride(0) if tensor.ndim > 2 else 0


def solve_on_support(  # gpu-only: starts a kernel
    steps: int,
    damping: float,
    descent: Descent,
    bounds: Bounds,
    outcome: Outcome,
    gradient: Tensor,
    plan: Plan | None = None,
) -> Tensor:
    """Solves the linear system of `Implicit` by conjugate residuals.

    Args:
        steps: How many to take.
        damping: Ridge added to the system, relative to L.
        descent: The step.
        bounds: The projection.
        outcome: Where the solve ended.
        gradient: The gradient with respect to h.
        plan: How to divide the work; that of `plan_for` by default.
    """
    task = _Task.of(descent, plan)
    u = task.like.new_empty(task.like.shape)
    task.launch(
        "conjugate_residuals",
        *(u, gradient, outcome.h, outcome.scale, task.C, descent.L, task.exchange(1), task.shares(4), task.counters()),
        *(bounds.floor, damping),
        steps=steps,
        CAP=outcome.scale is not None,
    )
    return u


class _Task(NamedTuple):  # gpu-only: has kernels to start
    """A step and how the work of many such steps is divided."""

    C: Tensor
    like: Tensor
    """A tensor with the shape of h."""
    plan: Plan

    @classmethod
    def of(cls, descent: Descent, plan: Plan | None) -> Self:
        assert isinstance(descent, Gram)
        d = descent.offset
        n, r = d.shape[-2:]
        if plan is None:
            size = (d.shape[:-2].numel(), n, r, Device.of(d.device))
            plan = (plan_to_keep(*size) if descent.half is not None else None) or plan_for(*size)
        assert plan.slices * plan.tiles * plan.width >= r
        C = descent.half if plan.keep else descent.C
        assert C is not None
        return cls(C, d, plan)

    @property
    def groups(self) -> int:
        """Groups of programs."""
        return self.like.shape[:-2].numel() * math.ceil(self.like.shape[-2] / self.plan.rows)

    def exchange(self, count: int) -> Tensor | None:
        """Room for so many iterates that programs let each other see."""
        return None if self.plan.keep else self.like.new_empty((count, *self.like.shape))

    def shares(self, count: int) -> Tensor:
        """Room for so many numbers per row and program."""
        return self.like.new_empty(self.groups * count * self.plan.slices * self.plan.rows)

    def counters(self) -> Tensor | None:
        """What the programs of each group count their meetings with."""
        if self.plan.slices == 1:
            return None
        return torch.zeros(self.groups, 32, dtype=torch.int32, device=self.like.device)

    def launch(self, name: str, *arguments: Tensor | float | None, steps: int, **constants: bool) -> None:
        """Starts a kernel; None stands for an argument that it will not look at."""
        from torchpfc.solvers.cuda import kernels

        plan = self.plan
        n, r = self.like.shape[-2:]
        align = math.gcd(r, 8)
        given = [self.like if a is None else a.contiguous() if isinstance(a, Tensor) else float(a) for a in arguments]
        with torch.cuda.device_of(self.like):  # type: ignore[no-untyped-call]
            getattr(kernels, name)[(self.groups * plan.slices,)](
                *given,
                *(n, r // align, steps),
                **constants,
                ALIGN=align,
                SLICES=plan.slices,
                TILES=plan.tiles,
                WIDTH=plan.width,
                ROWS=plan.rows,
                DEPTH=plan.depth,
                STAGES=plan.stages,
                PRECISION=_precision(),
                KEEP=plan.keep,
                C_SCALE=C_SCALE,
                num_warps=plan.warps,
                # Programs that wait for each other have to run at the same time: the driver sees to it, or refuses.
                launch_cooperative_grid=plan.slices > 1,
            )


def _precision() -> str:  # gpu-only: for kernels alone
    """Follows what PyTorch is allowed to do in products; in three parts, TF32 is about as exact as float32."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
