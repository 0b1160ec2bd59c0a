import errno
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import torchpfc
from torchpfc._version import __version__
from torchpfc.cli import MAX_SEED, main
from torchpfc.data.images import REMARKS
from torchpfc.paper import Result, experiments
from torchpfc.paper.settings import change as change_of
from torchpfc.paper.settings import settings as settings_of

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


def test_demo_has_defaults(monkeypatch):
    calls = record_calls(monkeypatch)
    assert main(["demo"]) == 0
    assert calls == [(Path("torchpfc-demo.html"), 0)]


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


@pytest.mark.parametrize("arguments", [["list"], ["list", "split-mnist"]], ids=["little", "much"])
def test_a_reader_who_has_seen_enough_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "torchpfc", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=buffered, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


def test_what_is_left_to_print_goes_nowhere_without_a_reader(monkeypatch):
    def print_on(**_):
        raise BrokenPipeError

    redirected = []
    monkeypatch.setattr("torchpfc.cli._list", print_on)
    monkeypatch.setattr(os, "dup2", lambda *files: redirected.append(files))
    assert main(["list"]) == 141
    assert redirected


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


# Experiments

TINY = {"dataset": "digits", "num_basis": 5, "iterations": 3, "eval_iterations": 4, "epochs": 1}


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """A folder to work in, with all that experiments need."""
    for package in ("safetensors", "sklearn", "lightning_fabric" if find_spec("lightning_fabric") else "lightning"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHPFC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = torch.get_float32_matmul_precision()
    yield tmp_path
    torch.set_float32_matmul_precision(before)


def run(*options, name="pfc-image", **settings):
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return main(["run", name, "--device", "cpu", *options, *changes])


def results_in(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/*.json"))]


def test_list_names_all_experiments(lab, capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(experiments())
    assert {"mlp-image", "pfc-image", "residual-image", "ood-image"} <= set(experiments())
    assert all(line.endswith(" rows") for line in lines)


def test_list_shows_the_settings_and_rows_of_one(lab, capsys):
    assert main(["list", "pfc-image"]) == 0
    shown = capsys.readouterr().out
    assert "\n  num_basis = 300\n" in shown and "\nT2: One PFC block\n" in shown
    assert any(line.split() == ["T2.M.300.N.r", "paper", "96.83"] for line in shown.splitlines())
    assert any(line.split() == ["TRAIN.M.300.N.r.K10"] for line in shown.splitlines())


def test_a_run_says_what_came_of_it_and_is_not_repeated(lab, capsys):
    assert run("--seeds", "2", **TINY) == 0
    written = capsys.readouterr()
    assert written.out == "2 run, 0 had results already; results in results\n"
    lines = written.err.splitlines()
    assert [line.partition(": test ")[0].split()[-1] for line in lines] == ["0", "1"]
    assert all("validation" in line and "1 epochs of" in line for line in lines)
    found = results_in(lab / "results")
    assert [result["seed"] for result in found] in ([0, 1], [1, 0])
    assert all(result["config"]["num_basis"] == 5 and "test_accuracy" in result["metrics"] for result in found)
    assert run("--seeds", "3", **TINY) == 0
    assert capsys.readouterr().out == "1 run, 2 had results already; results in results\n"


def test_rows_are_named_by_patterns_and_take_a_preset(lab, capsys, monkeypatch):
    asked = ask_only(monkeypatch)
    assert run("--rows", "T2.[MF].300.N.*", "--rows", "T2.C.5000.S.x", "--preset", "fast") == 0
    jobs = [job for group in asked for job in group.jobs]
    assert len(jobs) == 4 * 3 + 1 and {settings_of(job.config)["gradient"] for job in jobs} == {"implicit"}
    assert {job.seed for job in jobs} == {0, 1, 2}
    asked.clear()
    assert run("--rows", "T2.M.300.N.r", "--seeds", "1", "--preset", "fast", num_basis=600, iterations=77) == 0
    ((job,),) = (group.jobs for group in asked)
    found = settings_of(job.config)
    assert (found["num_basis"], found["iterations"]) == (600, 77)  # what is set goes before a preset


def ask_only(monkeypatch):
    """Keeps what is to be run, and runs nothing."""
    asked = []

    def run_groups(groups, *_, **__):
        asked.extend(groups)
        return [made_up(group.experiment, job) for group in groups for job in group.jobs]

    monkeypatch.setattr("torchpfc.paper.launch.run_groups", run_groups)
    return asked


def made_up(experiment, job):
    return Result(experiment=experiment.name, config=settings_of(job.config), seed=job.seed, metrics={})


def test_run_all_means_every_row_of_every_table(lab, monkeypatch):
    asked = ask_only(monkeypatch)
    assert run(name="all") == 0
    rows = [row for experiment in experiments().values() for table in experiment.tables for row in table.rows]
    wanted = {(row.config, seed) for row in rows for seed in range(row.seeds)}
    jobs = [(job.config, job.seed) for group in asked for job in group.jobs]
    assert set(jobs) == wanted and len(jobs) == len(wanted)
    asked.clear()
    assert run("--rows", "T6.M.*", name="all") == 0
    assert {group.experiment.name for group in asked} == {"residual-image"}


def test_an_experiment_that_needs_a_missing_package_does_not_keep_others_from_running(lab, monkeypatch, capsys):
    asked = ask_only(monkeypatch)
    monkeypatch.setattr("torchpfc.cli.find_spec", lambda name: None)
    assert run(name="all") == 0
    assert {group.experiment.name for group in asked} == set(experiments()) - {"separation"}
    install = 'pip install "torchpfc[audio]"'
    assert capsys.readouterr().err == (f"separation is left out: it needs museval, which is not installed: {install}\n")
    assert run("--rows", "T6.M.*", name="all") == 0
    assert capsys.readouterr().err == ""
    assert run(name="separation") == 2
    assert capsys.readouterr().err == f"torchpfc run needs museval, which is not installed: {install}\n"


def test_options_reach_the_runner(lab, monkeypatch):
    seen = {}

    def run_groups(groups, fabric, results, **options):
        seen.update(options, results=results)
        return [made_up(group.experiment, job) for group in groups for job in group.jobs]

    monkeypatch.setattr("torchpfc.paper.launch.run_groups", run_groups)
    assert (
        run("--no-test", "--precision", "64", "--data-dir", "d", "--results", "r", "--checkpoint-seconds", "2.5") == 0
    )
    describe = seen.pop("describe")
    assert seen == {
        "results": Path("r/validation"),
        "data_dir": Path("d"),
        "test": False,
        "precision": "64",
        "checkpoint_seconds": 2.5,
        "models": None,
    }
    assert callable(describe)


def test_what_was_run_without_test_data_is_kept_apart(lab, capsys):
    assert run("--no-test", **TINY) == 0
    line = capsys.readouterr().err
    assert "validation" in line and "test" not in line
    assert results_in(lab / "results") == [] and len(results_in(lab / "results" / "validation")) == 1
    assert run(**TINY) == 0
    assert capsys.readouterr().out.startswith("1 run, 0 had")


def test_a_result_of_a_row_is_called_by_it(lab):
    from torchpfc.cli import _describe

    metrics = {"test_accuracy": 96.9, "valid_accuracy": 97.1, "epochs": 30, "milliseconds_per_step": 0.612}
    rows = {row.id: row for table in experiments()["pfc-image"].tables for row in table.rows}

    def describe(id, preset, **change):
        config = change_of(experiments()["pfc-image"].presets[preset](rows[id].config), **change)
        given = {"experiment": "pfc-image", "config": settings_of(config), "seed": 4, "metrics": metrics}
        return _describe(Result(**given))

    assert describe("T2.M.300.N.r", "paper") == (
        "T2.M.300.N.r (paper), seed 4: test 96.90 %, paper 96.83; validation 97.10 %; 30 epochs of 0.612 ms a step"
    )
    assert describe("T2.M.300.N.r", "fast").startswith("T2.M.300.N.r (fast), seed 4: test")
    assert describe("TRAIN.M.300.N.r.K10", "paper").startswith("TRAIN.M.300.N.r.K10 (paper), seed 4: test 96.90 %; ")
    assert describe("T2.M.300.N.r", "paper", lr=0.5).startswith("pfc-image ")


def rows_unlike_each_other(name):
    """By preset, the rows of an experiment that differ in a run of a moment from all those before them."""
    experiment, seen = experiments()[name], set()
    for preset, change in experiment.presets.items():
        rows = {}
        for row in (row for table in experiment.tables for row in table.rows):
            rows.setdefault(change(row.config).smoke(), row.id)
        yield preset, [id for config, id in rows.items() if config not in seen]
        seen |= rows.keys()


@pytest.mark.parametrize("name", experiments())
def test_every_row_of_every_experiment_runs(name, lab, capsys):
    for preset, rows in rows_unlike_each_other(name):
        if rows:
            options = [option for id in rows for option in ("--rows", id)]
            assert run("--smoke", *options, "--preset", preset, name=name) == 0
            written = capsys.readouterr()
            assert written.out == f"{len(rows)} run, 0 had results already\n"
            told = [line for line in written.err.splitlines() if ", seed 0: " in line]  # a slow run also tells how far
            assert len(told) == len(rows)
    assert list(lab.iterdir()) == []  # keeps nothing


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ((), {"num_bases": 3}, "a setting must be one of dataset, .*, got 'num_bases'; did you mean 'num_basis'?"),
        ((), {"num_basis": "many"}, "num_basis must be of type int, got 'many'"),
        ((), {"num_basis": 0}, "num_basis must be at least 1, got 0"),
        ((), {"batch_size": 10**6}, "batch_size must be at most 51000, the images to learn from, got 1000000"),
        (("--set", "num_basis"), {}, "a setting must have the form key=value, got 'num_basis'"),
        (("--rows", "T9.*"), {}, "rows must match ids that `torchpfc list NAME` shows, got T9.*"),
        (("--precision", "16"), {}, "precision must be one of tf32, 32, 64, bf16, got '16'"),
        (("--device", "tpu"), {}, "device must be auto, cpu or cuda, got 'tpu'"),
        (("--devices", "3"), {}, "batch_size must be a multiple of the 3 processes, got 200"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_nothing_is_written(options, settings, message, lab, capsys):
    assert run(*options, **settings) == 2
    written = capsys.readouterr()
    assert written.out == "" and written.err.count("\n") == 1
    start, _, rest = message.partition(".*, ")
    assert written.err.startswith(f"torchpfc run: {start}") and rest in written.err
    assert list(lab.iterdir()) == []


@pytest.mark.parametrize("command", [["run"], ["list"]])
def test_an_unknown_experiment_is_named_with_those_there_are(command, lab, capsys):
    assert main([*command, "pfc-images"]) == 2
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert f"must be one of {', '.join(experiments())}, got 'pfc-images'" in written


def test_settings_belong_to_one_experiment(lab, capsys):
    assert run(name="all", lr=1) == 2
    assert capsys.readouterr().err == "torchpfc run: --set must come with the name of one experiment, got all\n"
    assert run("--rows", "T9.*", name="all") == 2
    assert capsys.readouterr().err == "torchpfc run: rows must match ids that `torchpfc list NAME` shows, got T9.*\n"


def test_a_gpu_that_is_not_there_is_one_line(lab, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["run", "pfc-image", "--device", "cuda"]) == 2
    written = capsys.readouterr().err
    assert written == "torchpfc run: device must be cpu or auto, got 'cuda', but PyTorch finds no GPU here\n"
    assert list(lab.iterdir()) == []


def test_missing_data_is_one_line_with_the_folder_and_the_command(lab, capsys):
    (lab / "data").mkdir()
    assert run("--data-dir", str(lab / "data")) == 2
    written = capsys.readouterr().err
    assert written.count("\n") == 1 and str(lab / "data") in written
    assert f"torchpfc data get mnist --data-dir {lab / 'data'}" in written
    assert [path.name for path in lab.rglob("*") if path.is_file()] == []


def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(lab, capsys, monkeypatch):
    real, calls = os.fsync, []

    def full(number):
        calls.append(number)
        if len(calls) > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    settings = TINY | {"epochs": 6}
    assert run("--results", "whole", "--checkpoint-seconds", "0", **settings) == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert run("--checkpoint-seconds", "0", **settings) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("torchpfc run: No space left on device (results/unfinished/")
    assert line.endswith("; make room and run the command again, which goes on where it stopped")
    assert results_in(lab / "results") == []
    left = [path.name for path in (lab / "results").rglob("*") if path.is_file()]
    assert not any(name.startswith(".") for name in left) and "state.json" in left
    assert run("--checkpoint-seconds", "0", **settings) == 0
    (found,), (expected,) = results_in(lab / "results"), results_in(lab / "whole")
    assert found["curves"] == expected["curves"]


def test_a_checkpoint_that_cannot_be_read_is_one_line(lab, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("torchpfc.paper.learners.unstack_models", stop)
        assert run(**TINY) == 130
    (state,) = (lab / "results").glob("unfinished/*/state.json")
    state.write_text(state.read_text()[:100])
    capsys.readouterr()
    assert run(**TINY) == 2
    written = capsys.readouterr().err
    assert written.startswith(f"torchpfc run: {state.relative_to(lab)} must hold JSON") and written.count("\n") == 1


def test_only_the_first_of_several_processes_complains(lab, capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run(num_basis=0) == 2
    assert capsys.readouterr() == ("", "")


def test_only_the_first_of_several_processes_reports(lab, capsys, monkeypatch):
    ask_only(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run() == 0
    assert capsys.readouterr() == ("", "")


def test_a_run_that_fails_ends_the_processes_it_started(lab, monkeypatch):
    killed = []
    process = SimpleNamespace(kill=lambda: killed.append(1))
    fabric = SimpleNamespace(strategy=SimpleNamespace(launcher=SimpleNamespace(procs=[process, process])))

    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("torchpfc.paper.launch.open_fabric", lambda *_: fabric)
    monkeypatch.setattr("torchpfc.paper.launch.run_groups", fail)
    with pytest.raises(ZeroDivisionError):
        run()
    assert killed == [1, 1]


@pytest.mark.parametrize("wrong", ["-1", "soon", "inf", "nan"])
def test_seconds_between_checkpoints_are_a_number(wrong, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "pfc-image", "--checkpoint-seconds", wrong])
    assert stop.value.code == 2
    assert f"must be a number of seconds, at least 0, got '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["0", "-1", "two"])
@pytest.mark.parametrize("option", ["--seeds", "--devices"])
def test_counts_are_whole_and_positive(wrong, option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "pfc-image", option, wrong])
    assert stop.value.code == 2
    assert f"must be a whole number of at least 1, got '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize(("check", "changed", "status"), [(False, True, 0), (True, True, 1), (True, False, 0)])
def test_report_says_which_files_it_wrote(check, changed, status, monkeypatch, capsys):
    calls = []

    def make_report(results, out, *, check, known_data):
        assert known_data == REMARKS
        calls.append((results, out, check))
        return [out / "tables.md"] if changed else []

    module = ModuleType("torchpfc.paper.report")
    module.make_report = make_report
    monkeypatch.setitem(sys.modules, "torchpfc.paper.report", module)
    assert main(["report", "--results", "r", "--out", "o", *(["--check"] if check else [])]) == status
    assert calls == [(Path("r"), Path("o"), check)]
    expected = f"{'would change' if check else 'wrote'} {Path('o/tables.md')}\n" if changed else ""
    assert capsys.readouterr().out == expected


def test_report_names_a_result_that_cannot_be_read(lab, capsys):
    (lab / "results" / "pfc-image").mkdir(parents=True)
    (lab / "results" / "pfc-image" / "x.json").write_text('{"experiment": "pfc-im')
    assert main(["report"]) == 2
    written = capsys.readouterr().err
    assert written.startswith("torchpfc report: results/pfc-image/x.json must hold JSON") and written.count("\n") == 1


def test_a_report_of_a_folder_that_is_not_there_is_one_line(lab, capsys):
    assert main(["report", "--results", "nothing"]) == 2
    written = capsys.readouterr().err
    assert written.startswith("torchpfc report: results must be a folder with result files, got 'nothing'")
    assert written.count("\n") == 1 and list(lab.iterdir()) == []


def test_a_folder_for_models_that_cannot_be_made_is_one_line_before_the_training(lab, capsys):
    (lab / "file").write_text("in the way")
    assert run("--models", "file/models", **TINY) == 2
    assert capsys.readouterr().err == "torchpfc run: Not a directory (file/models)\n"
    assert [path.name for path in lab.iterdir()] == ["file"]


def test_a_run_that_is_left_to_another_process_says_so(lab, capsys):
    from torchpfc.paper.launch import make_jobs
    from torchpfc.paper.registry import find_experiment
    from torchpfc.paper.runner import make_groups

    (group,) = make_groups([(find_experiment("pfc-image"), make_jobs("pfc-image", settings=TINY))])
    with group.held(lab / "results"):
        assert run(**TINY) == 1
    printed = capsys.readouterr()
    assert printed.out == "0 run, 0 had results already, 1 left to other processes; results in results\n"
    assert "left to another: pfc-image with seed 0 in results must be free, got held by process" in printed.err


def test_data_get_says_where_a_set_is(monkeypatch, capsys):
    calls = []

    def download_images(name, data_dir):
        calls.append((name, data_dir))
        return Path("cache")

    monkeypatch.setattr("torchpfc.data.download.download_images", download_images)
    monkeypatch.setattr("torchpfc.data.download.download_songs", lambda data_dir: data_dir / "songs")
    assert main(["data", "get", "mnist", "cifar10", "musdb18-7s", "--data-dir", "d"]) == 0
    assert calls == [("mnist", Path("d")), ("cifar10", Path("d"))]
    assert capsys.readouterr().out == "mnist is in cache\ncifar10 is in cache\nmusdb18-7s is in d/songs\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "torchpfc data: Permission denied (/x)\n"),
        (OSError("no address"), "torchpfc data: no address\n"),
    ],
)
def test_trouble_with_files_is_one_line(error, message, monkeypatch, capsys):
    def fail(name, data_dir):
        raise error

    monkeypatch.setattr("torchpfc.data.download.download_images", fail)
    assert main(["data", "get", "mnist"]) == 2
    assert capsys.readouterr().err == message


def test_a_demo_that_cannot_be_written_is_one_line_before_it_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchpfc.demo.find_out", lambda *_, **__: pytest.fail("it must not train"))
    name = f"{'x' * 245}.html"  # too long for a file beside it: it stops whoever may write everywhere, too
    assert main(["demo", "--out", str(tmp_path / name)]) == 2
    written = capsys.readouterr().err
    assert written.startswith("torchpfc demo: File name too long") and written.count("\n") == 1


def test_the_command_line_needs_no_extra_until_it_is_used(tmp_path):
    code = (
        "import sys; from torchpfc.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "extras = {'lightning_fabric', 'rich', 'sklearn', 'safetensors', 'requests', 'filelock'}\n"
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
