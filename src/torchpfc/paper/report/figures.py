"""The figures of a report. Each is drawn from results alone, or not at all while there are none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from torchpfc.paper.report.charts import Axes, Dots, Panel, Series, dot_chart, line_chart
from torchpfc.paper.report.compare import Line, Sample, Sheet, is_share, ordered
from torchpfc.paper.report.continual import CONTINUAL, SWEEP
from torchpfc.paper.report.kinds import Figure, Kind, corrupt, draw_pictures, gather, pictured
from torchpfc.paper.report.layout import by_first, by_size
from torchpfc.paper.report.recurrent import OVER, RECURRENT
from torchpfc.paper.report.songs import SEPARATION
from torchpfc.paper.report.words import describe, name_preset, number, on_axis, varying

SERIES_IN_A_PANEL = 6
"""How many lines can be told apart."""

LINES_IN_A_FIGURE = 16
"""How many lines a legend may have: with more rows than this, their numbers say more than their curves."""

LAMBDA, ACCURACY, EPOCH = "prediction_weight", "test_accuracy", "epoch"


def draw_figures(sheets: Iterable[Sheet]) -> list[Figure]:
    """Draws all figures, table by table.

    Every table has one of its numbers, if the paper has some or its rows are many. Curves and images stand with the
    first table of an experiment that asks for a run.
    """
    made = []
    shown: dict[str, list[object]] = {}
    for sheet in sheets:
        before, lines = shown.setdefault(sheet.experiment.name, []), []
        for line in sheet.lines:
            if line.row.config not in before:  # two rows may compare different metrics of one run
                before.append(line.row.config)
                lines.append(line)
        new = replace(sheet, lines=tuple(lines))
        made.append(_compare_numbers(sheet))
        made += [kind.of(new) for kind in (*CURVES, *IMAGES)]
        made += [kind.of(sheet) for kind in (OVER, SWEEP)]
        made += [kind.of(new) for kind in (*RECURRENT, *CONTINUAL, *SEPARATION)]
    return made


def _compare_numbers(sheet: Sheet) -> Figure:
    known = sheet.only(lambda line: line.row.paper is not None)
    if known.lines or sheet.table.over or len(sheet.lines) <= SERIES_IN_A_PANEL:
        return NUMBERS.of(known)
    return COMPARED.of(sheet)


def draw_numbers(sheet: Sheet, title: str, *, shared: bool = False) -> str | None:
    """Dots beside the paper's numbers."""
    if not sheet.presets:
        return None
    scale, axis = on_axis(sheet.table.metric)
    panels = {
        group.title: {label: _dots(line, scale) for label, line in group.entries.items()} for group in by_first(sheet)
    }
    presets = enumerate(ordered(sheet.experiment.presets))
    styles = {name_preset(preset): style for style, preset in presets if preset in sheet.presets}
    return dot_chart(panels, styles, axis=axis, title=title, shared=shared)


def draw_compared(sheet: Sheet, title: str) -> str | None:
    """Dots of the rows that were run, where they differ."""
    run = sheet.only(lambda line: bool(line.samples))
    values = {value for line in run.lines for sample in line.samples.values() for value in sample.values}
    return draw_numbers(run, title, shared=_of_one_set(run)) if len(values) > 1 else None


def _of_one_set(sheet: Sheet) -> bool:
    """Whether all rows are about the same data, so that their numbers can be held against each other."""
    return len({repr(line.settings.get("dataset")) for line in sheet.lines}) == 1


def _dots(line: Line, scale: float) -> Dots:
    samples = {
        name_preset(preset): [scale * value for value in ([sample.mean] if is_share(sample.metric) else sample.values)]
        for preset, sample in line.samples.items()
    }
    mark, needed = (None if value is None else scale * value for value in (line.row.paper, line.needed))
    return Dots(mark, needed, samples)


def draw_curves(
    curve: str, axes: Axes, sheet: Sheet, title: str, *, companion: str | None = None, over: str | None = None
) -> str | None:
    """A curve of each row; where no setting parts the rows into panels, presets do, each with all of its samples.

    Args:
        curve: The name of the curve; of the samples that count.
        axes: What it measures. Over epochs stand only rows whose runs train once: with several tasks, an epoch has not
            the same number in every run.
        sheet: The table.
        title: What the chart shows, for readers who cannot see it.
        companion: The name of another curve, behind it.
        over: The name of the curve with its places; None counts from 1.
    """
    run = sheet.only(lambda line: line.has(curve) and not (axes.x == EPOCH and _trains_again(line)))
    if not run.lines:
        return None
    presets = {name for line in run.lines for name, sample in line.samples.items() if sample.has(curve)}
    groups = by_size(run, SERIES_IN_A_PANEL)
    labels = dict.fromkeys(label for alike in groups for group in alike for label in group.entries)
    styles = {label: style for style, label in enumerate(labels)}
    if len(styles) > LINES_IN_A_FIGURE:
        return None

    def panel(title: str, entries: Mapping[str, Line], preset: str | None = None) -> Panel:
        lines = []
        for label, line in entries.items():
            sample = line.samples.get(preset) if preset else line.deciding
            if sample is None:
                continue
            for name in filter(None, (curve, companion)):
                places = gather(_points(sample, name, over))
                lines.append(Series(label, *places, style=styles[label], faint=name == companion))
        return Panel(title, lines)

    if len(groups) == len(groups[0]) == 1 and len(presets) > 1:
        entries = groups[0][0].entries
        rows = [[panel(name_preset(preset), entries, preset) for preset in ordered(presets)]]
    else:
        rows = [[panel(group.title, group.entries) for group in alike] for alike in groups]
    return line_chart(rows, replace(axes, shared=len(rows) > 1 or _of_one_set(run)), title=title)


