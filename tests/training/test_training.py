import gc
import hashlib
from collections.abc import Iterator
from copy import deepcopy
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc import (
    FISTA,
    MLP,
    NonnegativeLeastSquares,
    PFCBlock,
    ResidualPFC,
    RMSprop,
    RMSpropSLW,
    keep_nonnegative,
    reconstruction_loss,
    record_couplings,
    solve,
    stack_models,
    unstack_models,
)
from torchpfc.nn.stack import select_models_
from torchpfc.training import (
    Batch,
    Batches,
    BestWeights,
    EarlyStopping,
    SquaredErrors,
    WarmCodes,
    evaluate,
    fit,
    random_stream,
)

EXAMPLES, IN, OUT, BASIS = 24, 8, 3, 5
OPTIONS: dict[str, Any] = {"solver": FISTA.paper(8), "init_range": (0.0, 0.5), "dtype": torch.float64}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_block(seed: int = 0, **options: Any) -> PFCBlock:
    return PFCBlock(IN, OUT, BASIS, generator=seeded(seed), **{**OPTIONS, **options})


def make_residual(seed: int = 0) -> ResidualPFC:
    return ResidualPFC(IN, OUT, BASIS, generator=seeded(seed), **OPTIONS)


def make_data(count: int = EXAMPLES, seed: int = 7) -> tuple[Tensor, Tensor]:
    generator = seeded(seed)
    x = torch.rand(count, IN, generator=generator, dtype=torch.float64)
    label = torch.randint(OUT, (count,), generator=generator)
    return x, F.one_hot(label, OUT).double()


def make_optimizer(model: nn.Module) -> RMSprop:
    optimizer = RMSprop(model.parameters(), lr=1e-2, weight_decay=1e-3)
    keep_nonnegative(model, optimizer)
    return optimizer


def assert_same_state(one: nn.Module, other: nn.Module) -> None:
    assert list(one.state_dict()) == list(other.state_dict())
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


# Batches


def rows_of(batches: Batches) -> list[list[int]]:
    """Which examples each batch holds, read off the data."""
    return [batch.x[..., 0].long().flatten().tolist() for batch in batches]


def numbered(count: int, **options: Any) -> Batches:
    x = torch.arange(count).float().unsqueeze(1).expand(-1, 2)
    return Batches(x, 10 * x, **{"batch_size": 4, **options})


