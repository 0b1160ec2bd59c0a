"""Makes the numbers and the figures of the page on completion.

`python -m docs.figures.completion` trains one block for each seed on scikit-learn's handwritten digits, hides half of
each test digit, and writes `docs/results/completion.json`, the tables of `docs/concepts/completion.md` and the figures
beside this file. About a minute on one core. `--redo-tables` only writes the tables anew, from the JSON that is there.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, one_hot

from benchmarks._machine import describe, write_json
from torchpfc import FISTA, Implicit, PFCBlock, RMSprop, keep_nonnegative
from torchpfc.data.png import encode_png
from torchpfc.nn.completion import complete

DOCS = Path(__file__).parent.parent
RESULT = DOCS / "results" / "completion.json"
PAGE = DOCS / "concepts" / "completion.md"
HALVES = DOCS / "figures" / "completion-halves.svg"
CLASSES = DOCS / "figures" / "completion-classes.svg"

SIDE, CLASS_COUNT = 8, 10


@dataclass(frozen=True)
class Config:
    """What is trained, and on what."""

    num_basis: int = 100
    max_iter: int = 50
    epochs: int = 30
    batch_size: int = 100
    lr: float = 3e-3
    test_size: int = 500
    y_weight: float = SIDE**2 / CLASS_COUNT  # both sides count the same in total
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)


class Split(NamedTuple):
    """Training and test digits of one seed."""

    x: Tensor
    labels: Tensor
    test_x: Tensor
    test_labels: Tensor


def main() -> None:
    """Does all of it."""
    parser = argparse.ArgumentParser(description="numbers and figures of the page on completion")
    parser.add_argument("--redo-tables", action="store_true", help="only write the tables anew from the JSON")
    if not parser.parse_args().redo_tables:
        torch.set_num_threads(1)
        config = Config()
        write_json(RESULT, {"config": asdict(config), "metrics": measure(config), **describe()})
    write_tables(PAGE, json.loads(RESULT.read_text(encoding="utf-8")))


def measure(config: Config) -> dict[str, Any]:
    """Every number of the page, one value per seed; draws the figures with the first seed."""
    metrics: dict[str, Any] = {"test_digits": config.test_size, "seen_whole": [], "classes_recognised": []}
    for seed in config.seeds:
        split = load(config, seed)
        block = train(config, split, seed)
        if seed == config.seeds[0]:
            HALVES.write_text(draw_halves(block, split, seed), encoding="utf-8")
            CLASSES.write_text(draw_classes(config, block, split), encoding="utf-8")
        with torch.no_grad():
            metrics["seen_whole"].append(accuracy(block(split.test_x), split))
            images = complete(block, y=torch.eye(CLASS_COUNT)).x
            metrics["classes_recognised"].append(int((block(images).argmax(1) == torch.arange(CLASS_COUNT)).sum()))
            for hidden, mask in masks(config.test_size, seed):
                for name, value in measure_hidden(config, block, split, mask).items():
                    metrics.setdefault(hidden, {}).setdefault(name, []).append(value)
        print(f"seed {seed}: {metrics['seen_whole'][-1]:.1f} % of whole digits", flush=True)
    return metrics


def measure_hidden(config: Config, block: PFCBlock, split: Split, mask: Tensor) -> dict[str, float]:
    """Accuracy in percent, and the error of hidden pixels, for one way of hiding."""
    x, mean = split.test_x, split.x.mean(0)
    found = complete(block, x, mask_x=mask)
    told = complete(block, x, one_hot(split.test_labels, CLASS_COUNT).float(), mask, y_weight=config.y_weight)

    def error(predicted: Tensor) -> float:
        return (predicted - x)[~mask].square().mean().sqrt().item()

    return {
        "mask": accuracy(found.y, split),
        "zero_fill": accuracy(block(x.where(mask, 0.0)), split),
        "mean_fill": accuracy(block(x.where(mask, mean)), split),
        "pixel_error": error(found.x),
        "pixel_error_class_told": error(told.x),
        "pixel_error_mean": error(mean.expand_as(x)),
    }


def load(config: Config, seed: int) -> Split:
    """A split of its own for each seed; pixels from 0 to 1."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, rest = order[: config.test_size], order[config.test_size :]
    return Split(x[rest], labels[rest], x[test], labels[test])


