"""The command line: parses arguments, calls the function that does the work, prints what came of it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchpfc._version import __version__

# What a subcommand may fail to import, and the extra that brings it.
EXTRA_OF = {"rich": "experiments", "sklearn": "experiments"}

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
    except KeyboardInterrupt:
        print(f"torchpfc {args.command} was interrupted", file=sys.stderr)
        return 130
    return status


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
    return parser


def _demo(args: argparse.Namespace) -> int:
    from torchpfc.demo import run_demo

    print(f"Wrote {run_demo(args.out, seed=args.seed)}")
    return 0


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
