"""The figures of a report. Each is drawn from results alone, or not at all while there are none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from torchpfc.checkpoint import CorruptFileError
from torchpfc.paper.registry import Experiment, Table
from torchpfc.paper.report.charts import Axes, Dots, Panel, Picture, Series, dot_chart, line_chart, picture_chart
from torchpfc.paper.report.compare import Line, Sample, Sheet, fill, is_share, ordered
from torchpfc.paper.report.continual import CONTINUAL, SWEEP
from torchpfc.paper.report.layout import Entry, by_first, by_size
from torchpfc.paper.report.recurrent import OVER, RECURRENT
from torchpfc.paper.report.separation import SEPARATION
from torchpfc.paper.report.words import describe, name_preset, number, on_axis, varying
from torchpfc.paper.results import Result

SERIES_IN_A_PANEL = 6
"""How many lines can be told apart."""

LINES_IN_A_FIGURE = 16
"""How many lines a legend may have: with more rows than this, their numbers say more than their curves."""

LAMBDA, ACCURACY = "prediction_weight", "test_accuracy"


@dataclass(frozen=True)
class Figure:
    """Something to draw."""

    name: str
    """Of its file, and of its place in a document."""
    table: str
    """The id of the table that it stands with."""
    title: str
    """What it shows, for readers who cannot see it."""
    caption: str
    draw: Callable[[Sequence[Result]], str | None]
    """Gives the SVG, or None where there is nothing to draw yet."""


class Drawn(NamedTuple):
    """A figure, and how it looks; None where there is nothing to draw yet."""

    figure: Figure
    svg: str | None


def draw_figures(experiments: Mapping[str, Experiment], results: Sequence[Result]) -> list[Drawn]:
    """Draws all figures."""
    return [Drawn(figure, figure.draw(results)) for figure in list_figures(experiments)]


def list_figures(experiments: Mapping[str, Experiment]) -> list[Figure]:
    """All figures, table by table.

    Every table has one of its numbers, if the paper has some or its rows are many. Curves and images stand with the
    first table that asks for a run.
    """
    made = []
    for experiment in experiments.values():
        shown: list[object] = []
        for table in experiment.tables:
            fresh = [row.id for k, row in enumerate(table.rows) if row.config not in [*shown, *_configs(table, k)]]
            shown += [row.config for row in table.rows]
            made.append(_numbers_of(experiment, table))
            made += [kind.of(experiment, table, fresh) for kind in (*CURVES, *IMAGES) if fresh]
            made += [Kind(*parts).of(experiment, table, [row.id for row in table.rows]) for parts in (OVER, SWEEP)]
            made += [
                Kind(*parts).of(experiment, table, fresh) for parts in (*RECURRENT, *CONTINUAL, *SEPARATION) if fresh
            ]
    return made


def _numbers_of(experiment: Experiment, table: Table) -> Figure:
    known = [row.id for row in table.rows if row.paper is not None]
    if known or table.over or len(table.rows) <= SERIES_IN_A_PANEL:
        return NUMBERS.of(experiment, table, known)
    return COMPARED.of(experiment, table, [row.id for row in table.rows])


def _configs(table: Table, count: int) -> list[object]:
    """The settings of the first rows of a table: two rows may compare different metrics of one run."""
    return [row.config for row in table.rows[:count]]


@dataclass(frozen=True)
class Kind:
    """A figure that any table can have."""

    name: str
    title: str
    caption: str
    draw: Callable[[Sheet, str], str | None]
    """Takes a table, with the rows to show, and the title."""

    def of(self, experiment: Experiment, table: Table, rows: Collection[str]) -> Figure:
        """The figure of some rows of a table."""
        title = f"{table.title}: {self.title}"

        def draw(results: Sequence[Result]) -> str | None:
            return self.draw(_only(fill(experiment, table, results), rows), title)

        return Figure(f"{table.id}-{self.name.replace('_', '-')}", table.id, title, self.caption, draw)


def _only(sheet: Sheet, rows: Collection[str]) -> Sheet:
    return replace(sheet, lines=tuple(line for line in sheet.lines if line.row.id in rows))


def draw_numbers(sheet: Sheet, title: str, *, shared: bool = False) -> str | None:
    """Dots beside the paper's numbers."""
    if not sheet.presets:
        return None
    scale, axis = on_axis(sheet.table.metric)
    panels = {
        group.title: {entry.label: _dots(entry.line, scale) for entry in group.entries} for group in by_first(sheet)
    }
    styles = {preset: style for style, preset in enumerate(ordered(sheet.experiment.presets))}
    return dot_chart(
        panels,
        {name_preset(preset): styles[preset] for preset in sheet.presets},
        mark="the paper's number",
        needed="met down to here",
        axis=axis,
        title=title,
        shared=shared,
    )


