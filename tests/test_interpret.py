import pytest
import torch
from torch import Tensor

from torchpfc import NMFRNN, FactorizedRNN, FactorizedRNNCell, stack_models
from torchpfc.interpret import (
    State,
    Transition,
    TransitionGraph,
    column_order,
    columns_in_use,
    ordered_weights,
    transition_graph,
)

PATTERN = [0, 1, 1, 2, 0, 2]


def plant(weight_y: Tensor, weight_h: Tensor, weight_x: Tensor, columns: list[int], noise: float = 0.004) -> None:
    """A machine that knows the pattern by heart: the state of each place is one of the columns."""
    with torch.no_grad():
        for weight in (weight_y, weight_h, weight_x):
            weight.uniform_(0, noise, generator=torch.Generator().manual_seed(0))
        for place, column in enumerate(columns):
            weight_x[PATTERN[place], column] = 0.9
            weight_y[PATTERN[(place + 1) % len(PATTERN)], column] = 1.0
            weight_h[columns[place - 1], column] = 0.8


COLUMNS = [7, 2, 9, 0, 5, 3]


def planted(noise: float = 0.004) -> NMFRNN:
    rnn = NMFRNN(3, 10)
    plant(rnn.weight_y, rnn.weight_h, rnn.weight_x, COLUMNS, noise)
    return rnn


def test_a_planted_machine_is_found() -> None:
    rnn = planted()
    assert columns_in_use(rnn).tolist() == sorted(COLUMNS)
    graph = transition_graph(rnn)
    places = [state.column for state in graph.states]
    first = places.index(7)
    assert places[first:] + places[:first] == COLUMNS  # a chain, wherever it begins
    assert {(s.column, s.reads, s.predicts) for s in graph.states} == {
        (column, PATTERN[place], PATTERN[(place + 1) % 6]) for place, column in enumerate(COLUMNS)
    }
    assert {(t.source, t.target) for t in graph.transitions} == {
        (COLUMNS[place - 1], column) for place, column in enumerate(COLUMNS)
    }
    assert all(t.weight == pytest.approx(0.8) for t in graph.transitions) and graph.num_symbols == 3


def test_running_the_machine_reproduces_the_sequence() -> None:
    graph = transition_graph(planted())
    assert graph.generate(PATTERN[:2], 16) == PATTERN * 3
    assert [s.column for s in graph.follow([1, 1])] == [9]
    assert {s.column for s in graph.follow([0])} == {7, 5}
    assert graph.follow([2, 1]) == []


def test_every_kind_of_factorized_network_can_be_read() -> None:
    expected = transition_graph(planted())
    for rnn in (FactorizedRNN(3, 10, 3), FactorizedRNNCell(3, 10, 3)):
        plant(rnn.weight_y, rnn.weight_h, rnn.weight_x, COLUMNS)
        assert transition_graph(rnn) == expected
        assert not ordered_weights(rnn).requires_grad


def test_the_order_makes_the_states_a_chain() -> None:
    rnn = planted()
    order = column_order(rnn)
    assert sorted(order.tolist()) == list(range(10)) and order[6:].tolist() == [1, 4, 6, 8]
    W = ordered_weights(rnn)
    assert W.shape == (16, 10)
    W_y, W_h, W_x = W[:3], W[3:13], W[13:]
    assert torch.equal(W_y, rnn.weight_y[:, order]) and torch.equal(W_x, rnn.weight_x[:, order])
    assert torch.equal(W_h, rnn.weight_h[order][:, order])
    assert (W_h[range(5), range(1, 6)] == 0.8).all() and W_h[5, 0] == 0.8  # each state under the one before it
    same = ordered_weights(rnn, torch.arange(10))
    assert torch.equal(same, rnn.weight)


def test_a_beginning_and_branches() -> None:
    # 0 has nothing before it and leads to both 1 and 2, which lead to 3; 3 ends.
    rnn = NMFRNN(2, 4)
    rnn.weight.zero_()
    rnn.weight_x[0, [0, 1, 3]] = 1.0
    rnn.weight_x[1, 2] = 1.0
    rnn.weight_y[1, [0, 1]] = 1.0
    rnn.weight_y[0, [2, 3]] = 1.0
    rnn.weight_h[0, 1], rnn.weight_h[0, 2], rnn.weight_h[1, 3], rnn.weight_h[2, 3] = 0.5, 0.9, 0.4, 0.8
    graph = transition_graph(rnn)
    assert [state.column for state in graph.states] == [0, 2, 3, 1]
    assert [(t.source, t.target) for t in graph.transitions] == [(0, 2), (1, 3), (2, 3), (0, 1)]
    assert [(t.source, t.target) for t in transition_graph(rnn, edge_threshold=0.9).transitions] == [
        (0, 2),
        (2, 3),
        (0, 1),
    ]
    assert [state.column for state in graph.follow([0, 1])] == [2]
    with pytest.raises(ValueError, match=r"predict one symbol, got 0 states that predict \[\] after \[0, 1, 0, 0\]"):
        graph.generate([0, 1], 3)


def test_columns_are_counted_by_their_share_of_the_largest_entry() -> None:
    rnn = planted(noise=0.02)
    assert len(columns_in_use(rnn)) == 10 and len(columns_in_use(rnn, 0.05)) == 6
    assert len(columns_in_use(rnn, 0.95)) == 6


def test_bad_input() -> None:
    graph = transition_graph(planted())
    with pytest.raises(ValueError, match=r"symbols must be from 0 to 2, got \[0, 3\]"):
        graph.follow([0, 3])
    with pytest.raises(ValueError, match="symbols must hold at least one symbol, got none"):
        graph.generate([], 3)
    message = r"seed must lead to states that predict one symbol, got 2 states that predict \[1, 2\] after \[0\]"
    with pytest.raises(ValueError, match=message):
        graph.generate([0], 3)
    with pytest.raises(ValueError, match="threshold must be at least 0 and less than 1, got 1"):
        columns_in_use(planted(), 1)
    with pytest.raises(ValueError, match="edge_threshold must be greater than 0 and at most 1, got 0"):
        transition_graph(planted(), edge_threshold=0)
    with pytest.raises(ValueError, match="order must hold each of the 10 columns once, got"):
        ordered_weights(planted(), torch.zeros(10, dtype=torch.int64))
    for stack in (NMFRNN(3, 10, num_models=2), stack_models([FactorizedRNN(3, 10, 3)] * 2)):
        with pytest.raises(
            ValueError, match=r"model must be a single one, got a stack with weights of shape \(2, 3, 10\)"
        ):
            columns_in_use(stack)


def test_a_machine_can_be_written_by_hand() -> None:
    graph = TransitionGraph((State(0, 0, 1), State(1, 1, 0)), (Transition(0, 1, 1.0), Transition(1, 0, 1.0)), 2)
    assert graph.generate([1], 3) == [1, 0, 1, 0]
