import numpy as np
import pytest
import torch

from torchpfc.interpret.recognition import Usual, p_values, relative_residual, root_mean_square


def test_p_values_count_examples_that_are_as_far_off() -> None:
    rng = np.random.default_rng(0)
    reference, asked = rng.random(50), rng.random(20)
    found = p_values(torch.tensor(asked), torch.tensor(reference), torch.ones(50)).numpy()
    assert np.allclose(found, [(1 + (reference >= s).sum()) / 51 for s in asked])
    tied = p_values(torch.tensor([reference[3]]), torch.tensor(reference), torch.ones(50))
    assert float(tied) == pytest.approx((1 + (reference >= reference[3]).sum()) / 51)
    assert p_values(torch.tensor([1.0]), torch.zeros(0), torch.zeros(0)).tolist() == [1.0]


def test_the_residual_counts_what_is_observed() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3.0, torch.nan]])
    made = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
    assert relative_residual(x, made).tolist() == pytest.approx([0.8, 1.0, 1.0])


def usual_of(x: torch.Tensor) -> Usual:
    return Usual.of(x, planted(x), torch.ones(len(x)))


def planted(x: torch.Tensor) -> torch.Tensor:
    """What two parts make of inputs, which are the first two features."""
    return x * torch.tensor([1.0, 1.0, 0.0])


def rows(seed: int, count: int = 400) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, generator=generator) * torch.tensor([1.0, 1.0, 0.1]) + 0.5


def test_inputs_like_those_held_out_have_every_p_value_as_often() -> None:
    found = torch.cat([usual_of(rows(seed)).p_values(rows(seed + 100), planted(rows(seed + 100))) for seed in range(5)])
    for level in (0.05, 0.1, 0.3, 0.5, 0.8):
        assert float((found <= level).double().mean()) == pytest.approx(level, abs=0.03)


def test_recognition_notices_size_as_well_as_kind() -> None:
    usual, x = usual_of(rows(0)), rows(1, 20)
    assert usual.smallest == pytest.approx(1 / 401)
    for factor in (1000.0, 10.0, 0.1, 0.0):
        assert usual.p_values(factor * x, planted(factor * x)).tolist() == pytest.approx([usual.smallest] * 20)
    other = torch.roll(x, 1, dims=1) * torch.tensor([0.1, 1.0, 2.0])
    assert (usual.p_values(other, planted(other)) < 0.02).all()


def test_the_size_of_inputs_that_were_scaled_to_one_size_says_nothing() -> None:
    x = torch.nn.functional.normalize(rows(0))
    sizes = x.norm(dim=1)
    assert len(sizes.unique()) > 1  # by the last bits
    only = Usual(torch.zeros(400), root_mean_square(x), torch.ones(400))
    assert only.p_values(x, x).tolist() == [1.0] * 400
    twice = 2 * x
    assert only.p_values(twice, twice).tolist() == pytest.approx([only.smallest] * 400)


def test_size_is_over_what_is_observed() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [5.0, torch.nan], [torch.nan, torch.nan]])
    assert root_mean_square(x).tolist() == pytest.approx([12.5**0.5, 0.0, 5.0, 0.0])


def test_where_nothing_was_held_out_everything_is_usual() -> None:
    usual = usual_of(rows(0)[:0])
    assert usual.smallest == 1
    assert usual.p_values(rows(1, 3), planted(rows(1, 3))).tolist() == [1.0] * 3


def test_where_entries_have_signs_only_what_is_large_is_odd() -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    usual = Usual.of(x, x, torch.ones(400))
    assert usual.p_values(0.001 * x, 0.001 * x).min() > 0.9
    assert usual.p_values(1000 * x, 1000 * x).max() == pytest.approx(usual.smallest)


def test_rows_that_were_learned_from_help_as_if_explained_worse() -> None:
    held = Usual(torch.tensor([0.2, 0.4]), torch.ones(2), torch.ones(2))
    learned = Usual(torch.tensor([0.1, 0.1, 0.2]), torch.ones(3), torch.tensor([1.0, 1.0, 2.0]))
    both = held.joined(learned)
    assert both.residual.tolist() == pytest.approx([0.2, 0.4, 0.2, 0.2, 0.4])  # 0.3 of 0.15 on average: twice as much
    assert both.smallest == pytest.approx(1 / 7)
    nothing_left = Usual(torch.zeros(2), torch.ones(2), torch.ones(2))
    assert held.joined(nothing_left).residual.tolist() == pytest.approx([0.2, 0.4, 0.0, 0.0])
    assert held.joined(Usual(torch.tensor([0.6]), torch.ones(1), torch.ones(1))).residual[-1] == pytest.approx(0.6)
