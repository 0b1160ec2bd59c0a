"""The rows of the paper's last section: made-up songs, excerpts of MUSDB18, and MUSDB18 itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpfc.audio.training import MASK_WEIGHT
from torchpfc.data.songs import EXCERPTS
from torchpfc.paper.registry import Experiment, Ratio, Row, Table, as_published, register
from torchpfc.paper.separation import NAME, run
from torchpfc.paper.separation_songs import GENERATED, SeparationConfig
from torchpfc.paper.settings import change

RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3)
"""Learning rates that both networks are tried with."""

PAPER = {"FAC": SeparationConfig(), "VAN": change(SeparationConfig(), model="vanilla", lr=1e-4)}
SMALL = {
    key: change(config, num_basis=256, batch_size=20, clip_seconds=2.0, epochs=30.0, validate_every=100)
    for key, config in PAPER.items()
}
"""What two cores can train."""

BEST_RATES = {"FAC": 1e-3, "VAN": 1e-3}
"""Of `RATES`, those with the lowest error on validation songs that are made up, for small networks."""

EXCERPT_RATES = {"FAC": 1e-3, "VAN": 1e-3}
"""The same for the excerpts of MUSDB18."""

RATIO: dict[str, Any] = {"predicts": "both", "mask_weight": MASK_WEIGHT}
"""What separates better than the paper's recipe: chosen on validation songs of the excerpts."""


def _made_up() -> Iterator[Row]:
    yield from _bounds("SEP", SeparationConfig(), num_basis=128)
    chosen = [(key, change(config, lr=BEST_RATES[key])) for key, config in SMALL.items()]
    for key, config in [*chosen, *PAPER.items()]:
        yield _network(f"SEP.{key}.{config.num_basis}", config)
    yield _network("SEP.RATIO.FAC.256", change(chosen[0][1], **RATIO))


def _bounds(table: str, config: SeparationConfig, num_basis: int) -> Iterator[Row]:
    """What networks are compared with."""
    yield Row(f"{table}.MIX", change(config, model="mixture"), what="the mixture itself: the floor")
    half = num_basis // 2
    nmf = change(config, model="nmf", num_basis=num_basis)
    yield Row(f"{table}.NMF", nmf, seeds=3, what=f"NMF, {half} and {half} columns")
    yield Row(f"{table}.IRM", change(config, model="ideal-mask"), what="ideal ratio mask: the ceiling of ratios")
    yield Row(
        f"{table}.PHASE",
        change(config, model="ideal-features"),
        what="true features, heard again with the phase of the mixture",
    )


def _network(id: str, config: SeparationConfig, seeds: int = 3) -> Row:
    what = f"{config.model} RNN, {config.num_basis} parts"
    what += ", both sources" if config.predicts == "both" else ""
    what += ", errors of the masked mixture" if config.mask_weight else ""
    what += f", mask of power {config.mask_power:g}" if config.mask_power != 1 else ""
    return Row(id, config, seeds=seeds, what=what)


def _rates(table: str, source: str) -> Iterator[Row]:
    for key, config in SMALL.items():
        for lr in RATES:
            yield Row(f"{table}.{key}.{lr:g}", change(config, source=source, lr=lr))


def _excerpts() -> Iterator[Row]:
    yield from _bounds("AUD7", SeparationConfig(source=EXCERPTS, clip_seconds=2.0), num_basis=64)
    small = {key: change(config, source=EXCERPTS, lr=EXCERPT_RATES[key]) for key, config in SMALL.items()}
    for key, config in small.items():
        yield _network(f"AUD7.{key}.256", config)
    for key, config in small.items():
        yield _network(f"AUD7.RATIO.{key}.256", change(config, **RATIO))
    for key, config in PAPER.items():
        yield _network(f"AUD7.{key}.1024", change(config, source=EXCERPTS))
        yield _network(f"AUD7.RATIO.{key}.1024", change(config, source=EXCERPTS, **RATIO))


