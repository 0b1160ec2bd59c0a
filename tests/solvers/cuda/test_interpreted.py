"""Runs the kernels where there is no device for them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch for CUDA")
def test_the_kernels_in_the_interpreter() -> None:
    # Triton warns of what it will change, and NumPy, in which it computes, of numbers that overflow.
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests/solvers/cuda/interpreted.py"]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    if "passed" not in run.stdout:
        pytest.skip("needs an interpreter that goes with this NumPy")
