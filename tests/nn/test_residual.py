import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc import FISTA, PFCBlock, ResidualPFC, reconstruction_loss, record_couplings


def make_model(num_blocks: int = 2, **options: object) -> ResidualPFC:
    settings: dict[str, object] = {
        "solver": FISTA.paper(20),
        "init_range": (0.0, 0.5),
        "dtype": torch.float64,
        "generator": torch.Generator().manual_seed(0),
        **options,
    }
    return ResidualPFC(8, 3, num_basis=5, num_blocks=num_blocks, **settings)  # type: ignore[arg-type]


def make_input(*shape: int) -> Tensor:
    return torch.rand(*shape, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def blocks_of(model: ResidualPFC) -> list[PFCBlock]:
    return [block for block in model.blocks if isinstance(block, PFCBlock)]


@pytest.mark.parametrize("num_blocks", [2, 3])
@pytest.mark.parametrize("floor", [1e-5, 0.0, 0.05])
def test_each_block_explains_what_the_one_before_left(num_blocks: int, floor: float) -> None:
    model = make_model(num_blocks, solver=FISTA(max_iter=20, floor=floor, cap=True)).eval()
    *inner, last = blocks_of(model)
    x, rectified = make_input(4), False
    rest = x
    for block in inner:
        left = rest - block(rest)
        rectified |= bool((left < floor).any())
        rest = torch.where(left > floor, left, torch.full_like(left, floor))
    assert rectified
    torch.testing.assert_close(model(x), last(rest), rtol=1e-12, atol=0)


def test_without_rectification_the_rest_may_be_negative() -> None:
    model = make_model(nonnegative=False, rectify=False).eval()
    one, two = blocks_of(model)
    x = make_input(4)
    rest = x - one(x)
    assert (rest < 0).any()
    torch.testing.assert_close(model(x), two(rest), rtol=1e-12, atol=0)
    rectified = make_model(nonnegative=False).eval()
    assert not torch.allclose(rectified(x), model(x))


def test_one_block_is_a_block() -> None:
    model, x = make_model(num_blocks=1), make_input(4)
    block = PFCBlock(
        8,
        3,
        5,
        solver=FISTA.paper(20),
        init_range=(0.0, 0.5),
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(0),
    )
    assert torch.equal(model(x), block(x))
    assert len(list(model.parameters())) == 2


def test_sizes_are_the_paper_s() -> None:
    model = ResidualPFC(784, 10, num_basis=30)
    assert [(b.in_features, b.out_features, b.num_basis) for b in blocks_of(model)] == [(784, 784, 30), (784, 10, 30)]
    assert sum(p.numel() for p in model.parameters()) == (3 * 784 + 10) * 30


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_any_number_of_batch_dimensions(shape: tuple[int, ...]) -> None:
    assert make_model()(make_input(*shape)).shape == (*shape, 3)


def test_blocks_start_from_different_weights_of_one_generator() -> None:
    one, two = blocks_of(make_model())
    assert not torch.equal(one.weight_x, two.weight_x)
    assert all(torch.equal(p, q) for p, q in zip(make_model().parameters(), make_model().parameters(), strict=True))


def test_what_the_second_block_should_reconstruct_depends_on_the_first() -> None:
    model = make_model()
    one, two = blocks_of(model)
    with record_couplings(model) as seen:
        model(make_input(4))
    second = seen["blocks.1"][0]
    assert second.target.requires_grad
    through_target = torch.autograd.grad(F.mse_loss(second.x.detach(), second.target), one.weight_y, retain_graph=True)
    assert through_target[0].any()
    reconstruction_loss(seen, {"blocks.1": 1.0}).backward()
    assert one.weight_x.grad is not None and one.weight_x.grad.any()
    assert two.weight_y.grad is None  # the prediction was not asked for


def test_printing_shows_the_settings() -> None:
    text = repr(make_model(nonnegative=False, rectify=False))
    assert "rectify=False" in text and text.count("PFCBlock(") == 2


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_no_blocks_are_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"num_blocks must be at least 1, got {num_blocks}"):
        make_model(num_blocks)


@pytest.mark.parametrize("options", [{}, {"nonnegative": True}])
def test_nonnegative_weights_need_rectification(options: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="rectify must be True for non-negative weights, got False"):
        make_model(rectify=False, **options)


def test_an_input_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 8\), got \(4, 7\)"):
        make_model()(make_input(4)[:, :7])