def draw_compared(sheet: Sheet, title: str) -> str | None:
    """Dots of the rows that were run, where they differ."""
    run = _only(sheet, [line.row.id for line in sheet.lines if line.samples])
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


def draw_epochs(sheet: Sheet, title: str) -> str | None:
    """Validation accuracy over epochs."""
    axes = Axes(x="epoch", y="validation accuracy in %", settling=0.1)
    return _draw_curves(_in_one_go(sheet), title, axes, "valid_accuracy")


def draw_losses(sheet: Sheet, title: str) -> str | None:
    """Losses over epochs."""
    return _draw_curves(_in_one_go(sheet), title, Axes(x="epoch", y="loss", log_y=True), "valid_loss", "train_loss")


def _in_one_go(sheet: Sheet) -> Sheet:
    """The rows whose runs have one training: with several tasks, an epoch has not the same number in every run."""
    runs = {line.row.id: line.deciding.results if line.deciding else () for line in sheet.lines}
    return _only(sheet, [row for row, found in runs.items() if all(_phases(result) < 2 for result in found)])


def _phases(result: Result) -> int:
    return len(result.curves.get("epochs_of_phase", ()))


def draw_iterations(sheet: Sheet, title: str) -> str | None:
    """Test accuracy over the number of iterations."""
    axes = Axes(x="iterations", y="test accuracy in %", log_x=True)
    return _draw_curves(sheet, title, axes, "accuracy_at_iterations", over="iterations")


def draw_tasks(sheet: Sheet, title: str) -> str | None:
    """Accuracy on all tasks seen so far, after each task."""
    return _draw_curves(sheet, title, Axes(x="tasks", y="accuracy on the tasks so far in %"), "accuracy_after_task")


def draw_steps(sheet: Sheet, title: str) -> str | None:
    """Validation accuracy over batches, of networks that never see one twice."""
    axes = Axes(x="batches", y="validation accuracy in %", log_x=True)
    return _draw_curves(sheet, title, axes, "accuracy_at_steps", over="steps")


def draw_passes(sheet: Sheet, title: str) -> str | None:
    """Error of predictions over passes through a sequence."""
    axes = Axes(x="passes", y="mean squared error of predictions", log_x=True, log_y=True)
    return _draw_curves(sheet, title, axes, "prediction_mse", over="passes")


def draw_errors(sheet: Sheet, title: str) -> str | None:
    """Error on validation songs over batches."""
    axes = Axes(x="batches", y="mean squared error", log_y=True)
    return _draw_curves(sheet, title, axes, "valid_mse", "train_loss", over="steps")


def _draw_curves(
    sheet: Sheet, title: str, axes: Axes, curve: str, companion: str | None = None, *, over: str | None = None
) -> str | None:
    """A curve of each row, over epochs or another curve, and a companion behind it.

    Of the samples that count; where no setting parts the rows into panels, presets do, each with all of its samples.
    """
    run = _only(sheet, [line.row.id for line in sheet.lines if _has(line.deciding, curve)])
    if not run.lines:
        return None
    presets = [name for name in run.presets if any(_has(line.samples.get(name), curve) for line in run.lines)]
    groups = by_size(run, SERIES_IN_A_PANEL)
    labels = dict.fromkeys(entry.label for alike in groups for group in alike for entry in group.entries)
    styles = {label: style for style, label in enumerate(labels)}
    if len(styles) > LINES_IN_A_FIGURE:
        return None

    def panel(title: str, entries: Sequence[Entry], preset: str | None = None) -> Panel:
        lines = []
        for entry in entries:
            sample = entry.line.samples.get(preset) if preset else entry.line.deciding
            if sample is None:
                continue
            for name in filter(None, (curve, companion)):
                places = gather(_points(sample, name, over))
                lines.append(Series(entry.label, *places, style=styles[entry.label], faint=name == companion))
        return Panel(title, lines)

    if len(groups) == len(groups[0]) == 1 and len(presets) > 1:
        entries = groups[0][0].entries
        rows = [[panel(name_preset(preset), entries, preset) for preset in presets]]
    else:
        rows = [[panel(group.title, group.entries) for group in alike] for alike in groups]
    return line_chart(rows, replace(axes, shared=len(rows) > 1 or _of_one_set(run)), title=title)


