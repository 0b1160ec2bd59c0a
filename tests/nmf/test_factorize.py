"""`factorize` against scikit-learn, planted factors, and literal few-line versions of the updates."""

import builtins
import importlib.util
import math
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import non_negative_factorization

from torchpfc.nmf import (
    HALS,
    ColumnCap,
    GradientUpdates,
    HalfProblem,
    LeeSeung,
    MeanOfMax,
    UnitNorm,
    factorize,
)

RULES = [HALS(), HALS(extrapolate=False), LeeSeung(), GradientUpdates()]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def planted(n=60, m=20, r=4, *, seed=0, density=0.6, signed=False, dtype=torch.float64):
    generator = seeded(seed)
    W, H = (torch.rand(size, r, generator=generator, dtype=dtype) for size in (m, n))
    W, H = (F * (torch.rand(F.shape, generator=generator) < density) for F in (W, H))
    if signed:
        W = W - 0.4
    return W, H, H @ W.T


def pair(V, r, seed=0, signed=False):
    generator = seeded(seed)
    W, H = (torch.rand(size, r, generator=generator, dtype=V.dtype) for size in (V.shape[1], V.shape[0]))
    return (W - 0.5 if signed else W), H


def half_squared_error(V, W, H):
    return float((V - H @ W.T).double().square().sum()) / 2


@pytest.fixture(scope="module")
def digits():
    return torch.from_numpy(load_digits().data[:600] / 16)


# What is found


def test_planted_parts_are_recovered_up_to_order_and_scale():
    W, _, V = planted(n=300, density=0.4)
    found = factorize(V, 4, tol=0, max_iter=500, generator=seeded(), restarts=2)
    assert found.objective < 1e-8 * float(V.square().sum())
    cosines = torch.nn.functional.normalize(W, dim=0).T @ torch.nn.functional.normalize(found.W, dim=0)
    assert cosines.amax(1).min() > 0.9999
    assert sorted(cosines.argmax(1).tolist()) == [0, 1, 2, 3]


def test_the_objective_agrees_with_scikit_learn_on_digits(digits):
    ours = factorize(digits, 10, tol=1e-6, max_iter=500, restarts=2, generator=seeded()).objective
    H, W, _ = non_negative_factorization(
        digits.numpy(), n_components=10, init="nndsvda", tol=1e-5, max_iter=2000, random_state=0
    )
    theirs = half_squared_error(digits, torch.from_numpy(W).T, torch.from_numpy(H))
    assert ours <= 1.01 * theirs
    assert theirs <= 1.03 * ours


