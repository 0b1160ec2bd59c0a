import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV

from torchpfc.sklearn.calibration import fit_sharpness
from torchpfc.sklearn.learning import _RIDGES, class_parts, equal_shares, readout
from torchpfc.sklearn.rows import Rows, check_weights, distinct, hold_out


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_each_class_has_parts_of_its_own():
    x = torch.cat([torch.rand(50, 2) * torch.tensor([1.0, 0.1]), torch.rand(5, 2) * torch.tensor([0.1, 1.0]) + 0.1])
    x[:50, 0] += 0.2
    labels = torch.tensor([0] * 50 + [1] * 5)
    W, owners = class_parts(x, labels, torch.ones(55), None, generator(), fewest=0, most=30)
    assert owners.tolist() == [0] * 10 + [1]
    assert torch.allclose(W.norm(dim=0), torch.ones(11))
    assert ((W[1] > W[0]) == (owners == 1)).all()
    _, owners = class_parts(x, labels, torch.ones(55), 30, generator(), fewest=0, most=30)
    assert owners.bincount().tolist() == [25, 5]
    _, owners = class_parts(x, labels, torch.ones(55), 1, generator(), fewest=0, most=30)
    assert owners.tolist() == [-1]


def test_shares_are_as_equal_as_sizes_allow():
    assert equal_shares([10, 10, 10], 7) == [3, 2, 2]
    assert equal_shares([1, 100], 50) == [1, 49]
    assert equal_shares([2, 3], 50) == [2, 3]


def test_the_readout_is_the_ridge_regression_that_cross_validation_chooses():
    rng = np.random.default_rng(0)
    H, weight = rng.random((60, 6)), rng.integers(1, 4, 60).astype(float)
    Y = H @ rng.normal(size=(6, 2)) + 0.5 * rng.normal(size=(60, 2))
    W = readout(*(torch.tensor(a) for a in (H, Y, weight)), nonnegative=False).numpy()
    scale = np.linalg.eigvalsh((H * weight[:, None]).T @ H).mean()
    choices = [
        Ridge(alpha, fit_intercept=False).fit(H, Y, sample_weight=weight).coef_ for alpha in scale * np.array(_RIDGES)
    ]
    assert min(np.abs(W - choice).max() for choice in choices) < 1e-8
    ones = readout(*(torch.tensor(a) for a in (H, Y, np.ones(60))), nonnegative=False).numpy()
    scale = np.linalg.eigvalsh(H.T @ H).mean()
    reference = RidgeCV(scale * np.array(_RIDGES), fit_intercept=False).fit(H, Y)
    assert np.allclose(ones, reference.coef_, atol=1e-8)


def test_a_non_negative_readout_is_the_best_of_those():
    rng = np.random.default_rng(0)
    H, Y = rng.random((40, 3)), rng.normal(size=(40, 1))
    W = readout(torch.tensor(H), torch.tensor(Y), torch.ones(40, dtype=torch.float64), nonnegative=True).numpy()
    assert (W >= 0).all()
    error = np.square(Y - H @ W.T).sum()
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 21)] * 3), -1).reshape(-1, 3)
    assert error <= np.square(Y - H @ grid.T).sum(0).min() * 1.01


def test_the_sharpness_has_the_smallest_log_loss():
    scores = torch.rand(200, 3, generator=generator(), dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(6 * scores, 1), 1, generator=generator())[:, 0]
    target, weight = torch.nn.functional.one_hot(labels, 3), torch.ones(200)
    found = fit_sharpness(scores, target, weight)
    smooth = (1 - 1 / 202) * target + 1 / 202 / 3

    def loss(beta: float) -> float:
        return -float((smooth * torch.log_softmax(beta * scores, 1)).sum())

    assert loss(found) <= min(loss(factor * found) for factor in (0.9, 0.99, 1.01, 1.1))
    assert found == pytest.approx(6, rel=0.3)


def test_a_few_rows_that_are_all_right_give_no_certainty():
    beta = fit_sharpness(torch.eye(2), torch.eye(2), torch.ones(2))
    assert 0.5 < float(torch.softmax(beta * torch.tensor([1.0, 0.0]), 0)[0]) < 0.95


def test_distinct_rows_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    X, y, w = (
        rng.integers(0, 3, (40, 2)).astype(float),
        rng.integers(0, 2, (40, 1)),
        rng.integers(0, 3, 40).astype(float),
    )
    first = distinct(X, y, w)
    order = rng.permutation(40)
    for a, b in zip(first, distinct(X[order], y[order], w[order]), strict=True):
        assert np.array_equal(a, b)
    pairs = [(*x, *t) for x, t in zip(first[0], first[1], strict=True)]
    assert len(set(pairs)) == len(pairs)
    for pair, weight in zip(pairs, first[2], strict=True):
        same = (pair[:2] == X).all(1) & (y[:, 0] == pair[2])
        assert weight == w[same].sum()


def test_rows_are_held_out_in_every_class():
    def numbers(count: int, labels: torch.Tensor | None, fraction: float, seed: int = 0) -> tuple[list[int], list[int]]:
        some = torch.arange(count)
        learned, held = hold_out(Rows(some.view(-1, 1), some, some, some), labels, fraction, generator(seed))
        return learned.batch.tolist(), held.batch.tolist()

    labels = torch.tensor([0] * 100 + [1] * 40 + [2] * 1)
    learned, held = numbers(141, labels, 0.2)
    assert sorted(learned + held) == list(range(141))
    counts = labels[held].bincount(minlength=3).tolist()
    assert abs(counts[0] - 20) <= 1 and abs(counts[1] - 8) <= 1 and counts[2] == 0
    assert held != numbers(141, labels, 0.2, seed=1)[1]
    assert numbers(20, None, 0.1) == (list(range(20)), list(range(20)))  # too few to be held out
    assert len(numbers(100, None, 0.1)[1]) == 10


def test_one_number_is_a_weight_for_all():
    assert check_weights(2.0, 3).tolist() == [2.0, 2.0, 2.0]
    assert check_weights(None, 2).tolist() == [1.0, 1.0]
