import math
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.nn.recurrent.networks import (
    BASIS,
    INPUT,
    OPTIONS,
    OUTPUT,
    SIGNED,
    Maker,
    both,
    generator,
    make_input,
    make_rnn,
    make_state,
    make_vanilla,
)
from torchpfc import (
    FISTA,
    CoordinateDescent,
    FactorizedRNN,
    FactorizedRNNCell,
    Implicit,
    PFCBlock,
    ProjectedGradient,
    RMSprop,
    Truncated,
    Unrolled,
    keep_nonnegative,
    reconstruction_loss,
    record_couplings,
    rnn_reconstruction_loss,
)
from torchpfc.nn import RecurrentCoupling
from torchpfc.nn.recurrent.recurrence import Recurrence


def textbook(
    x: Tensor,
    W_y: Tensor,
    W_h: Tensor,
    W_x: Tensor,
    state: Tensor,
    L: Tensor,
    *,
    solver: FISTA | ProjectedGradient,
    bptt: bool = True,
    lengths: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """The published network in plain PyTorch: autograd through a double loop over slices and steps.

    Returns outputs, states, and the reconstructions and last states as lists over slices; a row that has ended keeps
    its state and gives zeros.
    """
    W = torch.cat([W_h, W_x])
    ys, states, reconstructions, lasts = [], [], [], []
    capped = 0
    for t in range(x.shape[1]):
        last = state if bptt or t == 0 else state.detach()
        z = torch.cat([last, x[:, t]], dim=1)
        limit = z.detach().abs().amax(1, keepdim=True)
        previous, ahead, clock = last, last, 1.0
        for _ in range(solver.max_iter):
            h = torch.clamp(ahead - (ahead @ W.T - z) @ W / L, min=solver.floor)
            if solver.cap:
                largest = h.detach().amax(1, keepdim=True)
                capped += int((largest > limit).sum())
                h = h * torch.where(largest > limit, limit / largest, 1.0)
            later = (1 + math.sqrt(1 + 4 * clock**2)) / 2
            momentum = (clock - 1) / later if isinstance(solver, FISTA) else 0.0
            ahead = h + momentum * (h - previous)
            previous, clock = h, later
        going = torch.tensor([lengths is None or t < lengths[i] for i in range(len(x))]).unsqueeze(1)
        state = torch.where(going, previous, last)
        ys.append(torch.where(going, state @ W_y.T, 0.0))
        states.append(state)
        reconstructions.append(torch.where(going, state @ W.T, 0.0))
        lasts.append(torch.where(going, z, 0.0).detach())
    if solver.cap:
        assert capped
    return torch.stack(ys, 1), torch.stack(states, 1), torch.stack(reconstructions, 1), lasts


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "NMF": (OPTIONS, {}),
    "semi-NMF": (SIGNED, {}),
    "NMF, without BPTT": (OPTIONS, {"bptt": False}),
    "semi-NMF, without BPTT": (SIGNED, {"bptt": False}),
    "without a cap": (OPTIONS, {"solver": FISTA(max_iter=7)}),
    "no momentum": (SIGNED, {"solver": ProjectedGradient(max_iter=7, cap=True)}),
    "no steps": (OPTIONS, {"solver": FISTA(max_iter=0)}),
    "no steps, without BPTT": (OPTIONS, {"solver": FISTA(max_iter=0), "bptt": False}),
}


