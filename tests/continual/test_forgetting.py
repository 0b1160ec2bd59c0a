"""A batch that is forgotten leaves the bits of a model that never saw it."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchpfc import ContinualPFC
from torchpfc.continual import Likeness, RidgeReadout
from torchpfc.unlearning import fingerprint

SIZE = 18  # enough for features to be taken for counts
NAMES = ("mo", 3, ("tu", 1), 0.5, "we", (2, ("x",)))


def batch_of(seed: int, *, signed: bool = True, gaps: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (int(torch.randint(1, 14, (), generator=generator)),), generator=generator)
    x = torch.randn(len(label), SIZE, generator=generator) + label.unsqueeze(1)
    x = x if signed else x.abs()
    return x.where(torch.rand(x.shape, generator=generator) > 0.2, torch.nan) if gaps else x, label


def bits(model: ContinualPFC) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items() if name != "portions.names"}


def assert_same_bits(one: ContinualPFC, other: ContinualPFC) -> None:
    first, second = bits(one), bits(other)
    assert first.keys() == second.keys() and one.batches == other.batches and one.inexact == other.inexact
    for name, value in first.items():
        same = (value == second[name]) | (value.isnan() & second[name].isnan() if value.is_floating_point() else False)
        assert value.shape == second[name].shape and same.all(), name
    x = torch.randn(7, SIZE, generator=torch.Generator().manual_seed(99))
    assert torch.equal(one(x), other(x))


def make(scale: str, *, read_out: bool) -> ContinualPFC:
    sums = RidgeReadout(Likeness.random(SIZE, 9)) if read_out else None
    return ContinualPFC(SIZE, columns_per_class=3, scale=scale, read_out=sums, refine=2)  # type: ignore[arg-type]


@settings(max_examples=25, phases=(Phase.generate,))
@given(
    st.sampled_from(["common", "features", "auto"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 10**6), st.booleans(), st.booleans()), min_size=2, max_size=5),
)
def test_forgetting_gives_the_bits_of_never_having_seen(
    scale: str, read_out: bool, gaps: bool, stream: list[tuple[int, bool, bool]]
) -> None:
    model, never = make(scale, read_out=read_out), make(scale, read_out=read_out)
    for name, (seed, kept, signed) in zip(NAMES, stream, strict=False):
        x, label = batch_of(seed, signed=signed, gaps=gaps)
        # A generator that has been used by other batches makes no difference.
        model.learn(x, label, batch=name, generator=(g := torch.Generator().manual_seed(5)))
        torch.rand(3, generator=g)
        if kept:
            never.learn(x, label, batch=name, generator=g)
    gone = [name for name, (_, kept, _) in zip(NAMES, stream, strict=False) if not kept]
    certificate = model.forget(gone)
    assert_same_bits(model, never)
    assert certificate.exact and certificate.sha256_after == fingerprint(never) == fingerprint(model)
    for name, (seed, kept, signed) in zip(NAMES, stream, strict=False):  # and taught again, it is known again
        if not kept:
            for each in (model, never):
                each.learn(*batch_of(seed, signed=signed, gaps=gaps), batch=name)
    assert_same_bits(model, never)


def test_a_poisoned_first_batch_can_be_taken_out() -> None:
    x, label = batch_of(1)
    model, never = make("features", read_out=True), make("features", read_out=True)
    model.learn(1e6 * x, label, batch="poison")
    for each in (model, never):
        each.learn(*batch_of(2), batch="good")
    report = model.forget(["poison"])
    assert report.exact and report.batches == ("poison",) and report.num_columns > 0
    assert_same_bits(model, never)


def test_all_can_be_forgotten_and_learning_begins_anew() -> None:
    model = make("common", read_out=True)
    model.learn(*batch_of(0), batch="a")
    model.forget(["a"])
    assert_same_bits(model, make("common", read_out=True))
    assert model.num_classes == 0 and model(torch.rand(2, SIZE)).shape == (2, 0)


@pytest.mark.parametrize("scale", ["common", "features"])
def test_batches_that_share_parts_are_listed_and_go_together(scale: str) -> None:
    model = ContinualPFC(SIZE, scale=scale, columns_per_class=4, max_parts=3)  # type: ignore[arg-type]
    never = copy.deepcopy(model)
    for name in range(4):
        x, label = batch_of(10 + name)
        model.learn(x, label.clamp(max=1), batch=name)
    x, label = batch_of(30)
    for each in (model, never):
        each.learn(x[:1], label[:1] * 0 + 2, batch="alone")
    assert model.num_basis == 3 and model.inexact == (0, 1, 2, 3) and model.batches == (0, 1, 2, 3, "alone")
    before = bits(model)
    with pytest.raises(ValueError, match=r"batches must name all that share a part, got 0 without 1 \(3 in all\)"):
        model.forget([0])
    assert all(torch.equal(value.nan_to_num(), bits(model)[name].nan_to_num()) for name, value in before.items())
    model.forget([0, 1, 2, 3])
    assert_same_bits(model, never)


def test_batches_have_names_of_their_own() -> None:
    model = make("common", read_out=False)
    model.learn(*batch_of(0), batch="a")
    with pytest.raises(ValueError, match="batch must be a new name, got 'a', which was learned from; forget it first"):
        model.learn(*batch_of(1), batch="a")
    with pytest.raises(TypeError, match=r"batch must be hashable, got \[1\]"):
        model.learn(*batch_of(1), batch=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batches must have been learned from, got 'b'"):
        model.forget(["a", "b"])
    with pytest.raises(TypeError, match="batches must be a list of names, got 'a'"):
        model.forget("a")
    model.learn(*batch_of(1))
    model.learn(*batch_of(2))
    assert model.batches == ("a", 1, 2)


def test_what_is_kept_by_batch_is_saved_and_moved() -> None:
    model = make("features", read_out=True)
    for seed, name in enumerate(["a", ("b", 2), 0.5]):
        model.learn(*batch_of(seed, gaps=True), batch=name)
    fresh = make("features", read_out=True)
    fresh.load_state_dict(model.state_dict())
    assert_same_bits(model, fresh)
    for each in (model, fresh):
        each.forget([("b", 2)])
        each.learn(*batch_of(8), batch=7)
    assert_same_bits(model, fresh)
    assert model.double()(torch.rand(2, SIZE)).dtype == torch.float64
    model.learn(*batch_of(9), batch=frozenset({1}))
    with pytest.raises(TypeError, match="batch must be text, a number or a tuple of these to be saved"):
        model.state_dict()


def test_a_model_that_was_saved_with_its_block_alone_can_be_loaded() -> None:
    model = ContinualPFC(SIZE, 3, columns_per_class=2)
    model.learn(*batch_of(0, signed=False), batch="a")
    earlier = {name: value for name, value in model.state_dict().items() if not name.startswith("portions.")}
    fresh = ContinualPFC(SIZE, 3)
    fresh.load_state_dict(earlier)
    x = torch.rand(5, SIZE)
    assert torch.equal(fresh(x), model(x)) and fresh.batches == tuple(range(len(model.portions)))
    fresh.forget([0])
    assert fresh.num_basis < model.num_basis