def test_without_a_seed_batches_keep_the_order() -> None:
    assert rows_of(numbered(10)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_each_example_comes_once_an_epoch_with_its_own_target() -> None:
    batches = numbered(30, seeds=3)
    for epoch in range(3):
        batches.set_epoch(epoch)
        assert sorted(chain.from_iterable(rows_of(batches))) == list(range(30))
        for x, target, rows in batches:
            assert torch.equal(target, 10 * x)
            assert torch.equal(x[:, 0].long(), rows)


def test_the_order_depends_on_the_seed_and_the_epoch_and_nothing_else() -> None:
    one, other = numbered(30, seeds=3), numbered(30, seeds=3)
    first = rows_of(one)
    one.set_epoch(1)
    second = rows_of(one)
    assert first != second and first != list(range(30))
    other.set_epoch(1)
    assert rows_of(other) == second == rows_of(other)
    assert rows_of(numbered(30, seeds=4)) != first


def test_a_generator_draws_an_order_for_every_pass() -> None:
    batches, generator = numbered(30, seeds=torch.Generator().manual_seed(5)), torch.Generator().manual_seed(5)
    passes = [list(chain.from_iterable(rows_of(batches))) for _ in range(2)]
    assert passes == [torch.randperm(30, generator=generator).tolist() for _ in range(2)]


@pytest.mark.parametrize(
    ("count", "drop_last", "sizes"), [(10, True, [4, 4]), (10, False, [4, 4, 2]), (8, False, [4, 4])]
)
def test_drop_last_leaves_out_what_does_not_fill_a_batch(count: int, drop_last: bool, sizes: list[int]) -> None:
    batches = numbered(count, seeds=0, drop_last=drop_last)
    assert [len(batch.x) for batch in batches] == sizes
    assert len(batches) == len(sizes)


def test_the_shares_of_processes_partition_each_batch() -> None:
    whole = [sorted(rows) for rows in rows_of(numbered(30, batch_size=6, seeds=1, drop_last=True))]
    shares = [
        rows_of(numbered(30, batch_size=6, seeds=1, drop_last=True, share=(k, 3)))  # each process makes its own
        for k in range(3)
    ]
    assert all(len(rows) == 2 for share in shares for rows in share)
    assert [sorted(chain.from_iterable(parts)) for parts in zip(*shares, strict=True)] == whole


def test_models_of_a_stack_have_sets_and_orders_of_their_own() -> None:
    sets = torch.tensor([[0, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4]])
    batches = numbered(10, rows=sets, seeds=[1, 2], batch_size=3)
    found = list(batches)
    assert [batch.x.shape for batch in found] == [(2, 3, 2)] * 2
    for i, seed in enumerate((1, 2)):
        alone = numbered(10, rows=sets[i], seeds=seed, batch_size=3)
        for batch, own in zip(found, alone, strict=True):
            assert batch.rows is not None
            assert torch.equal(batch.x[i], own.x) and torch.equal(batch.target[i], own.target)
            assert torch.equal(sets[i][batch.rows[i]], batch.x[i, :, 0].long())  # rows count within the set
    plain = list(numbered(10, rows=sets, batch_size=6))
    assert torch.equal(plain[0].x[..., 0].long(), sets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": torch.rand(3, 2)}, r"target must have as many rows as x \(10\), got 3"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 5, "share": (0, 2)}, "batch_size must be a multiple of the 2 processes, got 5"),
        ({"share": (0, 2)}, "drop_last must be True where 2 processes share batches, got False"),
        ({"seeds": [1, 2]}, "seeds must be one for each set of rows, got 2"),
        ({"seeds": 1, "rows": torch.zeros(3, 4, dtype=torch.long)}, "seeds must be one for each set of rows, got 1"),
    ],
)
def test_batches_name_what_is_wrong(options: dict[str, Any], message: str) -> None:
    given = {"target": torch.rand(10, 2), "batch_size": 4} | options
    with pytest.raises(ValueError, match=message):
        Batches(torch.rand(10, 2), given.pop("target"), **given)


# The objective


def test_squared_errors_are_the_losses_of_pytorch() -> None:
    model, (x, target) = make_residual(), make_data()
    with record_couplings(model) as seen:
        y = model.eval()(x)
    expected = 0.3 * F.mse_loss(y, target) + 0.7 * reconstruction_loss(seen)
    scored = SquaredErrors(0.3, 0.7)(model, x, target)
    torch.testing.assert_close(scored.loss, expected, rtol=1e-12, atol=0)
    assert torch.equal(scored.y, y)
    plain = SquaredErrors(0.3)(model, x, target)
    torch.testing.assert_close(plain.loss, 0.3 * F.mse_loss(y, target), rtol=1e-12, atol=0)


def test_squared_errors_without_reconstruction_need_no_blocks() -> None:
    x, target = make_data()
    model = MLP(IN, OUT, 5, dtype=torch.float64)
    assert SquaredErrors()(model, x, target).loss == F.mse_loss(model(x), target)
    with pytest.raises(ValueError, match="model must contain a PFCBlock"):
        SquaredErrors(1.0, 0.1)(model, x, target)


def test_each_model_of_a_stack_has_its_own_loss_and_weights() -> None:
    models, (x, target) = [make_block(seed).eval() for seed in range(3)], make_data()
    weights = [(0.5, 0.5), (1.0, 0.0), (0.1, 0.9)]
    prediction, reconstruction = torch.tensor(weights, dtype=torch.float64).unbind(1)
    losses = SquaredErrors(prediction, reconstruction)(stack_models(models), x, target).loss
    assert losses.shape == (3,)
    for loss, model, pair in zip(losses, models, weights, strict=True):
        torch.testing.assert_close(loss, SquaredErrors(*pair)(model, x, target).loss, rtol=1e-12, atol=0)


