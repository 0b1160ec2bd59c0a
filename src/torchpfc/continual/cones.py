"""How well the parts of each class explain an input, each class by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.solvers import NonnegativeLeastSquares, Solver, solve
from torchpfc.solvers.descent import estimate_lipschitz

Look = tuple[Tensor, Tensor | None]
"""Some inputs as parts see them, and where they are observed; None for everywhere."""


@dataclass(frozen=True, eq=False)
class Stack:
    r"""The parts of classes that have about as many, filled up with zeros.

    Few parts span few directions: with $W = Q R$ an input counts by its coordinates $Q^\top x$, since
    $\|x - W h\|^2 = \|Q^\top x - R h\|^2 + \|x\|^2 - \|Q^\top x\|^2$.

    Shape:
        - W: $(c, p, r)$
        - Q: $(c, p, \min(p, r))$
        - R: $(c, \min(p, r), r)$
        - L: $(c)$
    """

    labels: list[int]
    columns: list[Tensor]
    W: Tensor
    Q: Tensor
    R: Tensor
    L: Tensor
    """The largest eigenvalue of each class's Gram matrix."""

    @classmethod
    def of(cls, weight: Tensor, classes: Sequence[tuple[int, Tensor]]) -> Stack:
        """The stack of some classes, given as their numbers and columns."""
        widest = max(len(columns) for _, columns in classes)
        W = torch.stack([F.pad(weight[:, columns], (0, widest - len(columns))) for _, columns in classes])
        Q, R = torch.linalg.qr(W)
        return cls([c for c, _ in classes], [columns for _, columns in classes], W, Q, R, estimate_lipschitz(R))

    def problem(self, look: Look, l1: float) -> NonnegativeLeastSquares:
        """How each class explains inputs; where all is observed, in the coordinates of its parts."""
        seen, mask = look
        if mask is None:
            coordinates = seen @ self.Q.movedim(1, 0).flatten(1)  # (n, c * r)
            x = coordinates.view(len(seen), len(self.Q), -1).movedim(1, 0)
            return NonnegativeLeastSquares(x, self.R, l1=l1)
        x = seen.expand(len(self.W), *seen.shape)
        return NonnegativeLeastSquares(x, self.W, l1=l1, mask=mask.expand(x.shape))


@dataclass(frozen=True, eq=False)
class Cones:
    """The parts of all classes in a few stacks.

    Several looks at the same inputs may be given; a class explains an input as well as the look that it explains best.

    Args:
        stacks: The parts.
        l1: Weight of the sum of h.
        solver: How h is found.
    """

    stacks: tuple[Stack, ...]
    l1: float
    solver: Solver

    @classmethod
    def of(cls, weight: Tensor, owners: Tensor, l1: float, solver: Solver) -> Cones:
        """The cones of parts.

        Args:
            weight: The parts.
            owners: The class of each; -1 for none.
            l1: Weight of the sum of h.
            solver: How h is found.

        Shape:
            - weight: $(p, r)$
            - owners: $(r)$
        """
        groups: dict[int, list[tuple[int, Tensor]]] = {}
        for c in [c for c in torch.unique(owners).tolist() if c >= 0]:
            columns = (owners == c).nonzero()[:, 0]
            groups.setdefault(len(columns).bit_length(), []).append((c, columns))
        return cls(tuple(Stack.of(weight, classes) for _, classes in sorted(groups.items())), l1, solver)

    def shares(self, looks: Sequence[Look]) -> Iterator[tuple[list[int], Tensor]]:
        """For some classes at a time, their numbers, and the share of each input that each explains, from 0 to 1."""
        for stack in self.stacks:
            shares = []
            for look in looks:
                problem = stack.problem(look, self.l1)
                h = solve(problem, self.solver, lipschitz=stack.L).h
                shares.append(problem.x.square().sum(-1) - 2 * problem.objective(h))
            yield stack.labels, torch.stack(shares).amax(0)

    def codes(self, looks: Sequence[Look]) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """For each class its number, its columns, how much of each part it takes, and what that adds to its share."""
        rows = torch.arange(len(looks[0][0]), device=looks[0][0].device)
        for stack in self.stacks:
            codes, gains, shares = [], [], []
            for look in looks:
                problem = stack.problem(look, self.l1)
                h = solve(problem, self.solver, lipschitz=stack.L).h
                # By x W + rest W = 2 x W - h W^T W the gains of a class add up to its share, whatever h is.
                slope = (problem.x + problem.residual(h)) @ problem.W
                codes.append(h)
                gains.append(h * (slope - 2 * self.l1))
                shares.append(gains[-1].sum(-1))
            best = torch.stack(shares).argmax(0)  # (classes, n)
            for place, (c, columns) in enumerate(zip(stack.labels, stack.columns, strict=True)):
                h, gain = (torch.stack(some)[best[place], place, rows][:, : len(columns)] for some in (codes, gains))
                yield c, columns, h, gain


@dataclass(frozen=True, eq=False)
class ConeCoupling:
    r"""Scores of classes as sums over parts: $y_c = b_c + \sum_{r \in c} g_r$.

    Shape:
        - y, base: $(n, k)$
        - h, gain: $(n, r)$
    """

    y: Tensor
    """The scores."""
    h: Tensor
    """How much of each part its class takes to explain the input."""
    gain: Tensor
    r"""What each part adds to the score of its class, $h_r (2 w_r^\top x - w_r^\top W_c h_c - 2 l_1)$."""
    base: Tensor
    """What the read-out adds; zeros without one."""