def train(config: Config, split: Split, seed: int) -> PFCBlock:
    """An NMF block that predicts the class and reconstructs the digit, from whole digits alone."""
    generator = torch.Generator().manual_seed(seed)
    solver, adjoint = FISTA.paper(config.max_iter), Implicit.fast()
    block = PFCBlock(SIDE**2, CLASS_COUNT, config.num_basis, solver=solver, adjoint=adjoint, generator=generator)
    optimizer = RMSprop(block.parameters(), lr=config.lr)
    keep_nonnegative(block, optimizer)
    target = one_hot(split.labels, CLASS_COUNT).float()
    for _ in range(config.epochs):
        for rows in torch.randperm(len(split.x), generator=generator).split(config.batch_size):
            out = block.couple(split.x[rows])
            loss = mse_loss(out.y, target[rows]) + mse_loss(out.x, split.x[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return block.eval()


def masks(count: int, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Five ways to hide half of a digit: True where it is still seen."""
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    half = SIDE // 2
    for name, seen in (
        ("left", column >= half),
        ("right", column < half),
        ("top", row >= half),
        ("bottom", row < half),
    ):
        yield name, seen.flatten().expand(count, -1)
    noise = torch.rand(count, SIDE**2, generator=torch.Generator().manual_seed(seed))
    yield "random", noise.argsort(dim=1) < SIDE**2 // 2


def accuracy(y: Tensor, split: Split) -> float:
    """In percent."""
    return 100 * (y.argmax(1) == split.test_labels).double().mean().item()


# The tables.

HIDDEN = {
    "left": "left half",
    "right": "right half",
    "top": "top half",
    "bottom": "bottom half",
    "random": "half of the pixels, at random",
}


def tables(result: dict[str, Any]) -> dict[str, str]:
    """The tables of the page by the name of their place in it."""
    metrics, config = result["metrics"], result["config"]
    rows = [f"| nothing | {spread(metrics['seen_whole'])} | | |"]
    errors = []
    for key, name in HIDDEN.items():
        at = metrics[key]
        rows.append(f"| {name} | **{spread(at['mask'])}** | {spread(at['zero_fill'])} | {spread(at['mean_fill'])} |")
        kinds = ("pixel_error", "pixel_error_class_told", "pixel_error_mean")
        errors.append(f"| {name} | {' | '.join(spread(at[kind], digits=3) for kind in kinds)} |")
    source = (
        f"Mean ± standard deviation over n={len(config['seeds'])} seeds, {metrics['test_digits']} test digits each; "
        f"torch {result['versions']['torch']}, {result['hardware']['cpu']}."
    )
    recognised = metrics["classes_recognised"]
    return {
        "accuracy": "\n".join(
            ["| hidden | mask | filled with 0 | filled with the mean digit |", "|---|---|---|---|", *rows, "", source]
        ),
        "pixels": "\n".join(
            ["| hidden | completed | completed, class told | mean digit |", "|---|---|---|---|", *errors, "", source]
        ),
        "classes": f"Over the same {len(recognised)} seeds the block, shown its own images, gave back the class of "
        f"{sum(recognised)} of {CLASS_COUNT * len(recognised)}.",
    }


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def with_tables(page: str, result: dict[str, Any]) -> str:
    """The page with each table in its place, between two comments."""
    for name, table in tables(result).items():
        start, end = f"<!-- {name}: written by docs/figures/completion.py -->", f"<!-- end of {name} -->"
        head, _, rest = page.partition(start)
        _, _, tail = rest.partition(end)
        page = f"{head}{start}\n\n{table}\n\n{end}{tail}"
    return page


def write_tables(path: Path, result: dict[str, Any]) -> None:
    """Writes the tables into the page."""
    path.write_text(with_tables(path.read_text(encoding="utf-8"), result), encoding="utf-8")
    print(f"wrote {path}")


# The figures.

CELL, GAP, MARGIN = 44, 8, 12
LABEL_WIDTH = 118
INK, PAPER, UNSEEN = (23, 43, 77), (255, 255, 255), (255, 214, 153)
RIGHT, WRONG = "#00695c", "#c62828"


@torch.no_grad()
def draw_halves(block: PFCBlock, split: Split, seed: int) -> str:
    """The first test digit of each class with half of it hidden, completed and taken for zero."""
    first = torch.stack([(split.test_labels == c).nonzero()[0, 0] for c in range(CLASS_COUNT)])
    canvas = Canvas(CLASS_COUNT)
    canvas.pictures("digit", [picture(x) for x in split.test_x[first]])
    for name in ("bottom", "random"):
        x, seen = split.test_x[first], dict(masks(len(split.test_x), seed))[name][first]
        filled = x.where(seen, 0.0)
        found, zeroed = complete(block, x, mask_x=seen), block.couple(filled)
        canvas.space()
        canvas.pictures("seen", [picture(*pair) for pair in zip(x, seen, strict=True)])
        canvas.pictures("completed", [picture(image) for image in found.filled_x], answers(found.y))
        canvas.pictures("filled with 0", [picture(image) for image in zeroed.x], answers(zeroed.y))
    return canvas.svg("Digits with half of their pixels hidden, and what a block makes of them")


@torch.no_grad()
def draw_classes(config: Config, block: PFCBlock, split: Split) -> str:
    """An image for each class, from the class alone and from half an image."""
    every = torch.eye(CLASS_COUNT)
    canvas = Canvas(CLASS_COUNT)
    means = torch.stack([split.x[split.labels == c].mean(0) for c in range(CLASS_COUNT)])
    canvas.header([str(c) for c in range(CLASS_COUNT)], "class given")
    canvas.pictures("image asked", [bright(image) for image in complete(block, y=every).x])
    canvas.pictures("mean digit", [bright(image) for image in means])
    canvas.space()
    top = dict(masks(1, 0))["bottom"][0]
    for label in (0, 5):
        x = split.test_x[split.test_labels == label][0]
        found = complete(block, x, every, top, y_weight=config.y_weight)
        canvas.pictures(f"top half of a {label}", [picture(image) for image in found.filled_x])
    return canvas.svg("Images that a block run backwards gives for each class")


def answers(y: Tensor) -> list[tuple[str, str]]:
    """The class that each row says, and its colour: the right one is its place in the row."""
    said = y.argmax(1).tolist()
    return [(str(label), RIGHT if label == place else WRONG) for place, label in enumerate(said)]


def picture(image: Tensor, seen: Tensor | None = None) -> str:
    """An image as an SVG image element without a place: ink on paper, and another colour where it is not seen."""
    ink = image.clamp(0, 1).unsqueeze(-1)
    colours = ink * torch.tensor(INK) + (1 - ink) * torch.tensor(PAPER)
    if seen is not None:
        colours = colours.where(seen.unsqueeze(-1), torch.tensor(UNSEEN, dtype=colours.dtype))
    png = encode_png(colours.round().to(torch.uint8).view(SIDE, SIDE, 3))
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def bright(image: Tensor) -> str:
    """The same, with the largest pixel at full brightness."""
    return picture(image / image.max())


class Canvas:
    """Rows of pictures, from top to bottom."""

    def __init__(self, columns: int) -> None:
        self._width = MARGIN + LABEL_WIDTH + columns * (CELL + GAP) - GAP + MARGIN
        self._top = MARGIN
        self._parts: list[str] = []

    def pictures(self, label: str, images: Sequence[str], notes: Sequence[tuple[str, str]] = ()) -> None:
        """A row, with a note under each picture where there are notes."""
        self._text(MARGIN, self._top + CELL / 2 + 5, label)
        for column, image in enumerate(images):
            box = f'x="{self._left(column)}" y="{self._top}" width="{CELL}" height="{CELL}"'
            self._parts.append(f'<image {box} href="{image}" style="image-rendering:pixelated"/>')
            self._parts.append(f'<rect {box} fill="none" stroke="#b0bec5"/>')
        self._top += CELL + GAP
        if notes:
            self._text(MARGIN, self._top + 9, "taken for", small=True)
            for column, (note, colour) in enumerate(notes):
                self._text(self._left(column) + CELL / 2, self._top + 9, note, colour=colour, middle=True)
            self._top += 14 + GAP

    def header(self, notes: Sequence[str], label: str) -> None:
        """A row of text."""
        self._text(MARGIN, self._top + 14, label)
        for column, note in enumerate(notes):
            self._text(self._left(column) + CELL / 2, self._top + 14, note, middle=True)
        self._top += 18 + GAP

    def space(self) -> None:
        """A line between two groups of rows."""
        self._top += 4
        self._parts.append(
            f'<line x1="{MARGIN}" x2="{self._width - MARGIN}" y1="{self._top}" y2="{self._top}" stroke="#cfd8dc"/>'
        )
        self._top += 4 + GAP

    def svg(self, title: str) -> str:
        """The whole figure."""
        height = self._top - GAP + MARGIN
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {height}" width="{self._width}" '
            f'height="{height}" role="img" font-family="system-ui, sans-serif">\n<title>{title}</title>\n'
            f'<rect width="{self._width}" height="{height}" rx="6" fill="#fff"/>\n{body}\n</svg>\n'
        )

    def _left(self, column: int) -> int:
        return MARGIN + LABEL_WIDTH + column * (CELL + GAP)

    def _text(
        self, x: float, y: float, text: str, *, colour: str = "#37474f", middle: bool = False, small: bool = False
    ) -> None:
        anchor = ' text-anchor="middle"' if middle else ""
        weight = ' font-weight="bold"' if colour == WRONG else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" font-size="{12 if small else 14}" fill="{colour}"{anchor}{weight}>{text}</text>'
        )


if __name__ == "__main__":
    main()
