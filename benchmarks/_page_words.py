"""Numbers, comparisons and tables of the page on speed, as people write them.

Ratios are always the time of the other divided by the time of ours: above 1 ours is faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Data = Mapping[str, Any]
"""What a result file holds."""

NAMES = {
    "implicit_warm": "warm implicit",
    "mlp": "MLP",
    "factorized": "factorized RNN",
    "factorized_no_bptt": "factorized RNN without BPTT",
    "vanilla": "vanilla RNN",
    "lstm": "LSTM",
    "gru": "GRU",
    "nmf": "NMF",
    "mnist": "MNIST",
    "made": "made matrix",
}
"""What has a spelling of its own."""

CAPTURED = "_captured"
"""How the name of a step ends that is one launch."""


class Gain(NamedTuple):
    """How many times as fast as something else, in each case that was measured."""

    what: str
    against: str
    times: list[float]


class Told(NamedTuple):
    """What a file says, in Markdown, and the gains that belong at the top of the page."""

    text: str
    gains: list[Gain]


def compare(subject: str, other: str, ratios: Mapping[str, float]) -> str:
    """One sentence on how many times as fast something is, over all cases; it names those where it is slower.

    Example:
        >>> compare("Ours", "theirs", {"small": 4.0, "large": 0.5})
        'Ours is up to 4.0 times as fast as theirs, but slower at large: there it takes up to 2.0 times as long.'
        >>> compare("Ours", "theirs", {"small": 0.25, "large": 0.5})
        'Ours is slower than theirs: it takes 2.0 to 4.0 times as long.'
    """
    slower = {case: 1 / ratio for case, ratio in ratios.items() if ratio < 1}
    if not slower:
        return f"{subject} is {span(ratios.values())} times as fast as {other}."
    if len(slower) == len(ratios):
        return f"{subject} is slower than {other}: it takes {span(slower.values())} times as long."
    return (
        f"{subject} is up to {times(max(ratios.values()))} times as fast as {other}, but slower at {listed([*slower])}:"
        f" there it takes up to {times(max(slower.values()))} times as long."
    )


def name(key: str, among: Iterable[str] = ()) -> str:
    """What a file calls so, in words; a form that was also captured is called eager.

    Example:
        >>> name("mlp_captured"), name("mlp", among=["mlp", "mlp_captured"]), name("mlp")
        ('captured MLP', 'eager MLP', 'MLP')
    """
    plain = key.removesuffix(CAPTURED)
    word = NAMES.get(plain, plain)
    if key.endswith(CAPTURED):
        return f"captured {word}"
    return f"eager {word}" if f"{key}{CAPTURED}" in among else word


def significant(value: float) -> str:
    """A time with three digits.

    Example:
        >>> significant(0.14277), significant(12.641), significant(1234.5), significant(0.99958)
        ('0.143', '12.6', '1,234', '1.00')
    """
    rounded = float(f"{value:.2e}")
    decimals = max(0, 2 - math.floor(math.log10(rounded))) if rounded > 0 else 0
    return f"{value:,.{decimals}f}"


def times(ratio: float) -> str:
    """A ratio: one decimal, two below 1, none from 100.

    Example:
        >>> times(0.334), times(4.147), times(154.3)
        ('0.33', '4.1', '154')
    """
    return f"{ratio:,.{2 if ratio < 1 else 1 if ratio < 100 else 0}f}"


def span(ratios: Iterable[float]) -> str:
    """From the least to the most, or one number where they look alike.

    Example:
        >>> span([3.0, 1.5, 2.0]), span([2.01, 2.02])
        ('1.5 to 3.0', '2.0')
    """
    found = sorted(ratios)
    low, high = times(found[0]), times(found[-1])
    return low if low == high else f"{low} to {high}"


def mean_and_span(ratios: Iterable[float]) -> str:
    """The geometric mean of some ratios, and the least and the most of them."""
    found = list(ratios)
    return f"{times(statistics.geometric_mean(found))} ({span(found)})"


def listed(words: Sequence[str]) -> str:
    """Words with commas, and "and" before the last.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def by_count(counts: Mapping[str, int]) -> str:
    """Numbers, each with all that have it.

    Example:
        >>> by_count({"textbook": 100, "implicit": 100, "fast": 30})
        '100 for textbook and implicit, 30 for fast'
    """
    keys = {count: [name(key) for key in counts if counts[key] == count] for count in counts.values()}
    return ", ".join(f"{count} for {listed(found)}" for count, found in keys.items())


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: int, remarks: int = 0) -> str:
    """A table.

    Args:
        heads: Of the columns.
        rows: Cells.
        words: How many of the first columns are words; the others are numbers.
        remarks: How many of the last columns are words again.
    """
    rules = ["---" if i < words or i >= len(heads) - remarks else "---:" for i in range(len(heads))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *rows))


def sentences(*parts: str) -> str:
    """A paragraph; empty parts are left out."""
    return " ".join(filter(None, parts))


def paragraphs(*parts: str) -> str:
    """Text with an empty line between its parts; empty parts are left out."""
    return "\n\n".join(filter(None, parts))
