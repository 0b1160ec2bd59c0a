"""A prediction as what it is: an exact sum over parts, and so is the reconstruction of the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Protocol

import torch
from torch import Tensor

from torchpfc.interpret.recognition import relative_residual
from torchpfc.nmf.normalization import ratio
from torchpfc.nn.block import PFCBlock
from torchpfc.solvers import NonnegativeLeastSquares, solve

TOLERANCE = 1e-5
"""How far a sum may be from what it should be, relative to the largest number that is added."""

_SHOWN_PARTS = 10
_SHOWN_FEATURES = 3
_SHOWN_OUTPUTS = 4
_SHOWN_ROWS = 3


class Coupled(Protocol):
    """Weights that a code couples: those of a `PFCBlock`."""

    @property
    def weight_x(self) -> Tensor:
        """The input that each part stands for."""

    @property
    def weight_y(self) -> Tensor:
        """What each part predicts."""


@dataclass(frozen=True)
class Term:
    """One part of one explanation."""

    part: int
    """The column of the weights."""
    amount: float
    """Its entry of h."""
    contributions: tuple[float, ...]
    """What it adds to each output."""
    share: float
    """The norm of what it adds to the reconstruction, relative to the norm of the input."""


@dataclass(frozen=True, eq=False)
class Explanation:
    r"""Inputs and predictions as sums over parts.

    $$y = b + \sum_r W_y[:, r]\, h_r, \qquad x = \sum_r W_x[:, r]\, h_r + \mathrm{rest}$$

    Making one checks the first sum: what the parts add must be the prediction. The second holds because the rest is
    what is left. `explanation[i]` is that of one example, and printing it shows a table. With names of the features, a
    part is called by those that are largest in it.

    Shape:
        - x: $(n, m)$
        - y: $(n, k)$
        - h: $(n, r)$
        - weight_x: $(m, r)$
        - weight_y: $(k, r)$, or $(n, k, r)$ where it differs between examples
        - base: $(k)$, or $(n, k)$
        - units: $(m)$
    """

    x: Tensor
    """The inputs; NaN where one is not observed."""
    y: Tensor
    """The predictions, as the model made them."""
    h: Tensor
    """How much of each part there is."""
    weight_x: Tensor
    weight_y: Tensor
    base: Tensor
    """What is predicted where there is no part at all."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs; numbers by default."""
    classes: bool = False
    """Whether outputs are the scores of classes, the highest of which is the answer."""
    features: tuple[str, ...] = ()
    """Names of the features of the input, if they have any."""
    parts: tuple[str, ...] = ()
    """Names of the parts; made of those of the features by default."""
    units: Tensor | None = None
    """How large each feature usually is: what "largest" means where one is in grams and another in years."""

    def __post_init__(self) -> None:
        if self.h.ndim != 2:
            raise ValueError(f"h must have shape (n, num_basis), got {tuple(self.h.shape)}")
        if not self.outputs:
            object.__setattr__(self, "outputs", tuple(str(k) for k in range(self.y.shape[1])))
        if len(self.outputs) != self.y.shape[1]:
            raise ValueError(f"outputs must name each of the {self.y.shape[1]} outputs, got {len(self.outputs)} names")
        for kind, names, count in (
            ("features", self.features, len(self.weight_x)),
            ("parts", self.parts, self.h.shape[1]),
        ):
            if names and len(names) != count:
                raise ValueError(f"{kind} must name each of the {count} {kind}, got {len(names)} names")
        self.check()

    def check(self) -> None:
        """Adds up in double precision, and raises `RuntimeError` where the sum is not y."""
        h, W_y, base = self.h.double(), self.weight_y.double(), self.base.double()
        error = (base + _added(h, W_y) - self.y.double()).abs()
        scale = (base.abs() + _added(h.abs(), W_y.abs())).clamp(min=1.0)
        worst = float((error / scale).max()) if error.numel() else 0.0
        if not worst <= TOLERANCE:
            raise RuntimeError(f"the parts must add up to the prediction to {TOLERANCE:g}, got an error of {worst:.3g}")

    def __len__(self) -> int:
        return len(self.h)

    def __getitem__(self, row: int) -> Explanation:
        """The explanation of one example."""
        if not -len(self) <= index(row) < len(self):
            raise IndexError(f"row must lie in [0, {len(self)}), got {row}")
        own = slice(index(row) % len(self), index(row) % len(self) + 1)
        weight_y = self.weight_y if self.weight_y.ndim == 2 else self.weight_y[own]
        base = self.base if self.base.ndim == 1 else self.base[own]
        return replace(self, x=self.x[own], y=self.y[own], h=self.h[own], weight_y=weight_y, base=base)

    def __iter__(self) -> Iterator[Explanation]:
        return (self[row] for row in range(len(self)))

    @property
    def contributions(self) -> Tensor:
        r"""What each part adds to each output, $W_y[k, r] h_r$, of shape $(n, k, r)$."""
        return self.h.unsqueeze(1) * self.weight_y

    @property
    def pieces(self) -> Tensor:
        r"""What each part adds to the reconstruction, $W_x[:, r] h_r$, of shape $(n, r, m)$."""
        return self.h.unsqueeze(2) * self.weight_x.mT

    @property
    def reconstruction(self) -> Tensor:
        """The sum of the pieces, of shape $(n, m)$."""
        return self.h @ self.weight_x.mT

    @property
    def rest(self) -> Tensor:
        """What no part explains of the input, of shape $(n, m)$; 0 where the input is not observed."""
        return (self.x - self.reconstruction).where(~self.x.isnan(), 0.0)

    @property
    def unexplained(self) -> Tensor:
        """The norm of the rest relative to that of the input, of shape $(n)$."""
        return relative_residual(self.x, self.reconstruction)

    @property
    def answers(self) -> list[str]:
        """The name of the highest output of each example."""
        return [self.outputs[k] for k in self.y.argmax(1).tolist()]

    def top_features(self, part: int, count: int = _SHOWN_FEATURES) -> list[tuple[str, float]]:
        """The features of a part by name and size, the largest first; numbers where features have no names.

        Args:
            part: Which part.
            count: How many features at most; those that are 0 are left out.
        """
        _check_part(part, self.weight_x.shape[1], "part")
        own = self.weight_x[:, part]
        order = (own if self.units is None else own / self.units).abs().argsort(descending=True, stable=True)[:count]
        names = self.features or range(len(own))
        return [(str(names[j]), float(own[j])) for j in order.tolist() if own[j] != 0]

    def name_of(self, part: int) -> str:
        """A part by its name or, where features have names, by its number and its largest features.

        Args:
            part: Which part.
        """
        if self.parts:
            return self.parts[part]
        top = [name if size > 0 else f"-{name}" for name, size in self.top_features(part)] if self.features else []
        return f"{part}: {', '.join(top)}" if top else str(part)

    def terms(self, row: int = 0, *, output: int | str | None = None) -> list[Term]:
        """The parts of one example that are there at all, those that matter most first.

        Args:
            row: Which example.
            output: Which output decides the order, by number or name; by default the highest, and without outputs the
                reconstruction.
        """
        one = self[row]
        added = one.contributions[0]  # (k, r)
        shares = ratio(one.h[0] * self.weight_x.norm(dim=0), one.x.nan_to_num(nan=0.0).norm(dim=1))
        order = one.h[0].nonzero().flatten()
        keys = [shares]
        if self.outputs:  # what adds nothing to this output, by what it adds to another
            keys = [added.abs().amax(0), added[one.number_of(output)].abs()]
        for key in keys:
            order = order[key[order].argsort(descending=True, stable=True)]
        amounts, columns, parts = one.h[0].tolist(), added.mT.tolist(), shares.tolist()
        return [Term(r, amounts[r], tuple(columns[r]), parts[r]) for r in order.tolist()]

    def number_of(self, output: int | str | None) -> int:
        """The number of an output, by number or name; by default, that of the highest of the first example.

        Args:
            output: Which output.
        """
        if output is None:
            return int(self.y[0].argmax())
        if isinstance(output, str) and output not in self.outputs:
            raise ValueError(f"output must be one of {', '.join(self.outputs)}, got {output!r}")
        return self.outputs.index(output) if isinstance(output, str) else output

    def scaled(self, factors: Mapping[int, float]) -> Explanation:
        """What the model would say if some parts were there in other amounts and all else stayed the same.

        Args:
            factors: What to multiply the amounts of parts with; 0 removes a part.

        Example:
            >>> block = PFCBlock(8, 3, num_basis=5).eval()
            >>> before = explain(block, torch.rand(1, 8))
            >>> after = before.scaled({2: 0.0})
            >>> torch.allclose(before.y - after.y, before.contributions[:, :, 2])
            True
        """
        h = self.h.clone()
        for part, factor in factors.items():
            _check_part(part, h.shape[1])
            h[:, part] *= factor
        return self.with_amounts(h)

    def with_amounts(self, h: Tensor) -> Explanation:
        """What the model would say if it had found other amounts of the parts.

        Args:
            h: The amounts.

        Shape:
            - h: $(n, r)$
        """
        h = h.to(self.h)
        return replace(self, h=h, y=self.base + _added(h, self.weight_y))

    def table(self, row: int = 0, *, parts: int = _SHOWN_PARTS, outputs: int = _SHOWN_OUTPUTS) -> str:
        """The sum of one example as a table that a person can check by hand.

        Args:
            row: Which example.
            parts: How many parts to show one by one; the others are added up.
            outputs: How many outputs to show, for classes those with the highest scores.
        """
        one, terms = self[row], self.terms(row)
        order = one.y[0].argsort(descending=True) if self.classes else torch.arange(one.y.shape[1])
        shown = order[:outputs].tolist()
        names = [self.outputs[k] for k in shown]
        lines: list[tuple[str, ...]] = [("part", "amount", "of the input", *names)]
        for term in terms[:parts]:
            added = [f"{term.contributions[k]:+.4f}" for k in shown]
            lines.append((self.name_of(term.part), f"{term.amount:.4f}", f"{term.share:.1%}", *added))
        if rest := terms[parts:]:
            added = [f"{sum(term.contributions[k] for term in rest):+.4f}" for k in shown]
            lines.append((f"{len(rest)} others", f"{sum(term.amount for term in rest):.4f}", "", *added))
        if (base := one.base.flatten()).any():
            lines.append(("base", "", "", *(f"{float(base[k]):+.4f}" for k in shown)))
        if shown:
            lines.append(("sum", "", "", *(f"{float(one.y[0, k]):.4f}" for k in shown)))
        head = f"Answer: {one.answers[0]}\n" if self.classes else ""
        return f"{head}{aligned(lines)}\nNot explained: {float(one.unexplained[0]):.1%} of the input."

    def to_dict(self, row: int = 0) -> dict[str, Any]:
        """The explanation of one example as plain values for JSON.

        Args:
            row: Which example.
        """
        one = self[row]
        return {
            "outputs": list(self.outputs),
            "y": one.y[0].tolist(),
            "base": one.base.flatten().tolist(),
            "unexplained": float(one.unexplained[0]),
            "terms": [
                {
                    "part": t.part,
                    "name": self.name_of(t.part),
                    "features": dict(self.top_features(t.part)),
                    "amount": t.amount,
                    "contributions": list(t.contributions),
                    "share": t.share,
                }
                for t in self.terms(row)
            ],
        }

    def __str__(self) -> str:
        tables = [self.table(row) for row in range(min(len(self), _SHOWN_ROWS))]
        if len(self) > _SHOWN_ROWS:
            tables.append(f"and {len(self) - _SHOWN_ROWS} more")
        return "\n\n".join(tables)


