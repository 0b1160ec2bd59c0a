from itertools import permutations

import pytest
import torch

from torchpfc import Ledger, PFCBlock
from torchpfc.interpret import contained, dead_columns, describe_columns, duplicate_columns, match_parts, stability


def planted_block() -> PFCBlock:
    block = PFCBlock(4, 2, num_basis=3)
    with torch.no_grad():
        block.weight_x.copy_(torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 2, 0]]))
        block.weight_y.copy_(torch.tensor([[3.0, 0, 0], [1, 1, 0]]))
    return block


CODES = torch.tensor([[1.0, 0.0, 0.0], [3.0, 1.0, 5.0], [0.0, 2.0, 0.0], [2.0, 0.0, 0.0]])


def test_a_column_is_described_by_weights_examples_and_ledger():
    ledger = Ledger()
    ledger.record(4, [0, 1])
    ledger.record(7, [1, 2])
    report = describe_columns(planted_block(), CODES, labels=torch.tensor([0, 0, 1, 1]), ledger=ledger)
    first, second, third = report.columns
    assert (first.usage, second.usage, third.usage) == (0.75, 0.5, 0.0)
    assert first.mean_amount == pytest.approx(1.5)
    assert first.profile == pytest.approx((0.75, 0.25))
    assert first.label_shares == pytest.approx((4 / 6, 2 / 6))
    assert first.top_examples == (1, 3, 0)
    assert second.top_examples == (2, 1)
    assert (first.batches, second.batches, third.batches) == ((4,), (4, 7), (7,))
    assert (first.first_step, second.first_step, third.first_step) == (0, 0, 1)
    assert report.dead == (2,) == tuple(dead_columns(planted_block().weight_x, CODES))


def test_the_report_names_dead_columns():
    text = str(describe_columns(planted_block(), CODES))
    assert text.endswith("Dead columns: 2.")
    assert len(text.splitlines()) == 5


def test_what_an_example_contains_depends_on_the_size_of_the_part():
    W = torch.tensor([[1.0, 1e-6]])
    assert contained(W, torch.tensor([[1.0, 1.0]])).tolist() == [[True, False]]
    assert contained(W, torch.tensor([[1.0, 1.0]]), threshold=0.0).tolist() == [[True, True]]


def test_duplicates_are_found_by_direction_and_linked():
    step = 0.1
    angles = torch.tensor([0.0, step, 2 * step, 1.5, 1.5])
    W = torch.stack([angles.cos(), angles.sin()]) * torch.tensor([1.0, 5.0, 0.1, 2.0, 3.0])
    assert duplicate_columns(W, float(torch.tensor(step).cos()) - 1e-4) == [(0, 1, 2), (3, 4)]
    assert duplicate_columns(W, 1.0) == [(3, 4)]
    assert duplicate_columns(torch.zeros(3, 4)) == []


def test_matching_has_the_largest_sum_of_cosines_of_all_permutations():
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.rand(6, 5, generator=generator) for _ in range(2))
    cosines = (A / A.norm(dim=0)).T @ (B / B.norm(dim=0))
    best = max(sum(float(cosines[i, p[i]]) for i in range(5)) for p in permutations(range(5)))
    matching = match_parts(A, B)
    assert float(matching.similarity.sum()) == pytest.approx(best, abs=1e-5)
    assert sorted(matching.second.tolist()) == [0, 1, 2, 3, 4]


def test_parts_that_are_the_same_are_stable_and_others_are_not():
    generator = torch.Generator().manual_seed(0)
    W = torch.linalg.qr(torch.randn(8, 5, generator=generator)).Q
    shuffled = 3 * W[:, torch.randperm(5, generator=generator)]
    assert stability([W, shuffled]).mean == pytest.approx(1.0, abs=1e-5)
    other = W.clone()
    other[:, 2] = torch.randn(8, generator=generator)
    assert stability([W, other, shuffled]).unstable(0.9) == [2]
    fewer = stability([W, W[:, :3]])
    assert fewer.similarity.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.0, 0.0], abs=1e-5)


def test_wrong_arguments_are_refused():
    block = planted_block()
    with pytest.raises(ValueError, match=r"h must have shape \(n, 3\) with n at least 1, got \(2, 4\)"):
        describe_columns(block, torch.rand(2, 4))
    with pytest.raises(ValueError, match=r"labels must have shape \(4,\), got \(3,\)"):
        describe_columns(block, CODES, labels=torch.zeros(3))
    with pytest.raises(ValueError, match=r"threshold must be at least 0 and less than 1, got 1"):
        dead_columns(block.weight_x, CODES, threshold=1)
    with pytest.raises(ValueError, match=r"similarity must be greater than 0 and at most 1, got 0"):
        duplicate_columns(block.weight_x, 0)
    with pytest.raises(ValueError, match=r"second must have shape \(4, r\), got \(3, 3\)"):
        match_parts(block.weight_x, torch.rand(3, 3))
    with pytest.raises(ValueError, match=r"weights must be those of at least two models, got 1"):
        stability([block.weight_x])
