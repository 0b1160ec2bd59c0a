from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import NearestNeighbors as SklearnNeighbors

from torchpfc import MLP, NearestNeighbors, NonnegativeLeastSquares, PFCBlock, Unrolled, solve


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load_digits()
    x, y = torch.from_numpy(data.data), torch.from_numpy(data.target.astype(np.int64))
    return x[:1000], y[:1000], x[1000:], y[1000:]


def test_one_neighbor_of_a_block_of_examples_is_scikit_learns() -> None:
    x, y, x_test, _ = digits()
    block = PFCBlock.from_examples(x, y, solver=NearestNeighbors(1))
    expected = KNeighborsClassifier(1).fit(x.numpy(), y.numpy()).predict(x_test.numpy())
    out = block.couple(x_test)
    assert torch.equal(out.y.argmax(1), torch.from_numpy(expected))
    assert ((out.h == 1).sum(1) == 1).all() and ((out.h != 0).sum(1) == 1).all()


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
@pytest.mark.parametrize("k", [1, 3])
def test_neighbors_are_scikit_learns_and_sum_to_one(k: int, similarity: str) -> None:
    x, _, x_test, _ = digits()
    h = solve(NonnegativeLeastSquares(x_test[:100], x.T), NearestNeighbors(k, similarity)).h
    distance, index = SklearnNeighbors(n_neighbors=k, metric=similarity).fit(x.numpy()).kneighbors(x_test[:100].numpy())
    closeness = torch.from_numpy(-distance if similarity == "euclidean" else 1 - distance)
    expected = torch.zeros_like(h).scatter_(1, torch.from_numpy(index), closeness.softmax(1))
    torch.testing.assert_close(h, expected, atol=1e-7, rtol=0)
    torch.testing.assert_close(h.sum(1), torch.ones(100, dtype=h.dtype))


@pytest.mark.parametrize("k", [1, 4])
def test_an_mlp_of_unit_norm_examples_is_nearest_neighbors_with_cosine_similarity(k: int) -> None:
    # Section 2.3: no biases, first weights the examples at unit norm, second their targets, and for an activation the k
    # largest values followed by softmax.
    x, y, x_test, _ = digits()
    unit, unit_test = (t / t.norm(dim=1, keepdim=True) for t in (x, x_test))
    targets = torch.nn.functional.one_hot(y).double()
    mlp = MLP(64, 10, hidden_features=1000, dtype=torch.float64)
    with torch.no_grad():
        mlp.hidden.weight.copy_(unit)
        mlp.output.weight.copy_(targets.T)
        mlp.hidden.bias.zero_()
        mlp.output.bias.zero_()
    hidden = mlp.hidden(unit_test)
    largest = hidden.topk(k)
    activation = torch.zeros_like(hidden).scatter(1, largest.indices, largest.values.softmax(1))
    block = PFCBlock.from_examples(x, targets, solver=NearestNeighbors(k, "cosine"))
    torch.testing.assert_close(mlp.output(activation), block(x_test))


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
def test_unobserved_entries_do_not_count(similarity: str) -> None:
    x, _, x_test, _ = digits()
    mask = torch.rand(x_test.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    solver = NearestNeighbors(1, similarity)
    h = solve(NonnegativeLeastSquares(x_test.where(mask, torch.nan), x.T, mask=mask), solver).h
    for i in range(20):
        seen = mask[i]
        alone = solve(NonnegativeLeastSquares(x_test[i : i + 1, seen], x[:, seen].T), solver).h
        assert torch.equal(h[i].argmax(), alone[0].argmax())


def test_only_the_read_out_learns() -> None:
    block = PFCBlock(6, 2, num_basis=5, solver=NearestNeighbors(2))
    block(torch.rand(3, 6)).sum().backward()
    assert block.adjoint is None
    assert block.weight_x.grad is None
    assert block.weight_y.grad is not None


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        NearestNeighbors(0)
    with pytest.raises(ValueError, match="similarity must be 'euclidean' or 'cosine', got 'dot'"):
        NearestNeighbors(1, "dot")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"k must be at most the number of parts \(3\), got 4"):
        solve(NonnegativeLeastSquares(torch.rand(2, 5), torch.rand(5, 3)), NearestNeighbors(4))
    with pytest.raises(TypeError, match=r"adjoint must be one that NearestNeighbors has \(none\), got Unrolled"):
        solve(NonnegativeLeastSquares(torch.rand(2, 5), torch.rand(5, 3)), NearestNeighbors(1), adjoint=Unrolled())
