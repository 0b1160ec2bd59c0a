"""What can be run, under which name, and what the paper got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torchpfc.paper.settings import settings

if TYPE_CHECKING:
    from torchpfc.paper.results import Result
    from torchpfc.paper.runner import Context


class Config(Protocol):
    """The settings of an experiment: a frozen dataclass whose defaults are the paper's values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def smoke(self) -> Config:
        """The same on tiny data for a moment: everything runs, nothing is learned."""

    def stack_key(self) -> object:
        """Equal for configs whose models can be trained at once, as one stack."""

    def stack_size(self) -> int:
        """How many models to train at once, at most."""

    def cost(self) -> float:
        """About how long a run may take, in no particular unit."""

    def shared_batch(self) -> int:
        """How many examples of a batch processes can divide among them; 1 where they cannot."""


@dataclass(frozen=True)
class Job:
    """One model to train: a config and a seed."""

    config: Any
    """A `Config`, with settings that the experiment alone knows."""
    seed: int


@dataclass(frozen=True)
class Row:
    """One line of a table: what to run, and what the paper got."""

    id: str
    """Such as T2.M.300.N.r."""
    config: Config
    """With the paper's settings; presets change them."""
    paper: float | None = None
    """The paper's number; None where it has none."""
    slack: float = 0.0
    """How far from the paper's number, on the worse side, still counts as met."""
    seeds: int = 1
    """How many runs the table asks for."""
    metric: str = ""
    """Which metric the row compares, if not that of its table."""
    what: str = ""
    """The row in words, where its settings alone would say too much or too little."""
    under: str = ""
    """What a row in words shares with others, which stand together with it."""
    lower_is_better: bool = False
    """As for errors."""
    ours: bool = False
    """Whether the settings are ours, and the paper's number is that of another row."""


@dataclass(frozen=True)
class Cited:
    """A line of a table that is not run: a number that the paper cites from other work."""

    id: str
    what: str
    value: str


@dataclass(frozen=True)
class Ratio:
    """How many times the number of one row that of another is, in the paper."""

    row: str
    other: str
    paper: float


@dataclass(frozen=True)
class Table:
    """Rows that belong together."""

    id: str
    """What the ids of its rows begin with, up to a point."""
    title: str
    rows: tuple[Row, ...]
    metric: str = "test_accuracy"
    """Which of the metrics of a result the table compares."""
    note: str = ""
    over: str = ""
    """A setting over which a figure shows the metric; none where it is empty."""
    cited: tuple[Cited, ...] = ()
    """Numbers from other work, to stand below the rows."""
    ratios: tuple[Ratio, ...] = ()
    """What is said below the rows of two of them."""


@dataclass(frozen=True)
class Experiment:
    """Something that can be run under a name."""

    name: str
    summary: str
    config: type
    run: Callable[[Sequence[Job], Context], Iterator[Result]]
    """Trains all jobs, which share one stack key, at once."""
    presets: Mapping[str, Callable[[Any], Any]]
    """Changes of a config, by name; "paper" leaves it alone."""
    tables: tuple[Table, ...] = ()
    package: str = ""
    """What it needs beside what all experiments need."""


# Where each experiment of the paper is defined; a module registers what it defines when it is imported.
_MODULES = {
    "mlp-image": "images",
    "pfc-image": "images",
    "residual-image": "images",
    "ood-image": "images",
    "split-mnist": "continual_tables",
    "ordered-mnist": "continual_tables",
    "copy-task": "copy_task",
    "repeating-sequence": "repeating_sequence",
    "separation": "separation_tables",
    "sequential-mnist": "sequential_mnist",
    "unlearning": "unlearning",
}

_REGISTRY: dict[str, Experiment] = {}


def as_published(config: Any) -> Any:
    """The preset that leaves settings as they are."""
    return config


def register(experiment: Experiment) -> Experiment:
    """Adds an experiment to those that can be run."""
    if experiment.name in _REGISTRY:
        raise ValueError(f"name must be new, got {experiment.name!r}, which is registered already")
    _REGISTRY[experiment.name] = experiment
    return experiment


def find_experiment(name: str) -> Experiment:
    """One experiment; the modules of others are not imported.

    Args:
        name: That of one of the paper's experiments, or of one that was registered.
    """
    if name not in _REGISTRY:
        if name not in _MODULES:
            raise ValueError(f"the experiment must be one of {', '.join({**_MODULES, **_REGISTRY})}, got {name!r}")
        import_module(f"torchpfc.paper.{_MODULES[name]}")
    return _REGISTRY[name]


def experiments() -> Mapping[str, Experiment]:
    """All experiments by name."""
    return {name: find_experiment(name) for name in {**_MODULES, **_REGISTRY}}


def rows_of(experiment: Experiment, result: Result) -> list[tuple[Row, str]]:
    """The rows that a result belongs to, each with the preset that made it so."""
    return [
        (row, name)
        for table in experiment.tables
        for row in table.rows
        for name, preset in experiment.presets.items()
        if result.experiment == experiment.name and result.config == settings(preset(row.config))
    ]
