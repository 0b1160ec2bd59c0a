import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from torchpfc.checkpoint import CorruptFileError
from torchpfc.machine import describe_hardware, describe_versions
from torchpfc.paper.results import Result, job_key, load_results, result_path

CONFIG = {"lr": 3e-4, "dataset": "mnist", "nonnegative": True, "num_basis": 300}


def make(**changes: Any) -> Result:
    given: dict[str, Any] = {"experiment": "pfc-image", "config": CONFIG, "seed": 0, "metrics": {"test_accuracy": 96.8}}
    return Result(**{**given, **changes})


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    result = make(
        curves={"valid_loss": [0.1, 0.2]},
        images={"weights": "iVBO"},
        data={"mnist": "abc"},
        versions=describe_versions(),
        hardware=describe_hardware(torch.device("cpu")),
        seconds=1.5,
    )
    path = result.save(tmp_path)
    assert path == tmp_path / "pfc-image" / f"{result.key}.json"
    assert Result.load(path) == result
    assert load_results(tmp_path) == [result]


def test_the_key_is_that_of_the_settings_and_the_seed() -> None:
    key = make().key
    assert key == job_key("pfc-image", dict(reversed(CONFIG.items())), 0) == make(metrics={}, seconds=9.0).key
    others = [make(seed=1), make(experiment="ood-image"), *(make(config={**CONFIG, name: 7}) for name in CONFIG)]
    assert len({key, *(other.key for other in others)}) == 2 + 1 + len(CONFIG)
    assert result_path(Path("r"), "pfc-image", CONFIG, 0) == Path("r/pfc-image") / f"{key}.json"


def test_the_key_of_a_config_does_not_change_from_version_to_version() -> None:
    text = b'["pfc-image", {"b": 1, "lr": 0.0003}, 0]'
    assert job_key("pfc-image", {"lr": 3e-4, "b": 1}, 0) == hashlib.sha256(text).hexdigest()[:16]


def test_numbers_that_are_none_are_null_in_the_file(tmp_path: Path) -> None:
    odd = make(metrics={"a": math.nan, "b": math.inf, "c": 1}, curves={"loss": [1.0, math.nan], "pair": (2.0, 3.0)})
    path = odd.save(tmp_path)

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    content = json.loads(path.read_text(), parse_constant=refuse)
    assert content["metrics"] == {"a": None, "b": None, "c": 1} and content["curves"]["loss"] == [1.0, None]
    found = Result.load(path)
    assert math.isnan(found.metrics["a"]) and math.isnan(found.metrics["b"]) and found.metrics["c"] == 1
    assert math.isnan(found.curves["loss"][1]) and found.curves["pair"] == [2.0, 3.0]


def test_fields_that_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"experiment": "a", "config": {}, "seed": 1, "metrics": {}}))
    assert Result.load(path) == Result(experiment="a", config={}, seed=1, metrics={})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "must hold JSON"),
        (lambda text: "", "must hold JSON"),
        (lambda text: "[]", "must hold a JSON object, got a list"),
        (
            lambda text: text.replace('"seed"', '"sead"'),
            r"must hold a result, got missing or wrong fields \['seed', 'sead'\]",
        ),
        (lambda text: text.replace('"seconds"', '"minutes"'), r"fields \['minutes'\]; delete it"),
        (lambda text: text.replace('"seed": 0', '"seed": "0"'), r"fields \['seed'\]"),
        (lambda text: text.replace('"curves": {}', '"curves": []'), r"fields \['curves'\]"),
    ],
)
def test_a_file_that_is_no_result_is_named(change: Any, message: str, tmp_path: Path) -> None:
    path = make().save(tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(CorruptFileError, match=f"{path} {message}|{path}.*{message}"):
        load_results(tmp_path)


def test_only_results_are_read(tmp_path: Path) -> None:
    make().save(tmp_path)
    for name in ("unfinished/0123/state.json", "pfc-image/.abc.json.77", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    assert len(load_results(tmp_path)) == 1
    assert load_results(tmp_path / "nowhere") == []
