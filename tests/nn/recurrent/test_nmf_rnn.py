import math
import pickle
from copy import deepcopy
from typing import Any

import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc import NMFRNN
from torchpfc.interpret import columns_in_use, transition_graph
from torchpfc.nmf import ColumnCap, MeanOfMax, Normalization
from torchpfc.nn import AllSlices, SliceBySlice
from torchpfc.nn.recurrent.nmf_rnn import Losses
from torchpfc.solvers.cuda import choice, fused

PATTERN = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 2, 2, 2, 2, 2, 1, 3, 2, 1]
FLOOR = 1e-5
OPTIONS: dict[str, Any] = {"dtype": torch.float64, "init_range": (0.0, 0.4), "inference": SliceBySlice(12)}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(seed: int = 0, **options: Any) -> NMFRNN:
    return NMFRNN(4, 6, 3, generator=generator(seed), **{**OPTIONS, **options})


def make_data(batch: int = 3, slices: int = 5) -> tuple[Tensor, Tensor]:
    x = torch.rand(batch, slices, 4, generator=generator(1), dtype=torch.float64)
    return x, torch.rand(batch, slices, 3, generator=generator(2), dtype=torch.float64)


def largest_eigenvalue(A: Tensor) -> float:
    """By forty power iterations from the library's start, since fewer than to convergence are part of the rule."""
    start = 1 + (torch.arange(A.shape[1], dtype=A.dtype) * 0.6180339887).frac()
    for _ in range(40):
        start = A.T @ (A @ start)
        start = start / start.norm()
    return float((A @ start).norm() ** 2)


def plain_states(
    x: Tensor, W_h: Tensor, W_x: Tensor, state: Tensor, *, steps: int, rate: float, threshold: float, over_batch: bool
) -> Tensor:
    """The published inference in columns: x is (features, T, batch) and a state (R, batch)."""
    W = torch.cat([W_h, W_x])
    eta = rate / largest_eigenvalue(W)
    states = []
    for t in range(x.shape[1]):
        z = torch.cat([state, x[:, t]])
        h = torch.zeros_like(state)
        for _ in range(steps):
            h = h - eta * (W.T @ (W @ h - z))
            h = h.sign() * (h.abs() - threshold).clamp(min=0)
            h = h.clamp(min=FLOOR)
            if over_batch:
                if h.max() > z.abs().max():
                    h = h * z.abs().max() / h.max()
            else:
                h = h * (z.abs().amax(0) / h.amax(0)).clamp(max=1)
        states.append(h)
        state = h
    return torch.stack(states, 1)


def plain_pass(
    rnn: NMFRNN,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    state: Tensor,
    *,
    over_batch: bool,
    normalization: Normalization | None,
) -> tuple[Tensor, Tensor]:
    """The published learning step in columns; returns the new weights and the three errors."""
    W_y, W_h, W_x = (w.clone() for w in (rnn.weight_y, rnn.weight_h, rnn.weight_x))
    h = plain_states(x, W_h, W_x, state, steps=12, rate=rnn.rate_h, threshold=rnn.threshold, over_batch=over_batch)
    before = torch.cat([state.unsqueeze(1), h[:, :-1]], 1)
    errors = torch.stack(
        [
            ((torch.einsum("or,rtn->otn", W_y, h) - y) ** 2)[:, mask].mean(),
            ((torch.einsum("or,rtn->otn", W_h, h) - before) ** 2).mean(),
            ((torch.einsum("or,rtn->otn", W_x, h) - x) ** 2).mean(),
        ]
    )
    H = h.flatten(1)
    W = torch.cat([W_y, W_h, W_x])
    seen = torch.cat([mask.flatten().double().expand(3, -1), torch.ones(10, H.shape[1], dtype=H.dtype)])
    if isinstance(normalization, ColumnCap):
        W = W * (H.amax(1) / W.abs().amax(0)).clamp(max=1)
    V = torch.cat([y.flatten(1), before.flatten(1), x.flatten(1)])
    W = W - rnn.rate_w / largest_eigenvalue(H.T) * (seen * (W @ H - V)) @ H.T
    if rnn.nonnegative:
        W = W.clamp(min=FLOOR)
    if isinstance(normalization, MeanOfMax):
        W = W * (W.abs().amax(0) + H.amax(1)) / 2 / W.abs().amax(0)
    return W, errors


