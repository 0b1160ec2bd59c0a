import pytest
import torch

from torchpfc.data.sequences import PATTERN, CopyTask, random_pattern


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_published_pattern() -> None:
    assert len(PATTERN) == 25 and set(PATTERN) == {0, 1, 2, 3}
    assert [PATTERN.count(symbol) for symbol in range(4)] == [1, 5, 9, 10]


def test_a_random_pattern_has_every_symbol_and_no_shorter_period() -> None:
    found = {random_pattern(6, 3, generator(seed)) for seed in range(30)}
    assert len(found) > 20
    for pattern in found:
        assert set(pattern) == {0, 1, 2}
        assert all(pattern[k:] + pattern[:k] != pattern for k in range(1, 6))
    assert random_pattern(6, 3, generator(1)) == random_pattern(6, 3, generator(1))
    with pytest.raises(ValueError, match="num_symbols must be from 2 to the length, 3, got 4"):
        random_pattern(3, 4, generator())


def test_what_is_read_and_what_is_asked_in_the_copy_task() -> None:
    task = CopyTask(pause=2, num_tokens=3, num_symbols=4)
    tokens = torch.tensor([[3, 0, 1], [2, 2, 0]])
    x, y = task.inputs(tokens), task.targets(tokens)
    assert (task.slices, task.input_size) == (8, 6) and x.shape == (2, 8, 6) and y.shape == (2, 8, 4)
    assert x.argmax(-1).tolist() == [[3, 0, 1, 4, 4, 5, 5, 5], [2, 2, 0, 4, 4, 5, 5, 5]]
    assert (x.sum(-1) == 1).all() and not y[:, :5].any()
    assert y[:, 5:].argmax(-1).tolist() == tokens.tolist() and (y[:, 5:].sum(-1) == 1).all()
    assert task.asked.tolist() == [False] * 5 + [True] * 3


def test_symbols_to_remember_are_drawn_from_all() -> None:
    task = CopyTask()
    drawn = task.draw(100, generator())
    assert drawn.shape == (100, 10) and set(drawn.flatten().tolist()) == set(range(10))
    assert task.slices == 25 and CopyTask(pause=15).slices == 35


@pytest.mark.parametrize(("name", "value", "least"), [("pause", -1, 0), ("num_tokens", 0, 1), ("num_symbols", 1, 2)])
def test_bad_settings_of_the_copy_task(name: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {value}"):
        CopyTask(**{name: value})
