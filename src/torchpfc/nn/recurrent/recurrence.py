r"""The states of a whole sequence, $(h_{t-1}; x_t) \approx W h_t$ slice by slice, and their gradient (Section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torchpfc.nn.recurrent.slices import slices_as_rows
from torchpfc.solvers import Adjoint, NonnegativeLeastSquares, Solver, Unrolled, solve
from torchpfc.solvers.adjoint import only_once, restore_records, save_records
from torchpfc.solvers.base import Trace, iterate
from torchpfc.solvers.cuda.halves import half_of, product_over_rows
from torchpfc.solvers.descent import Gram
from torchpfc.solvers.gradient import GradientSolver
from torchpfc.solvers.scaling import Bounds

_ROWS_AT_ONCE = 32_768  # of a product over the steps of many slices: more would not be faster


@dataclass(frozen=True, eq=False)
class Recurrence:
    r"""How each state follows from the one before and an input.

    $$h_t = \arg\min_{h \ge 0} \|(h_{t-1}; x_t) - W h\|^2, \quad\text{started at } h_{t-1}$$

    Args:
        solver: How h is found.
        adjoint: How gradients pass through the solver.
        lipschitz: The largest eigenvalue of $W^\top W$, or a bound on it; counts as a constant.
        through_time: Whether gradients pass from a state to the one before. Within a slice they always do.
        active: True where a sequence goes on; where it has ended, its state stays as it is.

    Shape:
        - lipschitz: the leading dimensions of W
        - active: $(T, n, 1)$ or $(T, 1, n, 1)$
    """

    solver: Solver
    adjoint: Adjoint | None
    lipschitz: Tensor
    through_time: bool = True
    active: Tensor | None = None

    def states(self, x: Tensor, W: Tensor, state: Tensor) -> Tensor:
        r"""The states of all slices, with gradients to x, W and the first state.

        Args:
            x: The slices.
            W: The parts: first the rows that reconstruct the last state, then those for the input.
            state: The state before the first slice.

        Shape:
            - x: $(T, n, m)$, or $(T, s, n, m)$ for a stack of s models
            - W: $(r + m, r)$ or $(s, r + m, r)$
            - state: $(n, r)$ or $(s, n, r)$
            - the result: $(T, n, r)$ or $(T, s, n, r)$
        """
        with torch.autocast(x.device.type, enabled=False):
            if not isinstance(self.solver, GradientSolver) or self.solver.tol is not None:
                return self._solve_each(x, W, state)
            if not torch.is_grad_enabled() or not (x.requires_grad or W.requires_grad or state.requires_grad):
                return self.run(x, W, state)
            if type(self.adjoint) is not Unrolled:  # one of the user's own may be a kind of it
                return self._solve_each(x, W, state)
            states: Tensor = _States.apply(x, W, state, self)  # type: ignore[no-untyped-call]
            return states

    def run(self, x: Tensor, W: Tensor, state: Tensor, traces: list[Trace] | None = None) -> Tensor:
        """The states without gradients; where a list is given, the iterates of each slice are added to it."""
        descent = self.descent(x, W)
        from_input = x @ _rows_for_input(descent.W / descent.L)
        from_state = _rows_for_state(descent.W / descent.L)
        add_product = torch.addmm if W.ndim == 2 else torch.baddbmm
        limits = _largest(x)
        states = x.new_empty((len(x), *state.shape))
        for t, h in enumerate(states):
            trace = None if traces is None else Trace.of(state, self.solver.max_iter)
            here = replace(descent, offset=add_product(from_input[t], state, from_state))
            # No part may outshine the input and the last state.
            bounds = Bounds(self.solver.floor, torch.maximum(limits[t], _largest(state)) if self.solver.cap else None)
            found = iterate(self.solver, here, bounds, state, trace).h
            state = h.copy_(found if self.active is None else torch.where(self.active[t], found, state))
            if traces is not None and trace is not None:
                traces.append(trace)
        return states

    def descent(self, x: Tensor, W: Tensor) -> Gram:
        """What the steps of all slices share; the offset differs."""
        L = self.lipschitz.clamp(min=torch.finfo(W.dtype).tiny)
        L = L if W.ndim == 2 else L[:, None, None]
        C = product_over_rows(W, W).div_(L)
        return Gram(x, W, None, L, offset=x, l1=0.0, l2=0.0, C=C, half=half_of(C))

    def _solve_each(self, x: Tensor, W: Tensor, state: Tensor) -> Tensor:
        """One solve a slice, for every solver and adjoint."""
        states = []
        for t, x_t in enumerate(x):
            before = state if self.through_time or not t else state.detach()
            problem = NonnegativeLeastSquares(torch.cat([before, x_t], dim=-1), W)
            h = solve(problem, self.solver, adjoint=self.adjoint, warm_start=before, lipschitz=self.lipschitz).h
            state = h if self.active is None else torch.where(self.active[t], h, before)
            states.append(state)
        return torch.stack(states)


class _States(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, state: Tensor, recurrence: Recurrence) -> Tensor:
        traces: list[Trace] = []
        states = recurrence.run(x, W, state, traces)
        save_records(ctx, (x, W, state, states), *traces)
        ctx.recurrence = recurrence
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, W, state, states), *traces = restore_records(ctx)
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            back = _pull_back(ctx.recurrence, x, W, state, states, traces, gradient)
        return *only_once(back, gradient, x, W, state), None


def _pull_back(
    recurrence: Recurrence,
    x: Tensor,
    W: Tensor,
    state: Tensor,
    states: Tensor,
    traces: list[Trace],
    gradient: Tensor,
) -> tuple[Tensor, ...]:
    r"""Sends gradients with respect to all states back through all slices.

    Slice t receives $g_t$, the gradient with respect to $h_t$, and sends it through its steps. That gives the $v_k$ of
    each step, the gradient $q_t$ with respect to its offset $d_t = z_t W / L$ with $z_t = (h_{t-1}; x_t)$, and that
    with respect to its start. So

    $$g_{t-1} \mathrel{+}= \mathrm{start}_t + q_t W_h^\top / L, \qquad dx_t = q_t W_x^\top / L, \qquad
    dW = \Bigl(\sum_t z_t^\top q_t - W (P + P^\top)\Bigr) / L, \quad P = \sum_t \sum_k h_k^\top v_k.$$
    """
    solver, n = recurrence.solver, state.shape[-2]
    descent, bounds = recurrence.descent(x, W), Bounds(solver.floor)
    to_state = _rows_for_state(W / descent.L).mT
    q = torch.empty_like(states)
    P = torch.zeros_like(descent.C)
    waiting: list[tuple[Tensor, Tensor]] = []
    carried = torch.zeros_like(state)
    # Where nothing passes from slice to slice, many go back side by side.
    at_once = 1 if recurrence.through_time else max(1, _ROWS_AT_ONCE // max(1, traces[0].steps * n))
    for stop in range(len(states), 0, -at_once):
        slices = slice(max(0, stop - at_once), stop)
        trace = _side_by_side(traces[slices])
        arriving = slices_as_rows(gradient[slices])
        arriving = arriving + carried if recurrence.through_time else arriving.contiguous()
        active = None if recurrence.active is None else slices_as_rows(recurrence.active[slices])
        inside = arriving if active is None else arriving.where(active, 0.0)
        back = solver.pull_back(replace(descent, offset=slices_as_rows(states[slices])), bounds, trace, None, inside)
        q[slices] = _rows_as_slices(back.total, like=q[slices])
        waiting.append((trace.h[..., : trace.steps, :, :].flatten(-3, -2), back.v.flatten(-3, -2)))  # (*, K n, r)
        if not slices.start or sum(rows.shape[-2] for rows, _ in waiting) >= _ROWS_AT_ONCE:
            P += product_over_rows(*map(_joined, zip(*waiting, strict=True)))
            waiting.clear()
        if recurrence.through_time or not slices.start:
            carried = back.start[..., :n, :] + back.total[..., :n, :] @ to_state
            if active is not None:  # where a sequence has ended, its state is that of the slice before
                carried += arriving.where(~active, 0.0)[..., :n, :]
    to_x = q @ _rows_for_input(W / descent.L).mT
    before = torch.cat([state.unsqueeze(0), states[:-1]])
    z = slices_as_rows(torch.cat([before, x], dim=-1))
    to_W = (z.mT @ slices_as_rows(q) - W @ (P + P.mT)) / descent.L
    return to_x, to_W, carried


def _side_by_side(traces: Sequence[Trace]) -> Trace:
    """The iterates of several slices as those of one with more rows."""
    first = traces[0]
    scale, momentum = first.scale, first.momentum
    if scale is not None:
        scale = _joined([trace.scale for trace in traces if trace.scale is not None])
    if isinstance(momentum, Tensor) and momentum.shape[-2] == first.h.shape[-2]:  # one for each row
        momentum = _joined([trace.momentum for trace in traces if isinstance(trace.momentum, Tensor)])
    return Trace(_joined([trace.h for trace in traces]), scale, momentum, first.steps)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts; those of a single one are not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=-2)


def _rows_for_state(W: Tensor) -> Tensor:
    return W[..., : W.shape[-1], :]


def _rows_for_input(W: Tensor) -> Tensor:
    return W[..., W.shape[-1] :, :]


def _largest(rows: Tensor) -> Tensor:
    """The largest magnitude of each row."""
    largest: Tensor = torch.linalg.vector_norm(rows, ord=float("inf"), dim=-1, keepdim=True)
    return largest


def _rows_as_slices(values: Tensor, like: Tensor) -> Tensor:
    """The way back, to the shape of another tensor."""
    return values.reshape(like.movedim(0, -3).shape).movedim(-3, 0)
