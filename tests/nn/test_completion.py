import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls
from torch import Tensor

from torchpfc import FISTA, Implicit, PFCBlock, ProjectedGradient, Truncated, Unrolled, stack_models
from torchpfc.nn.completion import complete

IN, OUT, PARTS = 14, 6, 5
EXACT = FISTA(max_iter=20_000, tol=1e-12, restart=True)


def make_block(seed: int = 0, **options: Any) -> PFCBlock:
    settings: dict[str, Any] = {"solver": EXACT, "init_range": (0.0, 1.0), "dtype": torch.float64}
    return PFCBlock(IN, OUT, PARTS, generator=torch.Generator().manual_seed(seed), **{**settings, **options}).eval()


def make_pair(*rows: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.rand(*rows, size, generator=generator, dtype=torch.float64) for size in (IN, OUT))
    return x, y


def make_masks(*rows: int, seed: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask_x, mask_y = (torch.rand(*rows, size, generator=generator) < 0.7 for size in (IN, OUT))
    return mask_x, mask_y


def by_scipy(block: PFCBlock, x: Tensor, y: Tensor, mask_x: Tensor, mask_y: Tensor, y_weight: float = 1.0) -> Tensor:
    """Plain NNLS of the observed rows alone, one example after the other."""
    codes = []
    scale = y_weight**0.5
    for row in zip(x, y, mask_x, mask_y, strict=True):
        x_row, y_row, seen_x, seen_y = (part.numpy() for part in row)
        W_x, W_y = block.weight_x.detach().numpy()[seen_x], block.weight_y.detach().numpy()[seen_y]
        target = np.concatenate([x_row[seen_x], scale * y_row[seen_y]])
        codes.append(scipy_nnls(np.concatenate([W_x, scale * W_y]), target)[0])
    return torch.from_numpy(np.stack(codes))


@torch.no_grad()
@pytest.mark.parametrize("y_weight", [1.0, 25.0])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_the_code_is_that_of_scipy_for_the_observed_rows(y_weight: float, nonnegative: bool) -> None:
    block = make_block(nonnegative=nonnegative, init_range=(0.0, 1.0) if nonnegative else (-1.0, 1.0))
    (x, y), (mask_x, mask_y) = make_pair(7), make_masks(7)
    found = complete(block, x, y, mask_x, mask_y, y_weight=y_weight)
    expected = by_scipy(block, x, y, mask_x, mask_y, y_weight)
    torch.testing.assert_close(found.h, expected, atol=1e-7, rtol=0)
    torch.testing.assert_close(found.x, expected @ block.weight_x.T, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.y, expected @ block.weight_y.T, atol=1e-6, rtol=0)
    assert (found.h == 0).any(), "a case without an active constraint would prove nothing"


@torch.no_grad()
def test_what_was_observed_is_kept_and_the_rest_is_predicted() -> None:
    block, (x, y), (mask_x, mask_y) = make_block(), make_pair(7), make_masks(7)
    found = complete(block, x, y, mask_x, mask_y)
    assert torch.equal(found.filled_x[mask_x], x[mask_x]) and torch.equal(found.filled_x[~mask_x], found.x[~mask_x])
    assert torch.equal(found.filled_y[mask_y], y[mask_y]) and torch.equal(found.filled_y[~mask_y], found.y[~mask_y])
    assert not torch.equal(found.x[mask_x], x[mask_x])
    half = complete(block, x=x)
    assert torch.equal(half.filled_x, x) and torch.equal(half.filled_y, half.y)


@torch.no_grad()
def test_a_planted_pair_is_found_from_less_than_half_of_it() -> None:
    block = make_block()
    planted = (
        torch.rand(9, PARTS, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).sub(0.3).clamp(min=0)
    )
    x, y = planted @ block.weight_x.T, planted @ block.weight_y.T
    mask_x, mask_y = torch.arange(IN) < 5, torch.arange(OUT) < 3
    found = complete(block, x, y, mask_x, mask_y)
    torch.testing.assert_close(found.filled_x, x, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.filled_y, y, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("solver", [EXACT, FISTA.paper(2000)], ids=["exact", "paper"])
def test_x_alone_is_the_forward_pass(solver: FISTA) -> None:
    block, (x, _) = make_block(solver=solver), make_pair(2, 7)
    found, coupling = complete(block, x=x), block.couple(x)
    for ours, theirs in ((found.h, coupling.h), (found.x, coupling.x), (found.y, coupling.y)):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=0)


@torch.no_grad()
def test_y_alone_runs_the_block_backwards() -> None:
    block = make_block()
    turned = make_block()
    turned.weight_x.data, turned.weight_y.data = block.weight_y.data, block.weight_x.data
    turned.reset_step_size()
    _, y = make_pair(7)
    found, coupling = complete(block, y=y, y_weight=7.0), turned.couple(y)  # beside nothing, any weight is the same
    torch.testing.assert_close(found.h, coupling.h, atol=1e-7, rtol=0)
    torch.testing.assert_close(found.x, coupling.y, atol=1e-7, rtol=0)
    torch.testing.assert_close(found.y, coupling.x, atol=1e-7, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cap", [True, False])
def test_a_class_becomes_an_image_of_the_class(cap: bool) -> None:
    # Parts that are images of a class each: backwards, a class is the sum of its own parts and of no others.
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(6, 20, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    block = PFCBlock.from_examples(images, labels, solver=FISTA(max_iter=500, floor=1e-5, cap=cap, start="floor"))
    found = complete(block, y=torch.eye(3))
    torch.testing.assert_close(found.y, torch.eye(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.x, (images[:3] + images[3:]) / 2, atol=1e-3, rtol=0)


@torch.no_grad()
def test_the_cap_bounds_the_code_by_what_is_observed() -> None:
    block, (x, y) = make_block(solver=FISTA.paper(300), init_range=(0.0, 1e-2)), make_pair(7)
    mask = torch.arange(IN) < 4
    for found, limit in (
        (complete(block, y=y), y.amax(-1)),
        (complete(block, x=x, mask_x=mask), x[:, :4].amax(-1)),
        (complete(block, x=x.where(mask, 100.0), mask_x=mask), x[:, :4].amax(-1)),
    ):
        torch.testing.assert_close(found.h.amax(-1), limit)


@torch.no_grad()
def test_all_observed_is_a_plain_solve_of_the_stacked_pair() -> None:
    block, (x, y) = make_block(), make_pair(7)
    stacked = make_block()
    stacked.weight_x.data = torch.cat([block.weight_y.data, block.weight_x.data])
    stacked.reset_step_size()
    expected = stacked.couple(torch.cat([y, x], dim=-1)).h
    everywhere = torch.ones(IN, dtype=torch.bool), torch.ones(OUT, dtype=torch.bool)
    for masks in ((None, None), everywhere, (everywhere[0], None), (None, everywhere[1])):
        torch.testing.assert_close(complete(block, x, y, *masks).h, expected, atol=1e-7, rtol=0)


@torch.no_grad()
def test_a_mask_of_nothing_is_the_same_as_no_input() -> None:
    block, (x, y) = make_block(), make_pair(7)
    nothing = torch.tensor(False)
    with_mask, without = complete(block, x, y, mask_x=nothing), complete(block, y=y)
    torch.testing.assert_close(with_mask.h, without.h, atol=1e-7, rtol=0)
    torch.testing.assert_close(with_mask.filled_x, without.filled_x, atol=1e-7, rtol=0)
    assert not complete(block, x, mask_x=nothing).h.any(), "nothing observed, nothing found"


@pytest.mark.parametrize("solver", [EXACT, FISTA.paper(30)], ids=["exact", "paper"])
@pytest.mark.parametrize("adjoint", [Unrolled(), Implicit()], ids=["Unrolled", "Implicit"])
def test_nan_in_unobserved_entries_changes_nothing(solver: FISTA, adjoint: Unrolled | Implicit) -> None:
    block, (x, y), (mask_x, mask_y) = make_block(solver=solver, adjoint=adjoint), make_pair(7), make_masks(7)

    def results(hidden: float) -> list[Tensor]:
        given = [x.where(mask_x, hidden).requires_grad_(), y.where(mask_y, hidden).requires_grad_()]
        found = complete(block, *given, mask_x, mask_y)
        loss = sum(side.square().sum() for side in (found.x, found.y, found.filled_x, found.filled_y))
        gradients = torch.autograd.grad(loss, [*given, *block.parameters()])
        return [found.x, found.y, found.h, found.filled_x, found.filled_y, *gradients]

    for ours, theirs in zip(results(torch.nan), results(0.5), strict=True):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)


@torch.no_grad()
def test_leading_dimensions_broadcast() -> None:
    block, (x, y), (mask_x, _) = make_block(), make_pair(3, 1, 4), make_masks(4)
    y = y[0].expand(2, 4, OUT)
    found = complete(block, x, y, mask_x)
    assert found.h.shape == (3, 2, 4, PARTS)
    assert found.filled_x.shape == (3, 2, 4, IN) and found.filled_y.shape == (3, 2, 4, OUT)
    alone = complete(block, x[1, 0, 2], y[1, 2], mask_x[2])
    assert alone.h.shape == (PARTS,)
    torch.testing.assert_close(found.h[1, 1, 2], alone.h, atol=1e-7, rtol=0)
    torch.testing.assert_close(found.filled_x[1, 1, 2], alone.filled_x, atol=1e-7, rtol=0)
    assert complete(block, x[:0], mask_x=mask_x).filled_x.shape == (0, 1, 4, IN)


@torch.no_grad()
@pytest.mark.parametrize("own_inputs", [True, False])
@pytest.mark.parametrize("sides", ["x", "y", "xy"])
def test_a_stack_completes_what_its_blocks_complete(own_inputs: bool, sides: str) -> None:
    blocks = [make_block(seed) for seed in range(3)]
    rows = (3, 7) if own_inputs else (7,)
    given = dict(zip("xy", make_pair(*rows), strict=True))
    masks = dict(zip("xy", make_masks(*rows), strict=True))
    options = {side: given[side] for side in sides} | {f"mask_{side}": masks[side] for side in sides}
    together = complete(stack_models(blocks), **options)
    for i, block in enumerate(blocks):
        alone = complete(block, **{name: part[i] if own_inputs else part for name, part in options.items()})
        for field in ("x", "y", "h", "filled_x", "filled_y"):
            torch.testing.assert_close(getattr(together, field)[i], getattr(alone, field), atol=1e-7, rtol=0)


@pytest.mark.parametrize("adjoint", [Unrolled(), Implicit()], ids=["Unrolled", "Implicit"])
def test_gradcheck(adjoint: Unrolled | Implicit) -> None:
    # A fixed number of steps, more than enough: a tolerance would end them at another step for a moved input.
    block = make_block(solver=FISTA(max_iter=400, restart=True))
    (x, y), (mask_x, mask_y) = make_pair(3), make_masks(3)

    def function(x: Tensor, y: Tensor, weight_x: Tensor, weight_y: Tensor) -> tuple[Tensor, ...]:
        del block.weight_x, block.weight_y
        block.weight_x, block.weight_y = weight_x, weight_y
        found = complete(block, x, y, mask_x, mask_y, y_weight=3.0, l2=0.5, adjoint=adjoint)
        return found.x, found.y, found.filled_x, found.filled_y

    inputs = [x, y, block.weight_x.detach().clone(), block.weight_y.detach().clone()]
    assert torch.autograd.gradcheck(function, [part.requires_grad_() for part in inputs], fast_mode=True)


def test_both_weights_learn_from_either_side() -> None:
    block, (x, y) = make_block(solver=FISTA.paper(30)), make_pair(7)
    for sides in ({"x": x}, {"y": y}, {"x": x, "y": y}):
        block.zero_grad()
        found = complete(block, **sides)
        (found.x.sum() + found.y.sum()).backward()
        assert all(p.grad is not None and p.grad.any() for p in block.parameters())


@torch.no_grad()
def test_solver_and_penalties_can_be_chosen_for_the_call() -> None:
    block, (x, _), (mask_x, _) = make_block(solver=FISTA.paper(1)), make_pair(7), make_masks(7)
    exact = complete(block, x, mask_x=mask_x, solver=EXACT).h
    assert not torch.allclose(complete(block, x, mask_x=mask_x).h, exact, atol=1e-2)
    other = complete(block, x, mask_x=mask_x, solver=ProjectedGradient(max_iter=50_000, tol=1e-11)).h
    torch.testing.assert_close(other, exact, atol=1e-7, rtol=0)
    sparse = complete(block, x, mask_x=mask_x, l1=0.5, solver=EXACT).h
    small = complete(block, x, mask_x=mask_x, l2=5.0, solver=EXACT).h
    assert sparse.sum() < exact.sum() and small.square().sum() < exact.square().sum()


def test_another_solver_comes_with_its_own_adjoint() -> None:
    block, (x, _) = make_block(solver=FISTA.paper(30), adjoint=Truncated(20)), make_pair(7)
    assert complete(block, x).y.requires_grad
    assert complete(block, x, solver=FISTA(max_iter=10)).y.requires_grad, "20 steps of 10 cannot be differentiated"
    with pytest.raises(ValueError, match=r"steps must be at most the solver's max_iter \(10\), got 20"):
        complete(block, x, solver=FISTA(max_iter=10), adjoint=Truncated(20))


@torch.no_grad()
def test_autocast_solves_in_full_precision() -> None:
    block, (x, y), (mask_x, _) = make_block(dtype=torch.float32, solver=FISTA(20)), make_pair(7), make_masks(7)
    x, y = x.bfloat16(), y.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = complete(block, x, y, mask_x)
    expected = complete(block, x.float(), y.float(), mask_x)
    torch.testing.assert_close(found.h, expected.h)
    torch.testing.assert_close(found.filled_x, expected.filled_x, atol=0.02, rtol=0.02)


@torch.no_grad()
def test_completion_leaves_a_block_in_training_as_it_is() -> None:
    block, (x, y) = make_block().train(), make_pair(7)
    before = {name: value.clone() for name, value in block.state_dict().items()}
    complete(block, x, y)
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())


@torch.no_grad()
@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 100.0]), st.sampled_from([1e-3, 1.0, 1e3]), st.booleans())
def test_kkt_conditions_hold_on_what_is_observed(seed: int, y_weight: float, scale: float, signed: bool) -> None:
    solver = FISTA(max_iter=100_000, tol=1e-9, restart=True)
    block = make_block(seed, solver=solver, nonnegative=not signed, init_range=(-1.0 if signed else 0.0, 1.0))
    x, y = (scale * side for side in make_pair(4, seed=seed))
    mask_x, mask_y = make_masks(4, seed=seed)
    found = complete(block, x.where(mask_x, torch.nan), y.where(mask_y, torch.nan), mask_x, mask_y, y_weight=y_weight)
    x, y = x.where(mask_x, 0.0), y.where(mask_y, 0.0)
    left_x, left_y = found.x.where(mask_x, 0.0) - x, found.y.where(mask_y, 0.0) - y
    gradient = left_x @ block.weight_x + y_weight * left_y @ block.weight_y
    size = (x @ block.weight_x + y_weight * y @ block.weight_y).norm(dim=-1, keepdim=True)
    assert (found.h >= 0).all()
    assert (gradient >= -1e-7 * size).all(), "the gradient points into the feasible set"
    in_use = found.h > 1e-7 * found.h.amax(-1, keepdim=True)
    assert (gradient.where(in_use, 0.0).abs() <= 1e-6 * size).all(), "the gradient vanishes where h is positive"


