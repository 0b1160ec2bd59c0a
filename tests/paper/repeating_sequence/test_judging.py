import base64
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc import NMFRNN, FactorizedRNN
from torchpfc.data.sequences import PATTERN
from torchpfc.nn import SliceBySlice
from torchpfc.paper.repeating_sequence.pictures import CELL, SPARE, pictures
from torchpfc.paper.repeating_sequence.runs import (
    go_on,
    judge_generated,
    judge_machine,
    machine_curves,
    repeat_pattern,
    slice_errors,
)
from torchpfc.training import random_stream


def machine(pattern: tuple[int, ...] = PATTERN, size: int = 40) -> NMFRNN:
    """A network that knows a pattern by heart."""
    rnn = NMFRNN(4, size, inference=SliceBySlice(60), dtype=torch.float64)
    rnn.weight.fill_(1e-5)
    count = len(pattern)
    for place in range(count):
        rnn.weight_x[pattern[place], place] = 1.0
        rnn.weight_y[pattern[(place + 1) % count], place] = 1.0
        rnn.weight_h[(place - 1) % count, place] = 1.0
    return rnn


def one_hot(symbols: Tensor) -> Tensor:
    return F.one_hot(symbols, 4).double()


def test_a_machine_that_knows_the_pattern_is_recognised() -> None:
    rnn = machine()
    symbols = repeat_pattern(PATTERN, 3)
    assert symbols.tolist() == [*PATTERN] * 3 + [0]
    assert judge_machine(rnn, PATTERN) == {"columns": 25.0, "machine": 1.0}
    generated = rnn.generate(one_hot(symbols[:15]), 50)
    judged = judge_generated(generated, symbols)
    assert judged["generated_accuracy"] == 100 and judged["generated_mse"] < 0.05
    curves = machine_curves(rnn)
    assert curves["machine_reads"] == [float(symbol) for symbol in PATTERN]
    assert curves["machine_targets"] == [float(place) for place in range(25)]
    assert curves["machine_sources"] == [24.0, *range(24)]
    assert curves["machine_predicts"] == [float(symbol) for symbol in (*PATTERN[1:], PATTERN[0])]


def test_a_machine_that_is_too_large_or_wrong_is_not() -> None:
    twice = machine((*PATTERN, *PATTERN), 60)
    assert judge_machine(twice, PATTERN) == {"columns": 50.0, "machine": 0.0}
    other = machine()
    other.weight_y[:, 3] = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert judge_machine(other, PATTERN)["machine"] == 0.0
    symbols = repeat_pattern(PATTERN, 3)
    wrong = one_hot(symbols[:65])
    wrong[20] = wrong[21] = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    assert judge_generated(wrong, symbols)["generated_accuracy"] == 96


def test_errors_of_slices_are_those_of_the_factorization() -> None:
    rnn = NMFRNN(
        4, 6, inference=SliceBySlice(5), init_range=(0.0, 0.5), dtype=torch.float64, generator=random_stream(0)
    )
    x, y = one_hot(repeat_pattern(PATTERN, 1))[:-1], one_hot(repeat_pattern(PATTERN, 1))[1:]
    state = torch.rand(6, dtype=torch.float64, generator=random_stream(1))
    for first in (None, state):
        errors = slice_errors(rnn, x, y, first)
        losses = deepcopy(rnn).learn(x, y, state=first)
        assert [part.mean().item() for part in errors] == pytest.approx([part.item() for part in losses])
    stack = NMFRNN(4, 6, num_models=2, inference=SliceBySlice(5), dtype=torch.float64)
    stack.weight.copy_(torch.stack([rnn.weight, 2 * rnn.weight]))
    twins = slice_errors(stack, x.expand(2, 1, -1, -1), y.expand(2, 1, -1, -1), state.expand(2, 1, -1))
    for part, alone in zip(twins, slice_errors(rnn, x, y, state), strict=True):
        assert part.shape == (2, 25)
        torch.testing.assert_close(part[0], alone)


def test_from_zeros_the_first_slices_cannot_be_predicted_and_the_last_can() -> None:
    rnn = machine()
    rnn.inference, rnn.rate_h = SliceBySlice(150), 1.0
    x, y = one_hot(repeat_pattern(PATTERN, 5))[:-1], one_hot(repeat_pattern(PATTERN, 5))[1:]
    errors = slice_errors(rnn, x, y, None)[0]
    by_repetition = errors.view(5, 25).mean(1)
    assert errors[0] == pytest.approx(0.25 / 4, rel=0.02)  # half of what is to be explained is missing
    assert errors.mean() > 1e-3 and by_repetition[-1] < 1e-7
    assert (by_repetition[1:3] < 0.2 * by_repetition[:2]).all()
    carried = rnn.infer(x)[-1]
    assert slice_errors(rnn, x, y, carried)[0].mean() < 1e-7


def test_a_network_goes_on_with_what_it_predicts() -> None:
    rnn = FactorizedRNN(4, 6, 4, dtype=torch.float64, init_range=(0.0, 0.5), generator=random_stream(0)).eval()
    seed = one_hot(torch.tensor(PATTERN[:5]))
    found = go_on(rnn, seed, 4)
    assert found.shape == (9, 4) and torch.equal(found[:5], seed)
    for length in (5, 8):
        torch.testing.assert_close(rnn(found[:length])[0][-1], found[length])


def test_pictures_show_the_columns_in_use_and_a_few_others() -> None:
    rnn, symbols = machine(), repeat_pattern(PATTERN, 3)
    generated = rnn.generate(one_hot(symbols[:15]), 50)
    made = pictures(rnn, symbols, 15, generated)
    sizes = {name: size_of(png) for name, png in made.items()}
    shown = 25 + SPARE
    height = CELL * (4 + shown + 4) + 2 + 2  # two lines between matrices, and a frame
    assert sizes["stacked_weights"] == (CELL * shown + 2, height)
    assert sizes["factorization_after"] == (CELL * (65 + 3 + shown + 3 + 65) + 2, height)
    assert sizes["factorization_before"] == sizes["factorization_after"]
    assert sizes["sequences"] == (CELL * 65 + 2, CELL * 12 + 2 + 2)


def size_of(png: str) -> tuple[int, int]:
    data = base64.b64decode(png)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
