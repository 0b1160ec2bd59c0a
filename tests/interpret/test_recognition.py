import numpy as np
import pytest
import torch

from torchpfc.interpret.recognition import p_values, relative_residual


def test_p_values_count_examples_that_are_as_far_off() -> None:
    rng = np.random.default_rng(0)
    reference, asked = rng.random(50), rng.random(20)
    found = p_values(torch.tensor(asked), torch.tensor(reference), torch.ones(50)).numpy()
    assert np.allclose(found, [(1 + (reference >= s).sum()) / 51 for s in asked])
    tied = p_values(torch.tensor([reference[3]]), torch.tensor(reference), torch.ones(50))
    assert float(tied) == pytest.approx((1 + (reference >= reference[3]).sum()) / 51)
    assert p_values(torch.tensor([1.0]), torch.zeros(0), torch.zeros(0)).tolist() == [1.0]


def test_the_residual_counts_what_is_observed() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3.0, torch.nan]])
    made = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
    assert relative_residual(x, made).tolist() == pytest.approx([0.8, 1.0, 1.0])
