"""What a run leaves behind: one JSON file with the settings, the seed, the numbers, and where they come from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from torchpfc.checkpoint import CorruptFileError, read_json, write_atomically


@dataclass(frozen=True, kw_only=True)
class Result:
    """One model, trained and measured."""

    experiment: str
    """The name under which the experiment is registered."""
    config: Mapping[str, Any]
    """Every setting, by name."""
    seed: int
    metrics: Mapping[str, float]
    """Numbers to put into tables; accuracies in percent. NaN is null in the file, and so is infinity."""
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Numbers to draw: one per epoch, or one per value of another curve."""
    images: Mapping[str, str] = field(default_factory=dict)
    """PNG files in base64."""
    sounds: Mapping[str, str] = field(default_factory=dict)
    """MP3 files in base64."""
    data: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the pixels or samples of each data set, by its name."""
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    """Processor, GPU, precision, number of processes, and how many models were trained at once."""
    seconds: float = 0.0
    """Share of this model in the time it took to train all that were trained at once."""

    @property
    def key(self) -> str:
        """What the file is called: the same for the same experiment, settings and seed."""
        return job_key(self.experiment, self.config, self.seed)

    def save(self, folder: Path) -> Path:
        """Writes the file into the folder, whole or not at all, and returns its path."""
        path = result_path(folder, self.experiment, self.config, self.seed)
        content = asdict(self)
        for name in _NUMBERS:
            content[name] = _change_numbers(content[name], lambda value: value if math.isfinite(value) else None)
        write_atomically(path, json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file that `save` wrote."""
        content = read_json(path)
        kinds = {"experiment": str, "seed": int, "config": dict, "metrics": dict, "seconds": int | float}
        missing = [name for name in ("experiment", "config", "seed", "metrics") if name not in content]
        unknown = sorted(set(content) - {f.name for f in fields(cls)})
        wrong = [name for name, value in content.items() if not isinstance(value, kinds.get(name, dict))]
        if faults := missing + (unknown or wrong):
            raise CorruptFileError(f"{path} must hold a result, got missing or wrong fields {faults}; delete it")
        for name in _NUMBERS & set(content):
            content[name] = _change_numbers(content[name], lambda value: math.nan if value is None else value)
        return cls(**content)


# Fields that hold numbers which may not be finite; JSON has none but finite ones.
_NUMBERS = {"metrics", "curves"}


def _change_numbers(content: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Numbers by name, or lists of them, each changed."""
    return {
        name: [change(number) for number in value] if isinstance(value, list | tuple) else change(value)
        for name, value in content.items()
    }


def job_key(experiment: str, config: Mapping[str, Any], seed: int) -> str:
    """A short name for one run, from all that decides it."""
    text = json.dumps([experiment, config, seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result_path(folder: Path, experiment: str, config: Mapping[str, Any], seed: int) -> Path:
    """Where the result of a run lies."""
    return folder / experiment / f"{job_key(experiment, config, seed)}.json"


def load_results(folder: Path) -> list[Result]:
    """Every result in a folder, in the order of their paths."""
    return [load_result(path) for path in sorted(folder.glob("*/*.json"))]


def load_result(path: Path) -> Result:
    """Reads a result that lies where `Result.save` has put it, and so is what its path says."""
    result = Result.load(path)
    if (path.parent.name, path.stem) != (result.experiment, result.key):
        name = f"{result.experiment}/{result.key}.json"
        raise CorruptFileError(f"{path} must hold the result that it is named after, got that of {name}; delete it")
    return result