@pytest.mark.parametrize("lengths", [None, [5, 1, 3]], ids=["", "lengths"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_plain_double_loop(name: str, lengths: list[int] | None) -> None:
    weights, options = CASES[name]
    rnn = make_rnn(**{**weights, **options}).eval()
    x, state = make_input().requires_grad_(), make_state().requires_grad_()
    noise = torch.randn(3, 5, OUTPUT, generator=generator(7), dtype=torch.float64)

    def loss_of(y: Tensor, last: Tensor, reconstruction: Tensor, target: Tensor) -> Tensor:
        loss = (y * noise).sum() + 0.3 * (reconstruction - target).square().sum()
        return loss + (last.sin().sum() if rnn.bptt else 0.0)

    with record_couplings(rnn) as seen:
        y, last = rnn(x, state, lengths)
    (coupling,) = seen["block"]
    ours = [x, state, rnn.block.weight_y, rnn.block.weight_x]
    found = torch.autograd.grad(loss_of(y, last, coupling.x, coupling.target), ours, allow_unused=True)

    W_y, W_h, W_x = (w.detach().clone().requires_grad_() for w in (rnn.weight_y, rnn.weight_h, rnn.weight_x))
    plain = textbook(
        x, W_y, W_h, W_x, state, rnn.block.lipschitz(), solver=rnn.block.solver, bptt=rnn.bptt, lengths=lengths
    )
    expected_y, states, reconstruction, lasts = plain
    torch.testing.assert_close(y, expected_y, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(last, states[:, -1], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(coupling.x, reconstruction, rtol=1e-12, atol=1e-14)
    target = torch.stack(lasts, 1)
    torch.testing.assert_close(coupling.target, target, rtol=1e-12, atol=1e-14)
    assert not coupling.target.requires_grad and last.requires_grad == rnn.bptt
    theirs = [x, state, W_y, W_h, W_x]
    expected = list(
        torch.autograd.grad(loss_of(expected_y, states[:, -1], reconstruction, target), theirs, allow_unused=True)
    )
    expected[3:] = [
        torch.cat([torch.zeros_like(w) if g is None else g for g, w in zip(expected[3:], (W_h, W_x), strict=True)])
    ]
    for gradient, other, tensor in zip(found, expected, ours, strict=True):
        other = torch.zeros_like(tensor) if other is None else other
        assert gradient is not None
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows_at_once", [1, 12, 100], ids=["each slice", "two slices", "all slices"])
def test_the_gradient_of_all_slices_is_that_of_finite_differences(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchpfc.nn.recurrent.recurrence._ROWS_AT_ONCE", rows_at_once)
    # Without the cap, whose ratio counts as a constant, and with a step size that does not follow the weights.
    W = 0.5 * torch.rand(BASIS + INPUT, BASIS, generator=generator(), dtype=torch.float64)
    x, state = make_input(2, 3).movedim(1, 0), make_state(2)
    L = torch.linalg.matrix_norm(W, 2) ** 2
    active = torch.tensor([[1, 1], [1, 0], [1, 0]], dtype=torch.bool).unsqueeze(-1)
    for through in (None, active):
        recurrence = Recurrence(FISTA(max_iter=4), Unrolled(), L, active=through)
        inputs = tuple(t.clone().requires_grad_() for t in (x, W, state))
        assert torch.autograd.gradcheck(recurrence.states, inputs)


@pytest.mark.parametrize("solver", [FISTA.paper(25), FISTA(max_iter=25, restart=True)], ids=["cap", "restarts"])
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 3)], ids=["rows", "one row", "a stack"])
def test_slices_that_go_back_side_by_side_go_back_as_they_would_alone(
    shape: tuple[int, ...], solver: FISTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(seed: int, *size: int) -> Tensor:
        return torch.rand(size, generator=generator(seed), dtype=torch.float64)

    *stack, rows = shape
    W, x, state = draw(0, *stack, BASIS + INPUT, BASIS), draw(1, 7, *shape, INPUT), draw(2, *shape, BASIS)
    weights, L = draw(3, 7, *shape, BASIS) - 0.5, torch.linalg.matrix_norm(W, 2) ** 2
    active = (torch.arange(7).unsqueeze(1) < torch.tensor([7, 2, 4])[:rows]).view(7, *(1 for _ in stack), rows, 1)

    def gradients(rows_at_once: int) -> tuple[Tensor, ...]:
        monkeypatch.setattr("torchpfc.nn.recurrent.recurrence._ROWS_AT_ONCE", rows_at_once)
        inputs = tuple(t.clone().requires_grad_() for t in (x, W, state))
        recurrence = Recurrence(solver, Unrolled(), L, through_time=False, active=active)
        return torch.autograd.grad((recurrence.states(*inputs) * weights).sum(), inputs)

    alone = gradients(1)
    for slices in (2, 7):
        torch.testing.assert_close(gradients(slices * 25 * rows), alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bptt", [True, False])
def test_a_batch_of_no_sequences_has_gradients_of_zero(bptt: bool) -> None:
    rnn = make_rnn(bptt=bptt)
    rnn(make_input()[:0])[0].sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in rnn.parameters())


def test_frozen_networks_pass_gradients_on_and_only_once() -> None:
    rnn = make_rnn().requires_grad_(False)
    x = make_input().requires_grad_()
    y, _ = rnn(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert gradient.any() and all(p.grad is None for p in rnn.parameters())
    with pytest.raises(RuntimeError, match="can be differentiated only once"):
        gradient.sum().backward()
    rnn.requires_grad_(True)
    rnn(make_input())[0].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in rnn.parameters())


@pytest.mark.parametrize(("bptt", "lengths"), [(True, None), (False, [3, 1, 2])])
def test_other_adjoints_agree_where_they_should(bptt: bool, lengths: list[int] | None) -> None:
    # Truncated to all steps is Unrolled, but for the start of each solve, which gets no gradient: the same with so
    # many steps that the start no longer matters. Implicit is exact there.
    long = FISTA(max_iter=800, cap=True)
    gradients = []
    for adjoint in (None, Truncated(800), Implicit()):
        rnn = make_rnn(solver=long, adjoint=adjoint, bptt=bptt).eval()
        x, state = make_input(slices=3).requires_grad_(), make_state().requires_grad_()
        y, _ = rnn(x, state, lengths)
        gradients.append([y, *torch.autograd.grad(y.square().sum(), [x, state, *rnn.parameters()])])
    for other in gradients[1:]:
        for one, same in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(same, one, rtol=1e-5, atol=1e-7)


def test_a_tolerance_and_solvers_without_steps_to_unroll() -> None:
    x = make_input(slices=2)
    exact, _ = make_rnn(solver=FISTA(max_iter=3000)).eval()(x)
    for solver in (FISTA(max_iter=3000, tol=1e-9, restart=True), CoordinateDescent(max_iter=300)):
        y, _ = make_rnn(solver=solver).eval()(x)
        torch.testing.assert_close(y, exact, rtol=1e-5, atol=1e-7)


def test_restarted_momentum_differs_by_row_and_is_differentiated() -> None:
    solver = FISTA(max_iter=25, restart=True)
    gradients = []
    for adjoint in (None, Truncated(25)):
        rnn = make_rnn(solver=solver, adjoint=adjoint, bptt=False).eval()
        (gradient,) = torch.autograd.grad(rnn(make_input())[0].sum(), rnn.block.weight_x)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)


def test_without_gradients_nothing_is_kept_and_the_result_is_the_same() -> None:
    rnn = make_rnn().eval()
    y, state = rnn(make_input())
    with torch.no_grad():
        bare, bare_state = rnn(make_input())
    assert torch.equal(y, bare) and torch.equal(state, bare_state) and not bare.requires_grad


@both
def test_streaming_in_pieces_equals_one_pass(make: Maker) -> None:
    for bptt in (True, False):
        rnn, x = make(bptt=bptt).eval(), make_input(slices=9)
        y, state = rnn(x)
        grads = torch.autograd.grad(y.square().sum(), list(rnn.parameters()))
        pieces, piece_state = [], None
        for piece in x.split([1, 3, 5], dim=1):
            out, piece_state = rnn(piece, piece_state)
            pieces.append(out)
        torch.testing.assert_close(torch.cat(pieces, 1), y, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(piece_state, state, rtol=1e-12, atol=1e-14)
        piecewise = torch.autograd.grad(torch.cat(pieces, 1).square().sum(), list(rnn.parameters()))
        for one, other in zip(grads, piecewise, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@both
def test_a_padded_batch_equals_its_sequences_one_by_one(make: Maker) -> None:
    rnn, x, lengths = make().eval(), make_input(), [5, 1, 3]
    for i, length in enumerate(lengths):
        x[i, length:] = math.nan
    y, state = rnn(x, lengths=torch.tensor(lengths))
    for i, length in enumerate(lengths):
        alone, alone_state = rnn(x[i, :length])
        torch.testing.assert_close(y[i, :length], alone, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(state[i], alone_state, rtol=1e-12, atol=1e-14)
        assert not y[i, length:].any()
    grads = torch.autograd.grad(y.sum() + state.sum(), list(rnn.parameters()))
    assert all(g.isfinite().all() for g in grads)


@both
def test_any_batch_dimensions_and_both_orders(make: Maker) -> None:
    rnn, x = make().eval(), make_input(6)
    y, state = rnn(x)
    grid, grid_state = rnn(x.view(2, 3, 5, INPUT))
    torch.testing.assert_close(grid, y.view(2, 3, 5, OUTPUT))
    torch.testing.assert_close(grid_state, state.view(2, 3, BASIS))
    torch.testing.assert_close(rnn(x[0])[0], y[0])
    torch.testing.assert_close(rnn(x[0], lengths=torch.tensor(5), state=torch.zeros(BASIS, dtype=x.dtype))[1], state[0])
    assert rnn(x[:0])[0].shape == (0, 5, OUTPUT)
    other = make(batch_first=False).eval()
    torch.testing.assert_close(other(x.transpose(0, 1))[0], y.transpose(0, 1))
    torch.testing.assert_close(other(x[0])[0], y[0])
    torch.testing.assert_close(other(x.view(2, 3, 5, INPUT).transpose(1, 2))[0], grid.transpose(1, 2))


def test_a_cell_called_slice_by_slice_is_the_network() -> None:
    for bptt in (True, False):
        rnn, cell = make_rnn(bptt=bptt).eval(), FactorizedRNNCell(INPUT, BASIS, OUTPUT, bptt=bptt, **OPTIONS).eval()
        cell.load_state_dict(rnn.state_dict())
        x, state = make_input(), None
        with record_couplings(rnn) as seen:
            y, last = rnn(x)
        with record_couplings(cell) as seen_slices:
            outputs = []
            for x_t in x.unbind(1):
                out, state = cell(x_t, state)
                outputs.append(out)
        torch.testing.assert_close(torch.stack(outputs, 1), y)
        torch.testing.assert_close(state, last)
        assert seen_slices["block"][0].x.shape == (3, BASIS + INPUT)
        torch.testing.assert_close(rnn_reconstruction_loss(seen_slices), rnn_reconstruction_loss(seen))
        torch.testing.assert_close(cell(x[0, 0])[0], y[0, 0])


def test_the_cap_holds_the_state_under_the_input_and_the_last_state() -> None:
    rnn = make_rnn(init_range=(0.0, 0.05)).eval()
    x = make_input(slices=8)
    x[:, :2] = 0.0
    with record_couplings(rnn) as seen:
        y, _ = rnn(x)
    h, target = seen["block"][0].h, seen["block"][0].target
    assert not y[:, :2].any() and not h[:, :2].any()  # nothing yet: the state is exactly zero
    assert (h.amax(-1) <= target.abs().amax(-1) * (1 + 1e-12)).all()
    assert torch.isclose(h.amax(-1), target.amax(-1)).any()


# Losses


def test_the_three_terms_of_the_loss() -> None:
    rnn, x = make_rnn().eval(), make_input()
    with record_couplings(rnn) as seen:
        y, _ = rnn(x)
    (coupling,) = seen["block"]
    assert isinstance(coupling, RecurrentCoupling) and coupling.y is y
    h = coupling.h
    before = torch.cat([torch.zeros(3, 1, BASIS, dtype=x.dtype), h.detach()[:, :-1]], dim=1)
    error_h = (h @ rnn.weight_h.T - before).square().mean()
    error_x = (h @ rnn.weight_x.T - x).square().mean()
    torch.testing.assert_close(y, h @ rnn.weight_y.T)
    torch.testing.assert_close(rnn_reconstruction_loss(seen), error_h + error_x)
    torch.testing.assert_close(rnn_reconstruction_loss(seen, weight_h=0.5, weight_x=2.0), error_h / 2 + 2 * error_x)
    mixed = (BASIS * error_h + INPUT * error_x) / (BASIS + INPUT)
    torch.testing.assert_close(reconstruction_loss(seen), mixed)


def test_blocks_beside_a_network_count_as_inputs() -> None:
    model = nn.ModuleDict({"encode": PFCBlock(5, INPUT, 7, **OPTIONS), "rnn": make_rnn()}).eval()
    x = torch.rand(3, 5, 5, generator=generator(), dtype=torch.float64)
    with record_couplings(model) as seen:
        model["rnn"](model["encode"](x))
    assert list(seen) == ["encode", "rnn.block"]
    separate = [rnn_reconstruction_loss({name: couplings}, 2.0, 3.0) for name, couplings in seen.items()]
    torch.testing.assert_close(rnn_reconstruction_loss(seen, 2.0, 3.0), sum(separate))
    torch.testing.assert_close(separate[0], 3 * reconstruction_loss({"encode": seen["encode"]}))
    with pytest.raises(RuntimeError, match="seen must hold at least one coupling, got none"):
        rnn_reconstruction_loss({"rnn.block": []})


def test_a_short_sequence_is_learned() -> None:
    x = F.one_hot(torch.tensor([0, 1, 2, 0, 1, 3] * 2), 4).double()
    rnn = FactorizedRNN(4, 24, 4, init_range=(0.0, 0.1), generator=generator(), dtype=torch.float64)
    optimizer = RMSprop(rnn.parameters(), lr=3e-3)
    keep_nonnegative(rnn, optimizer)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        with record_couplings(rnn) as seen:
            y, _ = rnn(x[:-1])
        prediction = F.mse_loss(y, x[1:])
        (prediction + rnn_reconstruction_loss(seen)).backward()
        optimizer.step()
        losses.append(prediction.item())
    assert losses[-1] < 0.05 < 0.1 < losses[0]


# The vanilla network


def test_the_vanilla_network_is_its_equation() -> None:
    rnn, x, h = make_vanilla(), make_input(), make_state()
    with torch.no_grad():
        rnn.norm.weight.uniform_(0.5, 1.5)
        rnn.norm.bias.uniform_(-0.5, 0.5)
    y, last = rnn(x, h)
    for t in range(5):
        mean, variance = h.mean(1, keepdim=True), h.var(1, unbiased=False, keepdim=True)
        normalized = (h - mean) / (variance + 1e-5).sqrt() * rnn.norm.weight + rnn.norm.bias
        a = normalized @ rnn.recurrent.weight.T + rnn.recurrent.bias + x[:, t] @ rnn.input.weight.T
        h = a * 0.5 * (1 + torch.erf(a / math.sqrt(2)))
        torch.testing.assert_close(y[:, t], h @ rnn.output.weight.T + rnn.output.bias)
    torch.testing.assert_close(last, h)
    assert rnn.input.bias is None and rnn.recurrent.weight.abs().max() <= 1 / math.sqrt(BASIS)


def test_without_bptt_no_gradient_of_the_vanilla_network_passes_between_slices() -> None:
    x = make_input().requires_grad_()
    for bptt in (True, False):
        y, state = make_vanilla(bptt=bptt)(x)
        (gradient,) = torch.autograd.grad(y[:, -1].sum(), x)
        assert gradient[:, -1].any() and bool(gradient[:, :-1].any()) == bptt == state.requires_grad


# On a device


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [None, [6] * 10 + [2] * 10], ids=["", "lengths"])
@pytest.mark.parametrize("size", [40, 300, 600])
@pytest.mark.parametrize("tf32", [False, True], ids=["float32", "tf32"])
def test_a_device_finds_the_same_states_and_gradients(size: int, lengths: list[int] | None, tf32: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    rnn = FactorizedRNN(28, size, 10, init_range=(0.0, 0.1), generator=generator(), dtype=torch.float64).eval()
    x = torch.rand(20, 6, 28, generator=generator(1), dtype=torch.float64)
    results = []
    for model, data in ((rnn, x), (deepcopy(rnn).to("cuda", torch.float32), x.to("cuda", torch.float32))):
        with record_couplings(model) as seen:
            y, state = model(data, lengths=lengths)
        loss = y.square().sum() + state.sum() + rnn_reconstruction_loss(seen)
        results.append([y, state, *torch.autograd.grad(loss, list(model.parameters()))])
    # An entry that is at the floor on one machine may be a little above it on the other: compare as a whole. That alone
    # changes the gradient by up to a tenth once C is rounded to the eleven bits of TF32, in whatever precision.
    for k, (expected, found) in enumerate(zip(*results, strict=True)):
        allowed = 1e-2 if k < 2 or not tf32 else 0.2
        assert (found.double().cpu() - expected).norm() < allowed * expected.norm()
