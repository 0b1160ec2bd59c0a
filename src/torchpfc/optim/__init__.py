"""Learning the weights: the optimizers of the paper, and windows that say which columns a step may change."""

from torchpfc.nmf import Factorization, factorize
from torchpfc.optim.ledger import Ledger
from torchpfc.optim.rmsprop import RMSprop
from torchpfc.optim.rmsprop_slw import RMSpropSLW
from torchpfc.optim.window import SlidingWindow
from torchpfc.optim.windowed import ColumnsExhausted, Windowed

__all__ = [
    "ColumnsExhausted",
    "Factorization",
    "Ledger",
    "RMSprop",
    "RMSpropSLW",
    "SlidingWindow",
    "Windowed",
    "factorize",
]
