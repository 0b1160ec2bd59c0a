"""The paper's experiments: what can be run, running it, and the results."""

from torchpfc.paper.launch import run
from torchpfc.paper.registry import Experiment, Job, Row, Table, experiments
from torchpfc.paper.results import Result, load_results
from torchpfc.paper.runner import make_groups, run_groups
from torchpfc.paper.settings import change, change_settings

__all__ = [
    "Experiment",
    "Job",
    "Result",
    "Row",
    "Table",
    "change",
    "change_settings",
    "experiments",
    "load_results",
    "make_groups",
    "run",
    "run_groups",
]
