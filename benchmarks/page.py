"""Writes the pages on speed and accuracy, with their figures: from the files in `benchmarks/results/` and nothing else.

The same files give the same bytes. A file that is not there is named on its page as not measured yet. With --check
nothing is written, and the exit status is 1 if a page or a figure is not what the files say.

    python benchmarks/page.py [--check] [--results benchmarks/results] [--docs docs]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _page_accuracy import tell_estimators, tell_forgetting, tell_images, tell_intents, tell_streams, tell_tables
from _page_solving import OURS, tell_hard_nnls, tell_nmf, tell_nnls, tell_nnls_sizes, tell_separation
from _page_training import tell_block_cost, tell_gpu, tell_gradients, tell_rnn, tell_train_step
from _page_words import Data, Gain, Told, grid, name, paragraphs, span

from torchpfc.checkpoint import CorruptFileError, read_json
from torchpfc.paper.report.build import settle
from torchpfc.paper.report.charts import Axes, Panel, Series, line_chart, standalone
from torchpfc.paper.report.words import plural

HERE = Path(__file__).resolve().parent
FIGURES = "figures/speed"

INTRODUCTION = """\
<!-- Written by benchmarks/page.py from the files in benchmarks/results/: change those, not this page. -->

# Speed

What you gain, against which alternative, on which hardware. Every number on this page comes from a file in
`benchmarks/results/`: a benchmark writes the file, and `python benchmarks/page.py` makes the page from all of them.
Times are medians over n runs. A ratio is the time of the alternative divided by ours: 2 is twice as fast, and less than
1 is slower.

The textbook form is what a straightforward implementation does: autograd through every step of the solver, two products
with $W$ in each, and the step size from power iterations at every call. How accurate models are is on other pages:
[the paper's tables](paper.md) and [accuracy](accuracy.md). [How to choose](choosing.md) says what to
use when.
"""

ACCURACY = """\
<!-- Written by benchmarks/page.py from the files in benchmarks/results/: change those, not this page. -->

# Accuracy

How good the estimators and the continual learner are beside others, with the same data for all and with settings that
were chosen without looking at the test. Every number comes from a file in `benchmarks/results/`, as on the page on
[speed](speed.md). The paper's own experiments are in [the paper's tables](paper.md).
"""


COST = """\
<!-- Written by benchmarks/page.py from the files in benchmarks/results/: change those, not this page. -->

# What a block costs

A block solves a problem for every example, where an MLP takes two products. A step of the solver is one product with
the $r \\times r$ matrix $W^\\top W$, or two with $W$ where there are more than twice as many parts as features, and
training with the default goes back through each of a hundred. What that buys is a code that can be read. Where it is
too dear, there are ways to pay less; none changes what a block is.

| if you | take | it costs |
| --- | --- | --- |
| explore, or have few parts | the defaults: `FISTA.paper()`, `Unrolled()` | 100 steps forward, 100 back |
| train for long | `adjoint=Implicit.fast()` | 100 steps forward, 10 back, no memory for them |
| see the same loss with fewer steps, on validation data | `FISTA.paper(30)` beside it | a third of that |
| train on a fixed set for many epochs | `FISTA.paper(10)` and `codes=WarmCodes(...)` of `fit` | 10 steps |
| replace the MLPs of a transformer | fewer parts than an MLP has units, and implicit gradients | what a code is worth |
| need predictions alone, with fixed weights | `ADMM(50)`, or `nnls` to be exact | one inverse, and fewer steps |

