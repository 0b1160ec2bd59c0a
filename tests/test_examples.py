import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_without_a_warning(example, tmp_path):
    subprocess.run([sys.executable, "-W", "error", str(example)], cwd=tmp_path, check=True, timeout=120)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60
