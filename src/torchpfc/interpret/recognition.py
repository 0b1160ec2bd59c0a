"""Whether an input is like those that were learned: how much of it the parts leave, and how often that happens."""

from __future__ import annotations

import torch
from torch import Tensor

from torchpfc.nmf.normalization import ratio


def relative_residual(x: Tensor, reconstruction: Tensor) -> Tensor:
    r"""What a reconstruction leaves of each input, $\|x - W h\| / \|x\|$; 1 for an input of zeros.

    Args:
        x: Inputs; NaN where one is not observed, which counts for nothing.
        reconstruction: What the parts make of them.

    Shape:
        - x, reconstruction: $(n, m)$
        - the result: $(n)$
    """
    rest = (x - reconstruction).where(~x.isnan(), 0.0)
    return ratio(rest.norm(dim=1), x.nan_to_num(nan=0.0).norm(dim=1))


def p_values(statistic: Tensor, reference: Tensor, weight: Tensor) -> Tensor:
    r"""How often a row that was held out is at least as far off, $(1 + \sum_{r_i \ge r} w_i) / (1 + \sum w_i)$.

    Args:
        statistic: How far off some inputs are.
        reference: How far off the rows held out are.
        weight: What each of those counts.

    Shape:
        - statistic and the result: $(n)$
        - reference, weight: $(c)$

    Example:
        >>> p_values(torch.tensor([0.0, 0.25, 9.0]), torch.tensor([0.1, 0.2, 0.3]), torch.ones(3))
        tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    reference, order = reference.sort()
    below = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)]).double()
    reached = torch.searchsorted(reference, statistic.contiguous(), right=False)
    return (1 + below[-1] - below[reached]) / (1 + below[-1])
