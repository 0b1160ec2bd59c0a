import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from torchpfc import PFCBlock, unlearning
from torchpfc.checkpoint import states
from torchpfc.cli import main
from torchpfc.locks import held
from torchpfc.optim.ledger import Ledger
from torchpfc.unlearning import Certificate, fingerprint, load_model, models, save_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ledger = Ledger()
    for id in range(6):
        ledger.record(id, range(id, id + 3), rows=[2 * id, 2 * id + 1])
    save_model(tmp_path / "model", PFCBlock(5, 2, 10, generator=torch.Generator().manual_seed(0)), ledger)
    return tmp_path / "model"


def test_batches_are_forgotten_in_place_and_reported(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load_model(model).block
    assert main(["forget", str(model), "--batches", "2:4"]) == 0
    after = load_model(model)
    assert not after.block.weight_x[:, 2:6].any() and not after.block.weight_y[:, 2:6].any()
    kept = [0, 1, 6, 7, 8, 9]
    assert torch.equal(after.block.weight_x[:, kept], before.weight_x[:, kept])
    assert after.ledger.columns_of([2, 3]) == ()
    report: dict[str, Any] = json.loads((model / "certificate-1.json").read_text())
    assert report["batches"] == [2, 3] and report["columns"] == [[2, 6]] and report["exact"] is False
    assert report["sha256_before"] == fingerprint(before) and report["sha256_after"] == fingerprint(after.block)
    printed = capsys.readouterr().out
    assert "Forgot 2 batches (zero)." in printed and "Not guaranteed:" in printed


def test_examples_can_be_named_and_columns_removed(model: Path) -> None:
    assert main(["forget", str(model), "--examples", "11,0:2", "--how", "remove"]) == 0
    assert load_model(model).block.num_basis == 10 - 6


def test_each_certificate_is_kept_beside_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for id in (1, 3):
        assert main(["forget", str(model), "--batches", str(id)]) == 0
    first, second = (Certificate.load(model / f"certificate-{k}.json") for k in (1, 2))
    assert first.batches == (1,) and second.batches == (3,) and first.sha256_after == second.sha256_before
    assert f"wrote {model / 'certificate-2.json'}" in capsys.readouterr().out
    assert main(["verify", str(model / "certificate-1.json")]) == 1
    assert "refused: the certificate does not claim" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "9:12"], "batches must have been learned from"),
        (["--batches", "0:9", "--exact"], "must hold snapshots and the settings of a training to be replayed"),
        (["--batches", "0", "--exact", "--how", "remove"], "--how must be left out with --exact"),
    ],
)
def test_what_cannot_be_forgotten_is_one_line_and_changes_nothing(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning_fabric")
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    assert main(["forget", str(model), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("torchpfc forget: ") and error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_certificate_is_there_whenever_the_model_has_forgotten(
    when: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends just before the model is saved leaves none; one that ends just after, the next finishes."""
    whole = models.save_model

    def stop(*arguments: Any) -> None:
        if when == "after":
            whole(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(unlearning, "save_model", stop)
        assert main(["forget", str(model), "--batches", "2"]) == 130
    assert main(["forget", str(model), "--batches", "77"]) == 2  # refused
    found = [Certificate.load(path).batches for path in model.glob("certificate*.json")]
    assert found == ([(2,)] if when == "after" else []) and not (model / ".certificate.json").exists()
    assert (load_model(model).ledger.columns_of([2]) == ()) == (when == "after")


@pytest.mark.parametrize("stop", ["before", "after"])
def test_a_removal_that_is_killed_between_its_files_can_be_made_again(
    stop: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and ledger change together: with one of them old, the next removal would take other columns."""
    before = load_model(model).block
    write = states.write_atomically

    def killed(path: Path, content: str | bytes) -> None:
        if stop == "after":
            write(path, content)
        if path.name == "state.json":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(states, "write_atomically", killed)
    assert main(["forget", str(model), "--batches", "0", "--how", "remove"]) == 130
    monkeypatch.undo()
    if stop == "before":
        assert fingerprint(load_model(model).block) == fingerprint(before)
        assert main(["forget", str(model), "--batches", "0", "--how", "remove"]) == 0
    assert torch.equal(load_model(model).block.weight_x, before.weight_x[:, 3:])
    assert main(["forget", str(model), "--batches", "4", "--how", "remove"]) == 0
    assert torch.equal(load_model(model).block.weight_x, before.weight_x[:, [3, 7, 8, 9]])


def test_a_folder_without_a_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", str(tmp_path / "nothing"), "--batches", "1"]) == 2
    assert "must be a folder with a model and its ledger" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments --batches --examples is required"),
        (["--batches", "1", "--examples", "1"], "not allowed with argument"),
        (["--batches", "5:2"], "must have ranges that end after they start, got '5:2'"),
        (["--batches", "a:b"], "must be numbers or ranges such as 500:800, got 'a:b'"),
        (["--batches", "-3"], "must be numbers or ranges such as 500:800, got '-3'"),
    ],
)
def test_wrong_arguments_end_with_2(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["forget", str(model), *arguments])
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--exact", "--device", "cpu"]], ids=["forget", "replay"])
def test_a_model_of_version_0_1_0_can_forget(options: list[str], tmp_path: Path) -> None:
    if options:
        pytest.importorskip("lightning_fabric")
    saved = Path(__file__).parent / "fixtures" / "0.1.0" / "models" / "unlearning-0"
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    about = load_model(folder).about
    assert main(["forget", str(folder), "--batches", "3", *options]) == 0
    after = load_model(folder)
    assert after.ledger.columns_of([3]) == () and after.about.items() >= about.items()
    assert not (folder / "ledger.json").exists()


def below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_replay_that_is_refused_or_fails_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning_fabric")
    from torchpfc.paper.unlearning_replay import Training

    saved = Path(__file__).parent / "fixtures" / "0.1.0" / "models" / "unlearning-0"
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    before, command = below(folder), ["forget", str(folder), "--exact", "--device", "cpu", "--batches"]
    count = len(load_model(folder).ledger.batches)
    assert main([*command, f"0:{count}"]) == 2
    assert capsys.readouterr().err == (
        "torchpfc forget: batches must leave some to learn from, got all of them; begin a new training instead\n"
    )
    assert below(folder) == before
    with monkeypatch.context() as patch:
        patch.setattr(Training, "train", fail)
        assert main([*command, "3"]) == 2
    assert below(folder) == before
    assert main([*command, "3"]) == 0
    assert load_model(folder).ledger.columns_of([3]) == ()


def fail(*_: object) -> None:
    raise ValueError("halfway")


@pytest.mark.parametrize("how", ["zero", "remove"])
@pytest.mark.parametrize("option", ["--batches", "--examples"])
def test_what_was_forgotten_in_place_does_not_come_back_with_a_replay(how: str, option: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning_fabric")
    saved = Path(__file__).parent / "fixtures" / "0.1.0" / "models" / "unlearning-0"
    one, other = (Path(shutil.copytree(saved, tmp_path / name)) for name in ("one", "other"))
    rows = load_model(one).ledger.rows_of
    exactly = ["--exact", "--device", "cpu"]
    assert main(["forget", str(one), "--batches", "3", "--how", how]) == 0
    before, report = fingerprint(load_model(one).block), one / "certificate-2.json"
    what = ["--batches", "5"] if option == "--batches" else ["--examples", ",".join(map(str, rows(5)))]
    assert main(["forget", str(one), *what, *exactly]) == 0
    assert main(["forget", str(other), "--batches", "3,5", *exactly]) == 0
    assert fingerprint(load_model(one).block) == fingerprint(load_model(other).block)
    told = Certificate.load(report)
    assert told.batches == (3, 5) and told.sha256_before == before
    assert told.settings is not None and told.settings["in_place"] == [3]
    assert "forgotten" not in load_model(one).about


def test_a_replay_on_other_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning_fabric")
    saved = Path(__file__).parent / "fixtures" / "0.1.0" / "models" / "unlearning-0"
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    block, ledger, about = load_model(folder)
    save_model(folder, block, ledger, {**about, "data": {"digits": "0" * 64}})
    before = below(folder)
    assert main(["forget", str(folder), "--batches", "3", "--exact", "--device", "cpu"]) == 2
    assert "must hold the images that the model has learned from, digits, got others" in capsys.readouterr().err
    assert below(folder) == before


def test_what_a_killed_replay_has_left_is_deleted_by_whatever_is_forgotten_next(tmp_path: Path) -> None:
    saved = Path(__file__).parent / "fixtures" / "0.1.0" / "models" / "unlearning-0"
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    shutil.copytree(folder / "snapshots", folder / "snapshots-1")
    (folder / "snapshots-of-mine").mkdir()
    (folder / "0123456789abcdef.safetensors").write_bytes(b"weights of before")
    assert main(["forget", str(folder), "--batches", "99"]) == 2  # also where nothing is forgotten
    assert sorted(path.name for path in folder.glob("snapshots*")) == ["snapshots", "snapshots-of-mine"]
    assert not (folder / "0123456789abcdef.safetensors").exists() and (folder / "ledger.json").exists()


def test_a_model_that_another_process_changes_is_left_to_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = below(model)
    with held(model / ".lock", "it"):
        assert main(["forget", str(model), "--batches", "1"]) == 2
    written = capsys.readouterr().err
    assert (
        written.startswith(f"torchpfc forget: {model} must be free, got held by process") and written.count("\n") == 1
    )
    assert below(model) == before


def test_a_kept_model_forgets_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model that `run` keeps, against one that was kept after it had never seen the batches."""
    pytest.importorskip("lightning_fabric")
    from torchpfc.paper.devices import open_fabric
    from torchpfc.paper.registry import Job
    from torchpfc.paper.runner import Context
    from torchpfc.paper.settings import change
    from torchpfc.paper.unlearning_replay import Training
    from torchpfc.paper.unlearning_settings import Unlearning

    settings = {"dataset": "digits", "num_basis": 12, "iterations": 4, "eval_iterations": 5, "batch_size": 100}
    settings |= {"epochs": 2, "width": 4, "sweep_speed": 0.25, "start": 2, "stop": 5, "snapshot_every": 4}
    given = [f"--set={name}={value}" for name, value in (settings | {"replay": "true"}).items()]
    options = ["--device", "cpu", "--precision", "32", "--results", str(tmp_path / "results")]
    assert main(["run", "unlearning", *given, *options, "--models", str(tmp_path / "models")]) == 0
    folder = tmp_path / "models" / "unlearning-0"
    snapshots = len(list((folder / "snapshots").iterdir()))
    capsys.readouterr()
    report = folder / "certificate-1.json"
    assert main(["forget", str(folder), "--batches", "5:8", "--exact", "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "bit for bit" in told and told.endswith(f"wrote {report}\n")
    job = Job(change(Unlearning(), **settings, replay=True), 0)
    never = Training(job, Context(open_fabric("cpu", "32"), tmp_path, precision="32"))
    never.snapshots.skip(batches=range(5, 8))
    never.train()
    assert fingerprint(load_model(folder).block) == fingerprint(never.at_best())
    assert json.loads(report.read_text())["exact"] is True
    assert main(["verify", str(report)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("confirmed: ") == 3 and "a training that passes over what was forgotten" in printed
    report.write_text(report.read_text().replace('"epochs": 2', '"epochs": 3'))
    assert main(["verify", str(report)]) == 1
    assert "must be as it was written, got one that was changed since" in capsys.readouterr().out
    assert [path.name for path in folder.glob("snapshots*")] == ["snapshots-1"]
    assert len(list((folder / "snapshots-1").iterdir())) == snapshots
