"""What is learned of a repeating sequence, and how: the settings of networks, with their published values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from torchpfc.data.sequences import PATTERN, random_pattern
from torchpfc.nn import NMFRNN, AllSlices, SliceBySlice
from torchpfc.paper.components import Optimizer
from torchpfc.paper.recurrent_models import NETWORKS, NORMALIZATIONS, Network, Updates
from torchpfc.paper.recurrent_run import SideBySide
from torchpfc.paper.settings import Component, Count, change, check_choice, one_of
from torchpfc.training import random_stream

NUM_SYMBOLS = 4
MEASURED_REPEATS = 8
"""How often the pattern occurs in the sequence that trained networks are measured on."""

ROUNDS = 10
"""In how many rounds the passes from one start are taken."""

INFERENCES = {"slice-by-slice": SliceBySlice, "all-slices": AllSlices}


@dataclass(frozen=True, kw_only=True)
class Repetition(Component):
    """What is learned, and how often it is seen."""

    pattern: Annotated[str, one_of("published", "random")] = "published"
    """The published pattern, or a random one of the same length, another for each seed."""
    repeats: Count = MEASURED_REPEATS
    """How often the pattern occurs in the sequence that is learned."""
    passes: Count = 410
    """How often to go through the sequence."""

    @property
    def passes_of_round(self) -> int:
        """How many passes a round has."""
        return -(-self.passes // ROUNDS)

    def cost(self, num_basis: int) -> float:
        """Arithmetic of going through it with one step on each state, roughly."""
        return self.passes * self.repeats * num_basis / 100

    def symbols(self, seed: int) -> tuple[int, ...]:
        """The pattern."""
        if self.pattern == "published":
            return PATTERN
        return random_pattern(len(PATTERN), NUM_SYMBOLS, random_stream(seed, "pattern"))


class SequenceConfig(SideBySide):
    """Settings of networks that learn one sequence each."""

    def stack_size(self) -> int:
        """All seeds at once."""
        return 20


@dataclass(frozen=True, kw_only=True)
class RepeatingSequence(SequenceConfig):
    """Learning without backpropagation; the defaults are those of the published code."""

    num_basis: Count = 100
    sequence: Repetition = Repetition()
    starts: Count = 1
    """How often to begin anew, from other weights; the network of the lowest training loss counts."""
    carried: bool = False
    """Whether a pass begins in the state in which the one before ended, not in zeros."""
    inference: Annotated[str, one_of(*INFERENCES)] = "slice-by-slice"
    """How states are found: "slice-by-slice", or in "all-slices" at once."""
    iterations: Count = 100
    threshold: float = 5e-4
    """What each entry of a state loses in every step."""
    settling: float = 0.0
    """Share of the passes, at the end, without threshold and normalization, and with iterations of their own."""
    final_iterations: Count = 100
    updates: Updates = Updates()

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if not 0 <= self.settling <= 1:
            raise ValueError(f"settling must be from 0 to 1, got {self.settling}")

    def smoke(self) -> Self:
        """A few passes over a short sequence, with one threshold for all rows that have one."""
        few: dict[str, Any] = {"num_basis": 12, "repeats": 2, "passes": ROUNDS, "iterations": 2, "final_iterations": 3}
        threshold = RepeatingSequence.threshold if self.threshold else 0.0
        return change(self, **few, starts=min(self.starts, 2), threshold=threshold, init_high=Updates.init_high)

    def cost(self) -> float:
        """Arithmetic of a run, roughly."""
        steps = (1 - self.settling) * self.iterations + self.settling * self.final_iterations
        return self.sequence.cost(self.num_basis) * self.starts * steps / 100

    def prepare(self, network: NMFRNN, share: float) -> None:
        """Gives a network, or a stack, the settings that it has when a share of the passes is done."""
        settled = self.settling > 0 and share > 1 - self.settling - 1e-9
        network.inference = INFERENCES[self.inference](self.final_iterations if settled else self.iterations)
        network.threshold = 0.0 if settled else self.threshold
        network.normalization = None if settled else NORMALIZATIONS[self.updates.normalization]

    def make_network(self, seed: int, start: int = 0) -> NMFRNN:
        """A network as it begins, with the settings that it will have in the end."""
        stream = random_stream(seed, "weights", start)
        network = NMFRNN(NUM_SYMBOLS, self.num_basis, generator=stream, **self.updates.options())
        self.prepare(network, 1.0)
        return network


@dataclass(frozen=True, kw_only=True)
class TrainedSequence(SequenceConfig):
    """Learning by backpropagation through the whole sequence."""

    sequence: Repetition = Repetition(passes=2000)
    network: Network = Network()
    optimizer: Optimizer = Optimizer(lr=1e-3, weight_decay=0.0)

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        check_choice(self.network, "model", NETWORKS)

    def smoke(self) -> Self:
        """A few steps on a short sequence."""
        return change(self, num_basis=12, repeats=2, passes=ROUNDS, iterations=2)

    def cost(self) -> float:
        """Arithmetic of a run, roughly."""
        return 3 * self.sequence.cost(self.network.num_basis) * self.network.iterations / 100


def fast(config: Any) -> Any:
    """The pattern once, as a circle; at first few steps and a high threshold, in the end many steps and nothing else.

    The state before the first slice is then that of the last, so that nothing disturbs the machine. A high threshold
    leaves 25 columns in use. Rows of the weights begin with a sum of about 1 at most: with more, the states of many
    parts soon are all alike, and stay so. The threshold stays below the largest of these weights, or no state would
    ever rise from zero. In the end there is no normalization, which would keep the weights from settling, and the
    steps on the states come close enough to their goal for an error below 1e-7.

    With no part to spare there is no threshold, as it would take parts out of use that are needed. Steps on the weights
    are twice as long, and the best of three starts counts.
    """
    if not isinstance(config, RepeatingSequence):
        return config
    changed = change(config, carried=True, repeats=1, passes=320, settling=0.6)
    changed = change(changed, iterations=40, final_iterations=150, rate_h=1.0)
    if config.num_basis <= len(PATTERN):
        return change(changed, init_high=1 / config.num_basis, threshold=0.0, rate_w=1.0, starts=3)
    init_high = min(config.updates.init_high, 2 / config.num_basis)
    return change(changed, init_high=init_high, threshold=min(4e-3, 0.8 * init_high))