X, Y = torch.rand(4, IN, dtype=torch.float64), torch.rand(4, OUT, dtype=torch.float64)
MASK = torch.ones(IN, dtype=torch.bool)


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, r"x or y must be given, got neither", {}),
        (ValueError, r"mask_x must come with x, got no x", {"y": Y, "mask_x": MASK}),
        (ValueError, r"mask_y must come with y, got no y", {"x": X, "mask_y": torch.tensor(True)}),
        (ValueError, r"x must have shape \(\.\.\., 14\), got \(4, 6\)", {"x": Y}),
        (ValueError, r"y must have shape \(\.\.\., 6\), got \(4, 14\)", {"y": X}),
        (ValueError, r"y must have shape \(\.\.\., 6\), got \(\)", {"y": Y[0, 0]}),
        (TypeError, r"x must have the dtype of the weights \(torch.float64\), got torch.float32", {"x": X.float()}),
        (TypeError, r"y must have the dtype of the weights \(torch.float64\), got torch.int64", {"y": Y.long()}),
        (ValueError, r"x must be on the device of the weights \(cpu\), got meta", {"x": X.to("meta")}),
        (TypeError, r"mask_x must be boolean \(True where x is observed\), got torch.float64", {"x": X, "mask_x": X}),
        (ValueError, r"mask_x must be on the device of x \(cpu\), got meta", {"x": X, "mask_x": MASK.to("meta")}),
        (ValueError, r"mask_x must broadcast to the shape of x \(4, 14\), got \(5,\)", {"x": X, "mask_x": MASK[:5]}),
        (ValueError, r"mask_y must broadcast to the shape of y \(4, 6\), got \(14,\)", {"y": Y, "mask_y": MASK}),
        (
            ValueError,
            r"mask_x must broadcast to the shape of x \(4, 14\), got \(2, 4, 14\)",
            {"x": X, "mask_x": MASK.expand(2, 4, IN)},
        ),
        (
            ValueError,
            r"y must have leading dimensions that broadcast with those of x \(4,\), got \(3,\)",
            {"x": X, "y": Y[:3]},
        ),
        (ValueError, r"y_weight must be positive and finite, got 0", {"x": X, "y": Y, "y_weight": 0.0}),
        (ValueError, r"y_weight must be positive and finite, got nan", {"x": X, "y": Y, "y_weight": float("nan")}),
        (ValueError, r"l2 must be non-negative and finite, got -1", {"x": X, "l2": -1.0}),
        (TypeError, r"solver must be a Solver, got 'fista'", {"x": X, "solver": "fista"}),
    ],
)
def test_errors_say_what_to_change(error: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        complete(make_block(), **options)


def test_one_example_is_not_enough_for_a_stack() -> None:
    stack = stack_models([make_block(0), make_block(1)])
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., n, 14\), got \(14,\)"):
        complete(stack, x=X[0])