CASES: dict[str, dict[str, Any]] = {
    "published": {},
    "semi-NMF": {"nonnegative": False, "init_range": (-0.3, 0.4)},
    "rates and threshold": {"rate_h": 1.0, "rate_w": 0.8, "threshold": 0.01},
    "cap over each sequence": {"cap_over_batch": False},
    "joint normalization": {"normalization": MeanOfMax()},
    "no normalization": {"normalization": None},
}


@pytest.mark.parametrize("name", CASES)
def test_a_pass_is_that_of_the_published_code(name: str) -> None:
    rnn, (x, y) = make(**CASES[name]), make_data()
    state = 0.3 * torch.rand(3, 6, generator=generator(3), dtype=torch.float64)
    mask = torch.rand(3, 5, generator=generator(4)) < 0.6
    columns = {"x": x.permute(2, 1, 0), "y": y.permute(2, 1, 0), "mask": mask.T, "state": state.T}
    over_batch = rnn.cap_over_batch
    h = plain_states(
        columns["x"],
        rnn.weight_h,
        rnn.weight_x,
        columns["state"],
        steps=12,
        rate=rnn.rate_h,
        threshold=rnn.threshold,
        over_batch=over_batch,
    )
    torch.testing.assert_close(rnn.infer(x, state), h.permute(2, 1, 0), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(rnn.predict(x, state), torch.einsum("or,rtn->nto", rnn.weight_y, h))
    expected, errors = plain_pass(rnn, **columns, over_batch=over_batch, normalization=rnn.normalization)
    losses = rnn.learn(x, y, mask=mask, state=state)
    torch.testing.assert_close(rnn.weight, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.stack(losses), errors)
    torch.testing.assert_close(losses.total, errors.sum())


def test_passes_follow_each_other_and_a_callback_may_end_them() -> None:
    (x, y), rnn, other = make_data(), make(), make()
    told: list[tuple[int, Losses]] = []

    def stop_at_three(number: int, losses: Losses) -> bool:
        told.append((number, losses))
        return number == 3

    history = rnn.fit(x, y, passes=9, callback=stop_at_three)
    alone = [other.learn(x, y) for _ in range(3)]
    assert torch.equal(rnn.weight, other.weight)
    assert [number for number, _ in told] == [1, 2, 3]
    for k, losses in enumerate(alone):
        assert all(torch.equal(series[k], value) for series, value in zip(history, losses, strict=True))
    assert len(rnn.fit(x, y, passes=2).y) == 2


def test_a_pass_gives_the_states_that_it_found() -> None:
    (x, y), one, other = make_data(), make(), make()
    states = one.infer(x)
    losses, found = one.learn_pass(x, y)
    torch.testing.assert_close(found, states)
    assert torch.equal(losses.total, other.learn(x, y).total) and torch.equal(one.weight, other.weight)
    stack = make(num_models=2)
    assert stack.learn_pass(x, y)[1].shape == (2, 3, 5, 6) and stack.learn_pass(x[0], y[0])[1].shape == (2, 5, 6)


def test_a_mask_of_slices_holds_for_all_sequences() -> None:
    (x, y), one, other = make_data(), make(), make()
    mask = torch.tensor([False, True, False, False, True])
    one.learn(x, y, mask=mask)
    other.learn(x, y, mask=mask.expand(3, 5))
    assert torch.equal(one.weight, other.weight)
    hidden = y.clone()
    hidden[:, ~mask] = math.nan
    third = make()
    third.learn(x, hidden, mask=mask)
    torch.testing.assert_close(third.weight, one.weight)


def test_both_kinds_of_inference_end_at_the_same_states() -> None:
    W = torch.eye(4, 4, dtype=torch.float64)
    x, _ = make_data()
    found = []
    for inference in (SliceBySlice(400), AllSlices(2000), AllSlices(2000, reuse=True)):
        rnn = NMFRNN(4, 4, 2, inference=inference, dtype=torch.float64, generator=generator(), rate_h=1.0)
        rnn.weight[2:6] = 0.5 * W.roll(1, 0)
        rnn.weight[6:] = W
        found.append(rnn.infer(x))
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found[2], found[1])
    assert found[0].shape == (3, 5, 4)