def test_a_block_that_runs_twice_counts_the_mean_of_its_errors() -> None:
    block, (x, _) = PFCBlock(IN, IN, BASIS, **OPTIONS).eval(), make_data()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.block(x) + self.block(x.flip(0))
            return y

    errors = [F.mse_loss(block.couple(part).x, part) for part in (x, x.flip(0))]
    loss = SquaredErrors(0.0, 1.0)(Twice(), x, x).loss
    torch.testing.assert_close(loss, (errors[0] + errors[1]) / 2, rtol=1e-12, atol=0)


# The loop


def test_fit_is_the_loop_one_would_write() -> None:
    x, target = make_data()
    model = make_block()
    by_hand = deepcopy(model)
    batches = Batches(x, target, batch_size=8, seeds=5)
    stats = list(fit(model, make_optimizer(model), batches, SquaredErrors(0.5, 0.5), epochs=3))
    optimizer, losses = make_optimizer(by_hand), []
    for epoch in range(3):
        order = torch.randperm(EXAMPLES, generator=random_stream(5, "order", epoch))
        for rows in order.split(8):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            out = by_hand.couple(x[rows])
            loss = 0.5 * F.mse_loss(out.y, target[rows]) + 0.5 * F.mse_loss(out.x, x[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-12, atol=0)
    assert [(s.epoch, s.steps) for s in stats] == [(0, 3), (1, 3), (2, 3)]
    means = torch.tensor(losses, dtype=torch.float64).view(3, 3).mean(1)
    torch.testing.assert_close(torch.stack([s.loss for s in stats]), means, rtol=1e-9, atol=0)
    assert all(s.seconds > 0 for s in stats)


def test_fit_takes_pairs_from_any_iterable_and_trains() -> None:
    x, target = make_data()
    model = make_block().eval()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, target), batch_size=12)
    losses = []
    for stats in fit(model, make_optimizer(model), loader, SquaredErrors(), epochs=20):
        losses.append(stats.loss.item())
        assert model.training
    assert losses[-1] < 0.9 * losses[0]


def test_a_run_that_goes_on_at_an_epoch_equals_one_that_never_stopped() -> None:
    x, target = make_data()
    whole, parted = make_block(), make_block()
    batches = Batches(x, target, batch_size=8, seeds=5)
    list(fit(whole, make_optimizer(whole), batches, SquaredErrors(), epochs=4))
    optimizer = make_optimizer(parted)
    list(fit(parted, optimizer, batches, SquaredErrors(), epochs=2))
    again = make_block(1)
    again.load_state_dict(parted.state_dict())
    fresh = make_optimizer(again)
    fresh.load_state_dict(optimizer.state_dict())
    epochs = [s.epoch for s in fit(again, fresh, batches, SquaredErrors(), epochs=4, first_epoch=2)]
    assert epochs == [2, 3]
    assert_same_state(again, whole)


def test_the_caller_says_how_to_go_backward() -> None:
    x, target = make_data()
    model = make_block()
    seen = []

    def backward(loss: Tensor) -> None:
        seen.append(loss.item())
        loss.backward()

    batches = Batches(x, target, batch_size=12)
    list(fit(model, make_optimizer(model), batches, SquaredErrors(), epochs=2, backward=backward))
    assert len(seen) == 4


def test_fit_refuses_an_epoch_without_batches() -> None:
    model = make_block()
    with pytest.raises(ValueError, match="batches must hold at least one batch, got none"):
        list(fit(model, make_optimizer(model), [], SquaredErrors(), epochs=1))


