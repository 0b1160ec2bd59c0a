import errno
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import FORKS
from tests.stored import rewrite
from torchpfc import PFCBlock, RMSprop
from torchpfc.checkpoint import CorruptFileError, files, load_checkpoint, read_json, save_checkpoint, write_atomically

pytest.importorskip("safetensors")


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    else:
        assert one == other or (one != one and other != other)


STATE = {
    "epoch": 3,
    "name": 'ä \u2028 "quoted"',
    "nothing": None,
    "flag": True,
    "loss": 0.1 + 0.2,
    "odd": [math.inf, math.nan, 5e-324],
    "weights": {"a.b": torch.tensor([1.0]), "a": {"b": torch.tensor([2.0])}},
    "numbers": {0: {"square_avg": torch.rand(2, 3)}, 1: {"square_avg": torch.rand(4)}},
    "types": [
        torch.tensor(3),
        torch.zeros(0, 2),
        torch.tensor([True, False]),
        torch.tensor([math.nan, -0.0], dtype=torch.float64),
        torch.rand(3, 2).T,
        torch.ones(2, dtype=torch.bfloat16),
    ],
    "empty": {},
}


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "new" / "folder", STATE)
    found = load_checkpoint(tmp_path / "new" / "folder")
    nan = STATE["types"][3]  # NaN is not equal to itself: compare its bits
    assert torch.equal(found["types"][3].view(torch.int64), nan.view(torch.int64))
    for state in (found, STATE):
        state["types"] = [value for value in state["types"] if value.dtype != torch.float64]
    assert_equal(found, STATE)


def test_tuples_stay_tuples_and_shared_memory_comes_back_as_copies(tmp_path: Path) -> None:
    shared = torch.rand(4)
    save_checkpoint(tmp_path, {"pair": (1, [(2,), shared]), "same": shared, "part": shared[1:3], "none": ()})
    found = load_checkpoint(tmp_path)
    assert isinstance(found["pair"], tuple) and found["pair"][0] == 1 and found["none"] == ()
    assert found["pair"][1][0] == (2,) and torch.equal(found["pair"][1][1], shared)
    assert torch.equal(found["part"], shared[1:3])


def test_an_optimizer_goes_on_as_it_was(tmp_path: Path) -> None:
    block = PFCBlock(6, 2, 3, generator=torch.Generator().manual_seed(0))
    optimizer = RMSprop(block.parameters(), lr=1e-3, weight_decay=1e-4)
    x = torch.rand(5, 6, generator=torch.Generator().manual_seed(1))

    def step() -> None:
        optimizer.zero_grad()
        block(x).sum().backward()
        optimizer.step()

    step()
    save_checkpoint(tmp_path, {"model": block.state_dict(), "optimizer": optimizer.state_dict()})
    step()
    expected = {name: value.clone() for name, value in block.state_dict().items()}
    found = load_checkpoint(tmp_path)
    block.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    step()
    for name, value in expected.items():
        assert torch.equal(block.state_dict()[name], value)


def test_nothing_comes_from_nowhere(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "missing") is None
    assert load_checkpoint(tmp_path) is None


def test_a_new_checkpoint_takes_the_place_of_the_old_and_of_what_was_left_lying(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"w": torch.zeros(3)})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".0123456789abcdef.safetensors.{ended.pid}", f".state.json.{ended.pid}"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / f".jobs.json.{os.getppid()}").write_bytes(b"of a process that is still there")
    (tmp_path / "jobs.json").write_text("{}")
    save_checkpoint(tmp_path, {"w": torch.ones(3)})
    assert torch.equal(load_checkpoint(tmp_path)["w"], torch.ones(3))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert (
        names[:1] == [f".jobs.json.{os.getppid()}"]
        and names[2:] == ["jobs.json", "state.json"]
        and re.fullmatch(r"\w{16}\.safetensors", names[1])
    )


def test_the_same_checkpoint_can_be_saved_twice(tmp_path: Path) -> None:
    for _ in range(2):
        save_checkpoint(tmp_path, {"w": torch.zeros(3)})
        assert torch.equal(load_checkpoint(tmp_path)["w"], torch.zeros(3))


def test_what_json_cannot_hold_leaves_the_old_checkpoint_alone(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"w": torch.zeros(3)})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(tmp_path, {"w": torch.ones(3), "bad": object()})
    assert sorted(tmp_path.iterdir()) == before
    assert torch.equal(load_checkpoint(tmp_path)["w"], torch.zeros(3))


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_save_that_fails_leaves_the_old_checkpoint(
    call: int, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, {"w": torch.zeros(3)})
    real, calls = getattr(os, function), []

    def fail(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space left on device.*" + ("safetensors" if call == 1 else "state.json")):
        save_checkpoint(tmp_path, {"w": torch.ones(3)})
    assert torch.equal(load_checkpoint(tmp_path)["w"], torch.zeros(3))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    monkeypatch.undo()
    save_checkpoint(tmp_path, {"w": torch.ones(3)})
    assert len(list(tmp_path.iterdir())) == 2


def test_text_and_bytes_are_written_into_new_folders(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b.txt", "ä\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "ä\n".encode()
    write_atomically(tmp_path / "a" / "b.txt", b"\x00")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"\x00"
    assert len(list((tmp_path / "a").iterdir())) == 1


def write_forever(folder: Path, k: int, report: Connection) -> None:
    while True:
        k += 1
        write_atomically(folder / "result.json", json.dumps({"k": k, "text": str(k) * 50_000}))
        save_checkpoint(folder, {"k": k, "w": torch.full((50_000,), float(k))})
        report.send(k)


def test_whoever_reads_while_a_writer_is_killed_finds_whole_files(tmp_path: Path) -> None:
    chance, last = random.Random(0), 0
    for _ in range(8):
        receiver, sender = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=write_forever, args=(tmp_path, last, sender), daemon=True)
        process.start()
        sender.close()
        reported = receiver.recv()
        time.sleep(chance.uniform(0.0, 0.05))
        process.kill()
        process.join()
        with suppress(EOFError):
            while True:
                reported = receiver.recv()
        receiver.close()
        state = load_checkpoint(tmp_path)
        last = state["k"]
        assert last >= reported  # what was reported as saved is there
        assert torch.equal(state["w"], torch.full((50_000,), float(last)))
        content = read_json(tmp_path / "result.json")
        assert content["text"] == str(content["k"]) * 50_000
    save_checkpoint(tmp_path, {})
    assert len(list(tmp_path.glob("*.safetensors*"))) == 1


@pytest.mark.parametrize("content", ['{"a": 1', "", "\x00", "NaN,"])
def test_a_file_that_is_not_json_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(content)
    with pytest.raises(CorruptFileError, match=r"cut\.json must hold JSON .*; delete it to have it made again"):
        read_json(path)


def test_a_file_of_other_bytes_or_another_type_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CorruptFileError, match=r"a\.json must hold JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(CorruptFileError, match=r"a\.json must hold a JSON object, got a list"):
        read_json(tmp_path / "a.json")


def damage_tensors(folder: Path) -> None:
    path = next(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])


