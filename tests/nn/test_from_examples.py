import math

import pytest
import torch
from torch import Tensor

from torchpfc import FISTA, Implicit, PFCBlock

EXACT = {"solver": FISTA(max_iter=20_000, tol=1e-11, restart=True), "adjoint": Implicit()}


def examples(count: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 8, generator=generator, dtype=torch.float64)
    return x, torch.rand(count, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("nonnegative", [True, False])
def test_parts_are_the_examples(nonnegative: bool) -> None:
    x, y = examples()
    if not nonnegative:
        x, y = x - 0.5, y - 0.5
    block = PFCBlock.from_examples(x, y, nonnegative=nonnegative)
    assert isinstance(block, PFCBlock) and block.nonnegative == nonnegative
    assert (block.in_features, block.out_features, block.num_basis) == (8, 3, 5)
    assert torch.equal(block.weight_x, x.T) and torch.equal(block.weight_y, y.T)


def test_the_floor_holds_for_examples_too() -> None:
    x, y = torch.zeros(2, 8), torch.eye(2)
    x[0, 0] = x[1, 1] = 1.0
    block = PFCBlock.from_examples(x, y, solver=FISTA.paper())
    assert torch.equal(block.weight_x, x.T.clamp(min=1e-5)) and torch.equal(block.weight_y, y.clamp(min=1e-5))
    plain = PFCBlock.from_examples(x, y)
    assert torch.equal(plain.weight_x, x.T) and torch.equal(plain.weight_y, y)


@pytest.mark.parametrize("training", [True, False])
def test_an_example_is_explained_by_itself(training: bool) -> None:
    x, y = examples()
    out = PFCBlock.from_examples(x, y, **EXACT).train(training).couple(x)
    torch.testing.assert_close(out.h, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(out.x, x, rtol=0, atol=1e-8)
    torch.testing.assert_close(out.y, y, rtol=0, atol=1e-6)


def test_the_paper_s_floor_costs_no_more_than_itself() -> None:
    x, y = examples()
    x = x / x.amax(-1, keepdim=True)  # or the cap would hold the amount of an example below 1
    out = PFCBlock.from_examples(x, y, solver=FISTA.paper(5000), adjoint=Implicit()).couple(x)
    assert (out.x - x).abs().max() < 5 * 1e-5  # five parts, each at the floor or above
    assert (out.y - y).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_labels_become_one_hot(dtype: torch.dtype) -> None:
    labels = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    block = PFCBlock.from_examples(examples()[0], labels, solver=FISTA())
    assert block.out_features == 2
    assert block.weight_y.tolist() == [[1, 0, 0, 1, 0], [0, 1, 1, 0, 1]]
    assert block.weight_y.dtype == torch.float64


def test_examples_of_each_class_predict_their_label() -> None:
    x, _ = examples(6)
    labels = torch.tensor([2, 0, 1, 1, 2, 0])
    block = PFCBlock.from_examples(x, labels, **EXACT)
    assert torch.equal(block(x).argmax(-1), labels)


def test_dtype_and_options_are_handed_on() -> None:
    x, y = examples()
    block = PFCBlock.from_examples(x, y, dtype=torch.float32, solver=FISTA(max_iter=7), nonnegative=False)
    assert block.weight_x.dtype == torch.float32 and block.solver == FISTA(max_iter=7) and not block.nonnegative
    mixed = PFCBlock.from_examples(x.float(), y)
    assert {p.dtype for p in mixed.parameters()} == {torch.float32}


def test_examples_stay_as_they_are() -> None:
    x, y = examples()
    x.requires_grad_()
    block = PFCBlock.from_examples(x, y)
    before = x.detach().clone()
    with torch.no_grad():
        block.weight_x.zero_()
    assert torch.equal(x, before) and block.weight_x.is_leaf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["x", "y"])
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    x, y = examples()
    {"x": x, "y": y}[name][1, 2] = value
    with pytest.raises(ValueError, match=f"{name} must be finite, got NaN or infinity"):
        PFCBlock.from_examples(x, y, nonnegative=False)


@pytest.mark.parametrize("name", ["x", "y"])
def test_negative_examples_are_refused_for_nonnegative_weights(name: str) -> None:
    x, y = examples()
    {"x": x, "y": y}[name][1, 2] = -0.25
    with pytest.raises(ValueError, match=r"x and y must be non-negative .*, got a minimum of -0\.25; pass nonneg"):
        PFCBlock.from_examples(x, y)
    PFCBlock.from_examples(x, y, nonnegative=False)


@pytest.mark.parametrize("shape", [(0, 8), (8,), (2, 2, 8)])
def test_x_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(n, in_features\) with n at least 1, got \("):
        PFCBlock.from_examples(torch.ones(shape), torch.ones(shape))


@pytest.mark.parametrize("shape", [(4, 3), (5,), (0, 3), (5, 3, 1), ()])
def test_y_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"y must have shape \(5, out_features\) to match x, got \("):
        PFCBlock.from_examples(examples()[0], torch.ones(shape))


@pytest.mark.parametrize("shape", [(4,), (0,), (5, 1), ()])
def test_labels_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"y must have shape \(5,\) for labels to match x, got \("):
        PFCBlock.from_examples(examples()[0], torch.ones(shape, dtype=torch.int64))


def test_negative_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="y must hold labels from 0 on, got -1"):
        PFCBlock.from_examples(examples()[0], torch.tensor([0, 1, -1, 0, 1]))


def test_integer_examples_are_refused() -> None:
    with pytest.raises(TypeError, match=r"x must be float32 or float64, got torch\.uint8"):
        PFCBlock.from_examples(torch.ones(5, 8, dtype=torch.uint8), examples()[1])


def test_a_class_without_an_example_keeps_its_output() -> None:
    x = examples()[0]
    block = PFCBlock.from_examples(x, torch.tensor([0, 1, 1, 0, 1]), num_classes=4)
    assert block.out_features == 4
    assert torch.equal(block.weight_y[2:], torch.zeros_like(block.weight_y[2:]))
    with pytest.raises(ValueError, match=r"num_classes must exceed the largest label \(1\), got 1"):
        PFCBlock.from_examples(x, torch.tensor([0, 1, 1, 0, 1]), num_classes=1)


def test_by_default_an_example_is_its_own_code_whatever_its_brightness() -> None:
    x = 0.1 * torch.eye(4)
    torch.testing.assert_close(PFCBlock.from_examples(x, torch.arange(4)).couple(x).h, torch.eye(4))