def test_a_stack_trains_exactly_as_its_models_would_alone() -> None:
    x, target = make_data(2 * EXAMPLES)
    rows = torch.stack([torch.arange(EXAMPLES), EXAMPLES + torch.arange(EXAMPLES), torch.arange(0, 2 * EXAMPLES, 2)])
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.1, 0.9]], dtype=torch.float64)
    models = [make_residual(seed) for seed in range(3)]
    stack = stack_models(models)
    optimizer = make_optimizer(stack)
    codes = WarmCodes(stack, EXAMPLES)
    members, lengths = torch.arange(3), [2, 5, 3]  # each leaves after its own number of epochs
    final: dict[int, nn.Module] = {}
    epoch = 0
    while len(members):
        batches = Batches(x, target, batch_size=8, rows=rows[members], seeds=[11 * i for i in members.tolist()])
        objective = SquaredErrors(*weights[members].unbind(1))
        for stats in fit(stack, optimizer, batches, objective, epochs=5, first_epoch=epoch, codes=codes):
            epoch = stats.epoch + 1
            assert stats.loss.shape == (len(members),)
            if epoch in lengths:
                break
        singles = dict(zip(members.tolist(), unstack_models(stack), strict=True))
        final |= {i: singles[i] for i in members.tolist() if lengths[i] == epoch}
        going = torch.tensor([k for k, i in enumerate(members.tolist()) if lengths[i] > epoch], dtype=torch.long)
        members = members[going]
        if len(going):
            select_models_(stack, going, optimizer)
            codes.select_(going)
    for i, model in enumerate(models):
        alone = Batches(x, target, batch_size=8, rows=rows[i], seeds=11 * i)
        own = WarmCodes(model, EXAMPLES)
        list(
            fit(model, make_optimizer(model), alone, SquaredErrors(*weights[i].tolist()), epochs=lengths[i], codes=own)
        )
        for name, value in model.state_dict().items():
            torch.testing.assert_close(final[i].state_dict()[name], value, rtol=1e-9, atol=1e-12)


# Warm codes


def test_codes_start_at_the_floor_and_become_what_each_solve_ended_at() -> None:
    (x, _), model = make_data(), make_residual()
    codes = WarmCodes(model, EXAMPLES)
    for value in codes.state_dict().values():
        assert torch.equal(value, torch.full((EXAMPLES, BASIS), 1e-5, dtype=torch.float64))
    rows = torch.tensor([5, 2, 9])
    with codes.used(rows), record_couplings(model) as seen:
        model(x[rows])
    assert set(codes.state_dict()) == set(seen) == {"blocks.0", "blocks.1"}
    for name, value in codes.state_dict().items():
        assert torch.equal(value[rows], seen[name][0].h) and not value.requires_grad
        untouched = [i for i in range(EXAMPLES) if i not in rows.tolist()]
        assert (value[untouched] == 1e-5).all()


def test_a_solve_goes_on_where_the_last_one_ended() -> None:
    block = make_block(solver=FISTA(max_iter=4)).eval()
    x, _ = make_data()
    codes, rows = WarmCodes(block, EXAMPLES), torch.arange(EXAMPLES)
    exact = solve(NonnegativeLeastSquares(x, block.weight_x.detach()), FISTA(5000, tol=1e-12, restart=True)).h
    errors = []
    for _ in range(30):
        with codes.used(rows):
            block(x)
        errors.append((codes.state_dict()[""] - exact).norm().item())
    assert errors[-1] < 0.25 * errors[0]
    cold = block.couple(x).h
    assert (cold - exact).norm() > 0.9 * errors[0]  # outside, solves start where they always did


def test_training_with_warm_codes_is_training_with_a_warm_start() -> None:
    x, target = make_data()
    model = make_block()
    by_hand = deepcopy(model)
    batches = Batches(x, target, batch_size=8, seeds=5)
    list(fit(model, make_optimizer(model), batches, SquaredErrors(), epochs=3, codes=WarmCodes(model, EXAMPLES)))
    optimizer, h = make_optimizer(by_hand), torch.full((EXAMPLES, BASIS), 1e-5, dtype=torch.float64)
    for epoch in range(3):
        batches.set_epoch(epoch)
        for part, wanted, rows in batches:
            assert rows is not None
            out = by_hand.couple(part, warm_start=h[rows])
            h[rows] = out.h.detach()
            optimizer.zero_grad()
            F.mse_loss(out.y, wanted).backward()
            optimizer.step()
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-12, atol=0)