def test_states_can_be_used_again_by_the_next_pass() -> None:
    x, y = make_data()
    errors = {}
    for reuse in (False, True):
        rnn = make(inference=AllSlices(3, reuse=reuse), rate_w=1e-9, normalization=None)
        errors[reuse] = rnn.fit(x, y, passes=30).x
    assert errors[True][-1] < 0.9 * errors[False][-1] and errors[True][0] == errors[False][0]


def test_models_learned_at_once_are_those_learned_alone() -> None:
    x, y = make_data()
    for options in ({}, {"normalization": MeanOfMax()}, {"inference": AllSlices(9), "cap_over_batch": False}):
        stack = make(num_models=3, **options)
        members = stack.unstack()
        mask = torch.tensor([True, False, True, True, True])
        history = stack.fit(x, y, passes=3, mask=mask)
        assert history.y.shape == (3, 3)
        for i, member in enumerate(members):
            alone = member.fit(x, y, passes=3, mask=mask)
            torch.testing.assert_close(stack.weight[i], member.weight)
            torch.testing.assert_close(history.total[:, i], alone.total)
            torch.testing.assert_close(stack.predict(x)[i], member.predict(x))
            torch.testing.assert_close(stack.predict(x[0])[i], member.predict(x[0]))
        own = torch.stack([x, 2 * x, 3 * x])
        torch.testing.assert_close(stack.predict(own)[1], members[1].predict(2 * x))
    with pytest.raises(RuntimeError, match="unstack needs a model made with num_models, got a single one"):
        members[0].unstack()


def test_any_batch_dimensions() -> None:
    x, y = make_data(6)
    flat, grid = make(), make()
    flat.learn(x, y)
    grid.learn(x.view(2, 3, 5, 4), y.view(2, 3, 5, 3), mask=torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(grid.weight, flat.weight)
    torch.testing.assert_close(grid.predict(x.view(2, 3, 5, 4)), flat.predict(x).view(2, 3, 5, 3))


def test_generation_feeds_predictions_back() -> None:
    for options in ({}, {"cap_over_batch": False}):
        rnn = NMFRNN(4, 6, generator=generator(), **{**OPTIONS, **options})
        seed, _ = make_data(2, 3)
        generated = rnn.generate(seed, 4, iterations=12)
        assert generated.shape == (2, 7, 4) and torch.equal(generated[:, :3], seed)
        W = torch.cat([rnn.weight_h, rnn.weight_x])
        eta = 1 / largest_eigenvalue(W)
        x, h = list(seed.unbind(1)), torch.zeros(2, 6, dtype=torch.float64)
        for t in range(6):
            z, h = torch.cat([h, x[t]], 1), torch.zeros_like(h)
            for _ in range(12):
                h = (h - eta * (h @ W.T - z) @ W).clamp(min=FLOOR)
                if options:
                    h = h * (seed.amax((1, 2)) / h.amax(1)).clamp(max=1).unsqueeze(1)
                else:
                    h = h * (seed.max() / h.max()).clamp(max=1)
            if t >= 2:
                x.append(h @ rnn.weight_y.T)
        torch.testing.assert_close(generated, torch.stack(x, 1))
        torch.testing.assert_close(rnn.generate(seed[0], 1, iterations=12).shape, torch.Size([4, 4]))


@pytest.mark.parametrize("cap_over_batch", [True, False])
def test_models_at_once_go_on_as_each_would_alone(cap_over_batch: bool) -> None:
    stack = NMFRNN(4, 6, num_models=2, cap_over_batch=cap_over_batch, generator=generator(), **OPTIONS)
    seeds = torch.stack([make_data(3, 2)[0], 5 * make_data(3, 2)[0]])  # what caps one model must not cap the other
    together = stack.generate(seeds, 4)
    for rnn, seed, found in zip(stack.unstack(), seeds, together, strict=True):
        torch.testing.assert_close(rnn.generate(seed, 4), found)


def test_the_size_of_signed_seeds_caps_states_and_not_their_sign() -> None:
    options = {**OPTIONS, "nonnegative": False, "init_range": (-0.5, 0.5)}
    rnn = NMFRNN(4, 6, generator=generator(), **options)
    seed = -make_data(2, 3)[0]
    W = torch.cat([rnn.weight_h, rnn.weight_x])
    z = torch.cat([torch.zeros(2, 6, dtype=torch.float64), seed[:, 0]], 1)
    expected = torch.stack([torch.from_numpy(scipy.optimize.nnls(W.numpy(), row.numpy())[0]) for row in z])
    assert 0.1 < expected.max() < seed.abs().max()  # so the cap is not in the way
    found = rnn.generate(seed[:, :1], 1, iterations=5000)[:, 1]
    torch.testing.assert_close(found, expected @ rnn.weight_y.T, atol=1e-3, rtol=0.0)


def test_symbols_are_one_hot_vectors_and_targets_come_next_by_default() -> None:
    symbols = torch.tensor([[0, 2, 1, 3, 0], [3, 3, 1, 0, 2]])
    vectors = F.one_hot(symbols, 4).double()
    one, other = (NMFRNN(4, 6, generator=generator(), **OPTIONS) for _ in range(2))
    one.learn(symbols)
    other.learn(vectors[:, :-1], vectors[:, 1:])
    assert torch.equal(one.weight, other.weight)
    one.learn(symbols[:, :-1], symbols[:, 1:])
    other.learn(vectors)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.predict(symbols), one.predict(vectors))
    assert torch.equal(one.predict(symbols[0]), one.predict(vectors[0]))
    assert torch.equal(one.generate(symbols[0], 3), one.generate(vectors[0], 3))


