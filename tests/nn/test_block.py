import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls
from torch import Tensor

from torchpfc import FISTA, Coupling, Implicit, PFCBlock, ProjectedGradient, Truncated, Unrolled

EXACT = FISTA(max_iter=20_000, tol=1e-11, restart=True)
"""Finds the optimum of the plain problem: no floor, no cap."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_block(**options: object) -> PFCBlock:
    settings: dict[str, object] = {"generator": seeded(), "dtype": torch.float64, **options}
    return PFCBlock(8, 3, 5, **settings)  # type: ignore[arg-type]


def make_input(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, 8, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_forward_is_the_prediction_of_couple(nonnegative: bool, training: bool) -> None:
    one, other = make_block(nonnegative=nonnegative), make_block(nonnegative=nonnegative)
    x = make_input(4)
    assert torch.equal(one.train(training)(x), other.train(training).couple(x).y)


@pytest.mark.parametrize("nonnegative", [True, False])
def test_both_predictions_are_linear_in_the_code(nonnegative: bool) -> None:
    low = 0.0 if nonnegative else -1.0
    block, x = make_block(nonnegative=nonnegative, init_range=(low, 1.0)), make_input(4)
    out = block.couple(x)
    assert isinstance(out, Coupling)
    W_x, W_y, h = (t.detach().numpy() for t in (block.weight_x, block.weight_y, out.h))
    np.testing.assert_allclose(out.x.detach().numpy(), h @ W_x.T, rtol=1e-13)
    np.testing.assert_allclose(out.y.detach().numpy(), h @ W_y.T, rtol=1e-13)
    assert torch.equal(out.target, x)


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_code_is_what_scipy_finds(low: float) -> None:
    block = make_block(nonnegative=low >= 0, init_range=(low, 1.0), solver=EXACT, adjoint=Implicit())
    x = make_input(20)
    h = block.couple(x).h.detach().numpy()
    expected = np.stack([scipy_nnls(block.weight_x.detach().numpy(), row)[0] for row in x.numpy()])
    assert (expected == 0).any()  # the constraint is active somewhere, or this would be plain least squares
    np.testing.assert_allclose(h, expected, atol=1e-6)


def test_planted_amounts_are_found() -> None:
    block = make_block(init_range=(0.0, 1.0), solver=EXACT, adjoint=Implicit())
    amounts = torch.tensor([[0.0, 2.0, 0.0, 0.5, 1.0], [1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    out = block.couple((amounts @ block.weight_x.T).detach())
    torch.testing.assert_close(out.h, amounts, rtol=0, atol=1e-8)
    torch.testing.assert_close(out.y, amounts @ block.weight_y.T, rtol=0, atol=1e-8)


@given(exponent=st.integers(-6, 6), cap=st.booleans(), nonnegative=st.booleans())
def test_scaling_the_input_scales_the_output(exponent: int, cap: bool, nonnegative: bool) -> None:
    block = make_block(nonnegative=nonnegative, init_range=(0.0, 1.0), solver=FISTA(cap=cap)).eval()
    x, factor = make_input(4), 10.0**exponent
    torch.testing.assert_close(block(factor * x), factor * block(x), rtol=1e-10, atol=0)


def test_a_floor_breaks_the_scaling() -> None:
    """So that the test above is known to be able to fail."""
    block = make_block(init_range=(0.0, 1.0), solver=FISTA(floor=1e-2)).eval()
    x = make_input(4)
    assert not torch.allclose(block(1e-3 * x), 1e-3 * block(x), rtol=1e-3)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("adjoint", [Unrolled(), Truncated(20), Implicit()])
def test_any_number_of_batch_dimensions(shape: tuple[int, ...], adjoint: Unrolled | Truncated | Implicit) -> None:
    block, x = make_block(adjoint=adjoint).eval(), make_input(*shape)
    out = block.couple(x)
    assert (out.y.shape, out.x.shape, out.h.shape) == ((*shape, 3), (*shape, 8), (*shape, 5))
    rows = torch.stack([block(row) for row in x.reshape(-1, 8)])
    torch.testing.assert_close(out.y.reshape(-1, 3), rows, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 2)])
@pytest.mark.parametrize("adjoint", [Unrolled(), Implicit()])
def test_no_examples_at_all(shape: tuple[int, ...], adjoint: Unrolled | Implicit) -> None:
    block, x = make_block(adjoint=adjoint), make_input(*shape).requires_grad_()
    out = block.couple(x)
    assert (out.y.shape, out.x.shape, out.h.shape) == ((*shape, 3), (*shape, 8), (*shape, 5))
    (out.y.sum() + out.x.sum()).backward()
    for weight in block.parameters():
        assert weight.grad is not None and not weight.grad.any()
    with torch.no_grad():
        assert block.eval()(x).shape == (*shape, 3)


def test_an_input_of_zeros_has_no_parts_and_no_gradient() -> None:
    block = make_block()
    x = torch.zeros(2, 8, dtype=torch.float64, requires_grad=True)
    out = block.couple(x)
    assert not out.h.any()
    out.y.sum().backward()
    assert x.grad is not None and not x.grad.any()
    assert block.weight_x.grad is not None and not block.weight_x.grad.any()


def test_defaults_are_the_paper_s() -> None:
    block = PFCBlock(784, 10, num_basis=300)
    assert block.solver == FISTA(max_iter=100, tol=None, floor=1e-5, cap=True, start="floor")
    assert block.adjoint == Unrolled()
    assert block.nonnegative
    assert sum(p.numel() for p in block.parameters()) == (784 + 10) * 300  # no bias
    assert (block.in_features, block.out_features, block.num_basis) == (784, 10, 300)
    assert block.weight_x.shape == (784, 300) and block.weight_y.shape == (10, 300)


@pytest.mark.parametrize("nonnegative", [True, False])
def test_initial_weights_fill_the_paper_s_range(nonnegative: bool) -> None:
    block = PFCBlock(200, 100, num_basis=50, nonnegative=nonnegative, generator=seeded())
    for weight in block.parameters():
        assert weight.max() < 1e-2
        assert weight.min() >= (1e-5 if nonnegative else 0.0)
        assert abs(weight.mean().item() - 5e-3) < 3e-4  # a tenth of the spread of a uniform draw
        assert weight.std().item() == pytest.approx(1e-2 / math.sqrt(12), rel=0.05)
    below = (block.weight_x < 1e-5).any() or (block.weight_y < 1e-5).any()
    assert below != nonnegative  # the draw does go below the floor: the floor is what keeps NMF above it


def test_a_range_of_one_s_own() -> None:
    block = make_block(nonnegative=False, init_range=(-0.5, 0.25))
    assert -0.5 <= block.weight_x.min() < -0.2 and 0.1 < block.weight_x.max() < 0.25


def test_a_generator_makes_the_initial_weights_reproducible() -> None:
    state = torch.get_rng_state()
    one, same, other = (PFCBlock(8, 3, 5, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)  # nothing else was asked for random numbers
    assert torch.equal(one.weight_x, same.weight_x) and torch.equal(one.weight_y, same.weight_y)
    assert not torch.equal(one.weight_x, other.weight_x)
    one.reset_parameters(seeded(1))
    assert torch.equal(one.weight_x, other.weight_x) and torch.equal(one.weight_y, other.weight_y)
    assert torch.equal(one.power_vector, other.power_vector)


def test_device_and_dtype() -> None:
    block = PFCBlock(8, 3, 5, device="cpu", dtype=torch.float64)
    assert {t.dtype for t in block.state_dict().values()} == {torch.float64}
    assert block(make_input(2)).dtype == torch.float64
    assert {t.dtype for t in PFCBlock(8, 3, 5).state_dict().values()} == {torch.float32}
    assert {t.device.type for t in PFCBlock(8, 3, 5, device="meta").state_dict().values()} == {"meta"}


def test_a_block_made_on_the_meta_device_can_be_filled() -> None:
    filled = make_block()
    empty = make_block(device="meta", generator=None).to_empty(device="cpu")
    empty.load_state_dict(filled.state_dict())
    x = make_input(3)
    assert torch.equal(empty(x), filled(x))


def test_printing_shows_the_settings() -> None:
    block = PFCBlock(8, 3, 5, nonnegative=False, solver=ProjectedGradient(max_iter=7), adjoint=Truncated(2))
    assert repr(block) == f"PFCBlock({block.extra_repr()})"
    assert block.extra_repr().startswith("in_features=8, out_features=3, num_basis=5, nonnegative=False, solver=Proj")
    assert "max_iter=7" in repr(block) and repr(block).endswith("adjoint=Truncated(steps=2))")


def test_gradients_of_the_block_are_those_of_finite_differences() -> None:
    block = make_block(init_range=(0.1, 1.0), solver=FISTA(max_iter=15)).eval()

    def predict(x: Tensor, W_y: Tensor) -> Tensor:  # of W_x the step size depends, which counts as a constant
        y: Tensor = torch.func.functional_call(block, {"weight_y": W_y}, (x,))
        return y

    assert torch.autograd.gradcheck(predict, (make_input(3).requires_grad_(), block.weight_y))


@pytest.mark.parametrize("adjoint", [Unrolled(), Implicit()])
def test_an_optimum_given_as_warm_start_is_returned(adjoint: Unrolled | Implicit) -> None:
    options = {"init_range": (0.0, 1.0), "adjoint": adjoint}
    exact = make_block(**options, solver=EXACT).eval()
    one_step = make_block(**options, solver=FISTA(max_iter=1)).eval()
    x = make_input(6)
    found = exact.couple(x).h.detach()
    torch.testing.assert_close(one_step.couple(x, warm_start=found).h, found, rtol=0, atol=1e-9)
    cold = one_step.couple(x).h
    assert (cold - found).abs().max() > 1e-2  # one step alone does not get there


@pytest.mark.parametrize("adjoint", [Unrolled(), Truncated(2), Implicit()])
def test_only_unrolled_gives_the_warm_start_a_gradient(adjoint: Unrolled | Truncated | Implicit) -> None:
    block, x = make_block(init_range=(0.0, 1.0), adjoint=adjoint, solver=FISTA(max_iter=3)), make_input(4)
    start = torch.full((4, 5), 0.1, dtype=torch.float64, requires_grad=True)
    block.couple(x, warm_start=start).y.sum().backward()
    assert (start.grad is not None) == isinstance(adjoint, Unrolled)
    assert start.grad is None or start.grad.any()


def test_gradient_of_the_warm_start_is_that_of_finite_differences() -> None:
    block, x = make_block(init_range=(0.1, 1.0), solver=FISTA(max_iter=3)).eval(), make_input(2)
    start = torch.full((2, 5), 0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: block.couple(x, warm_start=h).y, (start,))


@pytest.mark.parametrize(("name", "sizes"), [("in_features", (0, 3, 5)), ("out_features", (8, -1, 5))])
def test_sizes_below_one_are_refused(name: str, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be at least 1, got {min(sizes)}"):
        PFCBlock(*sizes)


def test_no_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="num_basis must be at least 1, got 0"):
        PFCBlock(8, 3, num_basis=0)


@pytest.mark.parametrize("init_range", [(1.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_an_empty_range_is_refused(init_range: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"init_range must be \(low, high\) with low < high, got \("):
        PFCBlock(8, 3, 5, init_range=init_range, nonnegative=False)


def test_a_negative_range_is_refused_for_nonnegative_weights() -> None:
    with pytest.raises(ValueError, match=r"init_range must be non-negative for non-negative .*, got \(-1.0, 1.0\)"):
        PFCBlock(8, 3, 5, init_range=(-1.0, 1.0))


@pytest.mark.parametrize("shape", [(2, 7), (7,), (8, 2), (2, 0), ()])
def test_a_wrong_last_dimension_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 8\), got \(" + ", ".join(map(str, shape))):
        PFCBlock(8, 3, 5)(torch.ones(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.float16])
def test_another_dtype_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"x must have the dtype of the weights \(torch\.float32\), got {dtype}"):
        PFCBlock(8, 3, 5)(torch.ones(2, 8).to(dtype))


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be on the device of the weights \(cpu\), got meta"):
        PFCBlock(8, 3, 5)(torch.ones(2, 8, device="meta"))


@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 5), (1, 4, 5)])
def test_a_warm_start_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"warm_start must have the shape of the solution \(4, 5\), got \("):
        make_block().couple(make_input(4), warm_start=torch.zeros(shape, dtype=torch.float64))


def test_an_adjoint_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"steps must be at most the solver's max_iter \(3\), got 4"):
        make_block(solver=FISTA(max_iter=3), adjoint=Truncated(4))(make_input(2))


def test_a_block_behind_a_layer_in_half_precision() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), PFCBlock(8, 3, num_basis=5))
    x = torch.rand(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    y.float().sum().backward()
    assert model[2].weight_x.grad.isfinite().all()
    torch.testing.assert_close(y.float(), model(x), rtol=0.1, atol=1e-3)


@pytest.mark.parametrize("l1", [0.05, 0.3])
def test_l1_is_that_of_the_objective(l1: float) -> None:
    block, x = make_block(l1=l1, solver=EXACT, init_range=(0.0, 1.0)).eval(), make_input(4)
    h, W = block.couple(x).h.detach(), block.weight_x.detach()
    gradient = (h @ W.T - x) @ W + l1
    assert (h >= 0).all() and (gradient > -1e-6).all()  # the optimality conditions of l1 sum(h) + |x - W h|^2 / 2
    assert (h * gradient).abs().max() < 1e-6
    plain = make_block(solver=EXACT, init_range=(0.0, 1.0)).eval().couple(x).h
    assert h.sum() < plain.sum()
    assert torch.equal(make_block(l1=0.0, solver=EXACT, init_range=(0.0, 1.0)).eval().couple(x).h, plain)


def test_gradients_pass_through_l1() -> None:
    block = make_block(l1=0.1, solver=FISTA(max_iter=6), init_range=(0.0, 1.0)).eval()

    def y(x: Tensor) -> Tensor:
        return block(x)

    assert torch.autograd.gradcheck(y, make_input(3).requires_grad_())


def test_l1_is_shown_where_there_is_some_and_kept_by_copies() -> None:
    assert "num_basis=5, l1=0.25, nonnegative" in repr(make_block(l1=0.25))
    assert "l1" not in make_block().extra_repr()
    assert deepcopy(make_block(l1=0.25)).l1 == 0.25


@pytest.mark.parametrize("l1", [-0.1, math.nan])
def test_a_negative_l1_is_refused(l1: float) -> None:
    with pytest.raises(ValueError, match=f"l1 must be non-negative, got {l1}"):
        make_block(l1=l1)
