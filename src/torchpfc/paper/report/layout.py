"""How the rows of a table are told apart in words, and which of them share a panel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from torchpfc.paper.registry import Table
from torchpfc.paper.report.compare import Line, Sheet, as_written
from torchpfc.paper.report.words import describe, name_metric, varying

USUAL = Fraction(2, 3)
"""A value that more than this share of the rows have goes without saying."""

UNCHANGED = "unchanged"
"""A row about which nothing is unusual, where all else was said already."""


@dataclass(frozen=True)
class Wording:
    """What to say of the rows of a table."""

    named: tuple[str, ...]
    """Settings that every row names."""
    usual: Mapping[str, Any]
    """Further settings in which rows differ, with the value that most of them have."""

    @classmethod
    def of(cls, table: Table) -> Wording:
        """Finds the settings in which the rows of a table differ."""
        configs = [as_written(row.config) for row in table.rows]
        usual = {}
        for name in varying(configs):
            value, count = Counter(repr(config.get(name)) for config in configs).most_common(1)[0]
            if Fraction(count, len(configs)) > USUAL:
                usual[name] = next(config.get(name) for config in configs if repr(config.get(name)) == value)
        return cls(tuple(name for name in varying(configs) if name not in usual), usual)

    def describe(self, line: Line, start: int = 0, stop: int | None = None) -> str:
        """A row in words.

        Args:
            line: The row.
            start: How many of the named settings to leave out.
            stop: Where to end, among them; None says all that is left, and what is unusual.
        """
        if line.row.what:
            if stop is not None:
                return line.row.under if stop else ""
            return line.row.what if start or not line.row.under else f"{line.row.under}: {line.row.what}"
        unusual = [name for name, value in self.usual.items() if line.settings.get(name) != value]
        words = describe(line.settings, [*self.named[start:stop], *(unusual if stop is None else [])])
        metric = name_metric(line.row.metric) if line.row.metric and stop is None else ""
        return ", ".join(filter(None, (words, metric)))


@dataclass(frozen=True)
class Group:
    """Rows that share the settings in its title."""

    family: str
    """All of these settings but the last."""
    title: str
    entries: Mapping[str, Line]
    """By what tells them apart."""


def by_first(sheet: Sheet) -> list[Group]:
    """Groups by the first setting that all rows name, unless that would part them all."""
    wording = Wording.of(sheet.table)
    groups = _group(sheet, wording, 1)
    left = len(wording.named) + len(wording.usual) - 1  # settings that tell rows apart inside a group
    return groups if (left > 0 or _has_heads(sheet)) and len(groups) < len(sheet.lines) else _group(sheet, wording, 0)


def by_size(sheet: Sheet, limit: int) -> list[list[Group]]:
    """Groups small enough to be told apart; each list has those that differ in their last setting alone, if any do.

    Args:
        sheet: The table.
        limit: How many rows a group may have. It has more where nothing but the last setting tells them apart, or what
            is unusual about them.
    """
    wording = Wording.of(sheet.table)
    for depth in range(max(1 + _has_heads(sheet), len(wording.named) + bool(wording.usual))):
        groups = _group(sheet, wording, depth)
        if max(len(group.entries) for group in groups) <= limit:
            break
    families = [list(alike) for _, alike in groupby(groups, key=lambda group: group.family)]
    return [groups] if len(families) == len(groups) else families


def _has_heads(sheet: Sheet) -> bool:
    return any(line.row.under for line in sheet.lines)


def _group(sheet: Sheet, wording: Wording, depth: int) -> list[Group]:
    """Groups by the first settings, in the order in which the rows name them."""
    found: dict[tuple[str, str], dict[str, Line]] = {}
    for line in sheet.lines:
        family = wording.describe(line, stop=max(0, depth - 1))
        entries = found.setdefault((family, wording.describe(line, stop=depth)), {})
        label = wording.describe(line, start=depth) or (UNCHANGED if wording.usual else line.row.id)
        label = line.row.id if label in entries else label
        entries[label] = line
    return [Group(*key, entries) for key, entries in found.items()]
