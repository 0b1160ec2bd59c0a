"""Runs that are killed, and runs of several processes, through the command line."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.paper.made import TIMES
from tests.processes import finish, start_command, start_command_twice

pytest.importorskip("sklearn")

RUN = ["run", "pfc-image", "--device", "cpu", "--seeds", "2"]
SMALL = {
    "dataset": "digits",
    "num_basis": 8,
    "iterations": 4,
    "eval_iterations": 5,
    "batch_size": 100,
    "lr": 0.003,
    "warm_codes": "true",
}


def options(results: Path, **settings: Any) -> list[object]:
    """Arguments of a small run, with a checkpoint after every epoch."""
    chosen = [part for key, value in (SMALL | settings).items() for part in ("--set", f"{key}={value}")]
    return [*RUN, "--checkpoint-seconds", 0, "--results", results, *chosen]


def numbers(results: Path) -> dict[str, Any]:
    """All of the results but times, by file."""
    found = {}
    for path in results.glob("pfc-image/*.json"):
        content = json.loads(path.read_text())
        metrics = {name: value for name, value in content["metrics"].items() if name not in TIMES}
        found[path.name] = (content["config"], content["seed"], metrics, content["curves"])
    return found


def checkpoints(results: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in results.glob("unfinished/*/state.json")}


def wait_for_another(results: Path, before: dict[Path, int], process: Any) -> None:
    """Waits until a checkpoint has been written."""
    while checkpoints(results) in (before, {}):
        assert process.is_alive() if hasattr(process, "is_alive") else process.poll() is None
        time.sleep(0.005)


def test_a_run_killed_twice_ends_in_the_same_numbers(tmp_path: Path) -> None:
    length = {"epochs": 30, "patience": 4}
    reference = start_command(options(tmp_path / "reference", **length), tmp_path / "reference.txt")
    chance = random.Random(1)
    for k in range(2):
        before = checkpoints(tmp_path / "killed")
        process = start_command(options(tmp_path / "killed", **length), tmp_path / f"{k}.txt")
        wait_for_another(tmp_path / "killed", before, process)
        time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL and not numbers(tmp_path / "killed")
    last = start_command(options(tmp_path / "killed", **length), tmp_path / "last.txt")
    assert "2 run, 0 had results already" in finish(last, tmp_path / "last.txt")
    finish(reference, tmp_path / "reference.txt")
    expected = numbers(tmp_path / "reference")
    assert len(expected) == 2 and numbers(tmp_path / "killed") == expected
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["pfc-image"]
    again = start_command(options(tmp_path / "killed", **length), tmp_path / "again.txt")
    assert "0 run, 2 had results already" in finish(again, tmp_path / "again.txt")


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_in_the_same_numbers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchpfc"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    settings = {"epochs": 400, "patience": 400}

    def start(results: Path) -> subprocess.Popen[bytes]:
        arguments = [*command, *map(str, options(results, **settings))]
        return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    reference = start(tmp_path / "reference")
    chance, results = random.Random(2), tmp_path / "killed"
    for k in range(20):
        before = checkpoints(results)
        process = start(results)
        if k % 5:
            wait_for_another(results, before, process)
            time.sleep(chance.uniform(0.0, 0.5))
        else:
            time.sleep(chance.uniform(0.0, 8.0))  # also while it starts
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not numbers(results)
    assert start(results).wait() == 0 and reference.wait() == 0
    expected = numbers(tmp_path / "reference")
    assert len(expected) == 2 and numbers(results) == expected
    assert [path for path in results.rglob("*") if path.is_file()] == list(results.glob("pfc-image/*.json"))


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys() and len(one) == 2
    for name in one:
        _, _, metrics, curves = one[name]
        _, _, their_metrics, their_curves = other[name]
        assert metrics == pytest.approx(their_metrics, rel=1e-7)
        assert curves.keys() == their_curves.keys()
        for curve in curves:
            assert curves[curve] == pytest.approx(their_curves[curve], rel=1e-7)


@pytest.mark.parametrize("warm_codes", ["true", "false"])
def test_two_processes_find_what_one_finds(warm_codes: str, tmp_path: Path) -> None:
    # Patience and seeds such that one model stops before the other.
    settings = {"epochs": 6, "patience": 1, "lr": 0.01, "warm_codes": warm_codes}
    alone = start_command([*options(tmp_path / "one", **settings), "--precision", "64"], tmp_path / "one.txt")
    pair = start_command_twice(
        [*options(tmp_path / "two", **settings), "--precision", "64", "--devices", 2], tmp_path / "two.txt"
    )
    for rank, process in enumerate(pair):
        written = finish(process, tmp_path / f"two.{rank}")
        assert ("2 run" in written) == (rank == 0)  # one of them speaks for both
    finish(alone, tmp_path / "one.txt")
    assert_close(numbers(tmp_path / "two"), numbers(tmp_path / "one"))
    lengths = {metrics["epochs"] for _, _, metrics, _ in numbers(tmp_path / "one").values()}
    assert len(lengths) == 2


def test_two_processes_go_on_together(tmp_path: Path) -> None:
    settings = {"epochs": 10, "patience": 10}
    alone = start_command([*options(tmp_path / "one", **settings), "--precision", "64"], tmp_path / "one.txt")
    arguments = [*options(tmp_path / "two", **settings), "--precision", "64", "--devices", 2]
    pair = start_command_twice(arguments, tmp_path / "first.txt")
    wait_for_another(tmp_path / "two", {}, pair[0])
    for process in pair:
        process.kill()
        process.join()
    assert not numbers(tmp_path / "two")
    for rank, process in enumerate(start_command_twice(arguments, tmp_path / "second.txt")):
        finish(process, tmp_path / f"second.{rank}")
    finish(alone, tmp_path / "one.txt")
    assert_close(numbers(tmp_path / "two"), numbers(tmp_path / "one"))


def test_the_command_line_starts_its_second_process_itself(tmp_path: Path) -> None:
    arguments = [*RUN, "--smoke", "--devices", "2", "--precision", "64"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "torchpfc", *arguments],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 run, 0 had results already\n"
    assert done.stderr.count("seed 0: test") == done.stderr.count("seed 1: test") == 1
    assert list(tmp_path.iterdir()) == []
