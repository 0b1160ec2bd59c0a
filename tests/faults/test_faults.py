"""Whatever happens to a process: nothing is lost, nothing is half, nothing is false."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest

from tests.faults import harm
from tests.faults.operations import FILES, OPERATIONS, PIECE, Operation, State
from tests.processes import start


class Handler(BaseHTTPRequestHandler):
    """Sends files, or the rest of them, in pieces and slowly."""

    def do_GET(self) -> None:
        content = FILES[self.path[1:]]
        begin = int((self.headers["Range"] or "bytes=0-")[6:-1])
        if begin >= len(content):
            return self.send_error(416)
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        for place in range(begin, len(content), PIECE):
            try:
                self.wfile.write(content[place : place + PIECE])
            except OSError:  # who asked was killed
                return None
            time.sleep(0.002)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def site() -> Iterator[str]:
    """A server on this machine, and its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "*")
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        patch.setattr(Place, "address", f"http://127.0.0.1:{server.server_port}")
        yield Place.address
        server.shutdown()
        thread.join()
        server.server_close()


class Place:
    """A folder in which an operation is tried, again and again."""

    address = ""

    def __init__(self, operation: Operation) -> None:
        self._scratch = TemporaryDirectory()
        self.operation, self.folder = operation, Path(self._scratch.name) / "folder"
        self.folder.with_suffix(".address").write_text(self.address)
        operation.prepare(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def act(self, how: Callable[..., int] = harm.undisturbed, what: int = 0, seconds: float | None = None) -> Any:
        """Acts in a process of its own, which is killed after some time if one is given; returns how it ended."""
        output = self.folder.with_suffix(".txt")
        process = start(how, (self.operation.act, self.folder, what), output, {"NO_PROXY": "*"})
        process.join(120 if seconds is None else seconds)
        if seconds is not None:
            process.kill()
            process.join()
        self.said = output.read_text() if output.exists() else ""
        assert "Traceback" not in self.said, self.said
        return process.exitcode

    def read(self) -> State:
        """What the folder holds."""
        return self.operation.read(self.folder)

    def names(self) -> list[str]:
        """The files that the folder holds, whichever numbers its snapshots and certificates have."""
        paths = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        return sorted({re.sub(r"(snapshots|certificate)-\d+", r"\1", path) for path in paths})


@dataclass(frozen=True)
class Known:
    """What an operation does where nothing disturbs it."""

    before: State
    after: State
    names: list[str]
    boundaries: int
    seconds: float


@cache
def know(name: str) -> Known:
    """Does it once, in peace."""
    with Place(OPERATIONS[name]) as place:
        before, begin = place.read() if list(place.folder.iterdir()) else {}, time.monotonic()
        assert place.act() == 0, place.said
        seconds, count = time.monotonic() - begin, int(place.folder.with_suffix(".count").read_text())
        after = place.read()
        assert after != before
        return Known(before, after, place.names(), count, seconds)


def check(place: Place, known: Known) -> None:
    """What is there is the old or the new, each for itself."""
    state = place.read()
    for name in known.before.keys() | known.after.keys() | state.keys():
        assert state.get(name) in (known.before.get(name), known.after.get(name)), name


def finish(place: Place, known: Known) -> None:
    """Done again, it ends as if nothing had happened."""
    status = place.act()
    assert status == 0 or (place.operation.once and status == 2), place.said
    assert place.read() == known.after
    assert place.names() == known.names


def try_kills_at(name: str, numbers: range) -> None:
    known = know(name)
    for number in numbers:
        with Place(OPERATIONS[name]) as place:
            assert place.act(harm.killed_at, number) == -signal.SIGKILL
            check(place, known)
            finish(place, known)


def try_random_kills(name: str, times: int, in_a_row: int) -> None:
    """Kills at any moment, some of them in the same folder before it may end."""
    known, chance = know(name), random.Random(name)
    for _ in range(times):
        with Place(OPERATIONS[name]) as place:
            for _ in range(in_a_row):
                place.act(seconds=chance.uniform(0.0, 1.2 * known.seconds))
                check(place, known)
            finish(place, known)


def try_refusals(name: str, how: Callable[..., int], whats: range) -> None:
    known = know(name)
    for what in whats:
        with Place(OPERATIONS[name]) as place:
            place.act(how, what)  # it may come to its end, where there was room for all that counts
            check(place, known)
            finish(place, known)


def spread(known: Known, count: int) -> range:
    """Some boundaries, of all."""
    return range(1, known.boundaries + 1, max(1, -(-known.boundaries // count)))


SIZES = range(100, 20_000, 4_000)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_few_faults_leave_the_old_or_the_new(name: str) -> None:
    third = max(1, know(name).boundaries // 3)
    try_kills_at(name, range(third, 2 * third + 1, third))
    try_random_kills(name, 1, 1)
    try_refusals(name, harm.full_from, range(third, third + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_kills_at_boundaries(name: str) -> None:
    try_kills_at(name, spread(know(name), 60))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_kills_at_random_moments(name: str) -> None:
    try_random_kills(name, 9, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("how", [harm.full_from, harm.read_only_from])
def test_a_disk_that_is_full_or_read_only(how: Callable[..., int], name: str) -> None:
    try_refusals(name, how, spread(know(name), 8))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "run --models", "forget", "forget --exact", "report", "data get"])
def test_two_at_once(name: str) -> None:
    known = know(name)
    with Place(OPERATIONS[name]) as place:
        outputs = [place.folder.with_suffix(f".{k}") for k in range(2)]
        pair = [start(place.operation.act, (place.folder,), output, {"NO_PROXY": "*"}) for output in outputs]
        for process in pair:
            process.join(120)
        said = "".join(output.read_text() for output in outputs)
        statuses = sorted(process.exitcode or 0 for process in pair)
        assert statuses[0] == 0 and statuses[1] in (0, 1, 2) and "Traceback" not in said, said
        if statuses[1]:
            assert "must be free, got held by" in said or place.operation.once, said
        check(place, known)
        finish(place, known)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_files_that_end_halfway(name: str) -> None:
    try_refusals(name, harm.small_files, SIZES)