def test_plain_hals_takes_the_steps_of_scikit_learn(digits):
    W, H = pair(digits, 5)
    ours = factorize(digits, 5, rule=HALS(extrapolate=False, sweeps=1), init=(W, H), max_iter=4, tol=0)
    theirs = non_negative_factorization(
        digits.numpy(), H.numpy().copy(), W.T.numpy().copy(), n_components=5, init="custom", tol=0, max_iter=4
    )
    np.testing.assert_allclose(ours.H.numpy(), theirs[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.W.T.numpy(), theirs[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("l1", [0.0, 0.05])
def test_the_result_meets_the_kkt_conditions(l1):
    V = planted(30, 15)[2] + 0.1 * torch.rand(30, 15, generator=seeded(1), dtype=torch.float64)
    found = factorize(V, 3, l1=l1, tol=0, max_iter=1000, generator=seeded())
    W, H = found.W, found.H
    residual = H @ W.T - V
    norms = W.norm(dim=0)
    to_H = residual @ W + l1 * norms
    to_W = residual.T @ H + l1 * H.sum(0) * W / norms.clamp(min=1e-30)
    for F, gradient in ((W, to_W), (H, to_H)):
        assert gradient.min() > -1e-5 * V.abs().max()
        assert (F * gradient).abs().max() < 1e-5


@settings(max_examples=25)
@given(
    n=st.integers(1, 25),
    m=st.integers(1, 25),
    r=st.integers(1, 20),
    rule=st.sampled_from(RULES),
    l1=st.sampled_from([0.0, 0.1]),
    masked=st.booleans(),
    batch_size=st.sampled_from([None, 7]),
    seed=st.integers(0, 1000),
)
def test_the_objective_never_rises(n, m, r, rule, l1, masked, batch_size, seed):
    V = torch.rand(n, m, generator=seeded(seed), dtype=torch.float64)
    mask = torch.rand(n, m, generator=seeded(seed + 1)) < 0.7 if masked else None
    found = factorize(
        V, r, rule=rule, l1=l1, mask=mask, batch_size=batch_size, max_iter=12, tol=0, generator=seeded(seed)
    )
    later, earlier = (torch.tensor(found.history.objective[k]) for k in (slice(1, None), slice(None, -1)))
    assert (later <= earlier * (1 + 1e-9) + 1e-12).all()
    assert (found.W >= 0).all() and (found.H >= 0).all()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("l1", [0.0, 0.1])
def test_the_history_holds_the_objective_of_what_is_returned(rule, dtype, l1):
    V = planted(dtype=dtype)[2]
    found = factorize(V, 3, rule=rule, l1=l1, max_iter=20, tol=0, generator=seeded())
    W, H, history = found
    assert W.shape == (20, 3) and H.shape == (60, 3) and W.dtype == H.dtype == dtype
    expected = half_squared_error(V, W, H) + l1 * float((W.norm(dim=0) * H.sum(0)).sum())
    assert found.objective == history.objective[-1] == pytest.approx(expected, rel=1e-5)
    assert len(history.seconds) == len(history.objective) == 20
    assert history.seconds == sorted(history.seconds)


# The rules, against literal versions


def problem_of(V, W, **options):
    return HalfProblem(W.T @ W, W.T @ V.T, summed=V.shape[1], **options)


def test_hals_is_row_after_row_in_order():
    _, _, V = planted(m=30, r=20)
    W, H = pair(V, 20)
    F, expected = H.T.contiguous(), H.T.clone()
    problem = problem_of(V, W)
    HALS(sweeps=2).update_(F, problem)
    for _ in range(2):
        for j in range(20):
            step = (problem.B[j] - problem.G[j] @ expected) / problem.G[j, j]
            expected[j] = torch.relu(expected[j] + step)
    torch.testing.assert_close(F, expected, rtol=1e-10, atol=1e-10)


def test_hals_goes_round_more_often_where_that_is_cheap():
    _, _, V = planted(m=100, r=5)
    W, H = pair(V, 5)
    results = []
    for rule in (HALS(), HALS(sweeps=4)):
        results.append(H.T.contiguous())
        rule.update_(results[-1], problem_of(V, W))
    torch.testing.assert_close(results[0], results[1])


def test_gradient_updates_are_the_papers():
    _, _, V = planted()
    W, H = pair(V, 4)
    found = factorize(V, 4, rule=GradientUpdates(floor=1e-5), init=(W, H), max_iter=3, tol=0)
    for _ in range(3):
        H = (H - (H @ W.T - V) @ W / torch.linalg.eigvalsh(W.T @ W)[-1]).clamp(min=1e-5)
        W = (W - (H @ W.T - V).T @ H / torch.linalg.eigvalsh(H.T @ H)[-1]).clamp(min=1e-5)
    torch.testing.assert_close(found.H, H, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.W, W, rtol=1e-6, atol=1e-8)


def test_a_masked_gradient_step_leaves_unobserved_entries_out_of_the_residual():
    _, _, V = planted()
    W, H = pair(V, 4)
    mask = torch.rand(V.shape, generator=seeded()) < 0.7
    found = factorize(V, 4, rule=GradientUpdates(), mask=mask, init=(W, H), max_iter=1, tol=0)
    H = torch.relu(H - (mask * (H @ W.T - V)) @ W / torch.linalg.eigvalsh(W.T @ W)[-1])
    W = torch.relu(W - (mask * (H @ W.T - V)).T @ H / torch.linalg.eigvalsh(H.T @ H)[-1])
    torch.testing.assert_close(found.H, H, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.W, W, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_lee_seung_is_the_published_update(rate):
    _, _, V = planted()
    W, H = pair(V, 4)
    rule = LeeSeung(floor=1e-5, eps=1e-5, rate=rate, steps=2)
    found = factorize(V, 4, rule=rule, init=(W, H), max_iter=1, tol=0)
    for _ in range(2):
        ratio = (V @ W + 1e-5) / (H @ (W.T @ W) + 1e-5)
        H = (H * (rate * ratio + 1 - rate)).clamp(min=1e-5)
    for _ in range(2):
        ratio = (V.T @ H + 1e-5) / (W @ (H.T @ H) + 1e-5)
        W = (W * (rate * ratio + 1 - rate)).clamp(min=1e-5)
    torch.testing.assert_close(found.H, H)
    torch.testing.assert_close(found.W, W)


def test_paper_presets_have_the_published_floor():
    assert GradientUpdates.paper().floor == LeeSeung.paper().floor == LeeSeung.paper().eps == 1e-5


def test_a_part_of_zeros_stays_finite():
    _, _, V = planted()
    W, H = pair(V, 4)
    W[:, 1] = 0.0
    for rule in RULES:
        found = factorize(V, 4, rule=rule, init=(W, H), l1=0.1, max_iter=5, tol=0)
        assert found.W.isfinite().all() and found.H.isfinite().all()


# Normalization


def test_mean_of_max_brings_both_largest_entries_to_their_mean():
    W, H = torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([[5.0, 1.0], [0.0, 4.0]])
    scale_W, scale_H = MeanOfMax().scales(W.T, H.T)
    torch.testing.assert_close(W * scale_W.T, torch.tensor([[4 / 3, 0.0], [4.0, 3.0]]))
    torch.testing.assert_close(H * scale_H.T, torch.tensor([[4.0, 0.75], [0.0, 3.0]]))


def test_column_cap_only_scales_down_and_only_W():
    W, H = torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([[1.5, 1.0], [0.0, 4.0]])
    scale_W, scale_H = ColumnCap().scales(W.T, H.T)
    torch.testing.assert_close(W * scale_W.T, torch.tensor([[0.5, 0.0], [1.5, 2.0]]))
    torch.testing.assert_close(scale_H, torch.ones(2, 1))


@pytest.mark.parametrize("normalization", [MeanOfMax(), ColumnCap(), UnitNorm()], ids=str)
def test_a_column_of_zeros_is_left_alone(normalization):
    scale_W, scale_H = normalization.scales(torch.zeros(1, 3), torch.zeros(1, 2))
    assert scale_W.isfinite().all() and scale_H.isfinite().all()


def literal_step(V, W, H):
    H = torch.relu(H - (H @ W.T - V) @ W / torch.linalg.eigvalsh(W.T @ W)[-1])
    yield H
    yield torch.relu(W - (H @ W.T - V).T @ H / torch.linalg.eigvalsh(H.T @ H)[-1])


def test_the_column_cap_acts_just_before_the_left_update():
    _, _, V = planted()
    W, H = pair(V, 4)
    W = 10 * W
    found = factorize(V, 4, rule=GradientUpdates(), normalization=ColumnCap(), init=(W, H), max_iter=1, tol=0)
    H = next(literal_step(V, W, H))
    W = W * (H.amax(0) / W.amax(0)).clamp(max=1.0)
    W = torch.relu(W - (H @ W.T - V).T @ H / torch.linalg.eigvalsh(H.T @ H)[-1])
    torch.testing.assert_close(found.W, W, rtol=1e-6, atol=1e-8)
    assert found.objective == pytest.approx(half_squared_error(V, W, H), rel=1e-6)


@pytest.mark.parametrize("batch_size", [None, 25])
def test_mean_of_max_holds_for_the_result(batch_size):
    _, _, V = planted()
    found = factorize(V, 4, normalization=MeanOfMax(), batch_size=batch_size, max_iter=30, generator=seeded())
    torch.testing.assert_close(found.W.amax(0), found.H.amax(0))
    assert found.objective == pytest.approx(half_squared_error(V, found.W, found.H), rel=1e-6)


@pytest.mark.parametrize("rule", [HALS(), GradientUpdates()], ids=str)
def test_unit_norm_changes_the_scale_and_nothing_else(rule):
    _, _, V = planted()
    options = {"rule": rule, "init": pair(V, 4), "max_iter": 30, "tol": 0}
    unit = factorize(V, 4, normalization=UnitNorm(), **options)
    torch.testing.assert_close(unit.W.norm(dim=0), torch.ones(4, dtype=V.dtype))
    assert unit.objective == pytest.approx(half_squared_error(V, unit.W, unit.H), rel=1e-6)
    if rule.scale_free:
        free = factorize(V, 4, **options)
        torch.testing.assert_close(unit.H @ unit.W.T, free.H @ free.W.T)


# Options


def test_unobserved_entries_change_nothing_whatever_they_hold():
    _, _, V = planted()
    mask = torch.rand(V.shape, generator=seeded()) < 0.7
    results = [
        factorize(V.where(mask, fill), 4, mask=mask, max_iter=15, tol=0, generator=seeded(1))
        for fill in (math.nan, -math.inf, 0.0)
    ]
    for other in results[1:]:
        assert torch.equal(results[0].W, other.W) and torch.equal(results[0].H, other.H)


@pytest.mark.parametrize("batch_size", [None, 50])
def test_a_planted_matrix_with_a_third_missing_is_completed(batch_size):
    _, _, V = planted(n=200, m=30, r=3)
    mask = torch.rand(V.shape, generator=seeded()) < 0.7
    found = factorize(
        V.where(mask, math.nan), 3, mask=mask, tol=0, max_iter=200, batch_size=batch_size, generator=seeded(1)
    )
    missing = ~mask
    error = ((found.H @ found.W.T - V)[missing].norm() / V[missing].norm()).item()
    assert error < 0.01


def test_a_mask_broadcasts_and_hides_whole_columns():
    _, _, V = planted()
    mask = torch.ones(20, dtype=torch.bool)
    mask[:5] = False
    found = factorize(V, 4, mask=mask, max_iter=100, tol=0, generator=seeded())
    direct = factorize(V[:, 5:], 4, max_iter=100, tol=0, generator=seeded())
    assert found.objective == pytest.approx(direct.objective, abs=0.01 * float(V.square().sum()))


@pytest.mark.parametrize("rule", [HALS(), HALS(extrapolate=False), GradientUpdates(steps=5)], ids=str)
def test_semi_nmf_explains_signed_data_with_nonnegative_codes(rule):
    _, _, V = planted(signed=True)
    found = factorize(V, 4, rule=rule, nonnegative=False, tol=0, max_iter=500, generator=seeded(2))
    assert (found.H >= 0).all() and (found.W < 0).any()
    assert found.objective < 5e-3 * float(V.square().sum())


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_l1_makes_codes_sparser_and_keeps_parts_at_norm_one(digits, rule):
    small = digits[:200]
    plain, sparse = (factorize(small, 8, rule=rule, l1=l1, max_iter=60, tol=0, generator=seeded()) for l1 in (0.0, 0.3))

    def amount(found):
        return float((found.W.norm(dim=0) * found.H).sum())

    assert amount(sparse) < 0.9 * amount(plain)
    norms = sparse.W.norm(dim=0)
    assert ((norms - 1).abs() < 1e-6).logical_or(norms == 0).all()
    if isinstance(rule, HALS):
        assert (sparse.H == 0).double().mean() > (plain.H == 0).double().mean()


def test_a_large_l1_leaves_no_codes(digits):
    assert factorize(digits[:100], 5, l1=100.0, generator=seeded()).H.count_nonzero() == 0


def test_restarts_are_never_worse(digits):
    once, often = (factorize(digits[:200], 6, max_iter=30, restarts=k, generator=seeded()).objective for k in (1, 4))
    assert often <= once


@pytest.mark.parametrize("rule", [HALS(), LeeSeung(steps=3), GradientUpdates(steps=3)], ids=str)
def test_batches_come_close_to_all_rows_at_once(digits, rule):
    full, batched = (
        factorize(digits, 8, rule=rule, batch_size=size, max_iter=60, tol=0, generator=seeded()).objective
        for size in (None, 150)
    )
    assert batched < 1.04 * full


@pytest.mark.parametrize(
    ("rows", "rule", "batch_size"),
    [(3999, HALS(), None), (4000, LeeSeung(), None), (4000, HALS(), 4000)],
    ids=["few rows", "other rule", "batches asked for"],
)
def test_without_a_sample_the_first_iteration_starts_where_it_was_told_to(rows, rule, batch_size):
    V, start = many_rows(rows)
    first = factorize(V, 4, rule=rule, init=start, batch_size=batch_size, max_iter=1)
    again = factorize(V, 4, rule=rule, init=start, batch_size=rows, max_iter=1)
    assert torch.equal(first.W, again.W)


def test_many_rows_begin_with_a_sample_that_saves_passes():
    V, start = many_rows(8000)
    sampled = factorize(V, 4, init=start, max_iter=2)
    plain = factorize(V, 4, init=start, batch_size=8000, max_iter=2)
    assert sampled.objective < 0.8 * plain.objective
    assert len(sampled.history.objective) == 2


def many_rows(count):
    """Rows that are sums of four parts, and a start."""
    W, H = torch.rand(30, 4, generator=seeded()) ** 4, torch.rand(count, 4, generator=seeded()) ** 4
    start = torch.rand(30, 4, generator=seeded(1)), torch.rand(count, 4, generator=seeded(2))
    return H @ W.T, start


def test_a_batch_of_all_rows_is_no_batch(digits):
    full, batched = (factorize(digits, 5, batch_size=k, max_iter=5, generator=seeded()) for k in (None, 600))
    assert torch.equal(full.W, batched.W)


def test_a_seed_decides_everything(digits):
    first, second, other = (factorize(digits[:200], 5, max_iter=10, generator=seeded(k)) for k in (0, 0, 1))
    assert torch.equal(first.W, second.W) and torch.equal(first.H, second.H)
    assert not torch.equal(first.W, other.W)


def test_the_data_and_the_start_are_left_as_they_were():
    _, _, V = planted()
    W, H = pair(V, 4)
    copies = V.clone(), W.clone(), H.clone()
    for batch_size in (None, 20):
        for rule in RULES:
            factorize(V, 4, rule=rule, init=(W, H), max_iter=3, batch_size=batch_size)
    assert all(torch.equal(a, b) for a, b in zip((V, W, H), copies, strict=True))


def test_a_tolerance_stops_early_and_a_tighter_one_later(digits):
    counts = [
        len(factorize(digits, 5, tol=tol, max_iter=300, generator=seeded()).history.objective)
        for tol in (1e-2, 1e-4, 0.0)
    ]
    assert counts[0] < counts[1] < counts[2] == 300


def test_data_of_zeros_need_one_iteration():
    found = factorize(torch.zeros(5, 4), 2, init=(torch.ones(4, 2), torch.zeros(5, 2)))
    assert found.objective == 0 and len(found.history.objective) == 1


def test_a_callback_sees_every_iteration_and_can_stop():
    _, _, V = planted()
    seen = []

    def callback(iteration, objective):
        seen.append((iteration, objective))
        return iteration == 3

    history = factorize(V, 2, callback=callback, tol=0, generator=seeded()).history
    assert [k for k, _ in seen] == [1, 2, 3] and [f for _, f in seen] == history.objective


def test_gradients_are_neither_needed_nor_recorded():
    V = planted()[2].requires_grad_()
    found = factorize(V, 2, max_iter=2, generator=seeded())
    assert not found.W.requires_grad and not found.H.requires_grad


# Accuracy of the objective


def test_a_small_error_is_accurate_in_float32_and_never_rises():
    _, _, V = planted(n=200, m=50, r=5)
    noisy = (V + 1e-3 * torch.rand(V.shape, generator=seeded(), dtype=V.dtype)).float()
    found = factorize(noisy, 5, tol=0, max_iter=300, generator=seeded(1))
    assert found.objective < 1e-5 * float(noisy.square().sum())
    exact = half_squared_error(noisy.double(), found.W.double(), found.H.double())
    assert found.objective == pytest.approx(exact, rel=1e-3)
    later, earlier = (torch.tensor(found.history.objective[k]) for k in (slice(1, None), slice(None, -1)))
    assert (later <= 1.001 * earlier).all()


# The progress bar


class Terminal:
    def __init__(self, stream):
        self._stream = stream

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self._stream, name)


def test_a_progress_bar_appears_when_asked_for(capsys):
    _, _, V = planted()
    factorize(V, 2, max_iter=3, progress=True, generator=seeded())
    assert "3 of 3" in capsys.readouterr().err


def test_no_progress_bar_for_a_short_run_or_when_not_wanted(capsys, monkeypatch):
    _, _, V = planted()
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    for progress in (None, False):
        factorize(V, 2, max_iter=3, progress=progress, generator=seeded())
    assert capsys.readouterr().err == ""


def test_a_progress_bar_appears_on_a_terminal_after_a_while(capsys, monkeypatch):
    _, _, V = planted()
    now = time.monotonic()
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    monkeypatch.setattr(time, "monotonic", lambda: (ticks.append(1), now + len(ticks))[1])
    ticks = []
    factorize(V, 2, max_iter=10, tol=0, generator=seeded())
    assert "10 of 10" in capsys.readouterr().err


def test_without_rich_there_is_no_bar_and_no_complaint(capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find_spec(name))
    real_import = builtins.__import__

    def no_rich(name, *args, **kwargs):
        assert not name.startswith("rich")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_rich)
    factorize(planted()[2], 2, max_iter=3, progress=True, generator=seeded())
    assert capsys.readouterr().err == ""


# Errors

V = torch.ones(6, 4)
PAIR = (torch.ones(4, 2), torch.ones(6, 2))


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, r"V must be a torch\.Tensor, got list", {"V": [[1.0]]}),
        (TypeError, r"V must be float32 or float64, got torch\.int64", {"V": torch.ones(6, 4, dtype=torch.long)}),
        (ValueError, r"V must be a matrix \(n, m\) .*, got shape \(2, 6, 4\)", {"V": torch.ones(2, 6, 4)}),
        (ValueError, r"V must be a matrix .*, got shape \(0, 4\)", {"V": torch.ones(0, 4)}),
        (ValueError, r"V must be finite, got NaN or infinite", {"V": V * math.nan}),
        (ValueError, r"V must be finite, got NaN or infinite", {"V": V * math.inf}),
        (ValueError, r"V must be non-negative, got an entry of -1; nonnegative=False", {"V": -V}),
        (TypeError, r"num_basis must be an int, got 2\.0", {"num_basis": 2.0}),
        (ValueError, r"num_basis must be at least 1, got 0", {"num_basis": 0}),
        (ValueError, r"max_iter must be at least 1, got 0", {"max_iter": 0}),
        (ValueError, r"restarts must be at least 1, got 0", {"restarts": 0}),
        (ValueError, r"batch_size must be at least 1, got 0", {"batch_size": 0}),
        (ValueError, r"l1 must be non-negative and finite, got -1", {"l1": -1}),
        (ValueError, r"tol must be non-negative and finite, got nan", {"tol": math.nan}),
        (TypeError, r"mask must be a boolean tensor .*, got torch\.float32", {"mask": V}),
        (TypeError, r"mask must be a boolean tensor .*, got str", {"mask": "all"}),
        (ValueError, r"mask must broadcast to .* \(6, 4\), got \(5, 4\)", {"mask": torch.ones(5, 4) > 0}),
        (ValueError, r"mask must be on the device of V \(cpu\), got meta", {"mask": (V > 0).to("meta")}),
        (TypeError, r"rule must be an UpdateRule such as HALS\(\), got 'hals'", {"rule": "hals"}),
        (ValueError, r"rule must be HALS\(\) or .* nonnegative=False", {"rule": LeeSeung(), "nonnegative": False}),
        (TypeError, r"normalization must be a Normalization .*, got True", {"normalization": True}),
        (TypeError, r"init must be a pair \(W, H\) or None, got 'random'", {"init": "random"}),
        (ValueError, r"init must be a pair \(W, H\), got 1 items", {"init": PAIR[:1]}),
        (ValueError, r"restarts must be 1 where init is a pair", {"init": PAIR, "restarts": 2}),
        (TypeError, r"init must be a pair .* of tensors, got int for H", {"init": (PAIR[0], 1)}),
        (ValueError, r"init must have W of shape \(4, 2\), got \(6, 2\)", {"init": PAIR[::-1]}),
        (ValueError, r"init must have the dtype .* for W", {"init": (PAIR[0].double(), PAIR[1])}),
        (ValueError, r"init must be finite, .* in H", {"init": (PAIR[0], PAIR[1] * math.nan)}),
        (ValueError, r"init must be non-negative, got an entry of -1 in W", {"init": (-PAIR[0], PAIR[1])}),
        (ValueError, r"init must be non-negative, .* in H", {"init": (PAIR[0], -PAIR[1]), "nonnegative": False}),
    ],
)
def test_wrong_input_is_named(error, message, arguments):
    with pytest.raises(error, match=message):
        factorize(**{"V": V, "num_basis": 2, **arguments})