def _trains_again(line: Line) -> bool:
    return any(len(result.curves.get("epochs_of_phase", ())) > 1 for result in line.results)


def _points(sample: Sample, curve: str, over: str | None) -> Iterator[tuple[float, float]]:
    for result in sample.results:
        values = result.curves.get(curve, ())
        places = result.curves.get(over, ()) if over else range(1, len(values) + 1)
        if len(places) != len(values):
            raise corrupt(result, f"as many {over} as values of {curve}, got {len(places)} and {len(values)}")
        yield from zip(places, values, strict=True)


def draw_images(sheet: Sheet, title: str, *, name: str) -> str | None:
    """One image of each row that has it, by lambda from the prediction to the reconstruction."""
    results = sorted((run for _, run in pictured(sheet, name)), key=lambda run: -run.config.get(LAMBDA, 0))
    names = [LAMBDA, *(other for other in varying([run.config for run in results]) if other != LAMBDA)]
    shown = []
    for run in results:
        accuracy = f"{number(run.metrics[ACCURACY], ACCURACY)} %" if ACCURACY in run.metrics else ""
        shown.append((", ".join(filter(None, (describe(run.config, names), accuracy))), run, name))
    return draw_pictures(shown, title)


BANDS = "in a band from the lowest to the highest, unless there are many lines"

SETTLED = f"the mean over the runs that were still training, {BANDS}"

ONE_PRESET = "Unless presets have panels of their own, the one that decides for a row is drawn."

NUMBERS = Kind(
    "numbers",
    "the paper's numbers beside ours",
    "The paper's numbers and ours: the mean over the runs, and from the lowest to the highest. A row is met as far "
    "down as the grey area reaches. Each panel has a scale of its own.",
    draw_numbers,
)

COMPARED = Kind(
    "numbers",
    "all rows side by side",
    "The mean over the runs, and from the lowest to the highest. Where data sets differ, each panel has a scale of its "
    "own.",
    draw_compared,
)

CURVES = (
    Kind(
        "epochs",
        "validation accuracy over epochs",
        f"Accuracy on validation data after each epoch: {SETTLED}. The beginning may lie outside, and "
        f"panels may have scales of their own. {ONE_PRESET}",
        partial(draw_curves, "valid_accuracy", Axes(x=EPOCH, y="validation accuracy in %", settling=0.1)),
    ),
    Kind(
        "losses",
        "loss over epochs",
        f"Loss on validation data after each epoch: {SETTLED}. Behind it, faint, the loss on training data. "
        f"{ONE_PRESET}",
        partial(draw_curves, "valid_loss", Axes(x=EPOCH, y="loss", log_y=True), companion="train_loss"),
    ),
    Kind(
        "iterations",
        "test accuracy over iterations",
        "Test accuracy of trained models when their solver takes more or fewer iterations than it did in training.",
        partial(
            draw_curves,
            "accuracy_at_iterations",
            Axes(x="iterations", y="test accuracy in %", log_x=True),
            over="iterations",
        ),
    ),
    Kind(
        "tasks",
        "accuracy after each task",
        f"Accuracy on the images of all tasks so far, after each task: the mean over the runs, {BANDS}. {ONE_PRESET}",
        partial(draw_curves, "accuracy_after_task", Axes(x="tasks", y="accuracy on the tasks so far in %")),
    ),
    Kind(
        "steps",
        "validation accuracy over batches",
        f"Accuracy on fresh sequences: {SETTLED}.",
        partial(
            draw_curves, "accuracy_at_steps", Axes(x="batches", y="validation accuracy in %", log_x=True), over="steps"
        ),
    ),
    Kind(
        "passes",
        "error over passes",
        "Mean squared error of the predictions of the training sequence after so many passes: the mean over the runs, "
        f"{BANDS}. Where several starts were made, they follow one another.",
        partial(
            draw_curves,
            "prediction_mse",
            Axes(x="passes", y="mean squared error of predictions", log_x=True, log_y=True),
            over="passes",
        ),
    ),
    Kind(
        "errors",
        "error over batches",
        f"Mean squared error on validation songs: {SETTLED}. Behind it, faint, that on training clips, whose stems "
        "come from different songs.",
        partial(
            draw_curves,
            "valid_mse",
            Axes(x="batches", y="mean squared error", log_y=True),
            companion="train_loss",
            over="steps",
        ),
    ),
)

OF_LAMBDA = "λ weighs the prediction loss, and 1 − λ the reconstruction loss; beside it is the test accuracy."

IMAGES = tuple(
    Kind(name, title, f"{caption} {OF_LAMBDA}", partial(draw_images, name=name))
    for name, title, caption in (
        ("weights", "weights as images", "What the weights have learned: each column as an image."),
        (
            "reconstruction_in",
            "reconstructions",
            "Test images of the data set that was learned, and below them their reconstructions.",
        ),
        (
            "reconstruction_ood",
            "reconstructions of what was not learned",
            "Images of another data set, and below them the closest that the model can come.",
        ),
        ("completion", "completed images", "Images with one half hidden, and how the model completes them."),
        ("class_to_image", "images of classes", "The image that the model gives for each class, from the class alone."),
    )
)
