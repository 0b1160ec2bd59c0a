import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from torchpfc.locks import HeldError, held

pytest.importorskip("filelock")

HOLD = """
import sys, time
from pathlib import Path
from torchpfc.locks import held
with held(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_who_comes_second_is_told_who_came_first(tmp_path: Path) -> None:
    since = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*"
    told = (
        rf"the job must be free, got held by process {os.getpid()} on {re.escape(socket.gethostname())} since {since};"
    )
    with held(tmp_path / "lock", "the job"):
        with pytest.raises(HeldError, match=told), held(tmp_path / "lock", "the job"):
            pass
        with held(tmp_path / "another", "another job"):
            pass
        (tmp_path / "lock.owner").write_bytes(b"\xff")
        with pytest.raises(HeldError, match="got held by another process; wait"), held(tmp_path / "lock", "the job"):
            pass
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path / "lock", "the job"):
        pass


def test_the_lock_of_a_process_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(HeldError, match=f"got held by process {process.pid} on"), held(tmp_path / "lock", "it"):
            pass
        process.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 2
    with held(tmp_path / "lock", "it"):
        assert str(os.getpid()) in (tmp_path / "lock.owner").read_text()
    assert list(tmp_path.iterdir()) == []