def test_codes_of_a_stack_are_those_of_its_models() -> None:
    x, _ = make_data()
    models = [make_block(seed).eval() for seed in range(3)]
    stack = stack_models(models)
    together, alone = WarmCodes(stack, EXAMPLES), [WarmCodes(model, EXAMPLES) for model in models]
    rows = torch.tensor([[0, 1], [7, 3], [5, 6]])
    with together.used(rows):
        stack(x[rows])
    for model, codes, own in zip(models, alone, rows, strict=True):
        with codes.used(own):
            model(x[own])
    together.select_(torch.tensor([2, 0]))
    for k, i in enumerate((2, 0)):
        torch.testing.assert_close(together.state_dict()[""][k], alone[i].state_dict()[""], rtol=1e-12, atol=0)


def test_codes_can_be_saved_and_taken_over() -> None:
    block, (x, _) = make_block(), make_data()
    codes = WarmCodes(block, EXAMPLES)
    with codes.used(torch.arange(EXAMPLES)):
        block(x)
    others = WarmCodes(block, EXAMPLES)
    others.load_state_dict({name: value.clone() for name, value in codes.state_dict().items()})
    assert torch.equal(others.state_dict()[""], codes.state_dict()[""])


def test_codes_of_all_processes_are_kept() -> None:
    block, (x, _) = make_block().eval(), make_data()
    mine, theirs = torch.tensor([0, 4]), torch.tensor([1, 3])
    h = block.couple(x[theirs]).h.detach()
    codes = WarmCodes(block, EXAMPLES, gather=lambda t: torch.stack([t, theirs if t.dtype == torch.long else h]))
    with codes.used(mine):
        block(x[mine])
    kept = codes.state_dict()[""]
    assert torch.equal(kept[theirs], h)
    torch.testing.assert_close(kept[mine], block.couple(x[mine], warm_start=torch.full_like(h, 1e-5)).h.detach())


def test_codes_need_batches_that_name_their_rows() -> None:
    block, (x, target) = make_block(), make_data()
    epochs = fit(
        block, make_optimizer(block), [(x, target)], SquaredErrors(), epochs=1, codes=WarmCodes(block, EXAMPLES)
    )
    with pytest.raises(ValueError, match="batches must name their rows to be used with codes"):
        next(epochs)


# Evaluation


class Answers(nn.Module):
    """Answers with its input."""

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return x


def test_evaluate_means_over_examples_however_they_are_divided() -> None:
    y = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.0, 1.0], [1.0, 0.0]])
    target = F.one_hot(torch.tensor([0, 1, 1, 1, 1]), 2).float()
    model = Answers().train()
    for batch_size in (1, 2, 5):
        found = evaluate(model, Batches(y, target, batch_size=batch_size), SquaredErrors())
        assert found.accuracy.item() == pytest.approx(3 / 5)
        assert found.loss.item() == pytest.approx(F.mse_loss(y, target).item())
    assert model.training
    assert not evaluate(model.eval(), [(y, target)], SquaredErrors()).loss.requires_grad
    assert not model.training


def test_evaluate_measures_each_model_of_a_stack() -> None:
    models, (x, target) = [make_block(seed).eval() for seed in range(3)], make_data()
    found = evaluate(stack_models(models), Batches(x, target, batch_size=10), SquaredErrors(0.5, 0.5))
    for i, model in enumerate(models):
        alone = evaluate(model, Batches(x, target, batch_size=EXAMPLES), SquaredErrors(0.5, 0.5))
        torch.testing.assert_close(found.loss[i], alone.loss, rtol=1e-12, atol=0)
        assert found.accuracy[i] == alone.accuracy
    assert found.loss.shape == (3,)


def test_evaluate_changes_nothing_even_if_it_fails() -> None:
    model, (x, target) = make_block().train(), make_data()
    before = deepcopy(model)

    def broken() -> Iterator[Batch]:
        yield Batch(x, target)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        evaluate(model, broken(), SquaredErrors())
    assert model.training
    assert_same_state(model, before)
    with pytest.raises(ValueError, match="batches must hold at least one example, got none"):
        evaluate(model, [], SquaredErrors())
    assert model.training


# Stopping early


def stops_after(losses: list[float], accuracies: list[float], patience: int, **options: Any) -> int | None:
    stopping = EarlyStopping(patience, **options)
    for epoch, pair in enumerate(zip(losses, accuracies, strict=True), start=1):
        stopping.update(*map(torch.tensor, pair))
        if stopping.stopped:
            return epoch
    return None


