"""Experiments that nobody runs, and results that nobody got."""

import base64
import json
import struct
import zlib
from dataclasses import dataclass, replace

from torchpfc.paper.registry import Experiment, Row, Table
from torchpfc.paper.report.compare import Comparison
from torchpfc.paper.report.figures import draw_figures
from torchpfc.paper.results import Result
from torchpfc.paper.settings import settings


@dataclass(frozen=True)
class Made:
    """Settings of a made experiment."""

    dataset: str = "mnist"
    num_basis: int = 300
    prediction_weight: float = 0.5
    solver: str = "slow"
    sizes: tuple[int, ...] = (1, 2)

    def smoke(self):
        return self

    def stack_key(self):
        return None


def as_it_is(config):
    return config


def faster(config):
    return replace(config, solver="quick")


def never(jobs, context):
    raise AssertionError("a report must not train")


PRESETS = {"fast": faster, "paper": as_it_is}


def experiment(*tables, name="made", presets=PRESETS):
    return Experiment(name, "something made", Made, never, presets, tables)


def by_name(*experiments):
    return {each.name: each for each in experiments}


def compare(*results, of=None):
    return Comparison(by_name(*(of or [EXPERIMENT])), results)


def drawn(*results, of=None):
    """The figures of an experiment, by name."""
    return {figure.name: figure.svg for figure in draw_figures(compare(*results, of=of and [of]).sheets)}


ROWS = (
    Row("A", Made(), paper=96.83, slack=0.2, seeds=3),
    Row("B", Made(num_basis=2000), paper=97.0, slack=0.2, seeds=2),
    Row("C", Made("cifar10"), paper=53.25, slack=1.0),
    Row("D", Made("cifar10", 2000)),
)
TABLE = Table("T", "A made table", ROWS, note="Made by hand.")
EXPERIMENT = experiment(TABLE)


def result(config=None, value=96.9, seed=0, *, name="made", metrics=None, **others):
    given = {"test_accuracy": value} if metrics is None else metrics
    options = {"versions": {"torch": "2.11"}, "hardware": {"gpu": "A GPU", "cpu": "a CPU"}, "seconds": 60.0}
    config = json.loads(json.dumps(settings(Made() if config is None else config)))  # as it comes back from a file
    return Result(experiment=name, config=config, seed=seed, metrics=given, **(options | others))


def png(width=4, height=2):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress((b"\0" + bytes(width)) * height))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + pixels + chunk(b"IEND", b"")).decode()
