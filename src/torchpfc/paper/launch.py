"""Running experiments from Python, and for the command line: rows of tables, or settings of one's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from torchpfc.paper.devices import open_fabric, stop_processes
from torchpfc.paper.registry import Experiment, Job, find_experiment
from torchpfc.paper.results import Result, load_result
from torchpfc.paper.runner import make_groups, path_of, run_groups
from torchpfc.paper.settings import change, change_settings

Settings = Mapping[str, Any] | Sequence[str]
"""Settings to change: values by name, or texts of the form `key=value` as on the command line."""


class RequestError(ValueError):
    """What was asked for cannot be run; the message says why. Nothing has been done."""


class Finished(NamedTuple):
    """What came of a run."""

    results: list[Result]
    """One for each model that has one, in the order in which they were asked for."""
    new: int
    """How many of these were trained now; the others were there already."""
    folder: Path | None
    """Where the results are; None where none are kept."""
    left: int = 0
    """How many have no result yet, because another process runs them at the moment."""


def run(
    experiment: str | Sequence[str],
    rows: Sequence[str] = (),
    *,
    settings: Settings = (),
    preset: str = "paper",
    seeds: int | None = None,
    device: str = "auto",
    devices: int = 1,
    precision: str = "tf32",
    results: Path | str = "results",
    data_dir: Path | None = None,
    test: bool = True,
    smoke: bool = False,
    checkpoint_seconds: float = 60.0,
    models: Path | None = None,
    describe: Callable[[Result], str] = lambda result: result.key,
) -> Finished:
    """Trains all that has no result yet, goes on with what was stopped, and returns all results.

    Args:
        experiment: Its name, one of `experiments()`; or several.
        rows: Ids of rows of its tables, in which * stands for anything; without, it runs with its own settings.
        settings: Settings to change: values by name, or texts such as "lr=0.1".
        preset: "paper" for the settings of the paper, "fast" for those that take less time.
        seeds: How many runs, with seeds from 0; by default 1, and for rows what the table asks for.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        devices: Processes that share each batch.
        precision: Of the arithmetic: "tf32", "32", "64" or "bf16".
        results: Folder of the results.
        data_dir: Folder of the data sets; by default $TORCHPFC_DATA, or what was downloaded.
        test: Whether to measure on test data. Without, results go to `validation` inside their folder: what was chosen
            without test data would count as done otherwise, and be reported.
        smoke: Try that all of it works, in seconds, and keep no results.
        checkpoint_seconds: Time between two savings of what is needed to go on.
        models: Where to keep trained models, for experiments that can.
        describe: What to print of a new result.

    Example:
        >>> ran = run("copy-task", ["COPY.NMF.5"], settings={"num_basis": 20}, smoke=True, device="cpu")
        >>> [result.config["pause"] for result in ran.results]
        [2]
    """
    names = [experiment] if isinstance(experiment, str) else experiment
    try:
        asked = [(find_experiment(name), make_jobs(name, rows, settings, preset, seeds, smoke=smoke)) for name in names]
        if not any(jobs for _, jobs in asked):
            raise ValueError(f"rows must match ids that `torchpfc list NAME` shows, got {' '.join(rows)}")
        groups = make_groups(asked, processes=devices)
        fabric = open_fabric(device, precision, devices)
    except ValueError as error:
        raise RequestError(str(error)) from error
    if models is not None:  # before the hours that come before there is a model
        models.mkdir(parents=True, exist_ok=True)
        if not os.access(models, os.W_OK):
            raise RequestError(f"models must be a folder that can be written to, got {models}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if smoke else Path(results) if test else Path(results) / "validation"
        try:
            new = run_groups(
                groups,
                fabric,
                folder,
                data_dir=data_dir,
                test=test,
                precision=precision,
                checkpoint_seconds=checkpoint_seconds,
                models=models,
                describe=describe,
            )
        except BaseException:
            stop_processes(fabric)
            raise
        known = {result.key: result for result in new}
        paths = [path_of(folder, one, job) for one, jobs in asked for job in dict.fromkeys(jobs)]
        there = [path for path in paths if path.stem in known or path.exists()]
        found = [known[path.stem] if path.stem in known else load_result(path) for path in there]
    return Finished(found, len(new), None if smoke else folder, len(paths) - len(found))


def make_jobs(
    name: str,
    rows: Sequence[str] = (),
    settings: Settings = (),
    preset: str = "paper",
    seeds: int | None = None,
    *,
    smoke: bool = False,
) -> list[Job]:
    """The models that `run` would train of one experiment; none where no row matches."""
    experiment = find_experiment(name)
    if preset not in experiment.presets:
        raise ValueError(f"preset must be one of {', '.join(experiment.presets)}, got {preset!r}")
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    chosen = [(experiment.config(), 1)] if not rows else _chosen(experiment, rows)
    jobs = []
    for config, count in chosen:
        # Twice: a preset may depend on a setting, and a setting goes before a preset.
        config = _changed(experiment.presets[preset](_changed(config, settings)), settings)
        jobs += [Job(config.smoke() if smoke else config, seed) for seed in range(seeds or (1 if smoke else count))]
    return jobs


def _chosen(experiment: Experiment, patterns: Sequence[str]) -> list[tuple[Any, int]]:
    """The configs of all rows whose ids match, each with the number of runs that its table asks for."""
    rows = [row for table in experiment.tables for row in table.rows]
    return [(row.config, row.seeds) for row in rows if any(fnmatchcase(row.id, pattern) for pattern in patterns)]


def _changed(config: Any, settings: Settings) -> Any:
    return change(config, **settings) if isinstance(settings, Mapping) else change_settings(config, settings)
