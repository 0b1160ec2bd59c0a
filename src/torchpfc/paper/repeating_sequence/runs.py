"""Trains networks on a repeating sequence, without backpropagation or with it, and measures them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.interpret import Recurrent, columns_in_use, transition_graph
from torchpfc.nn import NMFRNN, FactorizedRNN
from torchpfc.paper.learners import Learner, NMFLearner, Rounds, Sequences, Source
from torchpfc.paper.recurrent_run import NetworkRun
from torchpfc.paper.registry import Job
from torchpfc.paper.repeating_sequence.pictures import pictures
from torchpfc.paper.repeating_sequence.settings import MEASURED_REPEATS, NUM_SYMBOLS, ROUNDS, RepeatingSequence, fast
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.stack_run import Examined, Found
from torchpfc.training import EpochStats

NAME = "repeating-sequence"
EXACT = 1e-7
"""Mean squared error of predictions below which a sequence counts as learned."""

SEED_LENGTH, GENERATED = 15, 50
"""How much of the sequence a network is given, and how much it has to go on with."""


class SequenceRun(NetworkRun):
    """What both ways to learn have in common."""

    def num_epochs(self) -> int:
        """Rounds of all starts."""
        return ROUNDS * int(getattr(self.config, "starts", 1))

    def source(self) -> Source:
        """The sequences of all networks, for as many passes as a round has."""
        batch, count = self.sequences(self.seeds()), self.config.sequence.passes_of_round
        return Rounds(count, lambda epoch: repeat(batch, count))

    def sequences(self, seeds: Sequence[int]) -> Sequences:
        """What networks learn from, one sequence each."""
        sequence = self.config.sequence
        found = [repeat_pattern(sequence.symbols(seed), sequence.repeats) for seed in seeds]
        return self.read(torch.stack(found).unsqueeze(1))

    def read(self, symbols: Tensor) -> Sequences:
        """What a network reads of some symbols, as one-hot vectors, and what it should predict."""
        vectors = F.one_hot(symbols, NUM_SYMBOLS).to(self.device, self.dtype)
        return Sequences(vectors[..., :-1, :], vectors[..., 1:, :])


class NMFRun(SequenceRun):
    """Learning without backpropagation."""

    learner: NMFLearner

    def build(self) -> Learner:
        """All networks as they begin."""
        networks = [job.config.make_network(job.seed) for job in self.jobs]
        options = {"carried": self.config.carried, "change": self.change}
        return NMFLearner(networks, device=self.device, dtype=self.dtype, **options)

    def examine(self, stats: EpochStats) -> Examined:
        """Measures the training loss; that at the end of each start decides which one counts."""
        stack = self.learner.stack
        x, y, _ = self.sequences([job.seed for job in self.jobs])
        errors = slice_errors(stack, x, y, self.learner.carried)
        total = torch.stack(errors).mean(-1).sum(0).cpu()
        ended = stats.epoch % ROUNDS == ROUNDS - 1
        score = -total if ended else torch.full_like(total, -torch.inf)
        largest = stack.weight.amax(-2)
        columns = (largest > 0.01 * largest.amax(-1, keepdim=True)).sum(-1)
        curves = {"loss": total, "prediction_mse": errors[0].mean(-1).cpu(), "columns": columns.cpu()}
        return Examined(total, score, curves)

    def measure(self, network: NMFRNN, i: int) -> Found:
        """Predictions with the settings of the training, the machine, and what it goes on with."""
        job, config, epochs = self.jobs[i], self.config, self.num_epochs()
        pattern, each = config.sequence.symbols(job.seed), config.sequence.passes_of_round
        x, y, _ = self.read(repeat_pattern(pattern, MEASURED_REPEATS))
        states = network.infer(x)
        own = zero = slice_errors(network, x, y, None, states)
        if config.carried:
            own = slice_errors(network, x[: len(pattern)], y[: len(pattern)], states[-1])
        metrics = {
            "mse": own[0].mean().item(),
            "loss": sum(part.mean().item() for part in own),
            "zero_state_mse": zero[0].mean().item(),
            "settled_mse": zero[0][-len(pattern) :].mean().item(),
            "passes": float(each * epochs),
        }
        symbols = go_round(pattern).to(self.device)
        seed = self.read(symbols).x[:SEED_LENGTH]
        generated = network.generate(seed, GENERATED, iterations=network.inference.iterations)
        metrics |= judge_generated(generated, symbols) | judge_machine(network, pattern)
        right = metrics["columns"] == len(pattern) and metrics["machine"]
        # Where a pass begins in zeros, its first slices cannot be predicted: what counts is the last repetition.
        exact = metrics["mse" if config.carried else "settled_mse"] < EXACT
        metrics["success"] = float(right and exact)
        found = Found(metrics, {"passes": [float(each * k) for k in range(1, epochs + 1)]})
        if is_pictured(job):
            found.images = pictures(network, symbols, SEED_LENGTH, generated)
            found.curves |= machine_curves(network)
        return found

    def change(self, stack: NMFRNN, number: int) -> None:
        """Begins anew where it is time to, and sets what depends on how much is done."""
        start, part = divmod(number, ROUNDS)
        if start and not part:
            fresh = [job.config.make_network(job.seed, start).weight for job in self.jobs]
            stack.weight.copy_(torch.stack(fresh))
            if self.learner.carried is not None:
                self.learner.carried.zero_()
        self.config.prepare(stack, part / ROUNDS)


class GradientRun(SequenceRun):
    """Learning by backpropagation."""

    def build(self) -> Learner:
        """All networks as they begin."""
        return self.gradient_learner(NUM_SYMBOLS, NUM_SYMBOLS)

    def examine(self, stats: EpochStats) -> Examined:
        """Keeps the weights after the round of the lowest training loss: steps of one length may lose it again."""
        return Examined(stats.loss, -stats.loss, {})

    def measure(self, network: nn.Module, i: int) -> Found:
        """Predictions, and what the network goes on with; of a factorized one the machine too."""
        sequence = self.config.sequence
        pattern = sequence.symbols(self.jobs[i].seed)
        x, y, _ = self.read(repeat_pattern(pattern, MEASURED_REPEATS))
        predicted, _ = network(x)
        errors = (predicted - y).square().mean(-1)
        right = predicted.argmax(-1) == y.argmax(-1)
        settled = slice(-len(pattern), None)
        metrics = {
            "zero_state_mse": errors.mean().item(),
            "settled_mse": errors[settled].mean().item(),
            "settled_accuracy": 100 * right[settled].double().mean().item(),
            "passes": float(sequence.passes),
        }
        symbols = go_round(pattern).to(self.device)
        metrics |= judge_generated(go_on(network, self.read(symbols).x[:SEED_LENGTH], GENERATED), symbols)
        if isinstance(network, FactorizedRNN):
            metrics |= judge_machine(network, pattern)
        return Found(metrics)


def run(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains and measures networks that share one stack key."""
    kind = NMFRun if isinstance(jobs[0].config, RepeatingSequence) else GradientRun
    return kind(NAME, jobs, context).results()


def is_pictured(job: Job) -> bool:
    """Whether a result has pictures: the first run of each size has, and of small sizes the first three."""
    plain = RepeatingSequence(num_basis=job.config.num_basis)
    known = (plain, fast(plain), plain.smoke())
    return job.config in known and job.seed < (3 if job.config.num_basis <= 50 else 1)


def repeat_pattern(pattern: Sequence[int], repeats: int) -> Tensor:
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
