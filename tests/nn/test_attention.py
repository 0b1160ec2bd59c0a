from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import nnls as scipy_nnls
from torch import Tensor, nn

from torchpfc import FISTA, Implicit, Truncated, Unrolled
from torchpfc.nn.attention import FactorizedAttention, attend
from torchpfc.solvers import Adjoint

EXACT = FISTA(max_iter=20_000, tol=1e-12, restart=True)


def make(*leading: int, queries: int = 3, keys: int = 5, d: int = 8, features: int = 4) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((queries, d), (keys, d), (keys, features))
    return tuple(torch.randn(*leading, *size, generator=generator, dtype=torch.float64) for size in sizes)


def by_scipy(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A loop over examples and queries with the usable keys alone."""
    weights = torch.zeros(*query.shape[:2], keys.shape[1], dtype=torch.float64)
    for b, q in np.ndindex(*query.shape[:2]):
        usable = torch.ones(keys.shape[1], dtype=torch.bool) if mask is None else mask[b, q]
        if usable.any():
            weights[b, q, usable] = torch.from_numpy(scipy_nnls(keys[b, usable].T.numpy(), query[b, q].numpy())[0])
    return weights, torch.stack([h @ v for h, v in zip(weights, values, strict=True)])


def test_equals_a_loop_over_examples_with_scipy() -> None:
    query, keys, values = make(4)
    found = attend(query, keys, values, solver=EXACT)
    weights, output = by_scipy(query, keys, values)
    torch.testing.assert_close(found.weights, weights, atol=1e-8, rtol=0)
    torch.testing.assert_close(found.output, output, atol=1e-7, rtol=0)
    assert (found.weights == 0).any() and (found.weights > 0).any()


def test_the_default_solver_is_close_to_the_optimum() -> None:
    query, keys, values = make(4)
    torch.testing.assert_close(
        attend(query, keys, values).weights, attend(query, keys, values, solver=EXACT).weights, atol=1e-3, rtol=0
    )


def test_a_query_that_is_a_key_finds_its_value() -> None:
    _, keys, values = make(4)
    found = attend(keys, keys, values, solver=EXACT)
    torch.testing.assert_close(found.weights, torch.eye(5, dtype=torch.float64).expand(4, 5, 5), atol=1e-8, rtol=0)
    torch.testing.assert_close(found.output, values, atol=1e-7, rtol=0)


@pytest.mark.parametrize("per_query", [True, False])
@pytest.mark.parametrize("solver", [EXACT, FISTA(max_iter=5000, tol=1e-11, floor=1e-5, start="floor")])
def test_excluded_keys_get_exact_zeros_and_change_nothing(per_query: bool, solver: FISTA) -> None:
    query, keys, values = make(4)
    mask = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(2)) < 0.6
    if not per_query:
        mask = mask[:, :1].repeat(1, 3, 1)
    mask[1] = False  # an example without any key
    found = attend(query, keys, values, mask=mask if per_query else mask[:, 0], solver=solver)
    weights, output = by_scipy(query, keys, values, mask)
    assert not found.weights[~mask].any()
    assert not found.output[1].any()
    torch.testing.assert_close(found.weights, weights, atol=1e-8 + 3 * solver.floor, rtol=0)
    torch.testing.assert_close(found.output, output, atol=1e-7 + 30 * solver.floor, rtol=0)


@pytest.mark.parametrize("per_query", [True, False])
def test_nan_in_excluded_keys_and_values_changes_nothing(per_query: bool) -> None:
    query, keys, values = make(2)
    mask = torch.tensor([[True, True, False, True, False]]).expand(2, 5)
    given_mask = mask.unsqueeze(1).expand(2, 3, 5) if per_query else mask
    results = []
    for hidden in (torch.nan, 3.0):
        inputs = [query.clone()] + [part.where(mask.unsqueeze(-1), hidden) for part in (keys, values)]
        found = attend(*(part.requires_grad_() for part in inputs), mask=given_mask)
        gradients = torch.autograd.grad(found.output.square().sum(), inputs)
        assert not any(gradient[~mask].any() for gradient in gradients[1:])
        results.append([found.output, found.weights, *gradients])
    for ours, theirs in zip(*results, strict=True):
        assert ours.isfinite().all() and torch.equal(ours, theirs)
    alone = attend(query, keys[:, mask[0]], values[:, mask[0]])
    torch.testing.assert_close(results[0][1][..., mask[0]], alone.weights, atol=1e-3, rtol=0)


def test_a_mask_of_all_is_no_mask() -> None:
    query, keys, values = make(2)
    plain = attend(query, keys, values, solver=EXACT)
    for shape in ((5,), (1, 5), (2, 5), (1, 1, 5), (2, 1, 5), (1, 3, 5), (2, 3, 5)):
        found = attend(query, keys, values, mask=torch.ones(shape, dtype=torch.bool), solver=EXACT)
        torch.testing.assert_close(found.weights, plain.weights, atol=1e-9, rtol=0)
        torch.testing.assert_close(found.output, plain.output, atol=1e-8, rtol=0)


def test_the_order_of_keys_does_not_matter() -> None:
    query, keys, values = make(4)
    order = torch.tensor([3, 0, 4, 2, 1])
    mask = torch.tensor([True, True, False, True, True])
    found = attend(query, keys, values, mask=mask, solver=EXACT)
    moved = attend(query, keys[:, order], values[:, order], mask=mask[order], solver=EXACT)
    torch.testing.assert_close(moved.weights, found.weights[..., order], atol=1e-9, rtol=0)
    torch.testing.assert_close(moved.output, found.output, atol=1e-8, rtol=0)


def test_leading_dimensions_broadcast() -> None:
    query, keys, values = make(2, 3)
    found = attend(query, keys[:, :1], values[0], solver=EXACT)
    assert found.weights.shape == (2, 3, 3, 5) and found.output.shape == (2, 3, 3, 4)
    alone = attend(query[1, 2], keys[1, 0], values[0, 2], solver=EXACT)
    torch.testing.assert_close(found.weights[1, 2], alone.weights, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.output[1, 2], alone.output, atol=1e-8, rtol=0)
    shared = attend(query, keys[0, 0], values[0, 0], mask=torch.tensor([True, False, True, True, True]), solver=EXACT)
    assert shared.weights.shape == (2, 3, 3, 5) and not shared.weights[..., 1].any()


def test_penalties_shrink_the_weights() -> None:
    query, keys, values = make(4)
    plain, sparse, small = (
        attend(query, keys, values, solver=EXACT, **o).weights for o in ({}, {"l1": 1.0}, {"l2": 5.0})
    )
    assert sparse.sum() < plain.sum() and (sparse == 0).sum() > (plain == 0).sum()
    assert small.square().sum() < plain.square().sum()


@pytest.mark.parametrize("per_query", [True, False])
def test_a_warm_start_saves_steps(per_query: bool) -> None:
    query, keys, values = make(4)
    mask = torch.tensor([True, True, False, True, True])
    if per_query:
        mask = mask.expand(4, 3, 5)
    exact = attend(query, keys, values, mask=mask, solver=EXACT)
    again = attend(query, keys, values, mask=mask, solver=FISTA(max_iter=1), warm_start=exact.weights.where(mask, 7.0))
    torch.testing.assert_close(again.weights, exact.weights, atol=1e-8, rtol=0)


@pytest.mark.parametrize("masked", [None, "keys", "queries"])
@pytest.mark.parametrize(
    "adjoint", [Unrolled(), Truncated(300), Implicit()], ids=lambda adjoint: type(adjoint).__name__
)
def test_gradcheck(adjoint: Adjoint, masked: str | None) -> None:
    mask = None
    if masked is not None:
        mask = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(3)) < 0.7
        mask = mask if masked == "queries" else mask[:, 0]
    # A fixed number of steps, more than enough: a tolerance would end them at another step for a moved input.
    solver = FISTA(max_iter=300, restart=True)

    def function(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        found = attend(*inputs, mask=mask, l1=0.1, l2=0.2, solver=solver, adjoint=adjoint)
        return found.output, found.weights

    inputs = [part.requires_grad_() for part in make(2)]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


Q, K, V = torch.rand(2, 3, 8), torch.rand(2, 5, 8), torch.rand(2, 5, 4)


@pytest.mark.parametrize(
    ("error", "message", "inputs", "options"),
    [
        (ValueError, r"query must have at least two dimensions, got shape \(8,\)", (Q[0, 0], K, V), {}),
        (ValueError, r"values must have at least two dimensions, got shape \(4,\)", (Q, K, V[0, 0]), {}),
        (TypeError, r"keys must have the dtype of query \(torch.float32\), got torch.float64", (Q, K.double(), V), {}),
        (TypeError, r"query must be float32 or float64, got torch.int64", (Q.long(), K.long(), V.long()), {}),
        (
            TypeError,
            r"query must be float32 or float64, got torch.bfloat16",
            (Q.bfloat16(), K.bfloat16(), V.bfloat16()),
            {},
        ),
        (ValueError, r"values must be on the device of query \(cpu\), got meta", (Q, K, V.to("meta")), {}),
        (ValueError, r"keys must hold at least one key, got shape \(2, 0, 8\)", (Q, K[:, :0], V[:, :0]), {}),
        (
            ValueError,
            r"query must have shape \(\.\.\., queries, 8\) to match keys, got \(2, 3, 7\)",
            (Q[..., :7], K, V),
            {},
        ),
        (
            ValueError,
            r"values must have shape \(\.\.\., 5, features\) to match keys, got \(2, 4, 4\)",
            (Q, K, V[:, :4]),
            {},
        ),
        (
            ValueError,
            r"query, keys and values must have leading dimensions that broadcast, got \(3,\), \(2,\), \(2,\)",
            (Q[:1].expand(3, 3, 8), K, V),
            {},
        ),
        (
            TypeError,
            r"mask must be boolean \(True where a key may be used\), got torch.float32",
            (Q, K, V),
            {"mask": K},
        ),
        (
            ValueError,
            r"mask must be on the device of query \(cpu\), got meta",
            (Q, K, V),
            {"mask": torch.ones(5, dtype=torch.bool, device="meta")},
        ),
        (
            ValueError,
            r"mask must broadcast to shape \(2, 3, 5\) or \(2, 5\), got \(3, 5\)",
            (Q, K, V),
            {"mask": torch.ones(3, 5, dtype=torch.bool)},
        ),
        (ValueError, r"mask must broadcast .* got \(\)", (Q, K, V), {"mask": torch.tensor(True)}),
        (ValueError, r"mask must broadcast .* got \(1, 2, 3, 5\)", (Q, K, V), {"mask": torch.ones(1, 2, 3, 5).bool()}),
        (ValueError, r"l1 must be non-negative and finite, got -1", (Q, K, V), {"l1": -1.0}),
        (ValueError, r"warm_start must have the shape of the solution \(2, 3, 5\)", (Q, K, V), {"warm_start": Q}),
        (TypeError, r"adjoint must be an Adjoint, got 'implicit'", (Q, K, V), {"adjoint": "implicit"}),
    ],
)
def test_errors_say_what_to_change(
    error: type[Exception], message: str, inputs: tuple[Tensor, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        attend(*inputs, **options)


# The module.


def make_tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, 8, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_heads_are_attended_to_one_by_one() -> None:
    module, query, key = FactorizedAttention(8, 2), make_tokens(4, 3), make_tokens(4, 5, seed=2)
    value = make_tokens(4, 5, seed=3)
    nn.init.normal_(module.k_proj.weight)
    found = module.attend(query, key, value)
    q, k, v = module.q_proj(query), module.k_proj(key), module.v_proj(value)
    heads = [attend(q[..., part], k[..., part], v[..., part]) for part in (slice(4), slice(4, 8))]
    torch.testing.assert_close(found.weights, torch.stack([head.weights for head in heads], dim=1))
    torch.testing.assert_close(found.output, module.out_proj(torch.cat([head.output for head in heads], dim=-1)))
    assert torch.equal(module(query, key, value), found.output)
    assert torch.equal(module(query, key), module(query, key, key))
    assert torch.equal(module(query), module(query, query, query))


@torch.no_grad()
@pytest.mark.parametrize("leading", [(), (4,), (2, 3)])
def test_shapes(leading: tuple[int, ...]) -> None:
    module = FactorizedAttention(8, 4, bias=False)
    found = module.attend(make_tokens(*leading, 3), make_tokens(*leading, 6))
    assert found.output.shape == (*leading, 3, 8)
    assert found.weights.shape == (*leading, 4, 3, 6)
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    weights = module.attend(make_tokens(*leading, 3), mask=causal).weights
    assert not weights[..., ~causal].any() and weights[..., causal].any()


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    module, query, key = FactorizedAttention(8, 2), make_tokens(2, 3), make_tokens(2, 6)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    full = key.where(~padding.unsqueeze(-1), torch.nan)
    found = module.attend(query, full, key_padding_mask=padding)
    assert not found.weights[1, ..., 4:].any()
    torch.testing.assert_close(found.output[1], module(query[1], key[1, :4]), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.output[0], module(query[0], key[0]), atol=1e-3, rtol=0)


@torch.no_grad()
def test_padding_and_mask_both_count() -> None:
    module, tokens = FactorizedAttention(8, 2), make_tokens(2, 4)
    padding, causal = torch.tensor([[False] * 4, [True] + [False] * 3]), torch.ones(4, 4, dtype=torch.bool).tril()
    weights = module.attend(tokens, key_padding_mask=padding, mask=causal).weights
    usable = causal & ~padding[:, None, :]
    assert not weights.transpose(0, 1)[:, ~usable].any()
    assert weights.transpose(0, 1)[:, usable].any()
    assert torch.equal(module(tokens, key_padding_mask=padding, mask=causal)[1, 0], module.out_proj.bias)


def test_every_projection_gets_a_gradient() -> None:
    module = FactorizedAttention(8, 2)
    module(make_tokens(4, 3), make_tokens(4, 5, seed=2)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


def test_queries_and_keys_start_out_in_one_space() -> None:
    module, tokens = FactorizedAttention(8, 1), make_tokens(5)
    assert torch.equal(module.q_proj.weight, module.k_proj.weight)
    assert module.q_proj.weight is not module.k_proj.weight
    assert (module.attend(tokens).weights.argmax(-1) == torch.arange(5)).all()


def test_save_and_load(tmp_path: Any) -> None:
    module, other = FactorizedAttention(8, 2, l2=0.1), FactorizedAttention(8, 2, l2=0.1)
    assert list(module.state_dict()) == [
        f"{p}_proj.{part}" for p in ("q", "k", "v", "out") for part in ("weight", "bias")
    ]
    torch.save(module.state_dict(), tmp_path / "attention.pt")
    other.load_state_dict(torch.load(tmp_path / "attention.pt", weights_only=True))
    tokens = make_tokens(4, 3)
    assert torch.equal(other(tokens), module(tokens))
    assert torch.equal(deepcopy(module)(tokens), module(tokens))
    torch.testing.assert_close(deepcopy(module).double()(tokens.double()).float(), module(tokens), atol=1e-4, rtol=0)


def test_autocast_solves_in_full_precision() -> None:
    module, tokens = FactorizedAttention(8, 2), make_tokens(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module.attend(tokens)
    assert found.weights.dtype == torch.float32
    torch.testing.assert_close(found.output.float(), module(tokens), atol=0.05, rtol=0)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@torch.no_grad()
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiles_as_one_graph() -> None:
    module, tokens = FactorizedAttention(8, 2, solver=FISTA(max_iter=2)), make_tokens(4, 3)
    padding = torch.tensor([False, False, True]).expand(4, 3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(tokens, key_padding_mask=padding), module(tokens, key_padding_mask=padding), atol=1e-5, rtol=0
    )


def test_repr_shows_the_settings() -> None:
    text = repr(FactorizedAttention(8, 2, l1=0.5, adjoint=Implicit()))
    assert "embed_dim=8, num_heads=2, l1=0.5, l2=0.0, solver=None, adjoint=Implicit(" in text


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        (r"embed_dim must be at least 1, got 0", (0, 1)),
        (r"num_heads must be at least 1, got 0", (8, 0)),
        (r"embed_dim must be a multiple of num_heads \(3\), got 8", (8, 3)),
    ],
)
def test_sizes_must_fit(message: str, sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=message):
        FactorizedAttention(*sizes)


TOKENS = torch.rand(4, 3, 8)


@pytest.mark.parametrize(
    ("error", "message", "inputs", "options"),
    [
        (ValueError, r"query must have shape \(\.\.\., n, 8\), got \(4, 3, 7\)", (TOKENS[..., :7],), {}),
        (ValueError, r"key must have shape \(\.\.\., n, 8\), got \(8,\)", (TOKENS, TOKENS[0, 0]), {}),
        (
            TypeError,
            r"key_padding_mask must be boolean, got torch.float32",
            (TOKENS,),
            {"key_padding_mask": torch.ones(4, 3)},
        ),
        (TypeError, r"mask must be boolean, got torch.float32", (TOKENS,), {"mask": torch.ones(3, 3)}),
        (
            ValueError,
            r"key_padding_mask must have shape \(4, 3\), got \(3,\)",
            (TOKENS,),
            {"key_padding_mask": torch.ones(3, dtype=torch.bool)},
        ),
        (
            ValueError,
            r"mask must broadcast to shape \(4, 3, 3\), got \(2, 3\)",
            (TOKENS,),
            {"mask": torch.ones(2, 3, dtype=torch.bool)},
        ),
    ],
)
def test_errors_of_the_module_say_what_to_change(
    error: type[Exception], message: str, inputs: tuple[Tensor, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        FactorizedAttention(8, 2)(*inputs, **options)


PAIRS, SYMBOLS = 8, 16


def recall_task(count: int, seed: int) -> tuple[Tensor, ...]:
    """Pairs of a key and a value, then one of the keys again: which value came with it?"""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(count, SYMBOLS, generator=generator).argsort(dim=1)[:, :PAIRS]
    values = torch.randint(SYMBOLS, (count, PAIRS), generator=generator)
    asked = torch.randint(PAIRS, (count, 1), generator=generator)
    return keys, values, keys.gather(1, asked), values.gather(1, asked)[:, 0]


class Recall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Embedding(SYMBOLS, 32)
        self.value = nn.Embedding(SYMBOLS, 32)
        self.attention = FactorizedAttention(32, 2, solver=FISTA(max_iter=20))
        self.output = nn.Linear(32, SYMBOLS)

    def forward(self, keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
        found: Tensor = self.attention(self.key(query), self.key(keys), self.value(values))
        return self.output(found[:, 0])


def test_learns_to_recall_what_went_with_a_key() -> None:
    model = Recall()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(100):
        *sequence, answer = recall_task(64, seed=step)
        optimizer.zero_grad()
        F.cross_entropy(model(*sequence), answer).backward()
        optimizer.step()
    *sequence, answer = recall_task(1000, seed=12345)
    with torch.no_grad():
        accuracy = (model(*sequence).argmax(-1) == answer).double().mean()
    assert accuracy > 0.95