def _has(sample: Sample | None, curve: str) -> bool:
    return sample is not None and sample.has(curve)


def _points(sample: Sample, curve: str, over: str | None) -> Iterator[tuple[float, float]]:
    for result in sample.results:
        values = result.curves.get(curve, ())
        places = result.curves.get(over, ()) if over else range(1, len(values) + 1)
        if len(places) != len(values):
            raise _corrupt(result, f"as many {over} as values of {curve}, got {len(places)} and {len(values)}")
        yield from zip(places, values, strict=True)


def gather(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float], list[float], list[float]]:
    """The places of some points, and the mean, lowest and highest value at each.

    Example:
        >>> gather([(1, 2.0), (2, 5.0), (1, 4.0)])
        ([1, 2], [3.0, 5.0], [2.0, 5.0], [4.0, 5.0])
    """
    at: dict[float, list[float]] = {}
    for x, y in points:
        at.setdefault(x, []).append(y)
    values = [at[x] for x in sorted(at)]
    return sorted(at), [sum(ys) / len(ys) for ys in values], [min(ys) for ys in values], [max(ys) for ys in values]


def draw_images(sheet: Sheet, title: str, *, name: str) -> str | None:
    """One image of each row that has it, by lambda from the prediction to the reconstruction."""
    runs = (line.deciding.results if line.deciding else () for line in sheet.lines)
    first = (next((result for result in found if name in result.images), None) for found in runs)
    results = sorted(filter(None, first), key=lambda result: -result.config.get(LAMBDA, 0))
    if not results:
        return None
    names = [LAMBDA, *(other for other in varying([result.config for result in results]) if other != LAMBDA)]
    return picture_chart([_picture(result, name, names) for result in results], title=title)


def _picture(result: Result, image: str, names: Sequence[str]) -> Picture:
    accuracy = f"{number(result.metrics[ACCURACY], ACCURACY)} %" if ACCURACY in result.metrics else ""
    words = ", ".join(filter(None, (describe(result.config, names), accuracy)))
    try:
        return Picture(words, result.images[image])
    except ValueError as error:
        raise _corrupt(result, f"images that can be drawn ({error})") from None


def _corrupt(result: Result, wanted: str) -> CorruptFileError:
    return CorruptFileError(f"{result.experiment}/{result.key}.json must hold {wanted}; delete it")


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
        draw_epochs,
    ),
    Kind(
        "losses",
        "loss over epochs",
        f"Loss on validation data after each epoch: {SETTLED}. Behind it, faint, the loss on training data. "
        f"{ONE_PRESET}",
        draw_losses,
    ),
    Kind(
        "iterations",
        "test accuracy over iterations",
        "Test accuracy of trained models when their solver takes more or fewer iterations than it did in training.",
        draw_iterations,
    ),
    Kind(
        "tasks",
        "accuracy after each task",
        f"Accuracy on the images of all tasks so far, after each task: the mean over the runs, {BANDS}. {ONE_PRESET}",
        draw_tasks,
    ),
    Kind(
        "steps",
        "validation accuracy over batches",
        f"Accuracy on fresh sequences: {SETTLED}.",
        draw_steps,
    ),
    Kind(
        "passes",
        "error over passes",
        "Mean squared error of the predictions of the training sequence after so many passes: the mean over the runs, "
        f"{BANDS}. Where several starts were made, they follow one another.",
        draw_passes,
    ),
    Kind(
        "errors",
        "error over batches",
        f"Mean squared error on validation songs: {SETTLED}. Behind it, faint, that on training clips, whose stems "
        "come from different songs.",
        draw_errors,
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
            "Test images of the data set that was learned, and their reconstructions.",
        ),
        (
            "reconstruction_ood",
            "reconstructions of what was not learned",
            "Images of another data set, and the closest that the model can come.",
        ),
        ("completion", "completed images", "Images with one half hidden, and how the model completes them."),
        ("class_to_image", "images of classes", "The image that the model gives for each class, from the class alone."),
    )
)
