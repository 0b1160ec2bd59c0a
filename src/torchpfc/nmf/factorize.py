"""The door of this package: `factorize`, and what it checks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchpfc.nmf.loop import Alternation, Callback, Factorization
from torchpfc.nmf.matrix import Matrix
from torchpfc.nmf.normalization import Normalization
from torchpfc.nmf.updates import HALS, UpdateRule
from torchpfc.progress import Progress
from torchpfc.solvers.checks import check_at_least_one, check_nonnegative
from torchpfc.solvers.problem import check_mask
from torchpfc.solvers.units import shift


@torch.no_grad()
def factorize(
    V: Tensor,
    num_basis: int,
    *,
    rule: UpdateRule | None = None,
    normalization: Normalization | None = None,
    mask: Tensor | None = None,
    l1: float = 0.0,
    nonnegative: bool = True,
    init: tuple[Tensor, Tensor] | None = None,
    max_iter: int = 200,
    tol: float = 1e-4,
    restarts: int = 1,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
    progress: bool | None = None,
) -> Factorization:
    r"""Finds parts W and codes H such that $H W^\top$ is close to V: non-negative matrix factorization.

    $$\min_{W \ge 0,\, H \ge 0} \tfrac12 \|\mathrm{mask} \cdot (V - H W^\top)\|^2 + l_1 \sum_r \|W_r\| \sum_i H_{ir}$$

    W and H are updated in turn (Appendix A). The objective is not convex: what is found depends on the start.

    Unobserved entries are filled in with the current $H W^\top$ before each half step. The penalty counts the codes as
    they would be with parts of norm 1, since otherwise it could be evaded by long parts and small codes. With `l1` and
    without a normalization the parts returned have norm 1, and the penalty is $l_1 \sum H$.

    Args:
        V: The data, one example per row.
        num_basis: Number of parts.
        rule: How a factor is updated: `HALS()` by default, `GradientUpdates()`, or `LeeSeung()`.
        normalization: How W and H share their scale: `MeanOfMax()`, `ColumnCap()`, `UnitNorm()`, or None to leave it.
        mask: True where V is observed. Unobserved entries may hold anything, NaN included.
        l1: Weight of the codes in the objective; makes H sparse.
        nonnegative: False leaves the sign of W free (semi-NMF), for data with negative entries.
        init: Where to start, a pair (W, H). None draws small random numbers; starts from singular vectors were no
            faster.
        max_iter: Iterations at most, each a pass over all rows. With `HALS` and thousands of rows the first begins
            with passes over a sample of them.
        tol: Stop once the objective falls by less than this, relatively, per iteration. 0 takes every iteration.
        restarts: Starts to try; the result with the lowest objective is returned.
        batch_size: Update W after every batch of this many rows instead of once per pass over all of them.
        generator: Source of random starts.
        callback: Called after each iteration with its number, counted from 1, and the objective. Returning True stops.
        progress: Whether to show a progress bar, where rich is installed. None shows one on a terminal after 2 seconds.

    Shape:
        - V: $(n, m)$
        - mask: broadcasts to $(n, m)$
        - W: $(m, r)$
        - H: $(n, r)$

    Raises:
        ValueError: An argument has a wrong value or shape; V has an observed entry that is not finite, or is negative.
        TypeError: An argument has a wrong type.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> V = torch.rand(100, 3, generator=generator) @ torch.rand(3, 20, generator=generator)
        >>> W, H, history = factorize(V, 3, max_iter=500, tol=0, generator=generator)
        >>> bool((H @ W.T - V).abs().max() < 0.01)
        True
    """
    rule = HALS() if rule is None else rule
    _check_types(V, mask, rule, normalization, init)
    _check_numbers(num_basis, l1, max_iter, tol, restarts, batch_size)
    _check_data(V, mask, nonnegative)
    if not (nonnegative or rule.signed):
        raise ValueError(f"rule must be HALS() or GradientUpdates() where nonnegative=False, got {rule}")
    if init is not None:
        _check_pair(init, V, num_basis, nonnegative, restarts)
    size = _Size.of(V, mask, rule, normalization)
    run = Alternation(
        Matrix.of(size.into(V.detach(), 2), mask), rule, normalization, size.value(l1, -2), nonnegative, batch_size
    )
    best: Factorization | None = None
    with torch.autocast(V.device.type, enabled=False), Progress(restarts * max_iter, show=progress) as bar:
        for restart in range(restarts):
            if init is None:
                W, H = _random_start(run.data.V, num_basis, nonnegative, generator)
            else:
                W, H = (size.into(factor, 1) for factor in init)

            def show(k: int, objective: float, done: int = restart * max_iter) -> bool | None:
                objective = size.value(objective, 4)
                bar.at(done + k, f"{done + k} of {restarts * max_iter}, objective {objective:.6g}")
                return None if callback is None else callback(k, objective)

            result = run.minimize(W, H, max_iter=max_iter, tol=tol, watch=show)
            if best is None or result.objective < best.objective:
                best = result
    assert best is not None
    return size.back(best, run.at_end)


class _Size(NamedTuple):
    """How large the data are, as a power of four: what is computed in between neither overflows nor vanishes.

    With $V = 4^k V'$ and both factors $2^k$ times what they are for $V'$, nothing is rounded on the way.
    """

    k: int

    @classmethod
    def of(cls, V: Tensor, mask: Tensor | None, rule: UpdateRule, normalization: Normalization | None) -> _Size:
        """The size of the data, or none where a rule or a normalization has a size of its own."""
        if rule.floor or not rule.scale_free or not (normalization is None or normalization.keeps_product):
            return cls(0)
        largest = float((V if mask is None else V.where(mask, 0.0)).abs().amax())
        return cls(math.frexp(largest)[1] // 2)

    def into(self, values: Tensor, power: int) -> Tensor:
        """Values that go with a power of $2^k$, as they are for $V'$."""
        return shift(values, torch.tensor(-power * self.k, device=values.device)) if self.k else values

    def value(self, value: float, power: int) -> float:
        """A number times a power of $2^k$."""
        try:
            return math.ldexp(value, power * self.k)
        except OverflowError:
            return math.inf

    def back(self, found: Factorization, normalization: Normalization | None) -> Factorization:
        """The factorization of V, given that of $V'$."""
        if not self.k:
            return found
        W, H = (shift(factor, torch.tensor(self.k, device=factor.device)) for factor in (found.W, found.H))
        if normalization is not None:
            scale_W, scale_H = normalization.scales(W.T, H.T)
            W, H = W * scale_W.T, H * scale_H.T
        found.history.objective[:] = [self.value(objective, 4) for objective in found.history.objective]
        return Factorization(W, H, found.history)


