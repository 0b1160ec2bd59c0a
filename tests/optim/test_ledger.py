import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import Optimizer

from torchpfc import FISTA, PFCBlock, RMSprop, RMSpropSLW, SlidingWindow, Windowed, keep_nonnegative
from torchpfc.data.streams import Stream, fixed_shuffle
from torchpfc.optim.ledger import Ledger, as_ranges, merged
from torchpfc.training import SquaredErrors, fit

KINDS = ("RMSpropSLW", "Adam")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_optimizer(kind: str, params: Any, **window: Any) -> Any:
    if kind == "RMSpropSLW":
        return RMSpropSLW(params, lr=0.01, weight_decay=1e-3, **window)
    return Windowed(torch.optim.Adam(params, lr=0.01), **window)


class Run:
    """A block that learns from random batches through a window, growing when its columns run out."""

    def __init__(self, kind: str, num_basis: int, **window: Any) -> None:
        options: dict[str, Any] = {"solver": FISTA.paper(3), "dtype": torch.float64, "init_range": (0.0, 0.5)}
        self.block = PFCBlock(4, 2, num_basis, generator=seeded(0), **options)
        self.optimizer = make_optimizer(kind, self.block.parameters(), grow=self.grow, **window)
        keep_nonnegative(self.block, self.optimizer)
        self.ledger = Ledger()
        self.ledger.watch(self.optimizer)

    def grow(self, missing: int) -> None:
        self.block.add_basis(missing + 1, optimizer=self.optimizer, generator=seeded(self.block.num_basis))

    def learn(self, id: int) -> None:
        x, target = torch.rand(2, 3, 4, generator=seeded(id), dtype=torch.float64).unbind()
        self.optimizer.zero_grad()
        F.mse_loss(self.block(x), target[:, :2]).backward()
        with self.ledger.batch(id, rows=range(3 * id, 3 * id + 3)):
            self.optimizer.step()

    def tensors(self) -> dict[tuple[int, str], Tensor]:
        """Weights, and the state that the optimizer keeps for each of them."""
        found = {}
        for i, p in enumerate(self.block.parameters()):
            for key, value in {"weight": p.detach(), **self.optimizer.state[p]}.items():
                if value.shape == p.shape:
                    found[i, key] = value
        return found


def changed_columns(one: Run, other: Run) -> list[int]:
    """Columns of weights or state that differ; state that only one of them has is compared with zeros."""
    others = other.tensors()
    pairs = [(value, others.get(key, torch.zeros_like(value))) for key, value in one.tensors().items()]
    return torch.stack([(a != b).any(0) for a, b in pairs]).any(0).nonzero().flatten().tolist()


# What a batch could write


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=7),
    resets=st.sets(st.integers(0, 6)),
    skips=st.sets(st.integers(0, 5)),
    width=st.integers(1, 4),
    speed=st.floats(0, 3),
)
def test_nothing_outside_the_ledgers_answer_changes_because_of_a_batch(
    kind: str, ids: list[int], resets: set[int], skips: set[int], width: int, speed: float
) -> None:
    learned, passed_by = (Run(kind, 6, width=width, sweep_speed=speed) for _ in range(2))
    last = len(ids) - 1
    for run in (learned, passed_by):
        for k, id in enumerate(ids):
            if k in resets:
                run.optimizer.reset_window()
            if (k in skips and k != last) or (k == last and run is passed_by):
                run.optimizer.skip()
            else:
                run.learn(id)
    answer = learned.ledger.columns_of([ids[-1]])
    differ = changed_columns(learned, passed_by)
    assert set(differ) <= {column for part in answer for column in part}
    assert differ  # the step did something


