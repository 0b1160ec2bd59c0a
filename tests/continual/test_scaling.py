"""Moments of batches add up to those of all examples."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from torchpfc.continual.scaling import Moments


@settings(max_examples=20, phases=(Phase.generate,))
@given(
    st.integers(0, 10**6), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from([1e-300, 1.0, 1e200])
)
def test_moments_of_batches_are_those_of_all_examples(seed: int, sizes: list[int], size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = size * (3 + torch.randn(sum(sizes), 4, generator=generator, dtype=torch.float64))
    x[torch.rand(x.shape, generator=generator) < 0.3] = torch.nan
    x[:, 3] = torch.nan
    weight = torch.randint(1, 4, (len(x),), generator=generator).double()
    batches = zip(x.split(sizes), weight.split(sizes), strict=True)
    found = Moments.merged([Moments.of(*batch) for batch in batches])
    repeated = (x / size).repeat_interleave(weight.long(), 0)  # a weight of 2 is the same as two examples
    assert found.total == len(repeated) and found.mass.tolist() == (~repeated.isnan()).sum(0).tolist()
    for k in range(4):
        column = repeated[~repeated[:, k].isnan(), k]
        mean = column.mean() if len(column) else torch.tensor(0.0)
        assert float(found.mean[k]) == pytest.approx(size * float(mean), rel=1e-9)
        expected = size * float((column - mean).square().mean().sqrt()) if len(column) else 0.0
        assert float(found.deviation[k]) == pytest.approx(expected, rel=1e-6, abs=1e-12 * size)
        around = size * float((column - 2).square().mean().sqrt()) if len(column) else 2 * size
        assert float(found.around(torch.full((4,), 2 * size, dtype=torch.float64))[k]) == pytest.approx(around)
