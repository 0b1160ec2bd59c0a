"""What a network has learned of a repeating sequence: its errors, what it goes on with, the machine in its weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.interpret import Recurrent, columns_in_use, transition_graph
from torchpfc.nn import NMFRNN
from torchpfc.paper.repeating_sequence.settings import NUM_SYMBOLS

SEED_LENGTH, GENERATED = 15, 50
"""How much of the sequence a network is given, and how much it has to go on with."""


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
