r"""Learning W without backpropagation: alternating updates that factorize a matrix, $V \approx H W^\top$."""

from torchpfc.nmf.factorize import factorize
from torchpfc.nmf.k_means import k_means
from torchpfc.nmf.loop import Factorization, History
from torchpfc.nmf.normalization import ColumnCap, MeanOfMax, Normalization, UnitNorm
from torchpfc.nmf.updates import HALS, GradientUpdates, HalfProblem, LeeSeung, UpdateRule

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
    "k_means",
]
