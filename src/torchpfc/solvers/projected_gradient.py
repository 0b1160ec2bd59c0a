"""Projected gradient: the right update of NMF."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchpfc.solvers.base import Momentum
from torchpfc.solvers.gradient import GradientSolver, GradientState


@dataclass(frozen=True)
class ProjectedGradient(GradientSolver):
    r"""The plain right update, $h_{k+1} = \mathrm{relu}(h_k - \tfrac1L W^\top (W h_k - x))$ (Appendix A).

    Args:
        max_iter: Steps to take at most.
        tol: Stop a row once it violates the KKT conditions by less than this, relative to the gradient at zero.
            None takes every step and never waits for the device.
        floor: Smallest value of an entry of h.
        cap: Scale a row down after each step so that its largest entry does not exceed the largest of x in magnitude.
        start: Where to start without a warm start: zeros, the floor, or small random numbers.
        check_every: Steps between two tests of the tolerance.
    """

    def momentum(self, state: GradientState, h: Tensor) -> tuple[Momentum, Momentum]:
        """None."""
        return 0.0, 1.0
