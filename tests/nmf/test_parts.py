import pytest
import torch
from torch import Tensor

from torchpfc.nmf import k_means
from torchpfc.nmf.normalization import unit_columns
from torchpfc.nmf.parts import make_parts


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def examples(count: int = 40) -> Tensor:
    """Mixtures of three patterns, of norm 1."""
    x = torch.rand(count, 3, generator=seeded(1)) @ torch.rand(3, 8, generator=seeded(2)) ** 3
    return torch.nn.functional.normalize(x, dim=1)


def test_columns_have_norm_1_however_small_they_were() -> None:
    W = torch.rand(5, 4, generator=seeded()) * torch.tensor([1.0, 1e-15, 1e15, 0.0])
    expected = W.double() / W.double().norm(dim=0).clamp(min=1e-300)
    torch.testing.assert_close(unit_columns(W), expected.float())
    assert not unit_columns(W)[:, 3].any()


def test_parts_are_the_directions_of_means() -> None:
    x, weight = examples(), torch.rand(40, generator=seeded(3))
    means = k_means(x, 6, weight=weight, iterations=4, generator=seeded())
    W = make_parts(x, 6, weight=weight, iterations=4, generator=seeded())
    torch.testing.assert_close(W * means.norm(dim=1), means.mT)


@pytest.mark.parametrize("refine", [0, 3])
def test_parts_are_copies_only_where_they_may_be(refine: int) -> None:
    x = torch.nn.functional.normalize(torch.eye(6) + 0.1 * torch.rand(6, 6, generator=seeded()), dim=1)
    torch.testing.assert_close(make_parts(x, 6), x.mT)  # as many parts as examples: these themselves
    W = make_parts(x, 6, copies=False, refine=refine, generator=seeded())
    likeness, closest = (W.mT @ x.mT).topk(2)
    halfway = torch.nn.functional.normalize(x[closest].mean(1), dim=1)
    assert (likeness[:, 0] <= (halfway * x[closest[:, 0]]).sum(1) + 1e-6).all() and likeness.max() < 0.9


def test_refined_parts_explain_more() -> None:
    x = examples()

    def left(W: Tensor) -> float:
        h = torch.linalg.lstsq(W, x.mT).solution
        return float((x.mT - W @ h).norm())

    plain, refined = (make_parts(x, 2, refine=passes, generator=seeded()) for passes in (0, 20))
    assert left(refined) < left(plain)
    assert (refined >= 0).all()
    torch.testing.assert_close(refined.norm(dim=0), torch.ones(2))
