"""Several processes share the batches of every experiment that can be shared, and find what one process finds."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.paper.made import context, numbers
from tests.processes import finish, start_twice
from torchpfc.paper import experiments
from torchpfc.paper.devices import open_fabric
from torchpfc.paper.registry import Job
from torchpfc.paper.results import Result, job_key, load_results
from torchpfc.paper.runner import Context, make_groups, run_groups
from torchpfc.paper.settings import settings

pytest.importorskip("sklearn")  # brings the digits

REFUSING = {
    "split-mnist": [
        *("T3*.NCM", "T3*.LDA", "T3*.RFF", "*PARTS*"),
        *(f"{table}.{use}" for table in ("RATES.*", "STRENGTH.*") for use in ("code*", "square*", "mean*", "age*")),
    ],
    "ordered-mnist": ["T4.PARTS.*"],
    "copy-task": ["COPY.NMF.*", "COPY.SEMI.*", "COPYN.*"],
    "repeating-sequence": ["*"],
    "separation": ["*.NMF", "*.MIX", "*.IRM", "*.PHASE"],
    "sequential-mnist": ["T7.NMF.*"],
    "unlearning": ["EXACT.*"],
}
"""Rows of what has no gradients that could be averaged over parts of a batch, or one sequence alone, or whose rates go
by the codes of whole batches."""

SHARED = {
    "mlp-image": ["T1.M.300"],
    "pfc-image": ["T2.M.300.N.r"],
    "residual-image": ["T6.M.300"],
    "ood-image": ["OOD.M.r"],
    "split-mnist": ["T3.PFC", "T3.MLP"],
    "ordered-mnist": ["T4.SLW.IID", "T4.MLP.ORD"],
    "copy-task": ["COPY.FAC.BPTT.5", "COPY.LSTM.5"],
    "separation": ["SEP.FAC.256"],
    "sequential-mnist": ["T7.FAC.YES.512.N", "T7.VAN.NO.512"],
    "unlearning": ["T5.BEFORE"],
}
"""Of every experiment that can be shared, a row of each kind of model."""

CASES = [(name, row) for name, ids in SHARED.items() for row in ids]


def config_of(name: str, id: str) -> Any:
    """The settings of a row, for a run of a moment."""
    return next(row for table in experiments()[name].tables for row in table.rows if row.id == id).config.smoke()


def test_experiments_that_cannot_be_shared_say_so_and_all_others_are_tried() -> None:
    for name, experiment in experiments().items():
        rows = [row for table in experiment.tables for row in table.rows]
        for row in rows:
            refuses = any(fnmatchcase(row.id, pattern) for pattern in REFUSING.get(name, ()))
            assert (row.config.shared_batch() == 1) == refuses, row.id
            if refuses:
                with pytest.raises(ValueError, match=f"^devices must be 1 for {name} with .*, got 2$"):
                    make_groups([(experiment, [Job(row.config, 0)])], processes=2)
        assert name in SHARED or all(row.config.shared_batch() == 1 for row in rows)


# What each process learns from


class Seen(Exception):
    """Ends a run that has shown its batches."""


class Part:
    """One of several processes, without the others."""

    def __init__(self, fabric: Any, part: int, parts: int) -> None:
        self._fabric, self.global_rank, self.world_size = fabric, part, parts
        self.is_global_zero = part == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fabric, name)


def context_of(folder: Path, part: int, parts: int, **options: Any) -> Context:
    """What one of several processes is told."""
    alone = context(folder, test=False, **options)
    return replace(alone, fabric=cast("Any", Part(alone.fabric, part, parts)))


def batches_of(name: str, row: str, folder: Path, part: int, parts: int) -> list[Any]:
    """The batches of the first round from which one of some processes learns."""
    found: list[Any] = []

    def look(model: Any, optimizer: Any, batches: Any, *_: Any, **options: Any) -> Any:
        batches.set_epoch(options["first_epoch"])
        found.extend(batches)
        raise Seen

    config, run = config_of(name, row), context_of(folder, part, parts)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Seen):
        patch.setattr("torchpfc.paper.learners.fit", look)
        list(experiments()[name].run([Job(config, 0), Job(config, 1)], run))
    return found


@pytest.mark.parametrize(("name", "row"), CASES)
def test_each_of_two_processes_learns_from_its_half_of_every_batch(name: str, row: str, tmp_path: Path) -> None:
    whole, *halves = (batches_of(name, row, tmp_path, part, parts) for part, parts in ((0, 1), (0, 2), (1, 2)))
    size = config_of(name, row).shared_batch()
    assert len(whole) == len(halves[0]) == len(halves[1]) > 0
    for batch, *parts in zip(whole, *halves, strict=True):
        assert batch.x.shape[1] == batch.target.shape[1] == size
        for place, part in enumerate(parts):
            assert part.x.shape[1] == part.target.shape[1] == size // 2
            assert torch.equal(part.x, batch.x[:, place::2]) and torch.equal(part.target, batch.target[:, place::2])


def test_one_of_two_processes_keeps_the_model(tmp_path: Path) -> None:
    job = Job(config_of("separation", "SEP.FAC.256"), 0)
    for part in (1, 0):
        run = context_of(tmp_path / str(part), part, 2, models=tmp_path / "models")
        list(experiments()["separation"].run([job], run))
        assert (tmp_path / "models").exists() == (part == 0)


# What they find


def run_all(folder: Path, processes: int) -> None:
    """Runs every case."""
    requests = [(experiments()[name], [Job(config_of(name, row), 0)]) for name, row in CASES]
    groups = make_groups(requests, processes=processes)
    run_groups(groups, open_fabric("cpu", "64", processes), folder, test=False, precision="64")


def by_key(folder: Path) -> dict[str, Result]:
    return {result.key: result for result in load_results(folder)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Result], dict[str, Result]]:
    """Results of one process, and of two."""
    folder = tmp_path_factory.mktemp("shared")
    pair = start_twice(run_all, (folder / "two", 2), folder / "two.txt")
    run_all(folder / "one", 1)
    for rank, process in enumerate(pair):
        finish(process, folder / f"two.{rank}")
    return by_key(folder / "one"), by_key(folder / "two")


@pytest.mark.parametrize(("name", "row"), CASES)
def test_two_processes_find_what_one_finds(name: str, row: str, found: Any) -> None:
    key = job_key(name, settings(config_of(name, row)), 0)
    one, two = (numbers(results[key]) for results in found)
    assert found[1][key].hardware["processes"] == 2 and one["metrics"].keys() == two["metrics"].keys()
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-5, nan_ok=True)
    assert two["curves"].keys() == one["curves"].keys()
    for curve in one["curves"]:
        assert two["curves"][curve] == pytest.approx(one["curves"][curve], rel=1e-5, nan_ok=True)