# The page: its numbers come from a file, and the script that makes both still runs.

ROOT = Path(__file__).parent.parent.parent
needs_docs = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a source distribution has no docs")


@needs_docs
def test_the_numbers_of_the_page_are_those_of_the_result_file() -> None:
    from docs.figures.completion import PAGE, RESULT, tables, with_tables

    page, result = PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text(encoding="utf-8"))
    assert with_tables(page, result) == page
    assert all(table in page for table in tables(result).values())
    assert len(result["config"]["seeds"]) >= 5
    for hidden in ("left", "right", "top", "bottom", "random"):
        at = result["metrics"][hidden]
        assert all(mask > zero for mask, zero in zip(at["mask"], at["zero_fill"], strict=True))


@needs_docs
def test_the_script_of_the_page_measures_and_draws() -> None:
    from docs.figures.completion import Config, draw_classes, draw_halves, load, masks, measure_hidden, train

    config = Config(num_basis=12, max_iter=5, epochs=1, test_size=100)
    split = load(config, seed=0)
    block = train(config, split, seed=0)
    hidden = dict(masks(100, seed=0))
    assert all((mask.sum(1) == 32).all() for mask in hidden.values())
    with torch.no_grad():
        metrics = measure_hidden(config, block, split, hidden["random"])
    assert set(metrics) >= {"mask", "zero_fill", "mean_fill", "pixel_error"}
    for figure in (draw_halves(block, split, seed=0), draw_classes(config, block, split)):
        assert ElementTree.fromstring(figure).tag.endswith("svg")


@torch.no_grad()
def test_a_block_s_own_l1_counts_unless_another_is_given() -> None:
    (x, _), (mask_x, _) = make_pair(4), make_masks(4)
    plain, sparse = make_block(), make_block(l1=0.5)
    expected = complete(plain, x, mask_x=mask_x, l1=0.5).h
    assert torch.equal(complete(sparse, x, mask_x=mask_x).h, expected)
    assert torch.equal(sparse.complete(x, mask_x=mask_x, l1=0.0).h, plain.complete(x, mask_x=mask_x).h)
    assert expected.sum() < complete(plain, x, mask_x=mask_x).h.sum()