def lose_tensors(folder: Path) -> None:
    next(folder.glob("*.safetensors")).unlink()


def name_a_file_elsewhere(folder: Path) -> None:
    path = next(folder.glob("*.safetensors"))
    elsewhere = folder.parent / path.name
    path.rename(elsewhere)
    for name in (f"../{path.name}", str(elsewhere)):
        content = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**content, "tensors": name}))
        with pytest.raises(CorruptFileError, match=r"must hold the tensors that state\.json names"):
            load_checkpoint(folder)


def name_what_is_no_name(folder: Path) -> None:
    content = json.loads((folder / "state.json").read_text())
    for name in ("..", "", "a\0b", ["a"], None):
        (folder / "state.json").write_text(json.dumps({**content, "tensors": name}))
        with pytest.raises(CorruptFileError, match=r"must hold the tensors that state\.json names"):
            load_checkpoint(folder)


def name_a_tensor_that_is_not_there(folder: Path) -> None:
    rewrite(folder, lambda content: content["state"].update(w={"<tensor>": "1:state.w"}))


def name_a_tensor_twice(folder: Path) -> None:
    rewrite(folder, lambda content: content["state"].update(v=content["state"]["w"]))


def name_no_tensor(folder: Path) -> None:
    rewrite(folder, lambda content: content["state"].clear())


def change_a_number(folder: Path) -> None:
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text.replace('"lr": 0.1', '"lr": 0.9'))


def lose_key(folder: Path) -> None:
    content = json.loads((folder / "state.json").read_text())
    del content["sha256"]
    (folder / "state.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_tensors, r"\.safetensors must have the checksum that state\.json gives"),
        (lose_tensors, r"must hold the tensors that state\.json names \(.*No such file"),
        (lose_key, r"must hold the tensors that state\.json names \(Object missing required field `sha256`\)"),
        (name_a_file_elsewhere, r"must hold the tensors that state\.json names \(Expected `str` matching"),
        (name_what_is_no_name, r"must hold the tensors that state\.json names \("),
        (name_a_tensor_that_is_not_there, r"must hold a checkpoint \('1:state\.w'\)"),
        (name_a_tensor_twice, r"must hold a checkpoint \('0:state\.w'\)"),
        (name_no_tensor, r"must hold a checkpoint \(no place for 0:state\.w\)"),
        (change_a_number, r"state\.json must be as it was written, got a seal of other content"),
    ],
)
def test_a_damaged_checkpoint_is_named_with_what_to_do(damage: Any, message: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"w": torch.rand(3), "lr": 0.1})
    damage(tmp_path)
    with pytest.raises(CorruptFileError, match=f"{message}.*; delete the folder .* to start from the beginning"):
        load_checkpoint(tmp_path)


def test_tensors_beyond_a_bound_are_neither_saved_nor_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"w": torch.zeros(100)})
    with pytest.raises(ValueError, match=r"state must have at most 99 bytes of tensors, got \d+"):
        save_checkpoint(tmp_path, {"w": torch.ones(100)}, most=99)
    with pytest.raises(CorruptFileError, match=r"\.safetensors must have at most 99 bytes, got \d+"):
        load_checkpoint(tmp_path, most=99)
    assert torch.equal(load_checkpoint(tmp_path)["w"], torch.zeros(100))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"a": [[]] * 30}, "more than 20 lists and objects"),
        ({"a": "x" * 1000}, "more than 900 bytes"),
        ({"a": [[[[[[[[[]]]]]]]]]}, "more than 9 lists and objects inside each other"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(
    state: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("MOST_BRACKETS", 20), ("MOST_JSON", 900), ("MOST_LEVELS", 9)):
        monkeypatch.setattr(files, name, most)
    with pytest.raises(ValueError, match=f"state must be such that it can be loaded, got {reason}"):
        save_checkpoint(tmp_path, state)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_had_begun_to_write_of_a_file_goes_with_the_next_write(tmp_path: Path) -> None:
    gone = 2**22 + 1  # above the highest number of a process
    mine = [tmp_path / f".a.txt.{gone}", tmp_path / f".b.txt.{gone}", tmp_path / f".a.txt.{os.getppid()}"]
    for path in mine:
        path.write_text("half")
    write_atomically(tmp_path / "a.txt", "whole")
    assert sorted(tmp_path.iterdir()) == sorted([*mine[1:], tmp_path / "a.txt"])
