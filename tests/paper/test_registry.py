from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from torchpfc.paper import registry
from torchpfc.paper.registry import Experiment, Row, Table, experiments, find_experiment, register, rows_of
from torchpfc.paper.results import Result
from torchpfc.paper.settings import settings


@dataclass(frozen=True)
class Sized:
    size: int = 1

    def smoke(self) -> "Sized":
        return self

    def stack_key(self) -> object:
        return self.size

    def stack_size(self) -> int:
        return 2

    def shared_batch(self) -> int:
        return int(getattr(self, "batch_size", 1))

    def cost(self) -> float:
        return float(self.size)


def nothing(*_: Any) -> Iterator[Result]:
    return iter(())


PRESETS: dict[str, Any] = {"paper": lambda config: config, "fast": lambda config: Sized(config.size * 10)}
TABLES = (
    Table("A", "first", (Row("A.1", Sized(1), 90.0), Row("A.2", Sized(2)))),
    Table("B", "second", (Row("B.1", Sized(1)), Row("B.10", Sized(10)))),
)
MADE = Experiment("made", "made up", Sized, nothing, PRESETS, TABLES)


def result(size: int, experiment: str = "made") -> Result:
    return Result(experiment=experiment, config={"size": size}, seed=0, metrics={})


def test_a_result_belongs_to_every_row_with_its_settings() -> None:
    found = [[(row.id, preset) for row, preset in rows_of(MADE, result(size))] for size in (1, 2, 10, 20, 3)]
    assert found == [
        [("A.1", "paper"), ("B.1", "paper")],
        [("A.2", "paper")],
        [("A.1", "fast"), ("B.1", "fast"), ("B.10", "paper")],
        [("A.2", "fast")],
        [],
    ]
    assert rows_of(MADE, result(1, "another")) == []


def test_a_name_can_be_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(experiments()))
    assert register(MADE) is MADE
    assert experiments()["made"] is MADE
    with pytest.raises(ValueError, match="name must be new, got 'made', which is registered already"):
        register(MADE)


def test_settings_are_plain_values() -> None:
    assert settings(Sized(3)) == {"size": 3}


def test_experiments_are_found_where_they_are_said_to_be() -> None:
    for name, experiment in experiments().items():
        assert experiment is find_experiment(name) and experiment.name == name
    with pytest.raises(ValueError, match=r"the experiment must be one of mlp-image, .*, got 'pfc-images'"):
        find_experiment("pfc-images")


def test_the_paper_has_83_numbers_and_two_of_them_are_tried_with_settings_of_ours_too() -> None:
    rows = [row for each in experiments().values() for table in each.tables for row in table.rows]
    compared = [row for row in rows if row.paper is not None]
    assert sum(not row.ours for row in compared) == 83
    assert [row.id for row in compared if row.ours] == ["T3.SLW.tuned", "T4.SLW.ORD.accurate"]
