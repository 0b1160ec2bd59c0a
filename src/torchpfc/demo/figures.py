"""The figures of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from torchpfc.demo.digits import NUM_CLASSES
from torchpfc.demo.markup import percent, picture, round_to_sum
from torchpfc.demo.results import (
    Classifier,
    Count,
    Explanation,
    Forgetting,
    Lessons,
    Parts,
    Recognition,
    Reconstructions,
)
from torchpfc.demo.settings import TASKS
from torchpfc.paper.report.markup import element


def draw_facts(facts: dict[str, Count]) -> str:
    """Shares in large type, each with what it is a share of."""
    pairs = ((element("dt", text), element("dd", percent(count.share))) for text, count in facts.items())
    return "\n".join(element("div", *pair) for pair in pairs)


def draw_classifiers(networks: dict[str, Classifier]) -> str:
    """Networks in one table, with their accuracies and what these are worth on a common scale."""
    lowest = math.floor(10 * min(network.test.interval[0] for network in networks.values())) / 10
    axis = element("span", percent(lowest, 0)) + element("span", percent(1, 0))
    heads = ("network", "weights", "best epoch", "accuracy", "95\N{NO-BREAK SPACE}% interval")
    return element(
        "table",
        element("caption", f"Accuracy on {next(iter(networks.values())).test.total} test digits"),
        element(
            "thead",
            element("tr", *(element("th", head, scope="col") for head in heads), element("td", axis, class_="range")),
        ),
        element("tbody", *(_classifier_row(name, network, lowest) for name, network in networks.items())),
        class_="scores",
    )


def _classifier_row(name: str, network: Classifier, lowest: float) -> str:
    low, high = network.test.interval

    def place(share: float) -> float:
        return 100 * (share - lowest) / (1 - lowest)

    whisker = element("i", style=f"left: {place(low):.1f}%; width: {place(high) - place(low):.1f}%")
    dot = element("b", style=f"left: {place(network.test.share):.1f}%")
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", f"{network.parameters:,}"),
        element("td", str(network.epochs)),
        element("td", element("strong", percent(network.test.share))),
        element("td", f"{100 * low:.1f} to {percent(high)}"),
        element("td", element("div", whisker, dot), class_="range"),
    )


def draw_parts(parts: Parts) -> str:
    """Parts in rows by the class they speak for, the most decided first; those without a majority come last."""
    vote, label = parts.votes.max(1)
    rows: dict[int | None, list[str]] = {digit: [] for digit in (*range(NUM_CLASSES), None)}
    for part in vote.argsort(descending=True).tolist():
        digit, share = int(label[part]), float(vote[part])
        image = picture(parts.images[part], f"part {part}, speaks for {digit} with {percent(share, 0)}")
        rows[digit if share > 0.5 else None].append(element("div", image, percent(share, 0), class_="part"))
    terms = (element("dt", "shared", class_="word") if digit is None else element("dt", str(digit)) for digit in rows)
    return "\n".join(
        element("div", term, element("dd", *(row or ["none"]))) for term, row in zip(terms, rows.values(), strict=True)
    )


def draw_example(explanation: Explanation) -> str:
    """A prediction as a sum, beside the scores of all classes."""
    label, answer = explanation.label, explanation.answer
    verb, detail = "read as", f"test digit {explanation.row + 1}"
    if answer != label:
        verb = "mistaken for"
        detail += f"; its own class, {label}, scored {explanation.scores[label]:.2f}"
    title = element("h3", f"A {label}, {verb} {answer} ", element("small", detail))
    return element("figure", title, draw_equation(explanation), draw_votes(explanation), class_="example")


def draw_equation(explanation: Explanation) -> str:
    """The digit = amounts times parts + the other parts + the rest, and below it the same sum for the score."""
    terms, others = explanation.terms, explanation.others
    *scores, score_of_others = round_to_sum([*(term.score for term in terms), others.score])
    total = f"{sum(map(float, (*scores, score_of_others))):.2f}"
    parts = [(term.image, f"part {term.part}", f"× {term.amount:.2f}") for term in terms]
    sides = [
        _summand("", explanation.x, f"a handwritten {explanation.label}", f"score of {explanation.answer}", total),
        *(_summand("+" if i else "=", *part, score) for i, (part, score) in enumerate(zip(parts, scores, strict=True))),
        _summand("+", others.image, "the other parts, added up", f"{others.number} others", score_of_others),
        _summand("+", explanation.rest, "what no part explains", "the rest", ""),
    ]
    return element("div", *sides, class_="equation")


def _summand(sign: str, image: Tensor, alt: str, label: str, score: str) -> str:
    tile = element("div", picture(image, alt), label, element("b", score))
    return element("div", element("span", sign, class_="sign") if sign else "", tile, class_="summand")


def draw_votes(explanation: Explanation) -> str:
    """The scores of all classes as bars."""
    scores = [float(score) for score in explanation.scores]
    highest = max(scores)
    bars = [
        element(
            "div",
            element("i", style=f"height: {78 * score / highest:.1f}%"),
            str(digit),
            class_="wins" if digit == explanation.answer else "other",
        )
        for digit, score in enumerate(scores)
    ]
    spoken = ", ".join(f"{digit}: {score:.2f}" for digit, score in enumerate(scores))
    return element("div", *bars, class_="votes", role="img", aria_label=f"Scores of the classes. {spoken}")


def draw_kinds(recognition: Recognition) -> str:
    """Some images of each kind, over their reconstructions: for digits, the first of every class."""
    labels = recognition.labels.tolist()
    rows = [labels.index(digit) for digit in range(NUM_CLASSES)]
    return "\n".join(
        element("div", element("h3", name), element("div", *(_pair(name, kind, row) for row in rows), class_="pairs"))
        for name, kind in kinds(recognition).items()
    )


def kinds(recognition: Recognition) -> dict[str, Reconstructions]:
    """What a block was given, in words."""
    return {
        "Test digits": recognition.digits,
        "The same digits, pixels shuffled": recognition.shuffled,
        "Uniform noise": recognition.noise,
    }


def _pair(name: str, kind: Reconstructions, row: int) -> str:
    images = picture(kind.x[row], f"{name}, image {row + 1}"), picture(kind.reconstruction[row], "its reconstruction")
    return element("div", *images, percent(float(kind.unexplained[row]), 0), class_="pair")


def draw_spread(recognition: Recognition) -> str:
    """One line for each image at the share of it that stays unexplained, and the limit."""
    limit = element(
        "line", x1=f"{recognition.threshold:.4f}", x2=f"{recognition.threshold:.4f}", y1=0, y2=1, class_="limit"
    )
    rows = []
    for name, kind in kinds(recognition).items():
        lines = (element("line", x1=f"{x:.4f}", x2=f"{x:.4f}", y1=0.2, y2=0.8) for x in kind.unexplained.tolist())
        median = f"{name}: median {percent(float(kind.unexplained.median()), 0)}"
        options = {"viewBox": "0 0 1 1", "preserveAspectRatio": "none", "role": "img", "aria_label": median}
        rows += [element("div", median), element("svg", *lines, limit, **options)]
    ticks = element("div", *(element("span", percent(tick / 4, 0)) for tick in range(5)), class_="axis")
    return "\n".join([*rows, element("div", class_="gap"), ticks])


def draw_matrices(lessons: dict[str, Lessons]) -> str:
    """What each network knew of each task after each task."""
    return "\n".join(_matrix(name, taught) for name, taught in lessons.items())


def _matrix(name: str, taught: Lessons) -> str:
    names = [",\N{NO-BREAK SPACE}".join(map(str, task)) for task in TASKS]
    head = element("td") + "".join(element("th", name, scope="col") for name in names)
    rows = []
    for k, counts in enumerate(taught.tests):
        cells = [
            _cell(count) if j <= k else element("td", "·", class_="later", aria_label="not taught yet")
            for j, count in enumerate(counts)
        ]
        rows.append(element("tr", element("th", f"after {names[k]}", scope="row"), *cells))
    caption = element(
        "caption", name, element("b", percent(taught.final.share)), class_="kept" if taught.unfinished else "other"
    )
    return element("table", caption, element("thead", element("tr", head)), element("tbody", *rows), class_="matrix")


def _cell(count: Count) -> str:
    return element("td", f"{100 * count.share:.0f}", style=f"--heat: {100 * count.share:.0f}%")


def draw_forgetting(forgetting: Forgetting) -> str:
    """The columns in the order in which batches wrote them, in a row for those before, of and after wrong labels."""
    columns, bad, parts = forgetting.columns, forgetting.corrupted, forgetting.parts
    rows = {
        f"batches 0 to {bad.start - 1}": range(columns.start),
        f"{bad.start} to {bad.stop - 1}, removed": columns,
        f"{bad.stop} to {forgetting.num_batches - 1}": range(columns.stop, len(parts.images)),
    }
    return "\n".join(
        element("dt", name) + element("dd", *(_column_before(parts, i) for i in found)) for name, found in rows.items()
    )


def _column_before(parts: Parts, i: int) -> str:
    return picture(parts.images[i], f"before forgetting, column {i}, speaks for {int(parts.votes[i].argmax())}")


def draw_strip(parts: Parts, unfinished: Sequence[range]) -> str:
    """The columns that a window has passed over, in order, in a row for each task."""
    starts = [0, *(columns.start for columns in unfinished[:-1]), unfinished[-1].stop]
    scale = parts.peaks[: unfinished[-1].start].median()
    rows = []
    for task, (start, stop) in zip(TASKS, pairwise(starts), strict=True):
        images = [
            picture(parts.images[i] * parts.peaks[i] / scale, f"column {i}, speaks for {int(parts.votes[i].argmax())}")
            for i in range(start, stop)
        ]
        rows.append(element("dt", " and ".join(map(str, task))) + element("dd", *images))
    return "\n".join(rows)
