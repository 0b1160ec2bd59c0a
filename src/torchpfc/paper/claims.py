"""What the paper says in words rather than numbers, and by which results it can be judged."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Within:
    """Says that a number of the runs of a row lies between two others."""

    row: str
    metric: str
    """The number, by its name in a result."""
    low: float = -math.inf
    high: float = math.inf
    every: bool = False
    """Whether that holds for each run, not only for their mean."""
    preset: str = ""
    """Under which preset; empty: the one that counts for the row."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """Says that a row is no worse than another, by the metric of their tables."""

    row: str
    other: str
    lower_is_better: bool = False
    """As for errors."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that the paper says in words."""

    id: str
    said: str
    """What it says, and in which section."""
    met_when: str
    """What the checks ask, in words."""
    checks: tuple[Within | Level, ...]
    otherwise: str = "missed"
    """What to call it where a check fails."""

    @property
    def rows(self) -> set[str]:
        """The rows that it is about."""
        return {check.row for check in self.checks} | {check.other for check in self.checks if isinstance(check, Level)}


_EXACT = 1e-7
_MANY_PARTS = (100, 150, 300, 500)


def _exact(preset: str) -> tuple[Within, ...]:
    return tuple(
        Within(row=f"SEQ.{size}", metric="settled_mse", high=_EXACT, every=True, preset=preset) for size in _MANY_PARTS
    )


# A share of the runs that is above 0 or one half, with up to twenty runs.
_ANY, _MOST = 0.01, 0.51
_NEAR_CHANCE = 11.0  # in percent; ten symbols are to be told apart

CLAIMS = (
    Claim(
        id="EXACT.published",
        said="With about 100 parts or more, a repeating sequence is always learned with an error below 1e-7 (5.8)",
        met_when="With the published settings, every run has such an error in the last repetition",
        checks=_exact("paper"),
    ),
    Claim(
        id="EXACT.ours",
        said="The same",
        met_when="With settings of ours, the fast preset, every run has such an error in the last repetition",
        checks=_exact("fast"),
    ),
    Claim(
        id="COPY.5",
        said="Without backpropagation, most runs of the copy task end perfect after a pause of 5 (5.9)",
        met_when="More than half of the runs make no mistake",
        checks=(Within(row="COPY.NMF.5", metric="solved", low=_MOST),),
    ),
    Claim(
        id="COPY.10",
        said="The same, after a pause of 10: several runs are needed for a perfect one",
        met_when="Some run makes no mistake",
        checks=(Within(row="COPY.NMF.10", metric="solved", low=_ANY),),
    ),
    Claim(
        id="COPY.15",
        said="The same, after a pause of 15: accuracy is at chance",
        met_when="The best accuracy of a run is at most 11 % on average; chance is 10 %",
        checks=(Within(row="COPY.NMF.15", metric="valid_accuracy", high=_NEAR_CHANCE),),
        otherwise="not reproduced",
    ),
    Claim(
        id="COPY.signed",
        said="The same, with weights of either sign: accuracy is at chance",
        met_when="The best accuracy of a run is at most 11 % on average; chance is 10 %",
        checks=(Within(row="COPY.SEMI.5", metric="valid_accuracy", high=_NEAR_CHANCE),),
        otherwise="not reproduced",
    ),
    Claim(
        id="COPY.vanilla",
        said="With BPTT a vanilla network solves pauses up to about 15; without BPTT it never does (5.9)",
        met_when="Some runs solve pauses of 5 and 15 with BPTT, and none one of 5 without",
        checks=(
            Within(row="COPY.VAN.BPTT.5", metric="solved", low=_ANY),
            Within(row="COPY.VAN.BPTT.15", metric="solved", low=_ANY),
            Within(row="COPY.VAN.NOBPTT.5", metric="solved", high=0.0),
        ),
    ),
    Claim(
        id="UNUSED.order",
        said="Columns that the window has not reached are still random, and do not affect the results (5.5)",
        met_when="With four times the columns, of which the window reaches as many, accuracy on digits is no lower",
        checks=(Level(row="UNUSED.432", other="UNUSED.108"),),
        otherwise="contradicted",
    ),
    Claim(
        id="UNUSED.tasks",
        said="The same, in Split MNIST, where the paper leaves 643 of 2,000 columns unused (5.3)",
        met_when="With twice the columns, accuracy is no lower",
        checks=(Level(row="WINDOW.columns-4000", other="WINDOW.unchanged"),),
        otherwise="contradicted",
    ),
    Claim(
        id="LEVEL.SEQ",
        said="In all sequence tasks, with BPTT, the factorized network does as well as the vanilla one or better: "
        "a repeating sequence (5.8)",
        met_when="It is no worse, non-negative and signed",
        checks=(Level(row="SEQB.FAC.N", other="SEQB.VAN"), Level(row="SEQB.FAC.S", other="SEQB.VAN")),
    ),
    Claim(
        id="LEVEL.COPY",
        said="The same: the copy task (5.9)",
        met_when="It is no worse after a pause of 5",
        checks=(Level(row="COPY.FAC.BPTT.5", other="COPY.VAN.BPTT.5"),),
    ),
    Claim(
        id="LEVEL.T7.signed",
        said="The same: sequential MNIST (5.10), signed weights",
        met_when="It is no worse, with 512 parts and with 2,048",
        checks=tuple(Level(row=f"T7.FAC.YES.{size}.S", other=f"T7.VAN.YES.{size}") for size in (512, 2048)),
    ),
    Claim(
        id="LEVEL.T7.nonnegative",
        said="The same: sequential MNIST (5.10), non-negative weights",
        met_when="It is no worse, with 512 parts and with 2,048",
        checks=tuple(Level(row=f"T7.FAC.YES.{size}.N", other=f"T7.VAN.YES.{size}") for size in (512, 2048)),
    ),
    Claim(
        id="T7.iterations",
        said="Ten iterations are only slightly less accurate than 50 to 100 (5.10)",
        met_when="With 64 parts, with BPTT and without, ten are no less accurate than 50 or 100",
        checks=tuple(
            Level(row=f"T7K.{bptt}.10", other=f"T7K.{bptt}.{more}") for bptt in ("YES", "NO") for more in (50, 100)
        ),
    ),
    Claim(
        id="LEVEL.songs",
        said="The same: vocals out of a mixture (5.11)",
        met_when="It is no worse on MUSDB18, on its excerpts and on made-up songs with 256 parts",
        checks=(
            Level(row="SEP.FAC.256", other="SEP.VAN.256", lower_is_better=True),
            Level(row="AUD7.FAC.256", other="AUD7.VAN.256", lower_is_better=True),
            Level(row="AUD.FAC", other="AUD.VAN", lower_is_better=True),
        ),
    ),
)
"""The claims that rows of the tables can decide, in the paper's order."""
