"""The machine that a factorized RNN has learned, read from its weights alone (Section 5.8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchpfc.interpret.explanation import Coupled


class Recurrent(Coupled, Protocol):
    """A factorized RNN, however it was learned: `FactorizedRNN`, its cell, or `NMFRNN`."""

    @property
    def weight_h(self) -> Tensor:
        """The state before each part."""


@dataclass(frozen=True)
class State:
    """A part that is in use, seen as the state of a machine."""

    column: int
    """The column of the weights."""
    reads: int
    """The symbol that leads to this state: the largest entry of its column of W_x."""
    predicts: int
    """The symbol that comes next: the largest entry of its column of W_y."""


@dataclass(frozen=True)
class Transition:
    """From one state to the next."""

    source: int
    """The column of the state before."""
    target: int
    """The column of the state after; it is the one that knows about the other."""
    weight: float
    """The entry of W_h."""


@dataclass(frozen=True)
class TransitionGraph:
    """The machine that a factorized RNN has learned (Section 5.8).

    Example:
        >>> graph = TransitionGraph(
        ...     states=(State(4, reads=0, predicts=1), State(2, reads=1, predicts=0)),
        ...     transitions=(Transition(4, 2, 1.0), Transition(2, 4, 1.0)),
        ...     num_symbols=2,
        ... )
        >>> graph.generate([0], 4)
        [0, 1, 0, 1, 0]
    """

    states: tuple[State, ...]
    """The states, in an order in which the machine reads as a chain as far as it is one."""
    transitions: tuple[Transition, ...]
    """The transitions, in the order of the states that they lead to."""
    num_symbols: int
    """How many symbols there are."""

    def follow(self, symbols: Sequence[int]) -> list[State]:
        """The states that the machine may be in after it has read symbols, whichever it was in before them.

        Args:
            symbols: What it reads, at least one symbol.

        Returns:
            The states; none where the machine cannot read this.
        """
        if not len(symbols):
            raise ValueError("symbols must hold at least one symbol, got none")
        if not all(0 <= symbol < self.num_symbols for symbol in symbols):
            raise ValueError(f"symbols must be from 0 to {self.num_symbols - 1}, got {sorted(set(symbols))}")
        possible = list(self.states)
        for step, symbol in enumerate(symbols):
            reached = possible if step == 0 else self._after(possible)
            possible = [state for state in reached if state.reads == symbol]
        return possible

    def generate(self, seed: Sequence[int], count: int) -> list[int]:
        """Runs the machine: reads a seed, then goes on with what it predicts.

        Args:
            seed: How the sequence begins; long enough that all states it may lead to predict the same.
            count: How many symbols to add.

        Returns:
            The seed and what follows.
        """
        symbols = [int(symbol) for symbol in seed]
        possible = self.follow(symbols)
        for _ in range(count):
            predictions = sorted({state.predicts for state in possible})
            if len(predictions) != 1:
                leads = f"{len(possible)} states that predict {predictions}"
                raise ValueError(f"seed must lead to states that predict one symbol, got {leads} after {symbols}")
            symbols += predictions
            possible = [state for state in self._after(possible) if state.reads == predictions[0]]
        return symbols

    def _after(self, states: Iterable[State]) -> list[State]:
        left = {state.column for state in states}
        reached = {transition.target for transition in self.transitions if transition.source in left}
        return [state for state in self.states if state.column in reached]


def columns_in_use(model: Recurrent, threshold: float = 0.01) -> Tensor:
    r"""The columns of $W = (W_y; W_h; W_x)$ whose largest entry is more than a share of the largest of all.

    Args:
        model: A factorized RNN.
        threshold: The share.

    Returns:
        Their indices in ascending order.

    Example:
        >>> from torchpfc.nn.recurrent.nmf_rnn import NMFRNN
        >>> rnn = NMFRNN(3, num_basis=4)
        >>> rnn.weight[:, 1] = 1e-5
        >>> columns_in_use(rnn)
        tensor([0, 2, 3])
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be at least 0 and less than 1, got {threshold}")
    largest = _stacked(model).amax(0)
    return (largest > threshold * largest.max()).nonzero().flatten()