def _ablation() -> Iterator[Row]:
    """The recipe, each of its parts alone, and another power of the mask."""
    plain = change(SMALL["FAC"], source=EXCERPTS, lr=EXCERPT_RATES["FAC"])
    changes: dict[str, dict[str, Any]] = {
        "PLAIN": {},
        "MASK": {"mask_weight": MASK_WEIGHT},
        "BOTH": {"predicts": "both"},
        "RATIO": RATIO,
        "BOTH.POWER": {"predicts": "both", "mask_power": 1.5},
        "RATIO.POWER": {**RATIO, "mask_power": 1.5},
    }
    for key, changed in changes.items():
        yield _network(f"AUD7R.{key}", change(plain, **changed))


def _musdb() -> Iterator[Row]:
    # The numbers of the paper: means of three runs.
    for key, paper in {"FAC": 2.497e-3, "VAN": 3.657e-3}.items():
        config = change(PAPER[key], source="musdb18hq")
        yield Row(f"AUD.{key}", config, paper, slack=0.1 * paper, seeds=3, lower_is_better=True)


NOTE = (
    "Vocals out of made-up songs, by the mean squared error of their features on ten songs that no model has heard. "
    "Ratios are medians over songs in decibels, by museval. The floor takes the mixture for the vocals. Two rows know "
    "the truth, and each bounds a measure of its own: the ideal ratio mask bounds the ratios of all that separate by "
    "such masks; true features that become a sound with the phase of the mixture, and are heard again, show the error "
    "that is left where nothing but the phase is wrong. The paper's ratio is one on MUSDB18."
)

EXCERPTS_NOTE = (
    "Vocals out of the seven-second excerpts of MUSDB18: 80 songs to learn from, the usual 14 for validation, 50 for "
    "the test. Measures are those of the table of made-up songs. The paper trains on whole songs, more than thirty "
    "times as much music, and with 1,024 parts; its ratio is that of whole songs. What is found: as in the paper, the "
    "factorized network errs less than the vanilla one, if by a smaller factor, and its answers are closer to "
    "superposition. By the ratio of vocals to what is wrong with them, both are behind plain NMF. The recipe RATIO "
    "leaves errors of features as they are and makes that ratio of the factorized network two decibels better, which "
    "puts it ahead of NMF with each of three seeds."
)

ABLATION_NOTE = (
    "What the recipe RATIO consists of, by the plain ratio of vocals to error in decibels, the median over validation "
    "songs, by which it was chosen. Nearly all of it comes from an estimate of the rest beside that of the vocals, "
    "whose ratio makes the mask. Errors of the masked mixture in the loss add to that no more than seeds differ, and "
    "nothing by themselves. A mask that decides more clearly, by a higher power, takes a little away."
)


def _ratios(table: str, *sizes: int) -> tuple[Ratio, ...]:
    return tuple(Ratio(f"{table}.FAC.{size}", f"{table}.VAN.{size}", 0.683) for size in sizes)


register(
    Experiment(
        NAME,
        "vocals out of a mixture (Section 5.11)",
        SeparationConfig,
        run,
        {"paper": as_published, "fast": as_published},
        (
            Table(
                "SEP",
                "Vocals out of made-up songs",
                tuple(_made_up()),
                "test_mse",
                NOTE,
                ratios=_ratios("SEP", 256, 1024),
            ),
            Table(
                "SEPLR",
                "Vocals out of made-up songs, by learning rate",
                tuple(_rates("SEPLR", GENERATED)),
                "valid_mse",
                "The error on validation songs, by which learning rates were chosen.",
                over="lr",
            ),
            Table(
                "AUD7",
                "Vocals out of excerpts of MUSDB18",
                tuple(_excerpts()),
                "test_mse",
                EXCERPTS_NOTE,
                ratios=_ratios("AUD7", 256, 1024),
            ),
            Table(
                "AUD7LR",
                "Vocals out of excerpts of MUSDB18, by learning rate",
                tuple(_rates("AUD7LR", EXCERPTS)),
                "valid_mse",
                "The error on validation songs, by which learning rates were chosen.",
                over="lr",
            ),
            Table(
                "AUD7R",
                "Vocals out of excerpts of MUSDB18, by the parts of the recipe",
                tuple(_ablation()),
                "valid_sdr",
                ABLATION_NOTE,
            ),
            Table("AUD", "Vocals out of songs of MUSDB18", tuple(_musdb()), "test_mse"),
        ),
        package="museval",
    )
)
