"""The command line: parses arguments, calls the function that does the work, prints what came of it."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from torchpfc._version import __version__

if TYPE_CHECKING:
    from torchpfc.experiments import Experiment, Job, Result

# What a subcommand may fail to import, and the extra that brings it.
EXTRA_OF = dict.fromkeys(("rich", "sklearn", "pooch", "safetensors", "lightning", "lightning_fabric"), "experiments")

MAX_SEED = 2**32 - 1  # NumPy's generators take no larger one


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: The arguments after the name of the program. `None` reads those of the process.

    Returns:
        0 when the command did its work, 2 when it could not start, 130 when it was interrupted.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = args.run(args)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        install = f'pip install "torchpfc[{EXTRA_OF[package]}]"'
        print(f"torchpfc {args.command} needs {package}, which is not installed: {install}", file=sys.stderr)
        return 2
    except _Problem as problem:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # once, however many processes have met it
            print(f"torchpfc {args.command}: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"torchpfc {args.command} was interrupted", file=sys.stderr)
        return 130
    return status


class _Problem(Exception):
    """Something that the user can put right; the message says what."""


@contextmanager
def _explained() -> Iterator[None]:
    """Turns what can go wrong with files and devices into one line."""
    from torchpfc.checkpoint import CorruptFileError
    from torchpfc.data.formats import DataError

    try:
        yield
    except (CorruptFileError, DataError) as error:
        raise _Problem(str(error)) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = "; make room and run the command again, which goes on where it stopped"
        raise _Problem(f"{error.strerror or error}{where}{advice if error.errno == errno.ENOSPC else ''}") from None


def build_parser() -> argparse.ArgumentParser:
    """Describe every command and its options."""
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
        "--no-test", action="store_true", help="measure on validation data only; results go to DIR/validation"
    )
    run.add_argument(
        "--checkpoint-seconds",
        type=_seconds,
        default=60.0,
        metavar="T",
        help="time between two savings of what is needed to go on (default: %(default)s)",
    )
    run.set_defaults(run=_run)

    report = commands.add_parser("report", help="write tables and figures from results")
    report.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    report.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="default: %(default)s")
    report.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    report.set_defaults(run=_report)

    data = commands.add_parser("data", help="download data sets")
    actions = data.add_subparsers(dest="action", metavar="action", required=True)
    get = actions.add_parser("get", help="download a data set")
    get.add_argument(
        "name", nargs="+", choices=("mnist", "fashion-mnist", "cifar10"), help="one or more of %(choices)s"
    )
    get.add_argument("--data-dir", type=Path, metavar="DIR", help="default: the cache folder of the user")
    get.set_defaults(run=_data_get)
    return parser


def _demo(args: argparse.Namespace) -> int:
    from torchpfc.demo import run_demo

    print(f"Wrote {run_demo(args.out, seed=args.seed)}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from torchpfc.experiments import experiments

    if args.name is None:
        for experiment in experiments().values():
            rows = sum(len(table.rows) for table in experiment.tables)
            print(f"{experiment.name:<16}{experiment.summary}; {rows} rows")
        return 0
    experiment = _find(args.name)
    print(f"{experiment.name}: {experiment.summary}\n\nsettings")
    for key, value in asdict(experiment.config()).items():
        print(f"  {key} = {value}")
    for table in experiment.tables:
        print(f"\n{table.id}: {table.title}")
        for row in table.rows:
            paper = "" if row.paper is None else f"  paper {row.paper}"
            print(f"  {row.id:<24}{paper}")
    return 0


def _run(args: argparse.Namespace) -> int:
    from torchpfc.experiments import make_groups, run_groups
    from torchpfc.experiments.devices import open_fabric, stop_processes

    try:
        requests = [(experiment, _jobs(experiment, args)) for experiment in _chosen(args)]
        if not any(jobs for _, jobs in requests):
            raise _Problem(f"--rows must match rows of {args.name}, got {' '.join(args.rows)}")
        groups = make_groups(requests, processes=args.devices)
        fabric = open_fabric(args.device, args.precision, args.devices)
    except ValueError as error:
        raise _Problem(str(error)) from None
    with _explained(), tempfile.TemporaryDirectory() as scratch:
        # Apart, or what was chosen without test data would count as done, and be reported.
        kept = args.results / "validation" if args.no_test else args.results
        try:
            count = run_groups(
                groups,
                fabric,
                Path(scratch) if args.smoke else kept,
                data_dir=args.data_dir,
                test=not args.no_test,
                precision=args.precision,
                checkpoint_seconds=args.checkpoint_seconds,
                describe=_describe,
            )
        except BaseException:
            stop_processes(fabric)
            raise
    if fabric.is_global_zero:
        skipped = sum(len(group.jobs) for group in groups) - count
        print(f"{count} run, {skipped} had results already" + ("" if args.smoke else f"; results in {kept}"))
    return 0


def _chosen(args: argparse.Namespace) -> list[Experiment]:
    from torchpfc.experiments import experiments

    if args.name != "all":
        return [_find(args.name)]
    if args.settings:
        raise _Problem("--set must come with the name of one experiment, got all")
    return list(experiments().values())


def _find(name: str) -> Experiment:
    from torchpfc.experiments import experiments

    known = experiments()
    if name not in known:
        raise _Problem(f"the experiment must be one of {', '.join(known)}, or all, got {name!r}")
    return known[name]


def _jobs(experiment: Experiment, args: argparse.Namespace) -> list[Job]:
    from torchpfc.experiments import Job, change_settings

    preset = experiment.presets[args.preset]
    patterns = args.rows or (["*"] if args.name == "all" else [])
    rows = [row for table in experiment.tables for row in table.rows if any(fnmatchcase(row.id, p) for p in patterns)]
    chosen = [(row.config, row.seeds) for row in rows] if patterns else [(experiment.config(), 1)]
    jobs = []
    for config, seeds in chosen:
        # Twice: a preset may depend on a setting, and a setting goes before a preset.
        config = change_settings(preset(change_settings(config, args.settings)), args.settings)
        if args.smoke:
            config, seeds = config.smoke(), 1
        jobs += [Job(config, seed) for seed in range(args.seeds or seeds)]
    return jobs


def _describe(result: Result) -> str:
    from torchpfc.experiments import experiments
    from torchpfc.experiments.registry import rows_of

    name, paper = f"{result.experiment} {result.key}", ""
    for row, preset in rows_of(experiments()[result.experiment], result)[:1]:
        name, paper = f"{row.id} ({preset})", "" if row.paper is None else f", paper {row.paper:.2f}"
    metrics = result.metrics
    test = f"test {metrics['test_accuracy']:.2f} %{paper}; " if "test_accuracy" in metrics else ""
    epochs = f"{metrics['epochs']:.0f} epochs of {metrics['milliseconds_per_step']:.3g} ms a step"
    return f"{name}, seed {result.seed}: {test}validation {metrics['valid_accuracy']:.2f} %; {epochs}"


def _report(args: argparse.Namespace) -> int:
    from torchpfc.data.images import REMARKS
    from torchpfc.report import make_report

    with _explained():
        changed = make_report(args.results, args.out, check=args.check, known_data=REMARKS)
    for path in changed:
        print(f"{'would change' if args.check else 'wrote'} {path}")
    return 1 if args.check and changed else 0


def _data_get(args: argparse.Namespace) -> int:
    from torchpfc.data.download import download_images

    with _explained():
        for name in args.name:
            print(f"{name} is in {download_images(name, args.data_dir)}")
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


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
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must name a file in a folder that exists, got {text!r}")
    return path


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to {MAX_SEED}, got {text!r}")
    return int(text)
