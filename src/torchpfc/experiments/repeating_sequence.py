"""A sequence that repeats: learned without backpropagation, by backpropagation, and by a vanilla RNN (Section 5.8)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.data.sequences import PATTERN, random_pattern
from torchpfc.experiments.recurrent_models import SequenceErrors, build_network
from torchpfc.experiments.recurrent_training import (
    Examined,
    Found,
    GradientLearner,
    Learner,
    NMFLearner,
    RecurrentRun,
    Sequences,
    Source,
)
from torchpfc.experiments.registry import Experiment, Job, Row, Table, as_published, register
from torchpfc.experiments.results import Result
from torchpfc.experiments.runner import Context
from torchpfc.experiments.sequence_pictures import pictures
from torchpfc.interpret import Recurrent, columns_in_use, transition_graph
from torchpfc.nn import NMFRNN, AllSlices, FactorizedRNN, SliceBySlice
from torchpfc.optim.alternating import ColumnCap, MeanOfMax, Normalization
from torchpfc.training import EpochStats, random_stream

NAME = "repeating-sequence"
NUM_SYMBOLS = 4
MEASURED_REPEATS = 8
"""How often the pattern occurs in the sequence that trained networks are measured on."""

SEED_LENGTH, GENERATED = 15, 50
"""How much of the sequence a network is given, and how much it has to go on with."""

EXACT = 1e-7
"""Mean squared error of predictions below which a sequence counts as learned."""

ROUNDS = 10
"""In how many rounds the passes from one start are taken."""

INFERENCES = {"slice-by-slice": SliceBySlice, "all-slices": AllSlices}
PATTERNS = ("published", "random")
NORMALIZATIONS: dict[str, Normalization | None] = {
    "column-cap": ColumnCap(),
    "mean-of-max": MeanOfMax(),
    "unnormalized": None,
}


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """What is learned, and by how large a network."""

    num_basis: int = 100
    pattern: str = "published"
    """The published pattern, or a random one of the same length, another for each seed."""
    repeats: int = MEASURED_REPEATS
    """How often the pattern occurs in the sequence that is learned."""
    passes: int = 410
    """How often to go through the sequence."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern must be one of {', '.join(PATTERNS)}, got {self.pattern!r}")
        for name in ("num_basis", "repeats", "passes"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def stack_key(self) -> object:
        """Everything: networks that differ in their seed alone learn side by side."""
        return (type(self).__name__, *((name, getattr(self, name)) for name in self.__dataclass_fields__))

    def stack_size(self) -> int:
        """All seeds at once."""
        return 20

    def cost(self) -> float:
        """Arithmetic of a run, roughly."""
        return self.passes * self.repeats * self.num_basis / 100

    def symbols(self, seed: int) -> tuple[int, ...]:
        """The pattern."""
        if self.pattern == "published":
            return PATTERN
        return random_pattern(len(PATTERN), NUM_SYMBOLS, random_stream(seed, "pattern"))


@dataclass(frozen=True, kw_only=True)
class RepeatingSequence(SequenceConfig):
    """Learning without backpropagation; the defaults are those of the published code."""

    starts: int = 1
    """How often to begin anew, from other weights; the network of the lowest training loss counts."""
    carried: bool = False
    """Whether a pass begins in the state in which the one before ended, not in zeros."""
    inference: str = "slice-by-slice"
    """How states are found: "slice-by-slice", or in "all-slices" at once."""
    iterations: int = 100
    normalization: str = "column-cap"
    """What keeps weights in bounds: "column-cap", the paper's "mean-of-max", or nothing, "unnormalized"."""
    init_high: float = 2e-2
    """Upper end of the range that weights start from."""
    threshold: float = 5e-4
    """What each entry of a state loses in every step."""
    settling: float = 0.0
    """Share of the passes, at the end, without threshold and normalization, and with iterations of their own."""
    final_iterations: int = 100
    rate_h: float = 0.5
    rate_w: float = 0.5

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.inference not in INFERENCES:
            raise ValueError(f"inference must be one of {', '.join(INFERENCES)}, got {self.inference!r}")
        if self.normalization not in NORMALIZATIONS:
            known = ", ".join(NORMALIZATIONS)
            raise ValueError(f"normalization must be one of {known}, got {self.normalization!r}")
        for name in ("starts", "iterations", "final_iterations"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.settling <= 1:
            raise ValueError(f"settling must be from 0 to 1, got {self.settling}")

    def smoke(self) -> Self:
        """A few passes over a short sequence."""
        return replace(
            self, num_basis=12, repeats=2, passes=ROUNDS, iterations=2, final_iterations=3, starts=min(self.starts, 2)
        )

    def cost(self) -> float:
        """Arithmetic of a run, roughly."""
        mean = (1 - self.settling) * self.iterations + self.settling * self.final_iterations
        return super().cost() * self.starts * mean / 100

    def prepare(self, network: NMFRNN, share: float) -> None:
        """Gives a network, or a stack, the settings that it has when a share of the passes is done."""
        settled = self.settling > 0 and share > 1 - self.settling - 1e-9
        network.inference = INFERENCES[self.inference](self.final_iterations if settled else self.iterations)
        network.threshold = 0.0 if settled else self.threshold
        network.normalization = None if settled else NORMALIZATIONS[self.normalization]

    def make_network(self, seed: int, start: int = 0) -> NMFRNN:
        """A network as it begins, with the settings that it will have in the end."""
        network = NMFRNN(
            NUM_SYMBOLS,
            self.num_basis,
            rate_h=self.rate_h,
            rate_w=self.rate_w,
            init_range=(0.0, self.init_high),
            generator=random_stream(seed, "weights", start),
        )
        self.prepare(network, 1.0)
        return network


@dataclass(frozen=True, kw_only=True)
class TrainedSequence(SequenceConfig):
    """Learning by backpropagation through the whole sequence."""

    model: str = "factorized"
    """Which network: factorized, vanilla, lstm or gru."""
    nonnegative: bool = True
    bptt: bool = True
    iterations: int = 10
    reconstruction_weight: float = 1.0
    lr: float = 1e-3
    weight_decay: float = 0.0
    passes: int = 2000

    def smoke(self) -> Self:
        """A few steps on a short sequence."""
        return replace(self, num_basis=12, repeats=2, passes=ROUNDS, iterations=2)

    def cost(self) -> float:
        """Arithmetic of a run, roughly."""
        return 3 * super().cost() * self.iterations / 100


@dataclass(frozen=True, eq=False)
class SameSequence:
    """One sequence for each network, over and over."""

    batch: Sequences
    passes: int

    def set_epoch(self, epoch: int) -> None:
        """Changes nothing: all rounds are alike."""

    def __iter__(self) -> Iterator[Sequences]:
        """As many batches as a round has passes."""
        for _ in range(self.passes):
            yield self.batch


class _Run(RecurrentRun):
    """What both ways to learn have in common."""

    def num_rounds(self) -> int:
        """Rounds of all starts."""
        return ROUNDS * int(getattr(self.config, "starts", 1))

    def source(self, seeds: Sequence[int]) -> Source:
        """The sequences of all networks, for as many passes as a round has."""
        x, y = self.sequences(seeds)
        return SameSequence(Sequences(x, y), math.ceil(self.config.passes / ROUNDS))

    def sequences(self, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (s, 1, T, symbols)."""
        found = [repeat(self.config.symbols(seed), self.config.repeats) for seed in seeds]
        vectors = self.vectors(torch.stack(found).unsqueeze(1))
        return vectors[..., :-1, :], vectors[..., 1:, :]

    def vectors(self, symbols: Tensor) -> Tensor:
        """Symbols as one-hot vectors, where they are needed."""
        return F.one_hot(symbols, NUM_SYMBOLS).to(self.device, self.dtype)


class NMFRun(_Run):
    """Learning without backpropagation."""

    learner: NMFLearner

    def build(self) -> Learner:
        """All networks as they begin."""
        networks = [job.config.make_network(job.seed) for job in self.jobs]
        return NMFLearner(
            networks, device=self.device, dtype=self.dtype, carried=self.config.carried, change=self._change
        )

    def examine(self, stats: EpochStats) -> Examined:
        """Measures the training loss; that at the end of each start decides which one counts."""
        stack = self.learner.stack
        x, y = self.sequences([job.seed for job in self.jobs])
        errors = slice_errors(stack, x, y, self.learner.carried)
        total = torch.stack(errors).mean(-1).sum(0).cpu()
        ended = stats.epoch % ROUNDS == ROUNDS - 1
        score = -total if ended else torch.full_like(total, -torch.inf)
        largest = stack.weight.amax(-2)
        columns = (largest > 0.01 * largest.amax(-1, keepdim=True)).sum(-1)
        curves = {"loss": total, "prediction_mse": errors[0].mean(-1).cpu(), "columns": columns.cpu()}
        return Examined(score, torch.zeros(len(self.jobs), dtype=torch.bool), curves)

    def measure(self, network: NMFRNN, job: Job) -> Found:
        """Predictions with the settings of the training, the machine, and what it goes on with."""
        config, pattern = job.config, job.config.symbols(job.seed)
        vectors = self.vectors(repeat(pattern, MEASURED_REPEATS))
        x, y = vectors[:-1], vectors[1:]
        states = network.infer(x)
        own = zero = slice_errors(network, x, y, None, states)
        if config.carried:
            own = slice_errors(network, x[: len(pattern)], y[: len(pattern)], states[-1])
        metrics = {
            "mse": own[0].mean().item(),
            "loss": sum(part.mean().item() for part in own),
            "zero_state_mse": zero[0].mean().item(),
            "settled_mse": zero[0][-len(pattern) :].mean().item(),
            "passes": float(math.ceil(config.passes / ROUNDS) * self.num_rounds()),
        }
        symbols = go_round(pattern).to(self.device)
        seed = self.vectors(symbols)[:SEED_LENGTH]
        generated = network.generate(seed, GENERATED, iterations=network.inference.iterations)
        metrics |= judge_generated(generated, symbols) | judge_machine(network, pattern)
        right = metrics["columns"] == len(pattern) and metrics["machine"]
        # Where a pass begins in zeros, its first slices cannot be predicted: what counts is the last repetition.
        exact = metrics["mse" if config.carried else "settled_mse"] < EXACT
        metrics["success"] = float(right and exact)
        each = math.ceil(config.passes / ROUNDS)
        passes = [float(each * k) for k in range(1, self.num_rounds() + 1)]
        found = Found(metrics, {"passes": passes})
        if is_pictured(job):
            found.images = pictures(network, symbols, SEED_LENGTH, generated)
            found.curves |= machine_curves(network)
        return found

    def _change(self, stack: NMFRNN, number: int) -> None:
        """Begins anew where it is time to, and sets what depends on how much is done."""
        start, part = divmod(number, ROUNDS)
        if start and not part:
            fresh = [job.config.make_network(job.seed, start).weight for job in self.jobs]
            stack.weight.copy_(torch.stack(fresh))
        self.config.prepare(stack, part / ROUNDS)


class GradientRun(_Run):
    """Learning by backpropagation."""

    def build(self) -> Learner:
        """All networks as they begin."""
        config = self.config
        networks = [
            build_network(
                config.model,
                NUM_SYMBOLS,
                config.num_basis,
                NUM_SYMBOLS,
                bptt=config.bptt,
                nonnegative=config.nonnegative,
                iterations=config.iterations,
                generator=random_stream(job.seed, "weights"),
            )
            for job in self.jobs
        ]
        weight = config.reconstruction_weight if config.model == "factorized" else 0.0
        return GradientLearner(
            networks,
            SequenceErrors(1.0, weight),
            lr=config.lr,
            weight_decay=config.weight_decay,
            device=self.device,
            dtype=self.dtype,
        )

    def examine(self, stats: EpochStats) -> Examined:
        """Takes the latest weights."""
        return Examined(
            torch.full((len(self.jobs),), float(stats.epoch)), torch.zeros(len(self.jobs), dtype=torch.bool), {}
        )

    def measure(self, network: nn.Module, job: Job) -> Found:
        """Predictions, and what the network goes on with; of a factorized one the machine too."""
        pattern = job.config.symbols(job.seed)
        vectors = self.vectors(repeat(pattern, MEASURED_REPEATS))
        predicted, _ = network(vectors[:-1])
        errors = (predicted - vectors[1:]).square().mean(-1)
        right = predicted.argmax(-1) == vectors[1:].argmax(-1)
        settled = slice(-len(pattern), None)
        metrics = {
            "zero_state_mse": errors.mean().item(),
            "settled_mse": errors[settled].mean().item(),
            "settled_accuracy": 100 * right[settled].double().mean().item(),
            "passes": float(job.config.passes),
        }
        symbols = go_round(pattern).to(self.device)
        metrics |= judge_generated(go_on(network, self.vectors(symbols)[:SEED_LENGTH], GENERATED), symbols)
        if isinstance(network, FactorizedRNN):
            metrics |= judge_machine(network, pattern)
        return Found(metrics)


def run(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains and measures networks that share one stack key."""
    kind = NMFRun if isinstance(jobs[0].config, RepeatingSequence) else GradientRun
    return kind(NAME, jobs, context).results()


def repeat(pattern: Sequence[int], repeats: int) -> Tensor:
    """A pattern over and over, and its first symbol once more, to be predicted last."""
    return torch.tensor([*pattern] * repeats + [pattern[0]])


def go_round(pattern: Sequence[int]) -> Tensor:
    """The seed, and what should come after it."""
    count = SEED_LENGTH + GENERATED
    return torch.tensor(([*pattern] * count)[:count])


def slice_errors(
    network: NMFRNN, x: Tensor, y: Tensor, state: Tensor | None, states: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mean squared errors of output, last state and input in every slice.

    Args:
        network: A network, or a stack.
        x: The inputs.
        y: The targets.
        state: The state before the first slice; None for zeros.
        states: Those of all slices, where they are known.

    Shape:
        - x, y: $(T, \text{symbols})$, or $(s, 1, T, \text{symbols})$ for a stack
        - state: $(r)$ or $(s, 1, r)$
        - states: $(T, r)$ or $(s, 1, T, r)$
        - the results: $(T)$ or $(s, T)$
    """
    h = network.infer(x, state) if states is None else states
    first = torch.zeros_like(h[..., 0, :]) if state is None else state
    before = torch.cat([first.unsqueeze(-2), h[..., :-1, :]], dim=-2)
    if x.ndim > 2:
        h, before, x, y = (values.squeeze(1) for values in (h, before, x, y))
    pairs = ((network.weight_y, y), (network.weight_h, before), (network.weight_x, x))
    of_y, of_h, of_x = ((h @ weight.mT - target).square().mean(-1) for weight, target in pairs)
    return of_y, of_h, of_x


def go_on(network: nn.Module, seed: Tensor, count: int) -> Tensor:
    """A sequence that a network goes on with: what it predicts becomes its next input."""
    y, state = network(seed)
    found = [*seed, y[-1]]
    for _ in range(count - 1):
        y, state = network(found[-1].unsqueeze(0), state)
        found.append(y[-1])
    return torch.stack(found)


def judge_generated(generated: Tensor, symbols: Tensor) -> dict[str, float]:
    """How much of what came after the seed is right, and how far off it is."""
    expected = symbols[SEED_LENGTH : len(generated)]
    later = generated[SEED_LENGTH:]
    right = (later.argmax(-1) == expected).double().mean().item()
    error = (later - F.one_hot(expected, NUM_SYMBOLS)).square().mean().item()
    return {"generated_accuracy": 100 * right, "generated_mse": error}


def judge_machine(network: Recurrent, pattern: Sequence[int]) -> dict[str, float]:
    """Columns in use, and whether the machine that the weights show is the right one, and no larger."""
    graph, expected = transition_graph(network), go_round(pattern).tolist()
    try:
        told = graph.generate(expected[:SEED_LENGTH], GENERATED)
    except ValueError:  # it does not know how to go on
        told = []
    right = told == expected and len(graph.states) == len(pattern)
    return {"columns": float(len(columns_in_use(network))), "machine": float(right)}


def machine_curves(network: Recurrent) -> dict[str, list[float]]:
    """The machine as lists of numbers: states in the order of the chain, and transitions between places in it."""
    graph = transition_graph(network)
    places = {state.column: float(place) for place, state in enumerate(graph.states)}
    return {
        "machine_reads": [float(state.reads) for state in graph.states],
        "machine_predicts": [float(state.predicts) for state in graph.states],
        "machine_sources": [places[transition.source] for transition in graph.transitions],
        "machine_targets": [places[transition.target] for transition in graph.transitions],
        "machine_weights": [transition.weight for transition in graph.transitions],
    }


def is_pictured(job: Job) -> bool:
    """Whether a result has pictures: the first run of each size has, and of small sizes the first three."""
    plain = RepeatingSequence(num_basis=job.config.num_basis)
    known = (plain, fast(plain), plain.smoke())
    return job.config in known and job.seed < (3 if job.config.num_basis <= 50 else 1)


def fast(config: Any) -> Any:
    """The pattern once, as a circle; at first few steps and a high threshold, in the end many steps and nothing else.

    The state before the first slice is then that of the last, so that nothing disturbs the machine. A high threshold
    leaves 25 columns in use. In the end there is no normalization, which would keep the weights from settling, and the
    steps on the states come close enough to their goal for an error below 1e-7.
    """
    if not isinstance(config, RepeatingSequence):
        return config
    return replace(
        config,
        carried=True,
        repeats=1,
        iterations=40,
        rate_h=1.0,
        passes=320,
        threshold=4e-3,
        settling=0.6,
        final_iterations=150,
    )


SIZES = (25, 50, 75, 100, 150, 300, 500)

CHANGES: dict[str, dict[str, Any]] = {
    "published": {},
    "no-threshold": {"threshold": 0.0},
    "long": {"passes": 2050},
    "start-0.1": {"init_high": 0.1},
    "start-0.01": {"init_high": 0.01},
    "full-steps": {"rate_h": 1.0, "rate_w": 1.0},
    "text": {"threshold": 0.0, "init_high": 0.01, "rate_h": 1.0, "rate_w": 1.0, "normalization": "mean-of-max"},
    "mean-of-max": {"normalization": "mean-of-max"},
    "all-slices": {"inference": "all-slices", "iterations": 300},
    "carried": {"carried": True},
    "five-starts": {"starts": 5},
}
"""What might help, or hurt: one change at a time, and the settings that the paper's text gives."""


def _sizes(table: str) -> Iterator[Row]:
    for size in SIZES:
        yield Row(f"{table}.{size}", RepeatingSequence(num_basis=size), seeds=20)


def _random_patterns() -> Iterator[Row]:
    for size in (50, 100, 150):
        yield Row(f"SEQR.{size}", RepeatingSequence(num_basis=size, pattern="random"), seeds=20)


def _changes() -> Iterator[Row]:
    for size in (25, 50, 100):
        for name, change in CHANGES.items():
            yield Row(f"SEQX.{size}.{name}", replace(RepeatingSequence(num_basis=size), **change), seeds=20)


def _trained() -> Iterator[Row]:
    vanilla = TrainedSequence(model="vanilla", nonnegative=False)
    kinds = {
        "FAC.N": TrainedSequence(),
        "FAC.S": TrainedSequence(nonnegative=False),
        "FAC.N.NOBPTT": TrainedSequence(bptt=False),
        "VAN": vanilla,
        "VAN.NOBPTT": replace(vanilla, bptt=False),
        "LSTM": replace(vanilla, model="lstm"),
        "GRU": replace(vanilla, model="gru"),
    }
    for name, config in kinds.items():
        yield Row(f"SEQB.{name}", config, seeds=3)


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
            Table("SEQR", "The same with random patterns", tuple(_random_patterns()), "success"),
            Table("SEQX", "A repeating sequence, one setting changed at a time", tuple(_changes()), "success"),
            Table("SEQB", "A repeating sequence, learned by backpropagation", tuple(_trained()), "generated_accuracy"),
        ),
    )
)