@given(
    ids=st.lists(st.integers(0, 5), max_size=15),
    resets=st.dictionaries(st.integers(0, 14), st.floats(0, 6)),
    width=st.integers(1, 5),
    speed=st.floats(0, 0.9),
)
def test_the_answers_are_those_of_a_plain_list_of_steps(
    ids: list[int], resets: dict[int, float], width: int, speed: float
) -> None:
    """A second ledger, with an entry for each step and column."""
    weight = torch.nn.Parameter(torch.ones(2, 40))
    optimizer = RMSpropSLW([weight], width=width, sweep_speed=speed)
    ledger = Ledger()
    ledger.watch(optimizer)
    window, written = SlidingWindow(width, speed), set()
    for k, id in enumerate(ids):
        if k in resets:
            optimizer.reset_window(resets[k])
            window = window.reset(resets[k])
        weight.grad = torch.ones_like(weight)
        with ledger.batch(id, [id, id + 1]):
            optimizer.step()
        written |= {(id, column) for column in window.columns}
        window = window.advance()
    assert ledger.steps == len(ids)
    assert ledger.batches == sorted(set(ids))
    assert ledger.next_id == max(ids, default=-1) + 1
    for id in range(7):
        columns = {column for batch, column in written if batch == id}
        assert ledger.columns_of([id]) == as_ranges(columns)
        holding = {batch for batch in (id - 1, id) if batch in ids}  # example `id` is in two batches
        assert ledger.batches_with(torch.tensor([id])) == sorted(holding)
        assert ledger.columns_of_examples([id]) == as_ranges(c for batch, c in written if batch in holding)
        assert ledger.first_step([id]) == (ids.index(id) if id in ids else None)
    for column in range(40):
        assert ledger.batches_of([column]) == sorted({batch for batch, c in written if c == column})
    for count in (0, 3, 40):  # windows may run past the last column that is asked about
        assert ledger.writers(count) == [ledger.batches_of([column]) for column in range(count)]


def test_without_a_window_every_batch_could_write_every_column() -> None:
    weight, bias = torch.nn.Parameter(torch.ones(2, 6)), torch.nn.Parameter(torch.ones(()))
    ledger = Ledger()
    optimizer = RMSprop([weight, bias])
    ledger.watch(optimizer)
    with ledger.batch(3):
        optimizer.step()
    assert ledger.columns_of([3]) == (range(6),)
    assert ledger.batches_of([0]) == ledger.batches_of([5]) == [3]


def test_the_papers_range_of_columns() -> None:
    weight = torch.nn.Parameter(torch.zeros(1, 3000))
    optimizer = RMSpropSLW([weight], width=50, sweep_speed=2.5)
    ledger = Ledger()
    ledger.watch(optimizer)
    for _ in range(2):
        for id in range(1020):
            with ledger.batch(id):
                optimizer.step()
        optimizer.reset_window()
    assert ledger.columns_of(range(500, 800)) == (range(1250, 2047),)
    assert ledger.columns_of(range(1020)) == (range(2597),)
    assert len(ledger.state_dict()["batches"]) == 1020  # and not one for each of 2,040 steps


def test_a_step_that_finds_no_columns_is_entered_as_far_as_there_are_any() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 6))
    optimizer = RMSpropSLW([weight], width=4, sweep_speed=3)
    ledger = Ledger()
    ledger.watch(optimizer)
    with ledger.batch(0):
        optimizer.step()
    with pytest.raises(RuntimeError, match="the window must end"), ledger.batch(1):
        optimizer.step()
    assert ledger.columns_of([1]) == (range(3, 6),)


# Being told


def watched() -> tuple[Ledger, Optimizer]:
    optimizer = RMSpropSLW([torch.nn.Parameter(torch.ones(2, 9))], width=2, sweep_speed=1)
    ledger = Ledger()
    ledger.watch(optimizer)
    return ledger, optimizer


def test_a_step_of_no_known_batch_is_refused_before_it_changes_anything() -> None:
    ledger, optimizer = watched()
    weight = optimizer.param_groups[0]["params"][0]
    weight.grad = torch.ones_like(weight)
    with pytest.raises(RuntimeError, match="the ledger must be told of a batch before a step"):
        optimizer.step()
    assert (weight == 1).all()
    assert ledger.steps == 0