@pytest.mark.parametrize(
    ("rule", "arguments", "message"),
    [
        (HALS, {"floor": -1.0}, r"floor must be non-negative and finite, got -1\.0"),
        (HALS, {"sweeps": 0}, r"sweeps must be at least 1, got 0"),
        (GradientUpdates, {"steps": 0}, r"steps must be at least 1, got 0"),
        (GradientUpdates, {"rate": 2.0}, r"rate must be greater than 0 and less than 2, got 2\.0"),
        (LeeSeung, {"steps": 0}, r"steps must be at least 1, got 0"),
        (LeeSeung, {"eps": 0.0}, r"eps must be positive and finite, got 0\.0"),
        (LeeSeung, {"rate": 1.5}, r"rate must be greater than 0 and at most 1, got 1\.5"),
    ],
)
def test_wrong_settings_of_a_rule_are_named(rule, arguments, message):
    with pytest.raises(ValueError, match=message):
        rule(**arguments)


def test_signed_data_may_start_from_a_signed_pair():
    _, _, signed = planted(signed=True)
    found = factorize(signed, 4, nonnegative=False, init=pair(signed, 4, signed=True), max_iter=50)
    assert found.objective < float(signed.square().sum()) / 4


@pytest.mark.gpu
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_cuda_device_finds_what_the_cpu_finds(rule):
    _, _, cpu = planted()
    start = pair(cpu, 4)
    mask = torch.rand(cpu.shape, generator=seeded()) < 0.9
    for options in ({}, {"l1": 0.1}, {"batch_size": 20}, {"mask": mask}):
        expected = factorize(cpu, 4, rule=rule, init=start, max_iter=20, tol=0, **options)
        on_device = {**options, "mask": mask.cuda()} if "mask" in options else options
        found = factorize(
            cpu.cuda(), 4, rule=rule, init=tuple(F.cuda() for F in start), max_iter=20, tol=0, **on_device
        )
        torch.testing.assert_close(found.W.cpu(), expected.W, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
def test_a_generator_of_the_cpu_seeds_a_cuda_device():
    _, _, cpu = planted()
    found = [factorize(V, 4, max_iter=5, generator=seeded()).objective for V in (cpu, cpu.cuda())]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"l1": 0.1}, {"normalization": UnitNorm()}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_size_of_the_data_matters(dtype, options) -> None:
    V = planted(dtype=dtype)[2]
    objectives = []

    def found(power):
        penalty = {"l1": options["l1"] * 4.0**power} if "l1" in options else {}
        scaled = (V.double() * 4.0**power).to(dtype)
        settings = {**options, **penalty, "max_iter": 30, "generator": seeded()}
        return factorize(scaled, 4, **settings, callback=lambda k, objective: objectives.append(objective))

    plain = found(0)
    for power in (-60, -30, -5, 5, 30, 60) if dtype == torch.float32 else (-500, -100, -5, 5, 100, 500):
        scaled = found(power)
        product, expected = scaled.H.double() @ scaled.W.double().T, plain.H.double() @ plain.W.double().T
        torch.testing.assert_close(product / 4.0**power, expected, rtol=1e-5, atol=1e-6)
        assert objectives[-1] == scaled.objective
        if abs(power) < 200:
            assert scaled.objective == pytest.approx(plain.objective * 16.0**power, rel=1e-4, abs=1e-6 * 16.0**power)