def transition_graph(model: Recurrent, threshold: float = 0.01, *, edge_threshold: float = 0.5) -> TransitionGraph:
    """Reads the machine that a factorized RNN has learned from its weights alone.

    A column in use is a state. Its part of W_x is the symbol that it reads, that of W_y the symbol that it predicts,
    and that of W_h the state before it.

    Args:
        model: A factorized RNN whose inputs and outputs are symbols, as one-hot vectors.
        threshold: A column is in use where its largest entry is more than this share of the largest of all.
        edge_threshold: A state comes before another where its entry of W_h is at least this share of the largest of
            that column. A column without an entry of W_h above `threshold` has no state before it.

    Example:
        >>> from torchpfc.nn.recurrent.nmf_rnn import NMFRNN
        >>> rnn = NMFRNN(2, num_basis=3)
        >>> rnn.weight.fill_(1e-5).shape
        torch.Size([7, 3])
        >>> rnn.weight_x[[0, 1], [0, 2]] = rnn.weight_y[[1, 0], [0, 2]] = rnn.weight_h[[2, 0], [0, 2]] = torch.ones(2)
        >>> graph = transition_graph(rnn)
        >>> graph.states
        (State(column=0, reads=0, predicts=1), State(column=2, reads=1, predicts=0))
        >>> graph.generate([0], 3)
        [0, 1, 0, 1]
    """
    if not 0 < edge_threshold <= 1:
        raise ValueError(f"edge_threshold must be greater than 0 and at most 1, got {edge_threshold}")
    columns = columns_in_use(model, threshold)
    lowest = threshold * _stacked(model).max()
    W_h = model.weight_h.detach()[columns][:, columns]
    edges = (W_h >= edge_threshold * W_h.amax(0)) & (W_h > lowest)
    reads = model.weight_x.detach()[:, columns].argmax(0).tolist()
    predicts = model.weight_y.detach()[:, columns].argmax(0).tolist()
    names = columns.tolist()
    chain = _chain(W_h.where(edges, 0.0), reads)
    return TransitionGraph(
        states=tuple(State(names[i], reads[i], predicts[i]) for i in chain),
        transitions=tuple(
            Transition(names[source], names[target], float(W_h[source, target]))
            for target in chain
            for source in edges[:, target].nonzero().flatten().tolist()
        ),
        num_symbols=len(model.weight_x),
    )


def column_order(model: Recurrent, threshold: float = 0.01) -> Tensor:
    """An order of all columns: first those in use, so that the machine reads as a chain, then the others.

    Args:
        model: A factorized RNN.
        threshold: A column is in use where its largest entry is more than this share of the largest of all.
    """
    columns = [state.column for state in transition_graph(model, threshold).states]
    rest = sorted(set(range(model.weight_h.shape[-1])).difference(columns))
    return torch.tensor(columns + rest)


def ordered_weights(model: Recurrent, order: Tensor | None = None) -> Tensor:
    r"""The weights as one matrix, $(W_y; W_h; W_x)$, with columns and states in another order.

    Args:
        model: A factorized RNN.
        order: Which column comes where; that of `column_order` by default.

    Shape:
        - order: $(r)$
        - the result: $(\text{output_size} + r + \text{input_size}, r)$
    """
    W = _stacked(model)
    order = (column_order(model) if order is None else order).to(W.device)
    count = W.shape[1]
    if order.shape != (count,) or not torch.equal(order.sort().values, torch.arange(count, device=W.device)):
        raise ValueError(f"order must hold each of the {count} columns once, got {order.tolist()}")
    W_y, W_h, W_x = (weight.detach()[:, order] for weight in (model.weight_y, model.weight_h, model.weight_x))
    return torch.cat([W_y, W_h[order], W_x])


def _stacked(model: Recurrent) -> Tensor:
    weights = [weight.detach() for weight in (model.weight_y, model.weight_h, model.weight_x)]
    if weights[0].ndim != 2:
        raise ValueError(
            f"model must be a single one, got a stack with weights of shape {tuple(weights[0].shape)}; unstack it first"
        )
    return torch.cat(weights)


def _chain(edges: Tensor, reads: list[int]) -> list[int]:
    """An order in which each state is followed by the one it leads to, as far as that is possible."""
    waiting = sorted(range(len(reads)), key=lambda i: (bool(edges[:, i].any()), reads[i], i))
    order: list[int] = []
    while waiting:
        here = waiting[0]
        while here in waiting:
            waiting.remove(here)
            order.append(here)
            ahead = edges[here].clone()
            ahead[order] = 0.0
            if ahead.any():
                here = int(ahead.argmax())
    return order
