"""Neural networks out of non-negative matrix factorization.

A `PFCBlock` explains its input as a sum of learned parts and predicts from their amounts, so that one can see why it
answered, teach it more without forgetting, and take knowledge out again.
"""

from torchpfc._version import __version__
from torchpfc.nn import (
    MLP,
    Attention,
    Completion,
    Coupling,
    FactorizedAttention,
    PFCBlock,
    ResidualPFC,
    attend,
    keep_nonnegative,
    reconstruction_loss,
    record_couplings,
    stack_models,
    unstack_models,
)
from torchpfc.optim import ColumnsExhausted, RMSprop, RMSpropSLW, SlidingWindow, Windowed
from torchpfc.solvers import (
    ADMM,
    FISTA,
    ConvergenceWarning,
    CoordinateDescent,
    Implicit,
    Multiplicative,
    NearestNeighbors,
    NonnegativeLeastSquares,
    ProjectedGradient,
    Solution,
    Truncated,
    Unrolled,
    nnls,
    solve,
)

__all__ = [
    "ADMM",
    "FISTA",
    "MLP",
    "Attention",
    "ColumnsExhausted",
    "Completion",
    "ConvergenceWarning",
    "CoordinateDescent",
    "Coupling",
    "FactorizedAttention",
    "Implicit",
    "Multiplicative",
    "NearestNeighbors",
    "NonnegativeLeastSquares",
    "PFCBlock",
    "ProjectedGradient",
    "RMSprop",
    "RMSpropSLW",
    "ResidualPFC",
    "SlidingWindow",
    "Solution",
    "Truncated",
    "Unrolled",
    "Windowed",
    "__version__",
    "attend",
    "keep_nonnegative",
    "nnls",
    "reconstruction_loss",
    "record_couplings",
    "solve",
    "stack_models",
    "unstack_models",
]
