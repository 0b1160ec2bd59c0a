"""Processes that tests start and kill."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# To import everything takes seconds. A server does it once and forks a process of its own for each call; it has none of
# the threads that make forking this process a gamble.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torchpfc.cli", "torchpfc.paper.images", "lightning_fabric", "safetensors.torch", "sklearn.model_selection"]
)


def start(
    function: Callable[..., object],
    arguments: Sequence[object],
    output: Path,
    environment: dict[str, str] | None = None,
) -> BaseProcess:
    """Calls a function in a process of its own, with one thread, writing to a file; it ends with what is returned."""
    process = FORKS.Process(target=_call, args=(function, arguments, output, environment or {}), daemon=True)
    process.start()
    return process


def start_twice(function: Callable[..., object], arguments: Sequence[object], output: Path) -> list[BaseProcess]:
    """Calls a function in two processes that know of each other, as a launcher would."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    return [
        start(function, arguments, output.with_suffix(f".{rank}"), {**shared, "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]


def start_command(arguments: Sequence[object], output: Path, environment: dict[str, str] | None = None) -> BaseProcess:
    """Starts the command line."""
    return start(_run_command, [*map(str, arguments)], output, environment or {})


def start_command_twice(arguments: Sequence[object], output: Path) -> list[BaseProcess]:
    """Starts the command line in two processes."""
    return start_twice(_run_command, [*map(str, arguments)], output)


def finish(process: BaseProcess, output: Path) -> str:
    """Waits for a command to end well, and returns what it wrote."""
    process.join(120)
    written = output.read_text()
    assert process.exitcode == 0, written
    return written


def _call(function: Callable[..., Any], arguments: Sequence[object], output: Path, environment: dict[str, str]) -> None:
    import torch

    os.environ.update(environment)
    torch.set_num_threads(1)
    with output.open("w", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        status = function(*arguments)
    sys.exit(status)


def _run_command(*arguments: str) -> int:
    from torchpfc.cli import main

    return main(arguments)
