import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from torchpfc import (
    FISTA,
    ColumnRates,
    Ledger,
    PFCBlock,
    ResidualPFC,
    RMSprop,
    RMSpropSLW,
    Windowed,
    count_use,
    forget,
    keep_nonnegative,
    stack_models,
    unstack_models,
)
from torchpfc.continual.certificate import How
from torchpfc.nn.stack import select_models_
from torchpfc.optim import Age, CodeUse
from torchpfc.training import Batches, SquaredErrors, evaluate, fit
from torchpfc.unlearning import keep_forgotten

STEPS = 4

INNER: dict[str, Callable[[Any], Optimizer]] = {
    "RMSprop": lambda params: RMSprop(params, lr=0.1, weight_decay=1e-2),
    "Adam": lambda params: Adam(params, lr=0.1, weight_decay=0.1),
    "SGD": lambda params: SGD(params, lr=0.1, momentum=0.9),
}
every_inner = pytest.mark.parametrize("make", INNER.values(), ids=INNER.keys())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=seeded(seed), dtype=torch.float64)


def make_params() -> list[nn.Parameter]:
    return [nn.Parameter(random(rows, 6, seed=rows)) for rows in (4, 2)]


def make_block(seed: int = 0, num_basis: int = 6) -> PFCBlock:
    return PFCBlock(4, 2, num_basis, solver=FISTA.paper(4), generator=seeded(seed), dtype=torch.float64)


def learn(optimizer: ColumnRates, params: list[nn.Parameter], steps: range = range(STEPS)) -> None:
    """Steps with made-up gradients and codes, other ones in each."""
    for k in steps:
        for i, p in enumerate(params):
            p.grad = random(*p.shape, seed=10 * k + i) - 0.5
        optimizer.observe(random(5, params[0].shape[-1], seed=100 + k), params)
        optimizer.step()


def teach(model: PFCBlock, optimizer: Optimizer, steps: int = STEPS) -> None:
    for k in range(steps):
        optimizer.zero_grad()
        model(random(5, 4, seed=k)).square().sum().backward()
        optimizer.step()


# The rule


