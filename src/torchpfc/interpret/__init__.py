"""What a model has learned: predictions taken apart, columns described, machines read from weights."""

from torchpfc.interpret.columns import (
    Column,
    ColumnReport,
    Matching,
    Stability,
    contained,
    dead_columns,
    describe_columns,
    duplicate_columns,
    match_parts,
    stability,
)
from torchpfc.interpret.explanation import Explanation, Term, counterfactual, explain
from torchpfc.interpret.recurrent import (
    Recurrent,
    State,
    Transition,
    TransitionGraph,
    column_order,
    columns_in_use,
    ordered_weights,
    transition_graph,
)
from torchpfc.interpret.waterfall import waterfall

__all__ = [
    "Column",
    "ColumnReport",
    "Explanation",
    "Matching",
    "Recurrent",
    "Stability",
    "State",
    "Term",
    "Transition",
    "TransitionGraph",
    "column_order",
    "columns_in_use",
    "contained",
    "counterfactual",
    "dead_columns",
    "describe_columns",
    "duplicate_columns",
    "explain",
    "match_parts",
    "ordered_weights",
    "stability",
    "transition_graph",
    "waterfall",
]
