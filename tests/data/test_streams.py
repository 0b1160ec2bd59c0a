from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchpfc import PFCBlock, RMSprop
from torchpfc.data.streams import (
    SPLIT_PAIRS,
    Stream,
    UniformNoise,
    class_tasks,
    corrupt,
    fixed_shuffle,
    label_ordered,
    next_label,
)
from torchpfc.training import SquaredErrors, WarmCodes, evaluate, fit

CLASSES = 4


def make_labels(count: int, seed: int = 0) -> Tensor:
    return torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))


def make_data(count: int) -> tuple[Tensor, Tensor]:
    """Inputs that hold the number of their example, and one-hot targets."""
    x = torch.arange(count, dtype=torch.float32)[:, None].expand(count, 3).clone()
    return x, F.one_hot(make_labels(count), CLASSES).float()


def make_stream(count: int = 20, **options: object) -> Stream:
    return Stream(*make_data(count), **{"batch_size": 6, **options})


def examples_of(batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> list[list[int]]:
    """Which examples each batch holds, read off the data."""
    return [x[:, 0].long().tolist() for x, _, _ in batches]


# Streams


@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 8),
    drop_last=st.booleans(),
    seed=st.none() | st.integers(0, 3),
    first_id=st.integers(0, 50),
)
def test_every_example_comes_once_an_epoch_in_the_batch_that_its_number_says(
    count: int, batch_size: int, drop_last: bool, seed: int | None, first_id: int
) -> None:
    order = fixed_shuffle(count, seed=1)
    stream = Stream(*make_data(count), order, batch_size=batch_size, drop_last=drop_last, seed=seed, first_id=first_id)
    seen: dict[int, list[int]] = {}
    for epoch in (0, 1, 2, 1):
        stream.set_epoch(epoch)
        batches = list(stream)
        examples = examples_of(batches)
        assert len(stream) == len(batches) == len(stream.ids)
        flat = [row for rows in examples for row in rows]
        assert len(set(flat)) == len(flat) == (count - count % batch_size if drop_last else count)
        for id, rows, (x, target, named) in zip(stream.ids, examples, batches, strict=True):
            assert named.tolist() == rows == stream.rows_of(id).tolist()
            assert torch.equal(x, stream.x[rows])
            assert torch.equal(target, stream.target[rows])
            assert seen.setdefault(id, rows) == rows  # whatever the epoch
    epochs = 1 if seed is None else 3
    assert sorted(seen) == list(range(first_id, first_id + epochs * len(stream)))


def test_a_seed_gives_every_epoch_an_order_of_its_own() -> None:
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0)):
        stream = make_stream(seed=seed)
        stream.set_epoch(epoch)
        orders.append(examples_of(stream))
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_a_stream_of_some_rows_counts_them_in_the_whole_data_set() -> None:
    stream = make_stream(rows=torch.tensor([19, 3, 8]), batch_size=2)
    assert examples_of(stream) == [[19, 3], [8]]
    assert [rows.tolist() for _, _, rows in stream] == [[19, 3], [8]]


def test_training_and_evaluation_take_a_stream() -> None:
    x, target = torch.rand(20, 8, generator=torch.Generator().manual_seed(0)), F.one_hot(make_labels(20)).float()
    stream = Stream(x, target, batch_size=6, seed=0)
    block = PFCBlock(8, CLASSES, num_basis=5, generator=torch.Generator().manual_seed(0))
    codes = WarmCodes(block, len(x))
    optimizer = RMSprop(block.parameters())
    steps = [stats.steps for stats in fit(block, optimizer, stream, SquaredErrors(), epochs=2, codes=codes)]
    assert steps == [4, 4]
    assert stream.epoch == 1
    assert 0 <= evaluate(block, stream, SquaredErrors()).accuracy <= 1


def test_a_stream_refuses_what_makes_no_sense() -> None:
    x, target = make_data(5)
    with pytest.raises(ValueError, match=r"target must have as many rows as x \(5\), got 4"):
        Stream(x, target[:4], batch_size=2)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        Stream(x, target, batch_size=0)
    with pytest.raises(ValueError, match="first_id must be at least 0, got -1"):
        Stream(x, target, batch_size=2, first_id=-1)
    with pytest.raises(ValueError, match="rows must be numbers of examples in one dimension"):
        Stream(x, target, torch.zeros(2), batch_size=2)
    with pytest.raises(ValueError, match=r"rows must lie in \[0, 5\), got 1 to 5"):
        Stream(x, target, torch.tensor([5, 1]), batch_size=2)
    with pytest.raises(ValueError, match="rows must name each example once"):
        Stream(x, target, torch.tensor([1, 1]), batch_size=2)
    with pytest.raises(ValueError, match=r"id must be a batch of epoch 0, \[0, 3\), got 3"):
        Stream(x, target, batch_size=2).rows_of(3)


def test_a_stream_without_examples_has_no_batches() -> None:
    assert list(make_stream(rows=torch.arange(0))) == []


# Orders


