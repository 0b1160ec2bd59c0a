"""The command line: parses arguments, calls the function that does the work, prints what came of it."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchpfc._version import __version__

if TYPE_CHECKING:
    from torchpfc.continual.certificate import Certificate, How
    from torchpfc.paper import Experiment, Result
    from torchpfc.unlearning import SavedModel, Verdict

# What a subcommand may fail to import, and the extra that brings it.
EXTRA_OF = {
    **dict.fromkeys(("rich", "sklearn", "requests", "markdown", "safetensors", "msgspec", "filelock"), "experiments"),
    **dict.fromkeys(("lightning", "lightning_fabric"), "experiments"),
    **dict.fromkeys(("soundfile", "museval"), "audio"),
    **dict.fromkeys(("fastapi", "uvicorn", "pydantic", "starlette"), "explorer"),
}

MAX_SEED = 2**32 - 1  # NumPy's generators take no larger one


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: The arguments after the name of the program. `None` reads those of the process.

    Returns:
        0 when the command did its work, 1 when some of it was not done, 2 when it could not start, 130 when it was
        interrupted, 141 when nobody wanted to read on.
    """
    parser = build_parser()
    options = vars(parser.parse_args(argv))
    command = options.pop("command")
    if command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = options.pop("run")(**options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        return 141
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        _say(f"torchpfc {command} needs {_how_to_install(package)}")
        return 2
    except _Problem as problem:
        _say(f"torchpfc {command}: {problem}")
        return 2
    except KeyboardInterrupt:
        print(f"torchpfc {command} was interrupted", file=sys.stderr)
        return 130
    return status


def _say(message: str) -> None:
    """Tells the user something once, however many processes have met it."""
    if _is_first():
        print(message, file=sys.stderr)


def _is_first() -> bool:
    """Whether this is the first of the processes that share the work."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _how_to_install(package: str) -> str:
    return f'{package}, which is not installed: pip install "torchpfc[{EXTRA_OF[package]}]"'


class _Problem(Exception):
    """Something that the user can put right; the message says what."""


@contextmanager
def _explained(*problems: type[Exception]) -> Iterator[None]:
    """Turns what can go wrong with files and devices into one line, and with it the problems that are named."""
    from torchpfc.checkpoint import CorruptFileError
    from torchpfc.data.formats import DataError
    from torchpfc.locks import HeldError

    known: tuple[type[Exception], ...] = (CorruptFileError, DataError, HeldError, *problems)
    try:
        yield
    except known as error:
        raise _Problem(str(error)) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = "; make room and run the command again, which goes on where it stopped"
        raise _Problem(f"{error.strerror or error}{where}{advice if error.errno == errno.ENOSPC else ''}") from None


def build_parser() -> argparse.ArgumentParser:
    """Describe every command and its options, which are handed by name to what the command calls."""
    parser = argparse.ArgumentParser(
        prog="torchpfc", description="Predictive factorized coupling: interpretable blocks for PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"torchpfc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")

    demo = commands.add_parser("demo", help="train on handwritten digits and write a page that shows what was learned")
    demo.add_argument(
        "--out", type=_output_file, default=Path("torchpfc-demo.html"), metavar="FILE", help="default: %(default)s"
    )
    demo.add_argument("--seed", type=_seed, default=0, metavar="N", help="default: %(default)s")
    demo.set_defaults(run=_demo)

    listing = commands.add_parser("list", help="what can be run: experiments, their settings, rows of tables")
    listing.add_argument("name", nargs="?", help="of an experiment, to see its settings and rows")
    listing.set_defaults(run=_list)

    run = commands.add_parser("run", help="run an experiment, or all of them; what has a result is skipped")
    run.add_argument("name", help="of an experiment, or all")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="a setting")
    run.add_argument(
        "--rows", action="append", default=[], metavar="ID", help="rows of its tables, such as 'T2.M.300.*'"
    )
    run.add_argument("--preset", choices=("paper", "fast"), default="paper", help="default: %(default)s")
    run.add_argument("--seeds", type=_positive, metavar="N", help="default: 1, and for rows what the table asks for")
    run.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    run.add_argument("--devices", type=_positive, default=1, metavar="N", help="processes that share each batch")
    run.add_argument("--precision", default="tf32", help="tf32 (default), 32, 64 or bf16")
    run.add_argument("--data-dir", type=Path, metavar="DIR", help="default: $TORCHPFC_DATA, or what was downloaded")
    run.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    run.add_argument("--smoke", action="store_true", help="try that all of it works, in seconds; keeps no results")
    run.add_argument(
        "--no-test",
        action="store_false",
        dest="test",
        help="measure on validation data only; results go to DIR/validation",
    )
    run.add_argument(
        "--checkpoint-seconds",
        type=_seconds,
        default=60.0,
        metavar="T",
        help="time between two savings of what is needed to go on (default: %(default)s)",
    )
    run.add_argument(
        "--models", type=Path, metavar="DIR", help="where to keep models for torchpfc forget and torchpfc separate"
    )
    run.set_defaults(run=_run)

    report = commands.add_parser("report", help="write tables and figures from results")
    report.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    report.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="default: %(default)s")
    report.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    report.set_defaults(run=_report)

    data = commands.add_parser("data", help="download data sets")
    actions = data.add_subparsers(metavar="action", required=True)
    get = actions.add_parser("get", help="download a data set")
    get.add_argument(
        "name",
        nargs="+",
        choices=("mnist", "fashion-mnist", "cifar10", "musdb18-7s"),
        help="one or more of %(choices)s",
    )
    get.add_argument("--data-dir", type=Path, metavar="DIR", help="default: the cache folder of the user")
    get.set_defaults(run=_data_get)

    forgetting = commands.add_parser("forget", help="remove from a saved model what batches or examples have taught it")
    forgetting.add_argument("model", type=Path, metavar="MODEL", help="folder with a model and its ledger")
    forgotten = forgetting.add_mutually_exclusive_group(required=True)
    forgotten.add_argument("--batches", type=_numbers, metavar="A:B", help="half-open, like Python: 500:800, or 3,5:9")
    forgotten.add_argument("--examples", type=_numbers, metavar="A:B", help="examples, in the same way")
    forgetting.add_argument(
        "--how", choices=("zero", "reinitialize", "remove"), default="zero", help="what to leave (default: %(default)s)"
    )
    forgetting.add_argument("--exact", action="store_true", help="replay the training without them, from a snapshot")
    forgetting.add_argument("--device", default="auto", help="of a replay: cpu, cuda or auto (default)")
    forgetting.add_argument("--data-dir", type=Path, metavar="DIR", help="of a replay; default: as for run")
    forgetting.set_defaults(run=_forget)

    checking = commands.add_parser("verify", help="check a certificate of forgetting, by learning all of it again")
    checking.add_argument("certificate", type=Path, metavar="CERTIFICATE", help="the file that forgetting wrote")
    checking.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="a folder with one .npz file of x, y and weight for each batch; of a replay that of the images",
    )
    checking.set_defaults(run=_verify)

    separation = commands.add_parser(
        "separate",
        help="write the vocals and the accompaniment of a song as WAV files",
        description="Write the vocals and the accompaniment of a song as WAV files, or make a model that can.",
    )
    separation.add_argument("song", type=Path, nargs="?", metavar="SONG", help="an audio file, such as song.wav")
    separation.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="folder with a separation model, or for a new one"
    )
    separation.add_argument("--out", type=Path, metavar="DIR", help="where to write the parts; made if need be")
    separation.add_argument(
        "--train",
        type=Path,
        metavar="DIR",
        help="make the model, from a folder of songs: TRACK/{vocals,drums,bass,other}.wav or TRACK.stem.mp4",
    )
    separation.add_argument("--seed", type=_seed, metavar="N", help="of the model that is made; default: 0")
    separation.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    separation.set_defaults(run=_separate)

    exploring = commands.add_parser("explore", help="open a page to look at a model and to try what it forgets")
    exploring.add_argument(
        "model", type=Path, nargs="?", metavar="MODEL", help="folder with a model; default: one trained on digits now"
    )
    exploring.add_argument("--data", metavar="SOURCE", help="examples: an image set such as mnist, or an .npz file")
    exploring.add_argument("--shape", type=_rows_and_columns, metavar="HxW", help="of an image, where it is not square")
    exploring.add_argument("--data-dir", type=Path, metavar="DIR", help="default: as for run")
    exploring.add_argument("--host", default="127.0.0.1", help="default: %(default)s, which no other machine reaches")
    exploring.add_argument("--port", type=_port, default=8765, metavar="N", help="default: %(default)s; 0: a free one")
    exploring.add_argument("--no-browser", action="store_false", dest="browser", help="do not open the page")
    exploring.set_defaults(run=_explore)
    return parser


def _demo(out: Path, seed: int) -> int:
    from torchpfc.demo import run_demo

    with _explained():
        run_demo(out, seed=seed)
    return 0


def _list(name: str | None) -> int:
    from torchpfc.paper import experiments
    from torchpfc.paper.settings import settings

    if name is None:
        for experiment in experiments().values():
            rows = sum(len(table.rows) for table in experiment.tables)
            print(f"{experiment.name:<20}{experiment.summary}; {rows} rows")
        return 0
    experiment = _find(name)
    print(f"{experiment.name}: {experiment.summary}\n\nsettings")
    for key, value in settings(experiment.config()).items():
        print(f"  {key} = {value}")
    for table in experiment.tables:
        print(f"\n{table.id}: {table.title}")
        for row in table.rows:
            paper = "" if row.paper is None else f"  paper {row.paper}"
            print(f"  {row.id:<24}{paper}")
        for cited in table.cited:
            print(f"  {cited.id:<24}  cited {cited.value}: {cited.what}")
    return 0


def _run(name: str, rows: list[str], **options: Any) -> int:
    from torchpfc.paper import run
    from torchpfc.paper.launch import RequestError

    every = name == "all"
    if every and options["settings"]:
        raise _Problem("--set must come with the name of one experiment, got all")
    rows = rows or (["*"] if every else [])
    with _explained(RequestError):
        names = _runnable(rows) if every else [_installed(_find(name)).name]
        done = run(names, rows, describe=_describe, **options)
    if _is_first():
        skipped = len(done.results) - done.new
        left = f", {done.left} left to other processes" if done.left else ""
        where = "" if done.folder is None else f"; results in {done.folder}"
        print(f"{done.new} run, {skipped} had results already{left}{where}")
    return 1 if done.left else 0


def _runnable(rows: Sequence[str]) -> list[str]:
    """Leaves out experiments of many that need what is not installed, before hours have gone into the others."""
    from torchpfc.paper import experiments
    from torchpfc.paper.launch import make_jobs

    names = []
    for experiment in experiments().values():
        try:
            names.append(_installed(experiment).name)
        except ModuleNotFoundError as error:
            if make_jobs(experiment.name, rows):
                _say(f"{experiment.name} is left out: it needs {_how_to_install(str(error.name))}")
    return names


def _installed(experiment: Experiment) -> Experiment:
    """An experiment that has the package that it needs."""
    if experiment.package and find_spec(experiment.package) is None:
        raise ModuleNotFoundError(f"No module named {experiment.package!r}", name=experiment.package)
    return experiment


def _find(name: str) -> Experiment:
    from torchpfc.paper.registry import find_experiment

    with _explained(ValueError):
        experiment = find_experiment(name)
    return experiment


def _describe(result: Result) -> str:
    from torchpfc.paper.registry import find_experiment, rows_of
    from torchpfc.paper.report.words import name_metric, number

    experiment = find_experiment(result.experiment)
    name, paper = f"{result.experiment} {result.key}", ""
    for row, preset in rows_of(experiment, result)[:1]:
        name, paper = f"{row.id} ({preset})", "" if row.paper is None else f", paper {row.paper:.2f}"
    metrics, told = result.metrics, []
    if "test_accuracy" in metrics:
        told.append(f"test {metrics['test_accuracy']:.2f} %{paper}")
    if "valid_accuracy" in metrics:
        told.append(f"validation {metrics['valid_accuracy']:.2f} %")
    others = dict.fromkeys(table.metric for table in experiment.tables if table.metric != "test_accuracy")
    told += [f"{name_metric(metric)} {number(metrics[metric], metric)}" for metric in others if metric in metrics]
    if "epochs" in metrics and "milliseconds_per_step" in metrics:
        told.append(f"{metrics['epochs']:.0f} epochs of {metrics['milliseconds_per_step']:.3g} ms a step")
    return f"{name}, seed {result.seed}: {'; '.join(told)}"


def _report(results: Path, out: Path, check: bool) -> int:
    from torchpfc.data.images import REMARKS
    from torchpfc.paper.report import make_report

    with _explained(ValueError):
        changed = make_report(results, out, check=check, known_data=REMARKS)
    for path in changed:
        print(f"{'would change' if check else 'wrote'} {path}")
    return 1 if check and changed else 0


def _data_get(name: list[str], data_dir: Path | None) -> int:
    from torchpfc.data.download import download_images, download_songs
    from torchpfc.data.songs import EXCERPTS

    with _explained():
        for each in name:
            print(f"{each} is in {download_songs(data_dir) if each == EXCERPTS else download_images(each, data_dir)}")
    return 0


def _forget(model: Path, how: How, exact: bool, device: str, data_dir: Path | None, **what: Any) -> int:
    from torchpfc.unlearning import forget, load_model, save_model
    from torchpfc.unlearning.models import FORGOTTEN, keep_certificate, prepare_certificate

    with _explained(ValueError, RuntimeError), _changing(model):
        saved = load_model(model)
        if exact:
            done = _replay(model, saved, how, device, data_dir=data_dir, **what)
        else:
            done = forget(saved.block, saved.ledger, how=how, **what)
            forgotten = sorted({*saved.about.get(FORGOTTEN, ()), *done.batches})
            prepare_certificate(model, done)
            save_model(model, saved.block, saved.ledger, {**saved.about, FORGOTTEN: forgotten})
        place = keep_certificate(model)
    print(f"{done}\nwrote {place}")
    return 0


def _verify(certificate: Path, data: Path | None) -> int:
    from torchpfc.checkpoint import CorruptFileError
    from torchpfc.unlearning import Certificate, Verdict

    with _explained(ValueError, TypeError, KeyError, RuntimeError):
        try:
            verdict = _checked(Certificate.load(certificate), data)
        except CorruptFileError as error:
            verdict = Verdict(refused=(str(error),))
    print(verdict)
    return 0 if verdict.holds else 1


def _checked(certificate: Certificate, data: Path | None) -> Verdict:
    """The verdict on a certificate, by what its learner needs to be trained again."""
    from torchpfc.unlearning.verify import cannot_be_repeated, verify

    if refused := cannot_be_repeated(certificate):
        return refused
    if certificate.how == "replay":
        return _checked_replay(certificate, data)
    if data is None:
        raise _Problem("--data must name the folder of the batches, one .npz file each")
    if certificate.learner == "ContinualPFC":
        return verify(certificate, data)
    from torchpfc.sklearn.verify import verify_estimator

    return verify_estimator(certificate, data)


def _checked_replay(certificate: Certificate, data: Path | None) -> Verdict:
    import torch

    from torchpfc.paper.devices import open_fabric
    from torchpfc.paper.unlearning_verify import verify_replay

    device = "cuda" if certificate.machine["device"] == "cuda" and torch.cuda.is_available() else "cpu"
    assert certificate.settings is not None
    return verify_replay(certificate, data, open_fabric(device, str(certificate.settings["precision"])))


@contextmanager
def _changing(model: Path) -> Iterator[None]:
    """Keeps other processes from changing a model, and deletes what one that was killed has left."""
    from torchpfc.locks import held
    from torchpfc.unlearning.models import LOCK_FILE, delete_what_was, load_model

    load_model(model)  # no lock where no model is
    with held(model / LOCK_FILE, str(model)):
        delete_what_was(model)
        yield


def _replay(model: Path, saved: SavedModel, how: How, device: str, **options: Any) -> Certificate:
    from torchpfc.paper.devices import open_fabric
    from torchpfc.paper.unlearning_replay import forget_exactly

    if how != "zero":
        raise _Problem(f"--how must be left out with --exact, which leaves nothing to remove, got {how}")
    fabric = open_fabric(device, str(saved.about.get("precision", "32")))
    return forget_exactly(model, saved, fabric=fabric, **options)


def _separate(
    song: Path | None, model: Path, out: Path | None, train: Path | None, seed: int | None, device: str
) -> int:
    import torch

    if device not in ("cpu", "cuda"):
        raise _Problem(f"--device must be cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise _Problem("--device must be cpu, got cuda, but PyTorch finds no GPU here")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products of a slice are small: threads bring little, and wait where others work as well
    try:
        if train is not None:
            return _train_separator(song, model, out, train, seed or 0, device)
        return _separate_song(song, model, out, seed, device)
    finally:
        torch.set_num_threads(threads)


def _train_separator(song: Path | None, model: Path, out: Path | None, train: Path, seed: int, device: str) -> int:
    from torchpfc.audio import train_separator

    if song is not None or out is not None:
        raise _Problem("SONG and --out must be left out with --train, which makes a model and separates nothing")
    with _explained():
        made = train_separator(train, model, seed=seed, device=device)
    print(f"wrote {model}: error on validation songs {made.valid_loss:.5f} after {made.steps:,} steps, the lowest")
    print(f"next: torchpfc separate song.wav --model {model} --out parts")
    return 0


def _separate_song(song: Path | None, model: Path, out: Path | None, seed: int | None, device: str) -> int:
    from torchpfc.audio import load_separator, separate_file
    from torchpfc.progress import Progress

    if song is None or out is None:
        raise _Problem("SONG and --out must be given, or --train to make a model")
    if seed is not None:
        raise _Problem("--seed must come with --train")
    if out.exists() and not out.is_dir():
        raise _Problem(f"--out must be a folder, got the file {out}")
    with _explained(), Progress(1.0, f"Separating {song.name}") as progress:
        saved = load_separator(model)
        network, power = saved.model.to(device), saved.power
        files = separate_file(song, out, network, saved.features, power=power, tell=progress.at)
    for file in files:
        print(f"wrote {file}")
    return 0


def _explore(model: Path | None, data: str | None, **options: Any) -> int:
    from torchpfc.explorer import explore

    with _explained(ValueError):
        explore(model, data, **options, say=lambda text: print(text, flush=True))
    return 0


def _rows_and_columns(text: str) -> tuple[int, int]:
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise argparse.ArgumentTypeError(f"must be rows and columns such as 28x28, got {text!r}")
    return int(rows), int(columns)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _numbers(text: str) -> list[int]:
    """Numbers and half-open ranges, with commas between them."""
    found: list[int] = []
    for part in text.split(","):
        start, colon, stop = part.partition(":")
        if not start.isdecimal() or (colon and not stop.isdecimal()):
            raise argparse.ArgumentTypeError(f"must be numbers or ranges such as 500:800, got {text!r}")
        numbers = range(int(start), int(stop) if colon else int(start) + 1)
        if not numbers:
            raise argparse.ArgumentTypeError(f"must have ranges that end after they start, got {part!r}")
        found += numbers
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, got {text!r}")
    return seconds


def _output_file(text: str) -> Path:
    # Checked before the work starts: a wrong path should not cost the minute of training that comes first.
    path = Path(text)
    with suppress(OSError):  # such as a name that is too long
        if path.parent.is_dir() and not path.is_dir():
            return path
    raise argparse.ArgumentTypeError(f"must name a file in a folder that exists, got {text!r}")


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to {MAX_SEED}, got {text!r}")
    return int(text)
