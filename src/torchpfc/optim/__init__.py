"""Learning the weights: the optimizers of the paper, windows that say which columns a step may change, and rates."""

from torchpfc.nmf import Factorization, factorize
from torchpfc.optim.column_rates import Age, CodeUse, ColumnRates
from torchpfc.optim.ledger import Ledger
from torchpfc.optim.rmsprop import RMSprop
from torchpfc.optim.rmsprop_slw import RMSpropSLW
from torchpfc.optim.window import SlidingWindow
from torchpfc.optim.windowed import ColumnsExhausted, Windowed

__all__ = [
    "Age",
    "CodeUse",
    "ColumnRates",
    "ColumnsExhausted",
    "Factorization",
    "Ledger",
    "RMSprop",
    "RMSpropSLW",
    "SlidingWindow",
    "Windowed",
    "factorize",
]
