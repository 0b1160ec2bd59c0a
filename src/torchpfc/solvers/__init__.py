"""Given x and W, find h >= 0: problems, solvers, and how gradients pass through them."""

from torchpfc.solvers.active_set import ActiveSet
from torchpfc.solvers.adjoint import Adjoint, Implicit, Truncated, Unrolled
from torchpfc.solvers.admm import ADMM
from torchpfc.solvers.base import ConvergenceWarning, Solution, Solver
from torchpfc.solvers.coordinate_descent import CoordinateDescent
from torchpfc.solvers.descent import largest_eigenvalue
from torchpfc.solvers.few_parts import FewParts
from torchpfc.solvers.fista import FISTA
from torchpfc.solvers.multiplicative import Multiplicative
from torchpfc.solvers.nearest import NearestNeighbors
from torchpfc.solvers.problem import NonnegativeLeastSquares
from torchpfc.solvers.projected_gradient import ProjectedGradient
from torchpfc.solvers.solve import default_adjoint, nnls, solve

__all__ = [
    "ADMM",
    "FISTA",
    "ActiveSet",
    "Adjoint",
    "ConvergenceWarning",
    "CoordinateDescent",
    "FewParts",
    "Implicit",
    "Multiplicative",
    "NearestNeighbors",
    "NonnegativeLeastSquares",
    "ProjectedGradient",
    "Solution",
    "Solver",
    "Truncated",
    "Unrolled",
    "default_adjoint",
    "largest_eigenvalue",
    "nnls",
    "solve",
]
