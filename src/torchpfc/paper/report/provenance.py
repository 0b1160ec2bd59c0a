"""Where numbers come from: files, machines, minutes, versions, data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchpfc.paper.report.words import NAMES, minutes
from torchpfc.paper.results import Result, result_path

UNKNOWN = "unknown"

Link = Callable[[Result], str]
"""The address of the file of a result."""


def link_beside(result: Result) -> str:
    """The address of the file of a result, in a folder `results` beside the report."""
    return result_path(Path("results"), result.experiment, result.config, result.seed).as_posix()


@dataclass(frozen=True)
class Machine:
    """What some results were computed on, and with."""

    kind: str
    """GPU or CPU."""
    name: str
    torch: str
    precision: str
    results: tuple[Result, ...]

    @property
    def seconds(self) -> float:
        """Time of all results together."""
        return sum(result.seconds for result in self.results)


def machines(results: Iterable[Result]) -> list[Machine]:
    """Groups results by what they were computed on."""
    groups: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in results:
        torch, precision = result.versions.get("torch", UNKNOWN), str(result.hardware.get("precision", ""))
        groups.setdefault((*device(result), torch, precision), []).append(result)
    return [Machine(*key, tuple(groups[key])) for key in sorted(groups, reverse=True)]  # GPU before CPU


def device(result: Result) -> tuple[str, str]:
    """The kind and the name of what a result was computed on."""
    gpu = result.hardware.get("gpu")
    return ("GPU", str(gpu)) if gpu else ("CPU", str(result.hardware.get("cpu", UNKNOWN)))


def time_spent(results: Sequence[Result]) -> str:
    """The minutes of some results in words, by what they were computed on."""
    spent: dict[tuple[str, str], float] = {}
    for result in results:
        spent[device(result)] = spent.get(device(result), 0.0) + result.seconds
    return ", ".join(f"{minutes(spent[kind, name])} {kind} minutes ({name})" for kind, name in sorted(spent)[::-1])


def torch_versions(results: Iterable[Result]) -> str:
    """With which versions of torch some results were computed."""
    return ", ".join(sorted({result.versions.get("torch", UNKNOWN) for result in results}))


def remarks(results: Iterable[Result], known: Mapping[str, str]) -> list[str]:
    """What a reader has to know about the data of some results.

    Args:
        results: Each names its data sets by the SHA-256 of their pixels.
        known: Remarks by that SHA-256; an empty one says that there is nothing to say.
    """
    data = {(name, pixels) for result in results for name, pixels in result.data.items()}
    found = {(name, remark) for name, pixels in data if (remark := known.get(pixels))}
    return [f"{NAMES.get(name, name)}: {remark}" for name, remark in sorted(found)]