def test_it_survives_what_modules_survive() -> None:
    rnn, (x, y) = make(), make_data()
    rnn.learn(x, y)
    other = make(1)
    other.load_state_dict(rnn.state_dict())
    for twin in (other, deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        assert torch.equal(twin.predict(x), rnn.predict(x))
    assert not list(rnn.parameters()) and rnn.to(torch.float32).predict(x.float()).dtype == torch.float32
    assert "num_models=2" in repr(make(num_models=2)) and "inference=SliceBySlice(iterations=12)" in repr(rnn)
    signed = NMFRNN(4, 50, nonnegative=False)
    assert -1e-2 <= signed.weight.min() < -9e-3 and 9e-3 < signed.weight.max() < 1e-2
    plain = NMFRNN(4, 50)
    assert plain.weight.min() >= FLOOR and 1.9e-2 < plain.weight.max() < 2e-2


def test_a_sequence_that_goes_round_begins_where_it_ended() -> None:
    (x, y), rnn, other = make_data(1), make(), make()
    rnn.fit(x, y, passes=3, periodic=True)
    state = None
    for _ in range(3):
        following = other.infer(x, state)[:, -1]
        other.learn(x, y, state=state)
        state = following
    torch.testing.assert_close(rnn.weight, other.weight)


# Learning


def test_the_repeating_pattern_becomes_a_machine_of_as_many_states_as_it_has_places() -> None:
    symbols = torch.tensor(PATTERN * 2 + PATTERN[:1])
    rnn = NMFRNN(4, 100, inference=SliceBySlice(30), generator=generator(2))
    rnn.fit(symbols, passes=80, periodic=True)
    rnn.threshold = 1e-3  # lets go of what is not needed
    rnn.fit(symbols, passes=60, periodic=True)
    rnn.threshold, rnn.inference = 0.0, AllSlices(100, reuse=True)
    losses = rnn.fit(symbols, passes=150, periodic=True)
    assert losses.y[-1] < 1e-4
    assert len(columns_in_use(rnn)) == len(PATTERN) == 25
    graph = transition_graph(rnn)
    assert len(graph.transitions) == 25
    assert [state.reads for state in graph.states] == PATTERN  # the only place of the symbol 0 comes first
    continued = (PATTERN * 3)[:65]
    assert graph.generate(PATTERN[:15], 50) == continued
    assert rnn.generate(symbols[:15], 50).argmax(-1).tolist() == continued


def test_a_short_pattern_is_learned_exactly_by_every_one_of_several_models() -> None:
    pattern = [0, 1, 1, 2, 0, 2]
    stack = NMFRNN(3, 30, num_models=4, threshold=5e-3, inference=AllSlices(60), generator=generator())
    symbols = torch.tensor(pattern * 3 + pattern[:1])
    stack.fit(symbols, passes=100, periodic=True)
    stack.threshold, stack.inference = 0.0, SliceBySlice(50)
    losses = stack.fit(symbols, passes=20, periodic=True)
    assert losses.y[-1].max() < 1e-7 and losses.total[-1].max() < 1e-7
    for rnn in stack.unstack():
        assert len(columns_in_use(rnn)) == 6
        assert transition_graph(rnn).generate(pattern[:3], 15) == pattern * 3
        assert rnn.generate(symbols[:3], 15).argmax(-1).tolist() == pattern * 3


def test_symbols_are_copied_after_a_pause() -> None:
    count, alphabet, pause, size = 2, 3, 1, 48
    random = generator()
    rnn = NMFRNN(alphabet + 2, size, alphabet, inference=SliceBySlice(20), generator=random)
    mask = torch.arange(2 * count + pause) >= count + pause

    def draw(batch: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens = torch.randint(alphabet, (batch, count), generator=random)
        rest = torch.tensor([alphabet] * pause + [alphabet + 1] * count).expand(batch, -1)
        state = 1e-2 * torch.rand(batch, size, generator=random)
        return torch.cat([tokens, rest], 1), tokens, state

    for _ in range(150):
        x, tokens, state = draw(32)
        y = torch.zeros(32, len(mask), alphabet)
        y[:, mask] = F.one_hot(tokens, alphabet).float()
        rnn.learn(x, y, mask=mask, state=state)
    x, tokens, state = draw(100)
    assert torch.equal(rnn.predict(x, state)[:, mask].argmax(-1), tokens)


# Bad input


def test_bad_sequences() -> None:
    rnn, (x, y) = make(), make_data()
    with pytest.raises(ValueError, match=r"x must have at least one slice, got shape \(3, 0, 4\)"):
        rnn.fit(x[:, :0], y[:, :0])
    with pytest.raises(ValueError, match=r"y must have shape \(3, 5, 3\) to match x, got \(3, 4, 3\)"):
        rnn.fit(x, y[:, 1:])
    with pytest.raises(ValueError, match=r"x must hold symbols from 0 to 3, got 0 to 4"):
        rnn.predict(torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"seed must hold symbols from 0 to 3, got -1 to 0"):
        NMFRNN(4, 6).generate(torch.tensor([0, -1]), 1)
    with pytest.raises(ValueError, match=r"y must hold symbols from 0 to 2, got 3 to 3"):
        rnn.fit(x, torch.full((3, 5), 3))
    with pytest.raises(ValueError, match=r"state must have shape \(3, 6\), got \(3, 5\)"):
        rnn.predict(x, torch.zeros(3, 5, dtype=x.dtype))
    with pytest.raises(TypeError, match=r"mask must be boolean \(True where a slice has a target\), got torch.float32"):
        rnn.fit(x, y, mask=torch.ones(3, 5))
    with pytest.raises(ValueError, match=r"mask must broadcast to shape \(3, 5\), got \(4,\)"):
        rnn.fit(x, y, mask=torch.ones(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="y must be given where outputs are no inputs, got None for 3 outputs"):
        rnn.fit(x)
    for short in (torch.tensor([1]), torch.tensor(1), torch.zeros(4)):
        with pytest.raises(ValueError, match="x must have at least two slices to predict the next, got shape"):
            NMFRNN(4, 6).fit(short)
    for use in (rnn.predict, rnn.infer):
        with pytest.raises(ValueError, match=r"x must hold at least one sequence, got shape \(0, 5, 4\)"):
            use(x[:0])
    with pytest.raises(ValueError, match=r"x must hold at least one sequence, got shape \(0, 5, 4\)"):
        rnn.learn(x[:0], y[:0])
    with pytest.raises(ValueError, match=r"seed must hold at least one sequence, got shape \(0, 5, 4\)"):
        NMFRNN(4, 6, dtype=x.dtype).generate(x[:0], 1)
    with pytest.raises(RuntimeError, match="whose outputs can be its inputs, got 3 outputs and 4 inputs"):
        rnn.generate(x, 3)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        NMFRNN(4, 6).generate(torch.tensor([0, 1]), 0)
    with pytest.raises(ValueError, match="passes must be at least 1, got 0"):
        rnn.fit(x, y, passes=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_models": 0}, "num_models must be at least 1, got 0"),
        ({"rate_h": 2.0}, "rate_h must be greater than 0 and less than 2, got 2.0"),
        ({"rate_w": 0.0}, "rate_w must be greater than 0 and less than 2, got 0.0"),
        ({"threshold": -1.0}, "threshold must be non-negative and finite, got -1.0"),
        ({"floor": math.inf}, "floor must be non-negative and finite, got inf"),
        ({"init_range": (-0.1, 0.1)}, r"init_range must be \(low, high\) with 0 <= low < high, got \(-0.1, 0.1\)"),
        (
            {"init_range": (0.1, 0.1), "nonnegative": False},
            r"init_range must be \(low, high\) with low < high, got \(0.1, 0.1\)",
        ),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NMFRNN(4, 6, **options)


def test_bad_sizes() -> None:
    for sizes, name in (((0, 6), "input_size"), ((4, 0), "num_basis"), ((4, 6, 0), "output_size")):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            NMFRNN(*sizes)
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        AllSlices(0)


# On a device


@pytest.mark.parametrize(("over_batch", "caps"), [(True, 1), (False, 3)])
def test_kernels_get_a_limit_for_each_cap(over_batch: bool, caps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def take_plain_steps(steps: int, C: Tensor, half: None, offset: Tensor, limit: Tensor, *_: Any, **how: Any) -> Any:
        limits.append((limit.shape, how["over_batch"]))
        return torch.zeros_like(offset)

    monkeypatch.setattr(choice, "can_take", lambda rows: True)
    monkeypatch.setattr(fused, "take_plain_steps", take_plain_steps)
    rnn = NMFRNN(4, 6, num_models=2, cap_over_batch=over_batch, generator=generator())
    rnn.infer(torch.rand(3, 5, 4, generator=generator(1)))
    rnn.generate(torch.rand(3, 5, 4, generator=generator(1)), 2)
    assert set(limits) == {((2, caps, 1), over_batch)}


@pytest.mark.gpu
@pytest.mark.parametrize("over_batch", [True, False])
@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize(("size", "tf32"), [(41, False), (300, False), (1024, False), (1024, True)])
def test_a_device_learns_the_same(size: int, tf32: bool, nonnegative: bool, over_batch: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    how: dict[str, Any] = {"num_models": 2, "nonnegative": nonnegative, "cap_over_batch": over_batch}
    rnn = NMFRNN(4, size, inference=SliceBySlice(30), generator=generator(), dtype=torch.float64, **how)
    x = torch.rand(9, 6, 4, generator=generator(1), dtype=torch.float64)
    results = []
    for model, data in ((rnn, x), (deepcopy(rnn).to("cuda", torch.float32), x.to("cuda", torch.float32))):
        losses = model.fit(data, passes=5)
        results.append([losses.total, model.weight, model.infer(data), model.generate(data, 3)])
    for expected, found in zip(*results, strict=True):
        assert (found.double().cpu() - expected).norm() < (3e-2 if tf32 else 1e-3) * expected.norm()
