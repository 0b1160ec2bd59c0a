"""What is done to a folder while something goes wrong, and how to read what is there then.

Each operation starts from a folder that `prepare` has filled, and goes in a process of its own, `act`. `read` says what
the folder holds, by name, and raises where something in it cannot be read: each of these must be as it was before, or
as it is after an operation that nothing has disturbed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.paper.made import TIMES
from torchpfc import PFCBlock
from torchpfc.checkpoint import load_checkpoint
from torchpfc.cli import main
from torchpfc.optim.ledger import Ledger
from torchpfc.unlearning import fingerprint, load_model, save_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "0.1.0"

State = Mapping[str, object]


@dataclass(frozen=True)
class Operation:
    """Something that changes a folder."""

    prepare: Callable[[Path], object]
    act: Callable[[Path], int]
    read: Callable[[Path], State]
    once: bool = False
    """Whether doing it again, where it was done, is refused."""


def where_it_can(function: Callable[..., object], *arguments: object) -> int:
    """Calls a function that says with an exception what the command line says with its status."""
    try:
        function(*arguments)
    except OSError:
        return 2
    return 0


def digest(*values: Any) -> str:
    """A checksum of tensors, arrays and plain values."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor | np.ndarray):
            array = np.asarray(value)
            found.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        elif isinstance(value, Mapping):
            for key in value:
                found.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            found.update(f"{len(value)}".encode())
            for item in value:
                add(item)
        else:
            found.update(repr(value).encode())

    add(values)
    return found.hexdigest()


# Runs

SMALL = {"dataset": "digits", "num_basis": 6, "iterations": 3, "eval_iterations": 4, "batch_size": 200, "epochs": 3}
REPLAYED = {**SMALL, "width": 2, "sweep_speed": 0.5, "start": 1, "stop": 3, "snapshot_every": 2, "replay": "true"}
REPLAYED |= {"relearn_steps": 0, "epochs": 2}


def run(name: str, folder: Path, settings: Mapping[str, object], *options: str) -> int:
    changes = [f"--set={key}={value}" for key, value in settings.items()]
    where = ["--device", "cpu", "--precision", "64", "--results", str(folder / "results"), "--checkpoint-seconds", "0"]
    return main(["run", name, *changes, *where, *options])


def run_image(folder: Path) -> int:
    return run("pfc-image", folder, SMALL, "--seeds", "2")


def run_replay(folder: Path) -> int:
    return run("unlearning", folder, REPLAYED, "--models", str(folder / "models"))


def read_results(folder: Path) -> State:
    """The numbers of all results but times, and the models that were kept."""
    found: dict[str, object] = {}
    for path in folder.glob("results/*/*.json"):
        if path.parent.name != "unfinished":
            content = json.loads(path.read_text())
            metrics = {name: value for name, value in content["metrics"].items() if name not in TIMES}
            found[path.name] = digest(content["config"], content["seed"], metrics, content["curves"])
    for path in folder.glob("models/*/state.json"):
        found["model"] = read_model(path.parent)["model"]
    return found


# Models with a ledger


def make_model(folder: Path, seed: int) -> None:
    ledger = Ledger()
    for id in range(6):
        ledger.record(id, range(id, id + 3), rows=[2 * id, 2 * id + 1])
    save_model(folder, PFCBlock(5, 2, 10, generator=torch.Generator().manual_seed(seed)), ledger, {"seed": seed})


def two_models(folder: Path) -> None:
    make_model(folder, 0)
    make_model(folder.with_name(f"{folder.name}-new"), 1)


def save(folder: Path) -> int:
    new = load_model(folder.with_name(f"{folder.name}-new"))
    return where_it_can(save_model, folder, new.block, new.ledger, new.about)


def forget(folder: Path) -> int:
    return main(["forget", str(folder), "--batches", "1", "--how", "remove"])


def forget_exactly(folder: Path) -> int:
    return main(["forget", str(folder), "--batches", "3", "--exact", "--device", "cpu"])


def read_model(folder: Path) -> State:
    """Weights, ledger and snapshots of a model: they belong together, so they are one."""
    block, ledger, about = load_model(folder)
    place = folder / about.pop("snapshots", "snapshots")
    kept: list[Any] = [fingerprint(block), ledger.state_dict(), about]
    if place.is_dir():
        index = json.loads((place / "snapshots.json").read_text())
        kept += [index, *(load_checkpoint(place / f"{step:08d}") for step, *_ in index["moments"])]
        assert None not in kept  # a snapshot that the index names is there
    return {"model": digest(*kept)}


# Estimators


def two_estimators(folder: Path) -> None:
    shutil.copytree(FIXTURES / "estimators" / "PFCClassifier", folder)
    shutil.copytree(FIXTURES / "estimators" / "partial_fit", folder.with_name(f"{folder.name}-new"))


def save_estimator(folder: Path) -> int:
    from torchpfc.sklearn import PFCClassifier

    return where_it_can(PFCClassifier.from_pretrained(folder.with_name(f"{folder.name}-new")).save_pretrained, folder)


def read_estimator(folder: Path) -> State:
    from torchpfc.sklearn import PFCClassifier

    return {"estimator": digest(PFCClassifier.from_pretrained(folder).predict_proba(np.full((2, 6), 0.3)))}


# Reports and downloads


def results_of_a_row(folder: Path) -> None:
    from tests.paper.report.made import result

    result(seed=0).save(folder / "results")
    make_report(folder)
    result(seed=1).save(folder / "results")


def make_report(folder: Path) -> int:
    from tests.paper.report.made import EXPERIMENT, by_name
    from torchpfc.paper import report

    places = folder / "results", folder / "out"
    return where_it_can(lambda: report.make_report(*places, experiments=by_name(EXPERIMENT)))


def read_report(folder: Path) -> State:
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in folder.glob("out/**/[!.]*.*")}


FILES = {f"{name}.gz": np.random.default_rng(k).bytes(300_000) for k, name in enumerate(("one", "two"))}
PIECE = 30_000


def get_data(folder: Path) -> int:
    from torchpfc.data import download

    address = folder.with_suffix(".address").read_text()
    download.DOWNLOADS = {
        "mnist": tuple(
            download.RemoteFile(f"mnist/{name}", hashlib.sha256(content).hexdigest(), (f"{address}/{name}",))
            for name, content in FILES.items()
        )
    }
    return main(["data", "get", "mnist", "--data-dir", str(folder)])


def read_data(folder: Path) -> State:
    return {path.name: digest(path.read_bytes()) for path in folder.glob("mnist/*.gz")}


OPERATIONS = {
    "run": Operation(Path.mkdir, run_image, read_results),
    "run --models": Operation(Path.mkdir, run_replay, read_results),
    "save a model": Operation(two_models, save, read_model),
    "forget": Operation(lambda folder: make_model(folder, 0), forget, read_model, once=True),
    "forget --exact": Operation(
        lambda folder: shutil.copytree(FIXTURES / "models" / "unlearning-0", folder),
        forget_exactly,
        read_model,
        once=True,
    ),
    "save an estimator": Operation(two_estimators, save_estimator, read_estimator),
    "report": Operation(results_of_a_row, make_report, read_report),
    "data get": Operation(Path.mkdir, get_data, read_data),
}