Implicit gradients are right at the solution, so they need steps enough to get near it: with several times as many parts
as features, few steps were [not enough to learn](choosing.md#the-gradient). Warm codes run ahead of what a solve from
scratch finds where weights are non-negative and parts are many: [validate with cold solves](choosing.md#warm-starts).
"""


class Section(NamedTuple):
    """A part of the page, made from one file."""

    title: str
    file: str
    command: str
    tell: Callable[[Data], Told]


SECTIONS = (
    Section("A training step on a GPU", "gpu.json", "python benchmarks/gpu.py", tell_gpu),
    Section("Ways to the gradient on a GPU", "gradients.json", "python benchmarks/gradients.py", tell_gradients),
    Section("A training step on a CPU", "train_step.json", "python benchmarks/train_step.py", tell_train_step),
    Section("A recurrent network on a CPU", "rnn.json", "python benchmarks/rnn.py --device cpu", tell_rnn),
    Section("A recurrent network on a GPU", "rnn_gpu.json", "python benchmarks/rnn.py --device cuda", tell_rnn),
    Section("Finding codes on a CPU", "nnls.json", "TORCHPFC_DATA=DATA python benchmarks/nnls.py", tell_nnls),
    Section(
        "Finding codes on a GPU",
        "nnls_gpu.json",
        "python benchmarks/nnls.py --device cuda --table --out benchmarks/results/nnls_gpu.json",
        tell_nnls_sizes,
    ),
    Section("Hard problems", "hard_nnls.json", "python benchmarks/hard_nnls.py", tell_hard_nnls),
    Section("Factorizing a matrix", "nmf.json", "TORCHPFC_DATA=DATA python benchmarks/nmf.py", tell_nmf),
    Section("Separating a song", "separation.json", "python benchmarks/separation.py", tell_separation),
)


ACCURACY_SECTIONS = (
    Section("Tables as they come", "tables.json", "python benchmarks/tables.py", tell_tables),
    Section("Intents one at a time", "intents.json", "TORCHPFC_DATA=DATA python benchmarks/intents.py", tell_intents),
    Section("Streams of single examples", "streams.json", "python benchmarks/streams.py", tell_streams),
    Section("Images", "images.json", "OMP_NUM_THREADS=1 TORCHPFC_DATA=DATA python benchmarks/images.py", tell_images),
    Section(
        "The price of forgetting",
        "forgetting.json",
        "OMP_NUM_THREADS=1 TORCHPFC_DATA=DATA python benchmarks/forgetting.py",
        tell_forgetting,
    ),
    Section("Against a tuned perceptron", "estimators.json", "python benchmarks/estimators.py", tell_estimators),
)

COST_SECTIONS = (Section("Measured", "block_cost.json", "python benchmarks/block_cost.py", tell_block_cost),)

PAGES = {
    "speed.md": (INTRODUCTION, SECTIONS),
    "accuracy.md": (ACCURACY, ACCURACY_SECTIONS),
    "cost.md": (COST, COST_SECTIONS),
}
"""How each page begins, and its parts."""


class Figure(NamedTuple):
    """Something to draw from a result file."""

    name: str
    title: str
    caption: str
    draw: Callable[[Data, str], str]
    """Takes what the file holds, and the title."""


def draw_gpu(data: Data, title: str) -> str:
    left_out = "mlp"  # captured, it is the faster one
    styles = {form: i for i, form in enumerate(f for f in data["shapes"][0]["median_seconds"] if f != left_out)}
    panels = []
    for features in dict.fromkeys(shape["features"] for shape in data["shapes"]):
        shapes = [shape for shape in data["shapes"] if shape["features"] == features]
        parts = [shape["num_basis"] for shape in shapes]
        series = []
        for form, style in styles.items():
            rounds = [[1e3 * seconds for seconds in shape["all_seconds"][form]] for shape in shapes]
            medians = [1e3 * shape["median_seconds"][form] for shape in shapes]
            series.append(Series(name(form, styles), parts, medians, [*map(min, rounds)], [*map(max, rounds)], style))
        panels.append(Panel(f"{features:,} features", series))
    axes = Axes(x="parts", y="milliseconds a step", log_x=True, log_y=True, shared=True)
    return line_chart([panels], axes, title=title)


def draw_nmf(data: Data, title: str) -> str:
    target = min(data["slack"], key=data["slack"].__getitem__)
    panels: dict[str, list[Data]] = {}
    for row in data["results"]:
        size = " × ".join(f"{n:,}" for n in row["shape"])
        panels.setdefault(f"{name(row['data'])}, {size}", []).append(row)
    methods = list(data["results"][0]["summary"][target]["median_seconds"])
    drawn = []
    for heading, rows in panels.items():
        series = []
        for style, method in enumerate(sorted(methods, key=lambda method: method != OURS)):
            found = {row["num_basis"]: row["summary"][target]["median_seconds"][method] for row in rows}
            reached = {parts: seconds for parts, seconds in found.items() if seconds is not None}
            if reached:
                runs = [_runs(row, target, method) for row in rows if row["num_basis"] in reached]
                low, high = [*map(min, runs)], [*map(max, runs)]
                series.append(Series(method, [*reached], [*reached.values()], low, high, style))
        drawn.append(Panel(heading, series))
    axes = Axes(x="parts", y="seconds", log_x=True, log_y=True, shared=True)
    return line_chart([drawn], axes, title=title)


def _runs(row: Data, target: str, method: str) -> list[float]:
    runs = (run["seconds"][method] for run in row["runs"] if run["target"] == target)
    return [seconds for seconds in runs if seconds is not None]


DRAWN = {
    "gpu.json": Figure(
        "gpu",
        "Milliseconds of a training step over the number of parts, on a GPU",
        "The median of all rounds, in a band from the fastest to the slowest, on logarithmic scales. The eager MLP is"
        " in the table only.",
        draw_gpu,
    ),
    "nmf.json": Figure(
        "nmf",
        "Seconds of a factorization over the number of parts",
        "The closer of the targets: the median over starts, in a band from the fastest to the slowest, on logarithmic"
        " scales. Methods that never reach it are not drawn.",
        draw_nmf,
    ),
}


def write_files(results: Path, docs: Path) -> dict[Path, str]:
    """The pages and their figures, as they should be."""
    files: dict[Path, str] = {}
    for page, (introduction, sections) in PAGES.items():
        parts: list[str] = []
        rows: list[list[str]] = []
        for section in sections:
            path = results / section.file
            data = load(path)
            if data is None:
                parts.append(not_measured(section))
                continue
            try:
                told, svg = section.tell(data), draw(section, data)
                parts.append(measured(section, data, told))
                rows += glance(told.gains, data)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise CorruptFileError(
                    f"{path} must hold what its benchmark writes, got {type(error).__name__}: {error};"
                    f" measure it again: {section.command}"
                ) from error
            files |= {docs / FIGURES / f"{DRAWN[section.file].name}.svg": svg} if svg else {}
        heads = ["what", "alternative", "times as fast", "hardware"]
        table = paragraphs("## At a glance", grid(heads, rows, words=2, remarks=1)) if rows else ""
        files[docs / page] = paragraphs(introduction.rstrip(), table, *parts) + "\n"
    return files


def not_measured(section: Section) -> str:
    line = f"Not measured yet: there is no `{section.file}`. Measure it: `{section.command}`."
    return paragraphs(f"## {section.title}", question(section), line)


def measured(section: Section, data: Data, told: Told) -> str:
    asked, figure = data.get("question") or question(section), DRAWN.get(section.file)
    shown = paragraphs(f"![{figure.title}]({FIGURES}/{figure.name}.svg)", figure.caption) if figure else ""
    source = f"Measured on {describe(data)}. File: `{section.file}`. Measure it again: `{section.command}`."
    return paragraphs(f"## {section.title}", asked, shown, told.text, source)


def draw(section: Section, data: Data) -> str:
    """The figure of a section as a file, or nothing where it has none."""
    figure = DRAWN.get(section.file)
    return standalone(figure.draw(data, figure.title)) if figure else ""


def glance(gains: list[Gain], data: Data) -> list[list[str]]:
    """Rows of the table at the top of the page."""
    machine = data["hardware"]["gpu"] or data["hardware"]["cpu"]
    return [
        [gain.what, gain.against, f"{span(gain.times)}{', slower' if max(gain.times) < 1 else ''}", machine]
        for gain in gains
    ]


def load(path: Path) -> Data | None:
    """What a file holds; None where there is none."""
    return read_json(path) if path.exists() else None


def question(section: Section) -> str:
    """What a benchmark asks: the first line of its file."""
    script = next(word for word in section.command.split() if word.endswith(".py"))
    told = ast.get_docstring(ast.parse((HERE.parent / script).read_text(encoding="utf-8")))
    return (told or "").splitlines()[0]


def describe(data: Data) -> str:
    """Hardware and versions."""
    hardware, versions = data["hardware"], data["versions"]
    cpu = f"{hardware['cpu']}, {plural(hardware['cores'], 'core')}, {plural(hardware['threads'], 'thread')}"
    names = {"python": "Python"}
    used = ", ".join(f"{names.get(package, package)} {version}" for package, version in versions.items())
    return f"{hardware['gpu']} ({cpu}) with {used}" if hardware["gpu"] else f"{cpu} with {used}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs")
    args = parser.parse_args(arguments)
    try:
        files = write_files(args.results, args.docs)
        stale = set((args.docs / FIGURES).glob("*.svg")) - set(files)
        changed = settle(files, stale=stale, check=args.check)
    except CorruptFileError as error:
        print(error, file=sys.stderr)
        return 1
    if args.check and changed:
        names = ", ".join(path.relative_to(args.docs).as_posix() for path in changed)
        print(f"not what the files in {args.results} say: {names}; run python benchmarks/page.py", file=sys.stderr)
        return 1
    for path in changed:
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
