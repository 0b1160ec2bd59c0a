"""Given x and W, find h >= 0: problems, solvers, and how gradients pass through them."""

from torchpfc.solvers.adjoint import Adjoint, Implicit, Truncated, Unrolled
from torchpfc.solvers.base import ConvergenceWarning, Solution, Solver
from torchpfc.solvers.descent import largest_eigenvalue
from torchpfc.solvers.fista import FISTA
from torchpfc.solvers.problem import NonnegativeLeastSquares
from torchpfc.solvers.projected_gradient import ProjectedGradient
from torchpfc.solvers.solve import nnls, solve

__all__ = [
    "FISTA",
    "Adjoint",
    "ConvergenceWarning",
    "Implicit",
    "NonnegativeLeastSquares",
    "ProjectedGradient",
    "Solution",
    "Solver",
    "Truncated",
    "Unrolled",
    "largest_eigenvalue",
    "nnls",
    "solve",
]
