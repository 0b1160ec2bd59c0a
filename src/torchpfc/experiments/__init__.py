"""The paper's experiments: what can be run, running it, and the results."""

from torchpfc.experiments.registry import Experiment, Job, Row, Table, experiments
from torchpfc.experiments.results import Result, load_results
from torchpfc.experiments.runner import make_groups, run_groups
from torchpfc.experiments.settings import change_settings

__all__ = [
    "Experiment",
    "Job",
    "Result",
    "Row",
    "Table",
    "change_settings",
    "experiments",
    "load_results",
    "make_groups",
    "run_groups",
]