@pytest.mark.parametrize(
    ("losses", "accuracies", "after"),
    [
        ([5, 4, 3, 2, 1, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], None),
        ([5, 4, 4, 4, 3, 2], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], None),  # an equal loss is no improvement, but the third is
        ([5, 4, 4, 4, 4, 2], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 5),  # three without: the loss alone
        ([5, 4, 3, 2, 1, 0.5], [0.5, 0.5, 0.4, 0.5, 0.6, 0.7], 4),  # the accuracy alone, though the loss falls
        ([5, 6, 4, 5, 5, 5], [0.5, 0.4, 0.4, 0.6, 0.5, 0.5], 6),  # each counter starts anew on its own
    ],
)
def test_the_first_counter_to_reach_the_patience_stops(
    losses: list[float], accuracies: list[float], after: int | None
) -> None:
    assert stops_after(losses, accuracies, patience=3) == after


def test_the_accuracy_can_be_left_out() -> None:
    falling, flat = [5.0, 4, 3, 2, 1], [0.5] * 5
    assert stops_after(falling, flat, patience=2) == 3
    assert stops_after(falling, flat, patience=2, watch_accuracy=False) is None
    assert stops_after([1.0, 2, 2, 0], flat[:4], patience=2, watch_accuracy=False) == 3


def test_a_loss_that_is_hardly_lower_counts_towards_stopping_but_is_the_best() -> None:
    losses, flat = [100.0, 96.0, 92.0, 80.0, 79.0], [0.5] * 5
    assert stops_after(losses, flat, patience=2, watch_accuracy=False) is None
    assert stops_after(losses, flat, patience=2, watch_accuracy=False, tol=0.05) == 3
    assert stops_after(losses, flat, patience=3, watch_accuracy=False, tol=0.05) is None  # 80 is much lower than 92
    stopping = EarlyStopping(9, watch_accuracy=False, tol=2.0)
    assert all(stopping.update(torch.tensor(loss), torch.tensor(0.5)) for loss in losses)
    assert stopping.state["worse_losses"] == 4  # but the first one is better than nothing
    with pytest.raises(ValueError, match=r"tol must be non-negative, got -1"):
        EarlyStopping(2, tol=-1)


def test_the_accuracy_can_decide_alone() -> None:
    losses, accuracies = [1.0, 2, 3, 4, 5], [0.1, 0.3, 0.2, 0.3, 0.2]
    assert stops_after(losses, accuracies, patience=2) == 3
    assert stops_after(losses, accuracies, patience=2, keep="accuracy") == 4
    assert stops_after(losses, accuracies, patience=3, keep="accuracy", watch_accuracy=False) == 5
    stopping = EarlyStopping(9, keep="accuracy")
    pairs = zip(losses, accuracies, strict=True)
    assert [bool(stopping.update(*map(torch.tensor, pair))) for pair in pairs] == [True, True, False, False, False]
    with pytest.raises(ValueError, match="keep must be one of loss, accuracy, got 'best'"):
        EarlyStopping(2, keep="best")


def test_nan_is_never_an_improvement() -> None:
    nan = float("nan")
    stopping = EarlyStopping(2, watch_accuracy=False)
    assert not stopping.update(torch.tensor(nan), torch.tensor(0.9))
    assert stopping.state["best_loss"] == torch.inf
    assert stopping.update(torch.tensor(3.0), torch.tensor(nan))
    assert not stopping.update(torch.tensor(nan), torch.tensor(nan))
    assert not stopping.stopped
    assert not stopping.update(torch.tensor(nan), torch.tensor(nan))
    assert stopping.stopped
    assert stopping.state["best_loss"] == 3.0 and stopping.state["best_accuracy"] == pytest.approx(0.9)
    assert stops_after([nan] * 5, [nan] * 5, patience=3) == 3