@torch.no_grad()
def explain(
    block: PFCBlock, x: Tensor, *, outputs: Sequence[str] = (), classes: bool = False, features: Sequence[str] = ()
) -> Explanation:
    r"""Takes predictions apart: which parts, how much of each, and what each adds to every output.

    $$y = \sum_r W_y[:, r]\, h_r, \qquad x = \sum_r W_x[:, r]\, h_r + \mathrm{rest}$$

    This is not an approximation made afterwards, but what the block computes (Section 2.4).

    Args:
        block: A block.
        x: Inputs.
        outputs: Names of the outputs.
        classes: Whether outputs are the scores of classes.
        features: Names of the features of the input.

    Shape:
        - x: $(n, \text{in_features})$, or $(\text{in_features})$ for one example

    Example:
        >>> block = PFCBlock(4, 2, num_basis=2)
        >>> with torch.no_grad():
        ...     _ = block.weight_x.copy_(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]))
        ...     _ = block.weight_y.copy_(torch.tensor([[1.0, 0], [0.5, 1]]))
        >>> print(explain(block.eval(), torch.tensor([0.5, 0.5, 0.1, 0.1]), outputs=("cat", "dog"), classes=True))
        Answer: cat
        part  amount  of the input      cat      dog
        0     0.5000         98.1%  +0.5000  +0.2500
        1     0.1000         19.6%  +0.0000  +0.1000
        sum                          0.5000   0.3500
        Not explained: 0.0% of the input.
    """
    if x.ndim not in (1, 2):
        raise ValueError(f"x must have shape (n, {block.in_features}), got {tuple(x.shape)}")
    was_training = block.training
    try:
        out = block.eval().couple(x if x.ndim == 2 else x.unsqueeze(0))
    finally:
        block.train(was_training)
    return Explanation(
        x=out.target,
        y=out.y,
        h=out.h,
        weight_x=block.weight_x.detach(),
        weight_y=block.weight_y.detach(),
        base=out.y.new_zeros(out.y.shape[1]),
        outputs=tuple(outputs),
        classes=classes,
        features=tuple(features),
    )