def _random_start(
    V: Tensor, num_basis: int, nonnegative: bool, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Normal numbers, without their sign where it must not be negative, and a product about as large as the data."""
    device = V.device if generator is None else generator.device
    W, H = (
        torch.randn(size, num_basis, generator=generator, device=device, dtype=V.dtype).to(V.device)
        for size in reversed(V.shape)
    )
    scale = (V.abs().mean() / num_basis).sqrt()
    return (W.abs_() if nonnegative else W) * scale, H.abs_() * scale


def _check_types(V: object, mask: object, rule: object, normalization: object, init: object) -> None:
    if not isinstance(V, Tensor):
        raise TypeError(f"V must be a torch.Tensor, got {type(V).__name__}")
    if V.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"V must be float32 or float64, got {V.dtype}")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True where V is observed), got {kind}")
    if not isinstance(rule, UpdateRule):
        raise TypeError(f"rule must be an UpdateRule such as HALS(), got {rule!r}")
    if normalization is not None and not isinstance(normalization, Normalization):
        raise TypeError(f"normalization must be a Normalization such as MeanOfMax(), or None, got {normalization!r}")
    if init is not None and not isinstance(init, tuple):
        raise TypeError(f"init must be a pair (W, H) or None, got {init!r}")


def _check_numbers(num_basis: int, l1: float, max_iter: int, tol: float, restarts: int, batch_size: int | None) -> None:
    counts = {"num_basis": num_basis, "max_iter": max_iter, "restarts": restarts, "batch_size": batch_size}
    for name, count in counts.items():
        if not (isinstance(count, int) or (count is None and name == "batch_size")):
            raise TypeError(f"{name} must be an int, got {count!r}")
    check_at_least_one(**counts)
    check_nonnegative(l1=l1, tol=tol)


def _check_data(V: Tensor, mask: Tensor | None, nonnegative: bool) -> None:
    """Shapes, and once at the start the values: a single NaN would spread over all of W and H."""
    if V.ndim != 2 or V.numel() == 0:
        raise ValueError(f"V must be a matrix (n, m) with at least one row and one column, got shape {tuple(V.shape)}")
    if mask is not None:
        check_mask(mask, V, of="V")
        V = V.where(mask, 0.0)
    lowest, highest = (float(value) for value in V.aminmax())
    if not (abs(lowest) < float("inf") and abs(highest) < float("inf")):  # also where one of them is NaN
        raise ValueError("V must be finite, got NaN or infinite entries; name those to leave out in mask")
    if nonnegative and lowest < 0:
        raise ValueError(f"V must be non-negative, got an entry of {lowest:g}; nonnegative=False allows signs")


def _check_pair(init: tuple[Tensor, Tensor], V: Tensor, num_basis: int, nonnegative: bool, restarts: int) -> None:
    if len(init) != 2:
        raise ValueError(f"init must be a pair (W, H), got {len(init)} items")
    if restarts > 1:
        raise ValueError(f"restarts must be 1 where init is a pair (W, H), got {restarts}")
    for name, F, rows in (("W", init[0], V.shape[1]), ("H", init[1], V.shape[0])):
        if not isinstance(F, Tensor):
            raise TypeError(f"init must be a pair (W, H) of tensors, got {type(F).__name__} for {name}")
        if F.shape != (rows, num_basis):
            raise ValueError(f"init must have {name} of shape {(rows, num_basis)}, got {tuple(F.shape)}")
        if F.dtype != V.dtype or F.device != V.device:
            raise ValueError(
                f"init must have the dtype and device of V ({V.dtype}, {V.device}), "
                f"got ({F.dtype}, {F.device}) for {name}"
            )
        lowest, highest = (float(value) for value in F.aminmax())
        if not (abs(lowest) < float("inf") and abs(highest) < float("inf")):
            raise ValueError(f"init must be finite, got NaN or infinite entries in {name}")
        if lowest < 0 and (nonnegative or name == "H"):
            raise ValueError(f"init must be non-negative, got an entry of {lowest:g} in {name}")