def test_each_model_of_a_stack_has_counters_of_its_own() -> None:
    losses = torch.tensor([[3.0, 3, 3], [2, 4, 3], [1, 2, 4], [2, 2, 5]])
    accuracies = torch.tensor([[0.1, 0.5, 0.1], [0.2, 0.6, 0.2], [0.3, 0.7, 0.3], [0.4, 0.8, 0.4]])
    stopping = EarlyStopping(3, 3)
    better = [stopping.update(*pair).tolist() for pair in zip(losses, accuracies, strict=True)]
    assert better == [[True, True, True], [True, False, False], [True, True, False], [False, False, False]]
    assert stopping.stopped.tolist() == [False, False, True]
    stopping.select_(torch.tensor([1, 0]))
    assert stopping.stopped.tolist() == [False, False]
    assert stopping.state["best_loss"].tolist() == [2.0, 1.0]
    assert stopping.state["worse_losses"].tolist() == [1, 1]


def test_patience_must_be_positive() -> None:
    with pytest.raises(ValueError, match="patience must be at least 1, got 0"):
        EarlyStopping(0)


def test_the_best_weights_are_those_of_the_lowest_loss() -> None:
    models = [make_block(seed) for seed in range(3)]
    stack = stack_models(models)
    losses = torch.tensor([[3.0, 1, 5], [2, 2, 4], [4, 0.5, 6], [1, 3, 7]])  # best in epochs 3, 2 and 1
    best, seen, stopping = BestWeights(stack), [], EarlyStopping(9, 3)
    for epoch, loss in enumerate(losses):
        with torch.no_grad():
            for value in stack.state_dict().values():
                value.add_(0.01 * (epoch + 1))
        seen.append({name: value.clone() for name, value in stack.state_dict().items()})
        best.keep(stack, stopping.update(loss, torch.rand(3)))
    for name, value in best.values.items():
        for i, epoch in enumerate((3, 2, 1)):
            assert torch.equal(value[i], seen[epoch][name][i])


def test_the_best_weights_of_models_that_have_left_stay() -> None:
    stack = stack_models([make_block(seed) for seed in range(3)])
    best = BestWeights(stack)
    start = {name: value.clone() for name, value in best.values.items()}
    select_models_(stack, torch.tensor([0, 2]))
    with torch.no_grad():
        for value in stack.state_dict().values():
            value.add_(1.0)
    best.keep(stack, torch.tensor([False, True]), members=torch.tensor([0, 2]))
    for name, value in best.values.items():
        assert torch.equal(value[:2], start[name][:2])
        assert torch.equal(value[2], start[name][2] + 1.0)


def test_the_best_weights_of_one_model() -> None:
    block = make_block()
    best = BestWeights(block)
    start = block.weight_x.detach().clone()
    with torch.no_grad():
        block.weight_x.add_(1.0)
    best.keep(block, torch.tensor(False))
    assert torch.equal(best.values["weight_x"], start)
    best.keep(block, torch.tensor(True))
    assert torch.equal(best.values["weight_x"], start + 1.0)


# Randomness


def test_a_stream_depends_on_its_seed_and_purpose() -> None:
    def draw(*key: Any) -> list[float]:
        return torch.rand(3, generator=random_stream(*key)).tolist()

    streams = [draw(0, "order", 1), draw(0, "order", 2), draw(1, "order", 1), draw(0, "split"), draw(0)]
    assert len({tuple(stream) for stream in streams}) == 5
    assert draw(0, "order", 1) == streams[0]


def test_a_stream_is_the_same_in_every_process() -> None:
    digest = hashlib.sha256(b"(7, 'order', 3)").digest()
    expected = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    assert random_stream(7, "order", 3).initial_seed() == expected.initial_seed()


# What only a GPU can show


