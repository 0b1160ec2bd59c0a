"""Figures of recurrent networks: metrics over a setting, machines, and pictures of factorizations."""

from __future__ import annotations

from functools import partial

from torchpfc.paper.report.charts import Arrow, Axes, Node, Panel, Series, graph_chart, line_chart
from torchpfc.paper.report.compare import Sheet, in_percent
from torchpfc.paper.report.kinds import Kind, draw_pictures, gather
from torchpfc.paper.report.words import describe, name_metric, name_preset, on_axis, varying
from torchpfc.paper.results import Result

MOST_PICTURES = 3
"""How many pictures of one kind a figure has."""

LARGE = 50
"""Parts that a failed run should have at least to be shown: with fewer there may be too few for the sequence."""

SETTINGS = {"num_basis": "parts", "pause": "slices of pause", "lr": "learning rate"}
"""What a setting is."""


def draw_over(sheet: Sheet, title: str) -> str | None:
    """The metric of a table over one of its settings: means, and the range where the metric is an accuracy."""
    over, metric = sheet.table.over, sheet.table.metric
    if not over:
        return None
    names = [name for name in varying([line.settings for line in sheet.lines]) if name != over]
    (scale, axis), several = on_axis(metric), len(sheet.presets) > 1
    found: dict[str, list[tuple[float, float]]] = {}
    for line in sheet.lines:
        for preset in sheet.presets:
            sample = line.deciding if preset in line.same else line.samples.get(preset)
            if sample is None:
                continue
            words = line.row.what or describe(line.settings, names), name_preset(preset) if several else ""
            label = ", ".join(filter(None, words)) or name_metric(metric)
            found.setdefault(label, []).extend((float(line.settings[over]), scale * value) for value in sample.values)
    lines = []
    for style, (label, points) in enumerate(found.items()):
        places, means, low, high = gather(points)
        if len(places) > 1:
            spread = (low, high) if in_percent(metric) else (means, means)
            lines.append(Series(label, places, means, *spread, style=style))
    if not lines:
        return None
    axes = Axes(x=SETTINGS.get(over, over), y=axis, log_x=True, at_points=True)
    return line_chart([[Panel("", lines)]], axes, title=title)


def draw_machine(sheet: Sheet, title: str) -> str | None:
    """The machine in the weights of a run; of one that succeeded where there is one."""
    runs = [run for run in _successes_first(sheet) if run.curves.get("machine_reads")]
    if not runs:
        return None
    curves = runs[0].curves
    reads, predicts = (list(map(int, curves[f"machine_{name}"])) for name in ("reads", "predicts"))
    nodes = [
        Node(str(symbol), symbol, f"reads {symbol}, predicts {ahead}")
        for symbol, ahead in zip(reads, predicts, strict=True)
    ]
    largest = max(curves["machine_weights"], default=1.0)
    ends = zip(*(curves[f"machine_{name}"] for name in ("sources", "targets", "weights")), strict=True)
    arrows = [Arrow(int(source), int(target), weight / largest) for source, target, weight in ends]
    styles = {f"reads {symbol}": symbol for symbol in sorted(set(reads))}
    return graph_chart(nodes, arrows, styles, title=title)


def draw_sizes(sheet: Sheet, title: str, *, name: str, count: int = 1) -> str | None:
    """Pictures of runs, each of another size; those that succeeded come first."""
    first: dict[object, Result] = {}
    for run in _successes_first(sheet):
        if name in run.images:
            first.setdefault(run.config.get("num_basis"), run)
    return draw_pictures([(_label(run), run, name) for run in list(first.values())[:count]], title)


def draw_failed(sheet: Sheet, title: str) -> str | None:
    """Weights and sequences of a run that failed."""
    runs = _successes_first(sheet)
    failed = [run for run in runs if not run.metrics.get("success", 1.0) and "stacked_weights" in run.images]
    large = [run for run in failed if run.config.get("num_basis", 0) >= LARGE] or failed
    if not large:
        return None
    run = min(large, key=lambda run: (run.config.get("num_basis", 0), run.seed))
    return draw_pictures([(_label(run), run, name) for name in ("stacked_weights", "sequences")], title)


def _label(run: Result) -> str:
    words = [describe(run.config, ["num_basis"]), f"seed {run.seed}"]
    if "mse" in run.metrics:
        words.append(f"MSE {run.metrics['mse']:.1e}")
    return ", ".join(words)


def _successes_first(sheet: Sheet) -> list[Result]:
    """The runs of a table that goes over sizes, by size and seed, those that succeeded before the others."""
    results = sheet.results if sheet.table.over else []
    return sorted(results, key=lambda run: (-run.metrics.get("success", 0.0), run.config.get("num_basis", 0), run.seed))


OVER = Kind(
    "over",
    "as a setting changes",
    "Means over the runs, and for accuracies from the lowest to the highest.",
    draw_over,
)

RECURRENT = (
    Kind(
        "machine",
        "the machine in the weights",
        "The states of a trained network and the transitions between them, read from its weights alone. Each state has "
        "the number of the symbol that leads to it; darker arrows have larger weights.",
        draw_machine,
    ),
    Kind(
        "stacked-weights",
        "weights as one matrix",
        "The weights as one matrix: from above, what each column predicts, the state before it, and the symbol that it "
        "reads. Columns in use come first, in the order of the machine.",
        partial(draw_sizes, name="stacked_weights", count=MOST_PICTURES),
    ),
    Kind(
        "factorization-before",
        "the factorization before generation",
        "V, W and H before anything is generated. From above, V has outputs, last states and inputs: a seed alone.",
        partial(draw_sizes, name="factorization_before"),
    ),
    Kind(
        "factorization-after",
        "the factorization after generation",
        "The same V, W and H after the network has gone on with the seed: predictions have become inputs.",
        partial(draw_sizes, name="factorization_after"),
    ),
    Kind(
        "sequences",
        "training, seed and generated sequence",
        "From above: the sequence that was learned, the seed, and what the network makes of it. A column is a slice.",
        partial(draw_sizes, name="sequences"),
    ),
    Kind(
        "failed",
        "a run that failed",
        "Weights and sequences of a run that failed, drawn as those above.",
        draw_failed,
    ),
)
"""Of tables that go over sizes."""
