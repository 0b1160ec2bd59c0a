import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from torchpfc import ContinualPFC
from torchpfc.continual import Likeness, RidgeReadout, Scale, Sketch


@pytest.mark.parametrize("count", [5, 40, 200])
def test_the_read_out_is_a_ridge_regression_on_all_rows_at_once(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, label = torch.randn(60, 6, generator=generator), torch.arange(60) % 3
    features = Likeness.random(6, count)
    model = ContinualPFC(6, read_out=RidgeReadout(features, ridge=1e-2))
    for c in (1, 2, 0):
        for half in (0, 1):
            own = (label == c) & (torch.arange(60) % 2 == half)
            model.learn(x[own], label[own])
    phi = features(x).double().numpy()
    strength = 1e-2 * np.square(phi - phi.mean(0)).sum() / count
    expected = Ridge(strength).fit(phi, np.eye(3)[label])
    np.testing.assert_allclose(model.read_out_weight[:, 1:].numpy(), expected.coef_, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(model.couple(x).base.numpy(), expected.predict(phi), rtol=1e-3, atol=1e-3)


def test_a_weight_of_two_is_an_example_twice() -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    read_out, weight = RidgeReadout(Likeness.random(3, 4)), torch.tensor([1.0, 2, 0, 3, 1])
    twice = x.repeat_interleave(weight.long(), 0)
    R, S = read_out.factor(x, weight), read_out.factor(twice)
    torch.testing.assert_close(R.mT @ R, S.mT @ S)
    torch.testing.assert_close(read_out.sums(x, weight), read_out.sums(twice))


@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_a_sketch_of_few_examples_has_their_quantiles(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(n, 3))
    for q in (0.0, 0.05, 0.25, 0.5, 0.9, 1.0):
        np.testing.assert_allclose(Sketch.of(torch.tensor(x)).quantiles([q])[0].numpy(), np.quantile(x, q, axis=0))


def test_sketches_of_batches_add_up_nearly_to_that_of_all() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(loc=k, size=(n, 2)) for k, n in enumerate((500, 20, 1, 300))]
    batches[0][:50, 1] = np.nan
    merged = Sketch.merged([Sketch.of(torch.tensor(batch)) for batch in batches])
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        expected = np.nanquantile(np.concatenate(batches), q, axis=0)
        np.testing.assert_allclose(merged.quantiles([q])[0].numpy(), expected, atol=0.15)
    assert len(merged.thinned().points) == 33
    np.testing.assert_allclose(
        merged.thinned().quantiles([0.5])[0].numpy(), merged.quantiles([0.5])[0].numpy(), atol=0.05
    )


def test_a_scale_is_undone_and_does_not_mind_what_is_far_out() -> None:
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5 + 3
    x[:10, 0] = 1e9
    x[:, 2] = 4.0
    scale = Scale.of(Sketch.of(x))
    torch.testing.assert_close(scale.center[:2], torch.full((2,), 3.0).double(), atol=0.5, rtol=0)
    torch.testing.assert_close(scale.spread[:2], torch.full((2,), 5.0).double(), atol=0.5, rtol=0)
    assert not scale.encode(x)[:, 2].any()
    torch.testing.assert_close(scale.decode(scale.encode(x[10:])), x[10:])
    rare = torch.zeros(100, 1)
    rare[0] = 8.0
    assert Scale.of(Sketch.of(rare)).spread.isfinite().all()
