import copy

import pytest
import torch
from torch import Tensor

from torchpfc import ContinualPFC, forget
from torchpfc.continual import Shifts
from torchpfc.optim.ledger import Ledger

SIZE, CLASSES, EACH = 12, 4, 30


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_data(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy mixtures of three patterns for each class."""
    patterns = torch.rand(CLASSES, 3, SIZE, generator=seeded(9)) ** 3
    generator = seeded(seed)
    label = torch.arange(CLASSES).repeat_interleave(EACH)
    amount = torch.rand(len(label), 3, generator=generator)
    x = torch.einsum("nk,nkm->nm", amount, patterns[label]) + 0.02 * torch.rand(len(label), SIZE, generator=generator)
    return x, label


def learned(order: list[list[int]], ledger: Ledger | None = None, **options: float) -> ContinualPFC:
    model = ContinualPFC(SIZE, CLASSES, columns_per_class=5, **options)  # type: ignore[arg-type]
    x, label = make_data()
    for classes in order:
        rows = torch.isin(label, torch.tensor(classes)).nonzero()[:, 0]
        for c in classes:
            own = rows[label[rows] == c]
            model.learn(x[own], label[own], ledger=ledger, rows=own, generator=seeded(c))
    return model


def test_classes_are_told_apart_after_one_pass_over_each() -> None:
    model = learned([[0, 1], [2, 3]])
    x, label = make_data(seed=1)
    assert (model(x).argmax(-1) == label).float().mean() > 0.9
    assert model.num_basis == 20 and model.owners.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    torch.testing.assert_close(model.block.weight_x.norm(dim=0), torch.ones(20))


def test_what_is_learned_does_not_depend_on_what_was_learned_before() -> None:
    x, _ = make_data(seed=1)
    one, other = learned([[0, 1], [2, 3]])(x), learned([[3], [1, 0], [2]])(x)
    torch.testing.assert_close(one, other)


def test_a_new_class_changes_no_column_and_no_score_of_an_old_one() -> None:
    model, (x, label) = learned([[0, 1]]), make_data()
    before, scores = model.block.weight_x.detach().clone(), model(x)
    model.learn(x[label == 2], label[label == 2])
    assert torch.equal(model.block.weight_x[:, :10], before)
    torch.testing.assert_close(model(x)[:, :2], scores[:, :2])
    assert not scores[:, 2:].any() and (model(x)[:, 2] > 0).all() and not model(x)[:, 3].any()


def test_scores_are_the_share_that_the_parts_of_a_class_explain() -> None:
    model = learned([[0, 1, 2, 3]], l1=0.0)
    parts = model.parts_of(2) ** 2  # before the square root
    y = model(3 * parts.T)  # what is a part of a class is explained by it in full, however bright
    torch.testing.assert_close(y[:, 2], torch.ones(5), rtol=0, atol=1e-3)
    assert ((y >= -1e-5) & (y <= 1 + 1e-5)).all()
    assert not model(torch.zeros(1, SIZE)).ge(1).any()


def test_l1_counts_against_a_class() -> None:
    x, _ = make_data(seed=1)
    free, sparse = learned([[0, 1, 2, 3]], l1=0.0)(x), learned([[0, 1, 2, 3]], l1=0.2)(x)
    assert (sparse < free).all()


@pytest.mark.parametrize("refine", [0, 20])
def test_no_part_is_more_like_an_example_than_the_mean_of_two(refine: int) -> None:
    x, label = make_data()
    x[::5] = 0  # blank ones are like nothing
    model = ContinualPFC(SIZE, CLASSES, columns_per_class=EACH, l1=0.0, refine=refine)
    model.learn(x, label, generator=seeded(0))
    assert model.num_basis == CLASSES * EACH // 2  # one for every two examples at most
    for c in range(CLASSES):
        unit = torch.nn.functional.normalize(x[label == c].sqrt(), dim=1)
        likeness, closest = (model.parts_of(c).T @ unit.T).topk(2)
        mean = torch.nn.functional.normalize(unit[closest].mean(1), dim=1)
        assert (likeness[:, 0] <= (mean * unit[closest[:, 0]]).sum(1) + 1e-6).all()


def test_parts_can_be_refined_to_explain_more() -> None:
    x, label = make_data()
    plain, refined = learned([[0, 1, 2, 3]], l1=0.0), learned([[0, 1, 2, 3]], l1=0.0, refine=20)
    own = torch.arange(len(x)), label
    assert refined(x)[own].mean() > plain(x)[own].mean()
    assert (refined.block.weight_x >= 0).all()


def test_a_power_is_applied_to_what_is_learned_and_to_what_is_asked() -> None:
    x, label = make_data()
    one = ContinualPFC(SIZE, CLASSES, columns_per_class=5, power=0.5)
    other = ContinualPFC(SIZE, CLASSES, columns_per_class=5, power=1.0)
    one.learn(x, label, generator=seeded(0))
    other.learn(x.sqrt(), label, generator=seeded(0))
    torch.testing.assert_close(one(x), other(x.sqrt()))


def test_a_class_may_move_an_image_to_explain_it_better() -> None:
    shape, generator = (1, 6, 6), seeded(4)
    x = torch.zeros(40, 6, 6)
    x[:20, 2:4, 2:4] = 1 + torch.rand(20, 2, 2, generator=generator)  # squares, and crosses
    x[20:, 3, 1:5] = x[20:, 1:5, 3] = 1 + torch.rand(20, 4, generator=generator)
    label = torch.arange(2).repeat_interleave(20)
    plain, moving = (ContinualPFC(36, 2, columns_per_class=3, views=views) for views in (None, Shifts(shape)))
    for model in (plain, moving):
        model.learn(x.flatten(1), label, generator=seeded(0))
    moved = torch.roll(x, 1, dims=2).flatten(1)
    own = torch.arange(40), label
    assert (moving(moved) >= plain(moved)).all() and moving(moved)[own].mean() > plain(moved)[own].mean() + 0.1
    torch.testing.assert_close(moving(moved)[own], plain(x.flatten(1))[own], rtol=0, atol=0.05)
    looks = Shifts(shape, 2)(x.flatten(1)).view(5, 40, 6, 6)
    assert torch.equal(looks[0], x) and not looks[4, :, :, :2].any() and torch.equal(looks[4, :, :, 2:], x[:, :, :4])


def test_the_ledger_knows_what_each_part_was_made_of_and_forget_removes_it() -> None:
    ledger = Ledger()
    model, (x, label) = learned([[0, 1], [2, 3]], ledger), make_data()
    rows = (label == 2).nonzero()[:, 0]
    assert ledger.columns_of_examples([int(rows[0])]) == (range(10, 15),)
    assert ledger.rows_of(2) == rows.tolist()
    without = learned([[0, 1], [3]])
    report = forget(model, ledger, examples=rows[:1])
    assert report.num_columns == 5 and model.owners.tolist().count(-1) == 5
    torch.testing.assert_close(model(x), without(x))
    again = model.learn(x[label == 2], label[label == 2], ledger=ledger, generator=seeded(2))
    assert again == {2: range(20, 25)}
    torch.testing.assert_close(model(x), learned([[0, 1], [3], [2]])(x))


def test_columns_can_be_removed() -> None:
    ledger = Ledger()
    model, (x, _) = learned([[0, 1], [2, 3]], ledger), make_data()
    forget(model, ledger, batches=[0], how="remove")
    assert model.num_basis == 15 and not model(x)[:, 0].any()
    torch.testing.assert_close(model(x), learned([[1], [2, 3]])(x))


def test_portions_of_a_class_add_up() -> None:
    x, label = make_data()
    model, own = ContinualPFC(SIZE, CLASSES, columns_per_class=4), label == 1
    ledger = Ledger()
    for portion in (x[own][:15], x[own][15:]):
        model.learn(portion, torch.ones(15).long(), ledger=ledger, generator=seeded(0))
    assert model.parts_of(1).shape == (SIZE, 8) and ledger.batches == [0, 1]
    model.learn(x[own], label[own], count=3, generator=seeded(0))
    assert model.num_basis == 11


def test_a_model_survives_saving_copying_and_leading_dimensions() -> None:
    model, (x, _) = learned([[0, 1], [2, 3]]), make_data()
    fresh = ContinualPFC(SIZE, CLASSES, columns_per_class=5)
    fresh.load_state_dict(model.state_dict())
    for other in (fresh, copy.deepcopy(model)):
        torch.testing.assert_close(other(x), model(x))
    assert model(x.view(6, 20, SIZE)).shape == (6, 20, CLASSES)
    torch.testing.assert_close(model(x.view(6, 20, SIZE)).flatten(0, 1), model(x))
    fresh.load_state_dict(ContinualPFC(SIZE, CLASSES).state_dict())
    assert fresh.num_basis == 0 and not fresh(x).any() and fresh.parts_of(0).shape == (SIZE, 0)
    assert len(fresh.owners) == 0 and "num_basis=20" in repr(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns_per_class": 0}, "columns_per_class must be at least 1, got 0"),
        ({"l1": -1.0}, "l1 must be non-negative, got -1.0"),
        ({"power": 0.0}, "power must be positive, got 0.0"),
        ({"refine": -1}, "refine must be at least 0, got -1"),
    ],
)
def test_a_setting_out_of_range_is_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContinualPFC(SIZE, CLASSES, **options)  # type: ignore[arg-type]


def test_examples_that_do_not_fit_are_refused() -> None:
    model = ContinualPFC(SIZE, CLASSES)
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 12\), got \(3, 5\)"):
        model(torch.rand(3, 5))
    with pytest.raises(ValueError, match=r"label must have shape \(3,\) to match x, got \(2,\)"):
        model.learn(torch.rand(3, SIZE), torch.zeros(2).long())
    with pytest.raises(ValueError, match="label must be from 0 to 3, got 4"):
        model.learn(torch.rand(3, SIZE), torch.full((3,), 4))
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        model.learn(torch.rand(3, SIZE), torch.zeros(3).long(), count=0)


def test_the_learner_is_still_found_among_the_modules() -> None:
    import torchpfc.nn

    assert torchpfc.nn.ContinualPFC is ContinualPFC
    with pytest.raises(AttributeError, match="no attribute 'Continual'"):
        _ = torchpfc.nn.Continual