def test_batches_do_not_overlap() -> None:
    ledger, _ = watched()
    with ledger.batch(0), pytest.raises(RuntimeError, match="batch 0 must end before batch 1 begins"):
        ledger.batch(1).__enter__()


def test_a_number_belongs_to_one_set_of_examples() -> None:
    ledger, optimizer = watched()
    with ledger.batch(0, [1, 2]):
        optimizer.step()
    with pytest.raises(ValueError, match="rows must be those that batch 0 had before"):
        ledger.batch(0, [1, 3]).__enter__()


def test_examples_are_known_only_where_they_were_told() -> None:
    ledger, optimizer = watched()
    with ledger.batch(0, torch.tensor([4, 2])):
        optimizer.step()
    with ledger.batch(1):
        optimizer.step()
    assert ledger.rows_of(0) == [4, 2]
    assert ledger.has_rows(0)
    assert not ledger.has_rows(1)
    with pytest.raises(RuntimeError, match="batch 1 must be entered with its rows"):
        ledger.columns_of_examples([4])
    with pytest.raises(ValueError, match="id must be a batch that was learned from, got 7"):
        ledger.rows_of(7)


def test_watching_ends_with_its_handle_and_is_never_done_twice() -> None:
    ledger, optimizer = watched()
    handle = ledger.watch(optimizer)
    with ledger.batch(0):
        optimizer.step()
    assert ledger.steps == 1
    handle.remove()
    optimizer.step()
    assert ledger.steps == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda ledger: pickle.loads(pickle.dumps(ledger))])
def test_a_copy_watches_nobody(copied: Callable[[Ledger], Ledger]) -> None:
    ledger, optimizer = watched()
    with ledger.batch(0, [1]):
        optimizer.step()
        other = copied(ledger)
    with ledger.batch(1, [2]):
        optimizer.step()
    assert other.batches == [0] and other.rows_of(0) == [1]
    other.watch(copy.deepcopy(optimizer))
    assert ledger.batches == [0, 1]


def test_fit_can_follow_a_stream_through_several_tasks() -> None:
    x, target = torch.rand(2, 20, 4, generator=seeded(0)).unbind()
    block = PFCBlock(4, 4, num_basis=12, solver=FISTA.paper(2), generator=seeded(0))
    optimizer = RMSpropSLW(block.parameters(), width=2, sweep_speed=0.5)
    ledger = Ledger()
    ledger.watch(optimizer)
    for rows in fixed_shuffle(20, seed=0).split(10):
        stream = Stream(x, target, rows, batch_size=5, first_id=ledger.next_id, seed=1)
        followed = ledger.follow(stream)
        assert len(followed) == 2
        assert [stats.steps for stats in fit(block, optimizer, followed, SquaredErrors(), epochs=2)] == [2, 2]
    assert ledger.batches == list(range(8))
    second = Stream(x, target, fixed_shuffle(20, seed=0)[10:], batch_size=5, first_id=4, seed=1)
    second.set_epoch(1)
    assert ledger.rows_of(7) == second.rows_of(7).tolist()
    assert ledger.columns_of(range(4)) == (range(3),)
    assert ledger.columns_of(range(4, 8)) == (range(2, 5),)


def test_following_notices_a_step_that_the_ledger_did_not_see() -> None:
    x = torch.rand(4, 4, generator=seeded(0))
    batches = iter(Ledger().follow(Stream(x, x, batch_size=2)))
    next(batches)
    with pytest.raises(RuntimeError, match=r"the ledger must see a step of batch 0: use ledger\.watch\(\), and fit"):
        next(batches)


# Columns that come and go


