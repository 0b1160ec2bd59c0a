"""A sequence that repeats: learned without backpropagation, by backpropagation, and by a vanilla RNN (Section 5.8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchpfc.paper.registry import Experiment, Row, Table, as_published, register
from torchpfc.paper.repeating_sequence.runs import NAME, run
from torchpfc.paper.repeating_sequence.settings import RepeatingSequence, TrainedSequence, fast
from torchpfc.paper.settings import change

SIZES = (25, 50, 75, 100, 150, 300, 500)
RANDOM_SIZES = (25, 50, 100, 150)

_TEXT = {"threshold": 0.0, "init_high": 0.01, "rate_h": 1.0, "rate_w": 1.0, "normalization": "mean-of-max"}

CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "published": ("as published", {}),
    "no-threshold": ("no threshold", {"threshold": 0.0}),
    "threshold-0.002": ("threshold 0.002", {"threshold": 2e-3}),
    "long": ("five times the passes", {"passes": 2050}),
    "start-0.1": ("weights from 0 to 0.1", {"init_high": 0.1}),
    "start-0.01": ("weights from 0 to 0.01", {"init_high": 0.01}),
    "full-steps": ("steps twice as long", {"rate_h": 1.0, "rate_w": 1.0}),
    "text": ("all as in the text of the paper", _TEXT),
    "mean-of-max": ("mean of the maxima", {"normalization": "mean-of-max"}),
    "all-slices": ("all slices at once", {"inference": "all-slices", "iterations": 300}),
    "carried": ("state carried on", {"carried": True}),
    "five-starts": ("best of five starts", {"starts": 5}),
}
"""What might help, or hurt: one change at a time, and the settings that the paper's text gives."""


def _sizes(table: str, sizes: Sequence[int] = SIZES, pattern: str = "published") -> Iterator[Row]:
    for size in sizes:
        yield Row(f"{table}.{size}", change(RepeatingSequence(num_basis=size), pattern=pattern), seeds=20)


def _changes() -> Iterator[Row]:
    for size in (25, 50, 100):
        for name, (what, values) in CHANGES.items():
            config = change(RepeatingSequence(num_basis=size), **values)
            yield Row(f"SEQX.{size}.{name}", config, seeds=20, what=what, under=f"{size} parts")


def _trained() -> Iterator[Row]:
    factorized = TrainedSequence()
    vanilla = change(factorized, model="vanilla", nonnegative=False)
    kinds = {
        "FAC.N": ("factorized, non-negative", factorized),
        "FAC.S": ("factorized, signed", change(factorized, nonnegative=False)),
        "FAC.N.NOBPTT": ("factorized, non-negative", change(factorized, bptt=False)),
        "VAN": ("vanilla", vanilla),
        "VAN.NOBPTT": ("vanilla", change(vanilla, bptt=False)),
        "LSTM": ("LSTM", change(vanilla, model="lstm")),
        "GRU": ("GRU", change(vanilla, model="gru")),
    }
    for name, (what, config) in kinds.items():
        yield Row(f"SEQB.{name}", config, seeds=3, what=what, under="BPTT" if config.network.bptt else "no BPTT")


OF_SUCCESS = (
    "A run succeeds when the mean squared error of its predictions is below 1e-7, exactly 25 columns are in use, and "
    "the machine in its weights is the right one. Where a pass begins in a state of zeros, the first slices cannot be "
    "predicted, and the last repetition alone is counted."
)

OF_MACHINE = (
    "Share of runs in whose weights exactly the right machine is found, whatever the error of their predictions."
)

register(
    Experiment(
        NAME,
        "a pattern of 25 symbols over and over, learned without backpropagation and with it (Section 5.8)",
        RepeatingSequence,
        run,
        {"paper": as_published, "fast": fast},
        (
            Table(
                "SEQ",
                "A repeating sequence, learned without backpropagation",
                tuple(_sizes("SEQ")),
                "success",
                OF_SUCCESS,
                over="num_basis",
            ),
            Table(
                "SEQM", "The same: the right machine", tuple(_sizes("SEQM")), "machine", OF_MACHINE, over="num_basis"
            ),
            Table("SEQR", "The same with random patterns", tuple(_sizes("SEQR", RANDOM_SIZES, "random")), "success"),
            Table(
                "SEQX", "A repeating sequence, one setting changed at a time", tuple(_changes()), "machine", OF_MACHINE
            ),
            Table("SEQB", "A repeating sequence, learned by backpropagation", tuple(_trained()), "generated_accuracy"),
        ),
    )
)
