import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import torchpfc
from torchpfc._version import __version__
from torchpfc.cli import MAX_SEED, main

SOURCE = Path(torchpfc.__file__).parent.parent


def stub_demo(monkeypatch, run_demo):
    """Put `run_demo` in the place of the one in `torchpfc.demo`, without importing that module."""
    module = ModuleType("torchpfc.demo")
    module.run_demo = run_demo
    monkeypatch.setitem(sys.modules, "torchpfc.demo", module)


def record_calls(monkeypatch):
    calls = []

    def run_demo(out, *, seed=0):
        calls.append((out, seed))
        return out

    stub_demo(monkeypatch, run_demo)
    return calls


def fail_with(monkeypatch, error):
    def run_demo(out, *, seed=0):
        raise error

    stub_demo(monkeypatch, run_demo)


@pytest.mark.parametrize("installed", [True, False], ids=["as set up", "from source"])
def test_version_of_the_module_run_as_a_program(installed, tmp_path):
    environment = os.environ if installed else os.environ | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-W", "error", "-m", "torchpfc", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert done.stdout == f"torchpfc {__version__}\n"
    assert done.stderr == ""


def test_version_is_the_one_of_the_package(capsys):
    assert torchpfc.__version__ == __version__
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"torchpfc {__version__}\n"


def test_demo_has_defaults_and_says_what_it_wrote(monkeypatch, capsys):
    calls = record_calls(monkeypatch)
    assert main(["demo"]) == 0
    assert calls == [(Path("torchpfc-demo.html"), 0)]
    assert capsys.readouterr().out == "Wrote torchpfc-demo.html\n"


def test_demo_hands_its_options_on(monkeypatch, tmp_path):
    calls = record_calls(monkeypatch)
    assert main(["demo", "--out", str(tmp_path / "page.html"), "--seed", "7"]) == 0
    assert calls == [(tmp_path / "page.html", 7)]


@pytest.mark.parametrize("name", ["sklearn", "sklearn.datasets", "rich", "rich.progress"])
def test_a_missing_extra_is_one_line_that_says_what_to_install(name, monkeypatch, capsys):
    fail_with(monkeypatch, ModuleNotFoundError(f"No module named {name!r}", name=name))
    assert main(["demo"]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.count("\n") == 1
    assert 'pip install "torchpfc[experiments]"' in written.err


def test_a_module_of_our_own_that_is_missing_is_not_an_extra(monkeypatch):
    fail_with(monkeypatch, ModuleNotFoundError("No module named 'torchpfc.nowhere'", name="torchpfc.nowhere"))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        main(["demo"])


def test_an_interruption_leaves_no_traceback(monkeypatch, capsys):
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "torchpfc demo was interrupted\n"


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    assert "demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["demo", "--out", "no/such/folder/page.html"],
            "--out: must name a file in a folder that exists, got 'no/such",
        ),
        (["demo", "--out", "."], "--out: must name a file in a folder that exists, got '.'"),
        (["demo", "--seed", "-1"], f"--seed: must be an integer from 0 to {MAX_SEED}, got '-1'"),
        (["demo", "--seed", str(MAX_SEED + 1)], f"--seed: must be an integer from 0 to {MAX_SEED}, got"),
        (["demo", "--seed", "one"], "got 'one'"),
        (["dmeo"], "invalid choice: 'dmeo'"),
    ],
)
def test_a_wrong_argument_is_named_before_any_work(options, message, monkeypatch, capsys):
    calls = record_calls(monkeypatch)
    with pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert calls == []
