r"""Learning W without backpropagation: alternating updates that factorize a matrix, $V \approx H W^\top$."""

from torchpfc.optim.alternating.factorize import factorize
from torchpfc.optim.alternating.loop import Factorization, History
from torchpfc.optim.alternating.normalization import ColumnCap, MeanOfMax, Normalization, UnitNorm
from torchpfc.optim.alternating.updates import HALS, GradientUpdates, HalfProblem, LeeSeung, UpdateRule

__all__ = [
    "HALS",
    "ColumnCap",
    "Factorization",
    "GradientUpdates",
    "HalfProblem",
    "History",
    "LeeSeung",
    "MeanOfMax",
    "Normalization",
    "UnitNorm",
    "UpdateRule",
    "factorize",
]