@settings(max_examples=10)
@given(
    half=st.floats(0.1, 100),
    power=st.sampled_from([1, 2]),
    keep=st.sampled_from([0.0, 0.9, 1.0]),
    decay=st.sampled_from([0.0, 0.1]),
)
def test_each_column_follows_the_rule(half: float, power: int, keep: float, decay: float) -> None:
    """Against RMSprop in plain numbers, a weight at a time."""
    start, grads, codes = random(3, 5), random(STEPS, 3, 5, seed=1) - 0.5, random(STEPS, 7, 5, seed=2)
    weight = nn.Parameter(start.clone())
    inner = RMSprop([weight], lr=0.1, weight_decay=decay)
    optimizer = ColumnRates(inner, half_after=half, measure=CodeUse(power=power, keep=keep))
    for grad, h in zip(grads, codes, strict=True):
        weight.grad = grad.clone()
        optimizer.observe(h, [weight])
        optimizer.step()

    w, v, used = start.tolist(), [[0.0] * 5 for _ in range(3)], [0.0] * 5
    for grad, h in zip(grads.tolist(), codes.tolist(), strict=True):
        means = [sum(row[r] ** power for row in h) / len(h) for r in range(5)]
        for r in range(5):
            for i in range(3):
                v[i][r] = 0.99 * v[i][r] + 0.01 * grad[i][r] ** 2
                moved = w[i][r] - 0.1 * grad[i][r] / (v[i][r] ** 0.5 + 1e-8)
                w[i][r] += (moved - decay * moved - w[i][r]) / (1 + used[r] / half)
            used[r] = keep * used[r] + means[r] / (sum(means) / 5)
    torch.testing.assert_close(weight.data, torch.tensor(w, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(optimizer.use(weight), torch.tensor(used, dtype=torch.float64))
    torch.testing.assert_close(optimizer.rates(weight), 1 / (1 + torch.tensor(used, dtype=torch.float64) / half))


@every_inner
def test_unused_columns_move_as_the_wrapped_optimizer_moves_them_bit_for_bit(
    make: Callable[[Any], Optimizer],
) -> None:
    params, bare_params = make_params(), make_params()
    optimizer, bare = ColumnRates(make(params), half_after=1.0), make(bare_params)
    codes = random(5, 6)
    codes[:, 3:] = 0
    for k in range(STEPS):
        for i, (p, q) in enumerate(zip(params, bare_params, strict=True)):
            p.grad = random(*p.shape, seed=10 * k + i) - 0.5
            q.grad = p.grad.clone()
        optimizer.observe(codes, params)
        optimizer.step()
        bare.step()
    for p, q in zip(params, bare_params, strict=True):
        if make is not INNER["Adam"]:  # whose weight decay is part of the gradient, and so of what it averages
            assert torch.equal(p[:, 3:], q[:, 3:])
        assert not torch.isclose(p[:, :3], q[:, :3]).any()


def test_use_does_not_depend_on_how_large_codes_are() -> None:
    params = make_params()
    optimizer = ColumnRates(RMSprop(params))
    learn(optimizer, params)
    scaled = ColumnRates(RMSprop(params))
    for k in range(STEPS):
        scaled.observe(1e-3 * random(5, 6, seed=100 + k), params)
        scaled.step()
    torch.testing.assert_close(optimizer.use(params[0]), scaled.use(params[0]))
    assert optimizer.use(params[0]).mean() == pytest.approx(STEPS)


def test_codes_of_zero_are_no_use() -> None:
    params = make_params()
    optimizer = ColumnRates(RMSprop(params))
    optimizer.observe(torch.zeros(5, 6), params)
    optimizer.step()
    assert not optimizer.use(params[0]).any()


def test_batches_of_a_step_count_together() -> None:
    params, codes = make_params(), random(8, 6)
    whole, halves = (ColumnRates(RMSprop(params)) for _ in range(2))
    whole.observe(codes, params)
    halves.observe(codes[:4].view(2, 2, 6), params)
    halves.observe(codes[4:], params)
    for optimizer in (whole, halves):
        optimizer.step()
    torch.testing.assert_close(whole.use(params[1]), halves.use(params[1]))


def test_age_counts_steps_that_change_a_column() -> None:
    weight = nn.Parameter(random(3, 4))
    optimizer = ColumnRates(SGD([weight], lr=1.0), half_after=2.0, measure=Age())
    for k in range(3):
        weight.grad = torch.ones_like(weight)
        weight.grad[:, k + 1 :] = 0
        optimizer.step()
    assert optimizer.use(weight).tolist() == [3, 2, 1, 0]
    moved = (random(3, 4) - weight).mean(0)
    assert moved.tolist() == pytest.approx([1 + 1 / 1.5 + 1 / 2, 1 + 1 / 1.5, 1, 0])


# Blocks


def test_codes_of_training_alone_are_counted() -> None:
    block = make_block()
    optimizer = ColumnRates(RMSprop(block.parameters()))
    count_use(block, optimizer)
    with torch.no_grad():
        block(random(3, 4))
    block.eval()
    block(random(3, 4))
    with pytest.raises(RuntimeError, match=r"codes must be counted before a step, got none: call count_use"):
        optimizer.step()
    h = block.train().couple(random(5, 4)).h.detach()
    optimizer.step()
    expected = h.mean(0) / h.mean()
    torch.testing.assert_close(optimizer.use(block.weight_x), expected)
    torch.testing.assert_close(optimizer.use(block.weight_y), expected)
    with pytest.raises(RuntimeError, match="codes must be counted before a step"):  # those of the last are used up
        optimizer.step()


def test_each_block_of_a_model_has_its_own_use() -> None:
    model = ResidualPFC(4, 2, num_basis=6, solver=FISTA.paper(4), generator=seeded(0), dtype=torch.float64)
    optimizer = ColumnRates(RMSprop(model.parameters()))
    count_use(model, optimizer)
    model(random(5, 4)).sum().backward()
    optimizer.step()
    first, second = (optimizer.use(block.weight_x) for block in model.blocks)
    assert first.mean() == pytest.approx(1) == second.mean() and not torch.isclose(first, second).any()


def test_weights_stay_non_negative_and_forgotten_columns_zero() -> None:
    block = make_block()
    with torch.no_grad():
        block.weight_x[:, 2] = block.weight_y[:, 2] = 0
    optimizer = ColumnRates(RMSprop(block.parameters(), lr=0.5), half_after=2.0)
    count_use(block, optimizer)
    keep_nonnegative(block, optimizer)
    keep_forgotten(block, optimizer)
    teach(block, optimizer)
    rest = [0, 1, 3, 4, 5]
    assert (block.weight_x[:, rest] >= 1e-5).all() and (block.weight_y == 1e-5).any()
    assert not block.weight_x[:, 2].any() and not block.weight_y[:, 2].any()


def test_new_columns_are_unused_and_the_rest_follow_a_removal() -> None:
    block = make_block()
    optimizer = ColumnRates(RMSprop(block.parameters(), lr=1e-3))
    count_use(block, optimizer)
    teach(block, optimizer)
    before = optimizer.use(block.weight_y)
    block.add_basis(2, optimizer=optimizer)
    assert optimizer.use(block.weight_x).tolist() == optimizer.use(block.weight_y).tolist() == [*before.tolist(), 0, 0]
    block.remove_basis([0, 4], optimizer=optimizer)
    assert optimizer.use(block.weight_y).tolist() == [*before[[1, 2, 3, 5]].tolist(), 0, 0]
    teach(block, optimizer, steps=1)
    assert (optimizer.rates(block.weight_x) < 1).any()


def test_state_that_had_other_columns_is_loaded() -> None:
    block = make_block()
    optimizer = ColumnRates(RMSprop(block.parameters(), lr=1e-3))
    count_use(block, optimizer)
    teach(block, optimizer)
    before, saved = optimizer.use(block.weight_x), copy.deepcopy(optimizer.state_dict())
    block.add_basis(2, optimizer=optimizer)
    optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.use(block.weight_x), before)


@pytest.mark.parametrize("how", ["zero", "reinitialize", "remove"])
def test_what_is_forgotten_leaves_no_use_behind(how: How) -> None:
    block, ledger = make_block(), Ledger()
    optimizer = ColumnRates(RMSprop(block.parameters(), lr=1e-3))
    count_use(block, optimizer)
    teach(block, optimizer)
    before = optimizer.use(block.weight_x)
    ledger.record(0, columns=[1, 4])
    forget(block, ledger, batches=[0], how=how, optimizer=optimizer)
    kept = [0, 2, 3, 5]
    assert (before > 0).all()
    if how != "remove":
        assert not optimizer.use(block.weight_y)[[1, 4]].any()
    left = optimizer.use(block.weight_y) if how == "remove" else optimizer.use(block.weight_y)[kept]
    assert torch.equal(left, before[kept])


def test_the_loop_of_the_library_counts_what_is_learned_and_not_what_is_measured() -> None:
    block = make_block()
    optimizer = ColumnRates(RMSprop(block.parameters(), lr=1e-3), half_after=5.0)
    count_use(block, optimizer)
    batches = Batches(random(12, 4), random(12, 2), batch_size=4, seeds=0)
    for _ in fit(block, optimizer, batches, SquaredErrors(), epochs=2):
        evaluate(block, batches, SquaredErrors())
    assert optimizer.use(block.weight_x).mean() == pytest.approx(6)


@pytest.mark.gpu
def test_a_recorded_step_counts_and_moves_as_an_eager_one_does() -> None:
    found = []
    for capture in (True, False):
        stack = stack_models([make_block(seed) for seed in range(2)]).cuda()
        optimizer = ColumnRates(RMSprop(stack.parameters(), lr=1e-2), half_after=3.0)
        count_use(stack, optimizer)
        keep_nonnegative(stack, optimizer)
        batches = Batches(random(40, 4).cuda(), random(40, 2).cuda(), batch_size=4)
        list(fit(stack, optimizer, batches, SquaredErrors(), epochs=2, capture=capture))
        found.append((stack.weight_x.detach(), optimizer.use(stack.weight_x)))
    (weight, use), (eager_weight, eager_use) = found
    torch.testing.assert_close(weight, eager_weight)
    torch.testing.assert_close(use, eager_use)
    assert use.mean().item() == pytest.approx(20)


def test_a_ledger_says_that_every_column_could_be_written() -> None:
    block, ledger = make_block(), Ledger()
    optimizer = ColumnRates(RMSprop(block.parameters()), half_after=1e-3)
    count_use(block, optimizer)
    ledger.watch(optimizer)
    for id in range(2):
        with ledger.batch(id):
            teach(block, optimizer, steps=1)
    assert ledger.columns_of([0]) == ledger.columns_of([1]) == (range(6),)


# Stacks


@pytest.mark.parametrize("measure", [CodeUse(), CodeUse(power=2, keep=0.9), Age()])
def test_each_model_of_a_stack_learns_as_it_would_alone(measure: CodeUse | Age) -> None:
    def optimize(model: PFCBlock) -> ColumnRates:
        optimizer = ColumnRates(
            RMSprop(model.parameters(), lr=0.05, weight_decay=1e-3), half_after=2.0, measure=measure
        )
        count_use(model, optimizer)
        keep_nonnegative(model, optimizer)
        return optimizer

    stack = stack_models([make_block(seed) for seed in range(3)])
    together = optimize(stack)
    teach(stack, together)
    select_models_(stack, torch.tensor([2, 0]), together)
    teach(stack, together)
    for model, seed, use in zip(unstack_models(stack), (2, 0), together.use(stack.weight_x), strict=True):
        block = make_block(seed)
        alone = optimize(block)
        for _ in range(2):
            teach(block, alone)
        torch.testing.assert_close(model.weight_x, block.weight_x, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(use, alone.use(block.weight_x), rtol=1e-9, atol=1e-12)


# Saving and copying


def test_a_resumed_run_equals_one_never_stopped() -> None:
    params, uninterrupted = make_params(), make_params()
    learn(ColumnRates(RMSprop(uninterrupted, lr=0.1), half_after=2.0), uninterrupted, range(8))

    stopped = ColumnRates(RMSprop(params, lr=0.1), half_after=2.0)
    learn(stopped, params, range(5))
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = ColumnRates(RMSprop(others, lr=0.1))
    memory = resumed.param_groups[0]["use"][0].data_ptr()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.param_groups[0]["use"][0].data_ptr() == memory  # which a captured step reads
    learn(resumed, others, range(5, 8))
    assert all(torch.equal(p, q) for p, q in zip(others, uninterrupted, strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_on_by_itself(copied: Callable[[Any], Any]) -> None:
    params = make_params()
    optimizer = ColumnRates(Adam(params, lr=0.1), half_after=2.0, measure=CodeUse(power=2))
    learn(optimizer, params)
    twin = copied(optimizer)
    learn(optimizer, params, range(5, 8))
    twins = twin.param_groups[0]["params"]
    assert not torch.equal(twins[0], params[0])
    learn(twin, twins, range(5, 8))
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))
    assert torch.equal(optimizer.use(params[0]), twin.use(twins[0]))


def test_use_outlasts_the_averages_of_the_optimizer() -> None:
    params = make_params()
    optimizer = ColumnRates(RMSprop(params))
    learn(optimizer, params)
    optimizer.state.clear()
    assert optimizer.use(params[0]).mean() == pytest.approx(STEPS)


def test_state_of_an_optimizer_without_rates_loads_with_no_use() -> None:
    params = make_params()
    plain = RMSprop(params, lr=0.5)
    for p in params:
        p.grad = torch.ones_like(p)
    plain.step()
    optimizer = ColumnRates(RMSprop(params), half_after=3.0)
    learn(optimizer, params)
    optimizer.load_state_dict(plain.state_dict())
    assert not optimizer.use(params[0]).any() and optimizer.param_groups[0]["half_after"] == 3.0
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(optimizer.state[params[0]]["square_avg"], plain.state[params[0]]["square_avg"])


def test_a_group_may_have_its_own_half_and_one_added_later_is_unused() -> None:
    first, second = make_params()
    optimizer = ColumnRates(SGD([first], lr=1.0), half_after=1.0)
    learn(optimizer, [first])
    optimizer.add_param_group({"params": [second], "half_after": 1e9})
    learn(optimizer, [first, second])
    assert optimizer.use(second).mean() == pytest.approx(STEPS) and optimizer.use(first).mean() > STEPS
    assert (optimizer.rates(second) > 0.99).all() and (optimizer.rates(first) < 0.5).all()


def test_use_in_half_precision_counts_on() -> None:
    weight = nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
    optimizer = ColumnRates(SGD([weight], lr=0.0), half_after=1e4)
    optimizer.param_groups[0]["use"][0].fill_(300.0)
    weight.grad = torch.ones_like(weight)
    optimizer.observe(torch.ones(4, 3, dtype=torch.bfloat16), [weight])
    optimizer.step()
    assert optimizer.use(weight).tolist() == [301.0] * 3  # bfloat16 knows none between 300 and 302


# Bad input


@pytest.mark.parametrize("half", [0.0, -1.0, float("nan")])
def test_half_after_must_be_positive(half: float) -> None:
    with pytest.raises(ValueError, match=f"^half_after must be positive, got {half}$"):
        ColumnRates(SGD(make_params()), half_after=half)


def test_measures_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="power must be 1 or 2, got 3"):
        CodeUse(power=3)
    with pytest.raises(ValueError, match=r"keep must be from 0 to 1, got 1\.5"):
        CodeUse(keep=1.5)


def test_parameters_are_matrices_and_a_refused_group_leaves_the_others() -> None:
    optimizer = ColumnRates(SGD(make_params()))
    with pytest.raises(ValueError, match=r"params must be matrices, whose columns are parts, got shapes \[\(6,\)\]"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(6))]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("shape", "codes", "wanted"),
    [
        ((4, 6), (5, 5), "..., 6"),
        ((2, 4, 6), (3, 5, 6), "..., 2, n, 6"),
        ((4, 6), (), "..., 6"),
    ],
)
def test_codes_of_another_shape_are_refused(shape: tuple[int, ...], codes: tuple[int, ...], wanted: str) -> None:
    weight = nn.Parameter(torch.zeros(shape))
    optimizer = ColumnRates(SGD([weight]))
    with pytest.raises(ValueError, match=re.escape(f"h must have shape ({wanted}), got {codes}")):
        optimizer.observe(torch.ones(codes), [weight])


def test_parameters_of_others_are_unknown() -> None:
    optimizer = ColumnRates(SGD(make_params()))
    with pytest.raises(ValueError, match=r"p must be a parameter of this optimizer, got another of shape \(2, 6\)"):
        optimizer.use(torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda p: ColumnRates(RMSpropSLW(p, width=3, sweep_speed=1)), "must not have a window.*, got RMSpropSLW"),
        (lambda p: ColumnRates(ColumnRates(SGD(p))), "must not have rates of columns already, got ColumnRates"),
        (lambda p: ColumnRates(torch.optim.LBFGS(p)), "must take its step from one gradient, got LBFGS"),
        (lambda p: Windowed(ColumnRates(SGD(p)), width=3, sweep_speed=1), "must not have rates .*, got ColumnRates"),
    ],
)
def test_optimizers_that_do_not_fit_are_refused(wrap: Callable[[Any], Optimizer], message: str) -> None:
    with pytest.raises(TypeError, match=f"optimizer {message}"):
        wrap(make_params())