@torch.no_grad()
def counterfactual(block: PFCBlock, x: Tensor, factors: Mapping[int, float]) -> Explanation:
    r"""What a block says when parts are there in other amounts, and the other parts make the best of that.

    The amounts of the parts named are those of `explain` times a factor, and stay there; all others are found anew for
    what these leave of the input. `Explanation.scaled` leaves the others as they are.

    Args:
        block: A block.
        x: Inputs.
        factors: What to multiply the amounts of parts with; 0 removes a part.

    Shape:
        - x: $(n, \text{in_features})$, or $(\text{in_features})$ for one example

    Example:
        >>> block = PFCBlock(2, 2, num_basis=2)
        >>> with torch.no_grad():
        ...     _ = block.weight_x.copy_(torch.ones(2, 2)), block.weight_y.copy_(torch.eye(2))
        >>> other = counterfactual(block.eval(), torch.ones(2), {0: 0.0})
        >>> other.y.round(decimals=2)  # the second part is the same as the first, and takes its place
        tensor([[0., 1.]])
    """
    before = explain(block, x)
    held = torch.zeros_like(before.h)
    for part, factor in factors.items():
        _check_part(part, block.num_basis)
        held[:, part] = factor * before.h[:, part]
    chosen = torch.tensor(sorted(factors), dtype=torch.int64, device=held.device)
    others = block.weight_x.detach().index_fill(1, chosen, 0.0)
    problem = NonnegativeLeastSquares(before.x - held @ block.weight_x.detach().mT, others, l1=block.l1)
    h = solve(problem, block.solver).h.index_fill(1, chosen, 0.0) + held
    return before.with_amounts(h)


def _added(h: Tensor, weight_y: Tensor) -> Tensor:
    """What all parts together add to each output."""
    return h @ weight_y.mT if weight_y.ndim == 2 else (weight_y @ h.unsqueeze(2)).squeeze(2)


def _check_part(part: int, count: int, argument: str = "factors") -> None:
    if not 0 <= index(part) < count:
        raise ValueError(f"{argument} must name parts in [0, {count}), got {part}")


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns under each other, the first from the left and the others from the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if k else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
