from __future__ import annotations

import pytest
import torch
from sklearn.cluster import KMeans

from torchpfc.nmf.k_means import closest, k_means


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_means_are_those_of_groups() -> None:
    x = torch.cat([torch.rand(20, 3, generator=seeded(i)) + 10 * i for i in range(3)])
    expected = torch.stack([x[20 * i : 20 * i + 20].mean(0) for i in range(3)])
    starts = [k_means(x, 3, generator=seeded(seed)) for seed in range(10)]
    found = [means[means[:, 0].argsort()] for means in starts]
    assert any(torch.allclose(means, expected, atol=1e-5) for means in found)  # not from every start


def test_means_are_about_as_good_as_those_of_scikit_learn() -> None:
    x = torch.randn(300, 4, generator=seeded(), dtype=torch.float64)
    ours = float(torch.cdist(x, k_means(x, 12, generator=seeded())).amin(1).square().sum())
    assert ours < 1.15 * KMeans(12, n_init=3, random_state=0).fit(x.numpy()).inertia_


def test_weights_count_as_repetitions() -> None:
    x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    means = k_means(x, 2, weight=torch.tensor([3.0, 1.0, 1.0, 1.0]), generator=seeded(1))
    assert sorted(means.flatten().tolist()) in ([0.25, 10.5], [0.0, 22 / 3])


def test_as_many_means_as_examples_are_the_examples() -> None:
    x = torch.rand(5, 2, generator=seeded())
    assert torch.equal(k_means(x, 5), x)


def test_the_generator_decides() -> None:
    x = torch.rand(50, 2, generator=seeded())
    first, again, other = (k_means(x, 7, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_closest() -> None:
    x, means = torch.rand(9, 3, generator=seeded(1)), torch.rand(4, 3, generator=seeded(2))
    order = torch.cdist(x, means).argsort(1)
    assert torch.equal(closest(x, means), order[:, 0])


@pytest.mark.parametrize("count", [0, 6])
def test_bad_count(count: int) -> None:
    with pytest.raises(ValueError, match=rf"count must be from 1 to the number of examples \(5\), got {count}"):
        k_means(torch.rand(5, 2), count)