@given(count=st.integers(1, 40), seed=st.none() | st.integers(0, 5), some=st.booleans())
def test_label_order_is_sorted_by_class_and_loses_no_example(count: int, seed: int | None, some: bool) -> None:
    labels = make_labels(count)
    rows = fixed_shuffle(count, seed=9)[: count // 2 + 1] if some else None
    order = label_ordered(labels, rows=rows, seed=seed)
    assert sorted(order.tolist()) == sorted(range(count) if rows is None else rows.tolist())
    assert labels[order].tolist() == sorted(labels[order].tolist())
    if seed is None:  # within a class as they were
        given_order = list(range(count)) if rows is None else rows.tolist()
        for label in labels[order].unique():
            places = [given_order.index(row) for row in order[labels[order] == label].tolist()]
            assert places == sorted(places)


def test_a_seed_shuffles_within_each_class() -> None:
    labels = make_labels(60)
    first, second, again = (label_ordered(labels, seed=seed) for seed in (0, 1, 0))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(labels[first], labels[second])


def test_a_shuffle_of_some_rows_keeps_them() -> None:
    rows = torch.tensor([7, 1, 5, 3])
    assert sorted(fixed_shuffle(rows, seed=0).tolist()) == [1, 3, 5, 7]


# Tasks


@given(count=st.integers(30, 80), share=st.floats(0, 0.9), seed=st.integers(0, 5))
def test_tasks_split_the_examples_of_their_classes(count: int, share: float, seed: int) -> None:
    labels = make_labels(count)
    groups = ((0, 2), (3,))
    tasks = class_tasks(labels, groups, seed=seed, validation_share=share)
    assert tuple(task.classes for task in tasks) == groups
    for task in tasks:
        own = [row for row, label in enumerate(labels.tolist()) if label in task.classes]
        assert sorted(task.train.tolist() + task.validation.tolist()) == own
        assert len(task.validation) == round(share * len(own))
    again = class_tasks(labels, groups, seed=seed, validation_share=share)
    assert all(torch.equal(one.train, other.train) for one, other in zip(tasks, again, strict=True))


def test_tasks_use_only_the_rows_they_are_given() -> None:
    labels = make_labels(80)
    rows = torch.arange(40, 80)
    tasks = class_tasks(labels, ((0, 1), (2, 3)), seed=0, rows=rows)
    used = torch.cat([part for task in tasks for part in (task.train, task.validation)])
    assert sorted(used.tolist()) == rows.tolist()


def test_the_tasks_of_split_mnist_are_pairs() -> None:
    tasks = class_tasks(torch.arange(10).repeat(20), seed=0)
    assert tuple(task.classes for task in tasks) == SPLIT_PAIRS
    assert {(len(task.train), len(task.validation)) for task in tasks} == {(34, 6)}


def test_tasks_refuse_what_makes_no_sense() -> None:
    labels = make_labels(40)
    with pytest.raises(ValueError, match="groups must have no class in common"):
        class_tasks(labels, ((0, 1), (1, 2)), seed=0)
    with pytest.raises(ValueError, match=r"groups must name classes that have examples, got \(7,\)"):
        class_tasks(labels, ((0,), (7,)), seed=0)
    with pytest.raises(ValueError, match="validation_share must be at least 0 and less than 1, got 1"):
        class_tasks(labels, ((0,),), seed=0, validation_share=1)


# Corruption


@given(start=st.integers(0, 4), length=st.integers(0, 4))
def test_wrong_labels_are_the_next_class_in_those_batches_and_no_others(start: int, length: int) -> None:
    stream = make_stream(25, rows=fixed_shuffle(25, seed=3), batch_size=5, first_id=10)
    whole = stream.x.clone(), stream.target.clone()
    batches = range(10 + start, min(10 + start + length, 15))
    spoiled = corrupt(stream, batches)
    assert spoiled.ids == stream.ids
    for id, (x, target, rows), (bad_x, bad_target, bad_rows) in zip(stream.ids, stream, spoiled, strict=True):
        assert torch.equal(rows, bad_rows)
        assert torch.equal(x, bad_x)
        shift = 1 if id in batches else 0
        assert torch.equal((target.argmax(-1) + shift) % CLASSES, bad_target.argmax(-1))
    assert torch.equal(stream.x, whole[0])
    assert torch.equal(stream.target, whole[1])


def test_noise_replaces_inputs_and_leaves_targets() -> None:
    stream = make_stream()
    spoiled = corrupt(stream, [1], UniformNoise(seed=4))
    for id, (x, target, _), (bad_x, bad_target, _) in zip(stream.ids, stream, spoiled, strict=True):
        assert torch.equal(target, bad_target)
        assert torch.equal(x, bad_x) == (id != 1)
    assert spoiled.target is stream.target  # nothing is copied that stays
    again = corrupt(stream, [1], UniformNoise(seed=4))
    assert torch.equal(spoiled.x, again.x)
    noise = spoiled.x[6:12]
    assert 0 <= noise.min() <= noise.max() <= 1


def test_corrupting_a_batch_twice_shifts_it_twice() -> None:
    stream = make_stream()
    twice = corrupt(corrupt(stream, [0]), [0], next_label)
    assert torch.equal(twice.target[:6], stream.target[:6].roll(2, -1))


def test_corruption_refuses_other_batches_and_changing_orders() -> None:
    with pytest.raises(ValueError, match=r"batches must lie in \[0, 4\), got 4"):
        corrupt(make_stream(), range(2, 6))
    with pytest.raises(ValueError, match=r"stream must have one order for all epochs \(seed=None\), got seed=0"):
        corrupt(make_stream(seed=0), [1])