def captured_and_eager(make: Any, steps: int, **options: Any) -> list[nn.Module]:
    """The same training, recorded and step by step."""
    x, target = (tensor.float().cuda() for tensor in make_data(40))
    found = []
    for capture in (True, False):
        model = make()
        codes = WarmCodes(model, 40) if options.get("warm") else None
        rows = torch.arange(40).expand(len(model.weight_x), -1) if model.weight_x.ndim > 2 else None
        seeds = list(range(len(model.weight_x))) if rows is not None else 1
        batches = Batches(x, target, batch_size=10, rows=rows, seeds=seeds, drop_last=True)
        objective = SquaredErrors(0.5, 0.5)
        epochs = fit(model, make_optimizer(model), batches, objective, epochs=steps // 4, codes=codes, capture=capture)
        losses = torch.stack([stats.loss for stats in epochs])
        assert losses.isfinite().all()
        found.append(model)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("count", [None, 3])
def test_a_recorded_step_is_the_step(warm: bool, count: int | None) -> None:
    def make() -> nn.Module:
        options: dict[str, Any] = {"dtype": torch.float32, "solver": FISTA.paper(10)}
        if count is None:
            return make_block(**options).cuda()
        return stack_models([make_block(seed, **options) for seed in range(count)]).cuda()

    recorded, eager = captured_and_eager(make, 20, warm=warm)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(recorded.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(recorded.weight_x, make().weight_x)


@pytest.mark.gpu
def test_a_recorded_step_refuses_a_batch_of_another_shape() -> None:
    x, target = (tensor.float().cuda() for tensor in make_data(45))
    model = make_block(dtype=torch.float32).cuda()
    epochs = fit(model, make_optimizer(model), Batches(x, target, batch_size=10), SquaredErrors(), epochs=1)
    with pytest.raises(ValueError, match="batches must keep their shape while a step is replayed"):
        next(epochs)


@pytest.mark.gpu
def test_recordings_leave_no_memory_behind() -> None:
    def held() -> int:
        captured_and_eager(lambda: make_block(dtype=torch.float32).cuda(), 8, warm=False)
        gc.collect()
        return torch.cuda.memory_allocated()

    assert held() == held() == held()


def test_a_step_with_a_window_is_never_recorded():
    block = PFCBlock(6, 2, num_basis=9)
    optimizer = RMSpropSLW(block.parameters(), width=2, sweep_speed=0.5)
    batches = Batches(torch.rand(8, 6), torch.rand(8, 2), batch_size=4)
    with pytest.raises(ValueError, match="capture must be False with an optimizer whose window moves"):
        next(fit(block, optimizer, batches, SquaredErrors(), epochs=1, capture=True))
    assert next(fit(block, optimizer, batches, SquaredErrors(), epochs=1)).steps == 2


def test_codes_follow_a_block_that_grows() -> None:
    block = PFCBlock(4, 2, 3, solver=FISTA.paper(5), generator=torch.Generator().manual_seed(0))
    codes = WarmCodes(block, 6)
    with codes.used(torch.tensor([1])):
        first = block.couple(torch.rand(1, 4)).h
    block.add_basis(2)
    held = codes.state_dict()[""].clone()
    with codes.used(torch.tensor([1])):
        assert block.warm_start is not None and torch.equal(block.warm_start[:, :3], first)
        assert (block.warm_start[:, 3:] == block.solver.floor).all()
        block.couple(torch.rand(1, 4))
    assert held.shape == (6, 3) and codes.state_dict()[""].shape == (6, 5)


def test_the_best_weights_follow_a_block_that_grows() -> None:
    block = PFCBlock(4, 2, 3)
    best = BestWeights(block)
    block.add_basis(2)
    best.keep(block, torch.tensor(False))
    assert best.values["weight_x"].shape == (4, 3)
    best.keep(block, torch.tensor(True))
    assert torch.equal(best.values["weight_x"], block.weight_x) and best.values["weight_x"] is not block.weight_x


def test_what_decides_when_to_stop_can_be_saved() -> None:
    one, other = EarlyStopping(patience=2), EarlyStopping(patience=2)
    one.update(torch.tensor(1.0), torch.tensor(0.5))
    saved = one.state_dict()
    one.update(torch.tensor(2.0), torch.tensor(0.4))
    other.load_state_dict(saved)
    other.update(torch.tensor(2.0), torch.tensor(0.4))
    assert not one.stopped and {name: value.item() for name, value in one.state.items()} == {
        name: value.item() for name, value in other.state.items()
    }
    block = PFCBlock(4, 2, 3)
    best, copy = BestWeights(block), BestWeights(PFCBlock(4, 2, 5))
    copy.load_state_dict(best.state_dict())
    assert torch.equal(copy.values["weight_x"], block.weight_x)