@given(
    ranges=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=6),
    columns=st.sets(st.integers(0, 25)),
)
def test_erasing_and_removing_agree_with_sets_of_columns(ranges: list[tuple[int, int]], columns: set[int]) -> None:
    held = [set(range(start, start + length)) for start, length in ranges]
    batches = [{"id": id, "first_step": id, "columns": [[a, a + n]], "rows": None} for id, (a, n) in enumerate(ranges)]
    state = {"steps": len(ranges), "num_columns": 26, "batches": batches}
    erased, removed = Ledger(), Ledger()
    erased.load_state_dict(state)
    removed.load_state_dict(state)
    erased.erase(columns)
    removed.columns_removed(columns)
    new_number = {column: place for place, column in enumerate(sorted(set(range(26)) - columns))}
    for id, own in enumerate(held):
        assert erased.columns_of([id]) == as_ranges(own - columns)
        assert removed.columns_of([id]) == as_ranges(new_number[column] for column in own - columns)
    assert removed.state_dict()["num_columns"] == len(new_number)


def test_a_removal_that_nobody_told_of_is_noticed() -> None:
    run = Run("RMSpropSLW", 8, width=2, sweep_speed=1)
    run.learn(0)
    run.block.remove_basis([5], optimizer=run.optimizer)
    with pytest.raises(RuntimeError, match=r"told when columns are removed \(8 before, now 7\)"):
        run.learn(1)
    run.ledger.columns_removed([5])
    run.learn(1)
    assert run.ledger.columns_of([1]) == (range(1, 3),)


def test_growth_leaves_the_entries_as_they_are() -> None:
    run = Run("RMSpropSLW", 4, width=3, sweep_speed=2)
    for id in range(4):
        run.learn(id)
    assert run.block.num_basis > 4
    assert [run.ledger.columns_of([id]) for id in range(4)] == [(range(2 * id, 2 * id + 3),) for id in range(4)]


def test_columns_are_not_negative() -> None:
    with pytest.raises(ValueError, match="columns must be non-negative, got -1"):
        Ledger().erase([-1])


# Saving


@given(ids=st.lists(st.integers(0, 9), max_size=9), with_rows=st.booleans())
def test_a_saved_ledger_gives_the_same_answers_and_goes_on(ids: list[int], with_rows: bool) -> None:
    ledger, optimizer = watched()
    optimizer.reset_window()
    for id in ids:
        optimizer.reset_window(id % 5)
        with ledger.batch(id, [id] if with_rows else None):
            optimizer.step()
    state = json.loads(json.dumps(ledger.state_dict()))
    loaded = Ledger()
    loaded.load_state_dict(state)
    assert loaded.state_dict() == ledger.state_dict() == state
    assert [loaded.columns_of([id]) for id in range(10)] == [ledger.columns_of([id]) for id in range(10)]
    state["batches"].append(None)  # neither holds on to what it was given
    assert loaded.state_dict() == ledger.state_dict()


def test_merged_ranges_are_few_and_in_order() -> None:
    assert merged([range(4, 6), range(0), range(1, 2), range(2, 4), range(8, 9)]) == (range(1, 6), range(8, 9))


# Steps without an optimizer


def test_columns_that_were_computed_have_an_entry_like_those_that_were_learned() -> None:
    ledger = Ledger()
    ledger.record(3, range(0, 4), rows=[7, 8])
    ledger.record(4, [6, 4, 5], rows=torch.tensor([9]))
    assert ledger.columns_of([3]) == (range(0, 4),) and ledger.columns_of([4]) == (range(4, 7),)
    assert ledger.columns_of_examples([9]) == (range(4, 7),) and ledger.batches_of([5]) == [4]
    assert ledger.steps == 2 and ledger.first_step([4]) == 1 and ledger.next_id == 5
    ledger.columns_removed(range(0, 4))
    assert ledger.columns_of([4]) == (range(0, 3),)
    with pytest.raises(ValueError, match="rows must be those that batch 3 had before"):
        ledger.record(3, [9], rows=[1])


def test_an_entry_that_is_refused_leaves_the_ledger_ready_for_the_next() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="columns must be non-negative, got -1"):
        ledger.record(0, [-1])
    ledger.record(1, [2])
    assert ledger.batches == [1] and ledger.steps == 1
