"""The page: what was found out, in words and pictures, in one file that needs nothing else."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import accumulate

import torch
from torch import Tensor

from torchpfc.data.png import encode_png
from torchpfc.data.streams import SPLIT_PAIRS
from torchpfc.demo.measure import (
    ITERATIONS,
    KNOWN_SHARE,
    NUM_CLASSES,
    UNITS,
    WEIGHT_DECAY,
    Classifier,
    Count,
    Findings,
    Forgetting,
    Lessons,
    percent,
)
from torchpfc.interpret import Explanation, describe_columns
from torchpfc.markup import element, read_style

SIDE = 8
"""Pixels along one side of a picture."""

INK = (0, 0, 0)
BELOW_ZERO = (11, 110, 105)

NUM_EXAMPLES = 3
"""How many right predictions are taken apart."""

SCORE_SHARE = 0.95
"""What the parts drawn one by one are to make up of a winning score."""

MAX_TERMS = 3
"""How many parts are drawn one by one at most."""


def draw(found: Findings, made: Mapping[str, str]) -> str:
    """Writes the page: `demo.html` with what was found out in the places of the names in braces.

    Args:
        found: What it shows.
        made: With what it was made: the versions of `torchpfc`, `torch`, `sklearn` and `python`, then `seconds` and
            `machine`.
    """
    page, style = ((files("torchpfc.demo") / name).read_text(encoding="utf-8") for name in ("demo.html", "demo.css"))
    (pfc, mlp), (task_mlp, _, taught), taken = found.at_once.values(), found.in_tasks.values(), found.forgetting
    lowest = math.floor(10 * min(network.test.interval[0] for network in (pfc, mlp))) / 10
    task_sizes = [count.total for count in taught.tests[0]]
    rates = ((name, lessons.training) for name, lessons in found.in_tasks.items())
    seen, labels = found.kinds["Test digits"], found.splits.test.label.tolist()
    examples = choose_examples(seen, labels)
    mistakes = [row for row in examples if seen.answers[row] != str(labels[row])]
    hero = max(examples, key=lambda row: (row not in mistakes, count_shown(seen[row])))
    return page.format(
        style=read_style("colours", "type") + style,
        found=found,
        pfc=pfc,
        mlp=mlp,
        task_mlp=task_mlp,
        taught=taught,
        taken=taken,
        **{f"num_{name}": f"{len(digits):,}" for name, digits in found.splits._asdict().items()},
        one_digit=f"{100 / len(labels):.2f}",
        units=UNITS,
        iterations=ITERATIONS,
        weight_decay=f"{WEIGHT_DECAY:g}",
        hero=draw_equation(seen[hero], labels[hero]),
        lowest=percent(lowest, 0),
        classifiers="\n".join(draw_classifier(name, network, lowest) for name, network in found.at_once.items()),
        parts=draw_parts(seen),
        num_examples=NUM_EXAMPLES,
        mistakes=", and the first that it got wrong" if mistakes else "; it got none wrong",
        score_share=percent(SCORE_SHARE, 0),
        max_terms=MAX_TERMS,
        examples="\n".join(draw_example(seen[row], labels[row], row) for row in examples),
        kinds="\n".join(draw_kind(name, kind, labels) for name, kind in found.kinds.items()),
        spread="\n".join(draw_spread(name, kind, found.limit) for name, kind in found.kinds.items()),
        known_share=percent(KNOWN_SHARE, 0),
        limit=percent(found.limit, 0),
        beyond=[Count(int((kind.unexplained > found.limit).sum()), len(kind)) for kind in found.kinds.values()],
        matrices="\n".join(draw_matrix(name, lessons) for name, lessons in found.in_tasks.items()),
        task_sizes=f"{min(task_sizes)} to {max(task_sizes)}",
        num_columns=found.windowed.h.shape[1],
        rates="; ".join(f"{name}: {training.lr:g}, {training.max_epochs} epochs" for name, training in rates),
        strip=draw_window(found.windowed, taught.columns),
        num_corrupted=len(taken.corrupted),
        num_removed=len(taken.columns),
        num_forgetful=taken.learned.h.shape[1],
        forgotten=draw_forgetting(taken),
        **{name: escape(text) for name, text in made.items()},
    )


def summarise(found: Findings) -> str:
    """The accuracies as lines for a terminal."""
    taken = found.forgetting
    wrong = f"{len(taken.corrupted)} of {taken.num_batches} batches with wrong labels"
    groups = {
        "all classes at once": {name: network.test for name, network in found.at_once.items()},
        "two digits at a time": {name: taught.final for name, taught in found.in_tasks.items()},
        wrong: {"as learned": taken.before, "after forgetting them": taken.after, "never seen": taken.never},
    }
    lines = [f"Accuracy on {len(found.splits.test)} test digits (seed {found.seed})"]
    for title, counts in groups.items():
        lines += [f"  {title}", *(f"    {name:<26}{100 * count.share:5.1f} %" for name, count in counts.items())]
    return "\n".join(lines)


def choose_examples(seen: Explanation, labels: Sequence[int]) -> list[int]:
    """The first digits of different classes that a block gets right, then the first that it gets wrong."""
    right = [answer == str(label) for answer, label in zip(seen.answers, labels, strict=True)]
    first: dict[int, int] = {}
    for row, label in enumerate(labels):
        if right[row] and len(first) < NUM_EXAMPLES:
            first.setdefault(label, row)
    return [*first.values(), *[row for row, is_right in enumerate(right) if not is_right][:1]]


def draw_classifier(name: str, network: Classifier, lowest: float) -> str:
    """A network in a row, with its accuracy and what this is worth on a scale that begins at the lowest share."""
    low, high = network.test.interval
    start, middle, end = (100 * (share - lowest) / (1 - lowest) for share in (low, network.test.share, high))
    whisker = element("i", style=f"left: {start:.1f}%; width: {end - start:.1f}%")
    dot = element("b", style=f"left: {middle:.1f}%")
    accuracy = element("strong", str(network.test))
    cells = (f"{network.parameters:,}", str(network.epochs), accuracy, f"{100 * low:.1f} to {percent(high)}")
    place = element("td", element("div", whisker, dot), class_="range")
    return element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells), place)


def draw_parts(seen: Explanation) -> str:
    """Parts in rows by the class they speak for, the most decided first; those without a majority come last."""
    rows: dict[str, list[str]] = {name: [] for name in (*map(str, range(NUM_CLASSES)), "shared")}
    images = seen.weight_x / seen.weight_x.amax(0)
    for column in sorted(describe_columns(seen, seen.h).columns, key=lambda column: -max(column.profile)):
        share = max(column.profile)
        digit = str(column.profile.index(share))
        alt = f"part {column.column}, speaks for {digit} with {percent(share, 0)}"
        part = element("div", picture(images[:, column.column], alt), percent(share, 0), class_="part")
        rows[digit if share > 0.5 else "shared"].append(part)
    return "\n".join(
        element("div", element("dt", name, class_=name), element("dd", *(row or ["none"])))
        for name, row in rows.items()
    )


def draw_example(one: Explanation, label: int, row: int) -> str:
    """A prediction as a sum, beside the scores of all classes."""
    scores, answer = one.y[0].tolist(), int(one.answers[0])
    verb, detail = "read as", f"test digit {row + 1}"
    if answer != label:
        verb, detail = "mistaken for", f"{detail}; its own class, {label}, scored {scores[label]:.2f}"
    title = element("h3", f"A {label}, {verb} {answer} ", element("small", detail))
    bars = []
    for digit, score in enumerate(scores):
        bar = element("i", style=f"height: {78 * score / max(scores):.1f}%")
        bars.append(element("div", bar, str(digit), class_="wins" if digit == answer else "other"))
    spoken = ", ".join(f"{digit}: {score:.2f}" for digit, score in enumerate(scores))
    votes = element("div", *bars, class_="votes", role="img", aria_label=f"Scores of the classes. {spoken}")
    return element("figure", title, draw_equation(one, label), votes, class_="example")


def count_shown(one: Explanation) -> int:
    """How many parts of a digit are drawn one by one."""
    answer = int(one.answers[0])
    sums = accumulate(term.contributions[answer] for term in one.terms())
    return min(MAX_TERMS, 1 + sum(reached < SCORE_SHARE * float(one.y[0, answer]) for reached in sums))


def draw_equation(one: Explanation, label: int) -> str:
    """The digit = amounts times parts + the other parts + the rest, and below it the same sum for the score."""
    answer, terms, shown = int(one.answers[0]), one.terms(), count_shown(one)
    added = [term.contributions[answer] for term in terms]
    *scores, score_of_others = round_to_sum([*added[:shown], sum(added[shown:])])
    total = f"{sum(map(float, (*scores, score_of_others))):.2f}"
    tiles = [_tile("", one.x[0], f"a handwritten {label}", f"score of {answer}", total)]
    for term, score in zip(terms, scores, strict=False):
        part, peak = one.weight_x[:, term.part], float(one.weight_x[:, term.part].max())
        sign = "=" if term is terms[0] else "+"
        tiles.append(_tile(sign, part / peak, f"part {term.part}", f"× {term.amount * peak:.2f}", score))
    others = one.pieces[0, [term.part for term in terms[shown:]]]
    visible = int((others.amax(1) > 0.01).sum())
    tiles.append(_tile("+", others.sum(0), "the other parts, added up", f"{visible} others", score_of_others))
    tiles.append(_tile("+", one.rest[0], "what no part explains", "the rest", ""))
    return element("div", *tiles, class_="equation")


def _tile(sign: str, image: Tensor, alt: str, label: str, score: str) -> str:
    tile = element("div", picture(image, alt), label, element("b", score))
    return element("div", element("span", sign, class_="sign") if sign else "", tile, class_="summand")


def draw_kind(name: str, kind: Explanation, labels: Sequence[int]) -> str:
    """Some images of a kind, over their reconstructions: for digits, the first of every class."""
    pairs = []
    for row in map(labels.index, range(NUM_CLASSES)):
        above = picture(kind.x[row], f"{name}, image {row + 1}")
        below = picture(kind[row].reconstruction[0], "its reconstruction")
        pairs.append(element("div", above, below, percent(float(kind[row].unexplained), 0), class_="pair"))
    return element("div", element("h3", name), element("div", *pairs, class_="pairs"))


def draw_spread(name: str, kind: Explanation, limit: float) -> str:
    """One line for each image at the share of it that stays unexplained, and the limit."""
    lines = [element("line", x1=f"{x:.4f}", x2=f"{x:.4f}", y1=0.2, y2=0.8) for x in kind.unexplained.tolist()]
    lines.append(element("line", x1=f"{limit:.4f}", x2=f"{limit:.4f}", y1=0, y2=1, class_="limit"))
    median = f"{name}: median {percent(float(kind.unexplained.median()), 0)}"
    options = {"viewBox": "0 0 1 1", "preserveAspectRatio": "none", "role": "img", "aria_label": median}
    return element("div", median) + element("svg", *lines, **options)


def draw_matrix(name: str, lessons: Lessons) -> str:
    """What a network knew of each task after each task."""
    tasks = [",\N{NO-BREAK SPACE}".join(map(str, task)) for task in SPLIT_PAIRS]
    rows = [element("tr", element("td"), *(element("th", task, scope="col") for task in tasks))]
    for k, counts in enumerate(lessons.tests):
        known = [f"{100 * count.share:.0f}" for count in counts[: k + 1]]
        cells = [element("td", share, style=f"--heat: {share}%") for share in known]
        later = [element("td", "·", class_="later", aria_label="not taught yet") for _ in counts[k + 1 :]]
        rows.append(element("tr", element("th", f"after {tasks[k]}", scope="row"), *cells, *later))
    total = element("b", str(lessons.final))
    caption = element("caption", name, total, class_="kept" if lessons.columns else "other")
    return element("table", caption, element("thead", rows[0]), element("tbody", *rows[1:]), class_="matrix")


def draw_window(seen: Explanation, columns: Sequence[range]) -> str:
    """The columns that a window has passed over, in a row for each task, drawn to one scale."""
    peaks = seen.weight_x[:, : columns[-1].stop].amax(0)
    names = (" and ".join(map(str, task)) for task in SPLIT_PAIRS)
    return _draw_columns(seen, dict(zip(names, columns, strict=True)), peaks.median(), "column")


def draw_forgetting(taken: Forgetting) -> str:
    """The columns as batches wrote them, in a row for those before, of and after wrong labels."""
    bad, columns, seen = taken.corrupted, taken.columns, taken.learned
    rows = {
        f"batches 0 to {bad.start - 1}": range(columns.start),
        f"{bad.start} to {bad.stop - 1}, removed": columns,
        f"{bad.stop} to {taken.num_batches - 1}": range(columns.stop, seen.h.shape[1]),
    }
    return _draw_columns(seen, rows, seen.weight_x.amax(0), "before forgetting, column")


def _draw_columns(seen: Explanation, rows: Mapping[str, range], scale: Tensor, alt: str) -> str:
    digits, images, drawn = seen.weight_y.argmax(0).tolist(), seen.weight_x / scale, []
    for name, columns in rows.items():
        pictures = (picture(images[:, i], f"{alt} {i}, speaks for {digits[i]}") for i in columns)
        drawn.append(element("dt", name) + element("dd", *pictures))
    return "\n".join(drawn)


def picture(image: Tensor, alt: str) -> str:
    r"""A framed picture: 0 is paper, 1 is ink, and what lies below zero has a colour of its own.

    Shape:
        - image: $(64)$
    """
    opacity = image.abs().clamp(max=1).mul(255).round().unsqueeze(-1)
    colour = torch.where(image.unsqueeze(-1) < 0, torch.tensor(BELOW_ZERO), torch.tensor(INK))
    pixels = torch.cat([colour, opacity], dim=-1).to(torch.uint8).view(SIDE, SIDE, 4)
    source = f"data:image/png;base64,{base64.b64encode(encode_png(pixels)).decode()}"
    return element("span", element("img", src=source, alt=alt, width=SIDE, height=SIDE), class_="frame")


def round_to_sum(values: Sequence[float], digits: int = 2) -> list[str]:
    """Rounds values so that they still add up to their rounded sum; each is off by less than one last place.

    Example:
        >>> round_to_sum([0.335, 0.335, 0.33])
        ['0.34', '0.33', '0.33']
    """
    scaled = [value * 10**digits for value in values]
    whole = [math.floor(value) for value in scaled]
    missing = round(sum(scaled)) - sum(whole)
    furthest_first = sorted(range(len(values)), key=lambda i: whole[i] - scaled[i])
    for i in furthest_first[:missing]:
        whole[i] += 1
    return [f"{value / 10**digits:.{digits}f}" for value in whole]
