"""Whether an input is like those that were learned: what the parts leave of it, how large it is, how often so."""

from __future__ import annotations

from dataclasses import dataclass

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


def root_mean_square(x: Tensor) -> Tensor:
    r"""The size of each input, over what is observed of it; 0 where nothing is.

    Args:
        x: Inputs; NaN where one is not observed.

    Shape:
        - x: $(n, m)$
        - the result: $(n)$
    """
    return (x.nan_to_num(nan=0.0).square().sum(1) / (~x.isnan()).sum(1).clamp(min=1)).sqrt()


@dataclass(frozen=True, eq=False)
class Usual:
    r"""What the parts leave of rows that were held out, and how large these are: what is usual.

    An input is as odd as the odder of the two says: its residual, when large, and its size, when large or small. Each
    counts by its rank $F$ among the rows held out, $\max(F_\text{residual}, |2 F_\text{size} - 1|)$, and so neither has
    a unit. Where entries have signs, 0 is in the middle of them: then it is $F_\text{size}$, as small is not odd.
    `p_values` says how many of the rows held out are as odd.

    Args:
        residual: `relative_residual` of the rows.
        size: `root_mean_square` of them.
        weight: What each counts.

    Shape:
        - all: $(c)$

    Example:
        >>> x, parts_make = torch.tensor([[1.0, 0.0], [2.0, 0.2], [3.0, 0.1]]), torch.tensor([[1.0, 0.0]])
        >>> usual = Usual.of(x, x * parts_make, torch.ones(3))
        >>> new = torch.tensor([[2.0, 0.1], [2.0, 2.0], [2000.0, 100.0]])  # as usual, another direction, too large
        >>> usual.p_values(new, new * parts_make)
        tensor([1.0000, 0.2500, 0.2500], dtype=torch.float64)
        >>> usual.smallest
        0.25
    """

    residual: Tensor
    size: Tensor
    weight: Tensor
    signed: bool = False
    """Whether entries have signs."""

    @classmethod
    def of(cls, x: Tensor, reconstruction: Tensor, weight: Tensor) -> Usual:
        """What is usual by some rows.

        Args:
            x: Rows that the parts were not learned from, NaN where they are not observed.
            reconstruction: What the parts make of them.
            weight: What each counts.
        """
        return cls(relative_residual(x, reconstruction), root_mean_square(x), weight, bool((x < 0).any()))

    def to(self, device: torch.device) -> Usual:
        """The same on a device."""
        return Usual(self.residual.to(device), self.size.to(device), self.weight.to(device), self.signed)

    def joined(self, learned: Usual) -> Usual:
        """These rows, and rows that the parts were learned from.

        Parts leave less of what they were learned from: what they leave of it counts as many times as much as they
        leave more of the rows held out, on average.

        Args:
            learned: What is usual by the others.
        """
        more = _mean(self.residual, self.weight) / _mean(learned.residual, learned.weight)
        residual = learned.residual * more.nan_to_num(nan=1.0, posinf=1.0).clamp(min=1)
        return Usual(
            torch.cat([self.residual, residual]),
            torch.cat([self.size, learned.size]),
            torch.cat([self.weight, learned.weight]),
            self.signed or learned.signed,
        )

    @property
    def smallest(self) -> float:
        """The smallest p-value there can be, that of an input odder than all rows held out."""
        return 1 / (1 + float(self.weight.double().sum()))

    def p_values(self, x: Tensor, reconstruction: Tensor) -> Tensor:
        """How often a row that was held out is at least as odd as an input.

        Args:
            x: Inputs.
            reconstruction: What the parts make of them.
        """
        new = self._oddness(relative_residual(x, reconstruction), root_mean_square(x))
        return p_values(new, self._oddness(self.residual, self.size), self.weight)

    def _oddness(self, residual: Tensor, size: Tensor) -> Tensor:
        in_size = _rank(_coarse(size), _coarse(self.size), self.weight)
        if not self.signed:
            in_size = (2 * in_size - 1).abs()
        return torch.maximum(_rank(residual, self.residual, self.weight), in_size)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight).sum() / weight.sum()


def _coarse(size: Tensor) -> Tensor:
    """Logarithms of sizes to three digits: inputs that were scaled to norm 1 have one size, whatever the last bits."""
    return size.log().mul(1e3).round()


def _rank(values: Tensor, reference: Tensor, weight: Tensor) -> Tensor:
    """The share of a reference that is smaller, ties counted by half; 0 where there is no reference."""
    reference, order = reference.sort()
    below = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)]).double()
    places = [torch.searchsorted(reference, values.contiguous(), right=right) for right in (False, True)]
    return (below[places[0]] + below[places[1]]) / (2 * below[-1].clamp(min=torch.finfo(torch.float64).tiny))
