"""Separation by plain NMF: columns for the vocals, columns for the rest, no memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchpfc.audio.features import Features
from torchpfc.nmf import factorize
from torchpfc.nmf.normalization import unit_columns
from torchpfc.solvers import FISTA, NonnegativeLeastSquares, solve

STEPS = 50
"""Steps of the solver per frame."""


class NMFSeparator(nn.Module):
    r"""Explains each frame by columns of the vocals and columns of the rest, and keeps what the first explain.

    $$h = \arg\min_{h \ge 0} \|x - (W_v, W_a) h\|^2, \qquad y = x \cdot \frac{W_v h_v}{W_v h_v + W_a h_a}$$

    where x is a frame of magnitudes, which nearly add up where sounds are mixed; compressed features do not. It is
    called with features and answers with features, as the recurrent networks do, and hears every frame by itself.

    Args:
        weight_x: The columns.
        num_vocals: How many of them, from the first, belong to the vocals.
        features: The settings of the features.

    Shape:
        - weight_x: $(\text{bins}, r)$
        - x, y: $(*, T, \text{bins})$
    """

    def __init__(self, weight_x: Tensor, num_vocals: int, features: Features | None = None) -> None:
        super().__init__()
        self.features = Features() if features is None else features
        if weight_x.ndim != 2 or len(weight_x) != self.features.bins:
            raise ValueError(f"weight_x must have shape ({self.features.bins}, r), got {tuple(weight_x.shape)}")
        if not 1 <= num_vocals < weight_x.shape[1]:
            raise ValueError(f"num_vocals must be from 1 to {weight_x.shape[1] - 1}, got {num_vocals}")
        self.num_vocals = num_vocals
        self.weight_x = nn.Parameter(weight_x.detach().clone(), requires_grad=False)

    @classmethod
    def fit(
        cls,
        vocals: Tensor,
        accompaniment: Tensor,
        num_basis: tuple[int, int] = (64, 64),
        *,
        features: Features | None = None,
        max_iter: int = 100,
        generator: torch.Generator | None = None,
    ) -> NMFSeparator:
        r"""Learns the columns of each source from that source alone.

        Args:
            vocals: Features of vocals.
            accompaniment: Features of everything else.
            num_basis: Columns of the vocals, and of the rest.
            features: The settings of the features.
            max_iter: Iterations of each factorization.
            generator: Source of its random start.

        Shape:
            - vocals, accompaniment: $(*, \text{bins})$

        Example:
            >>> features, generator = Features(bins=20), torch.Generator().manual_seed(0)
            >>> low, high = torch.rand(2, 200, 10, generator=generator)
            >>> vocals, rest = torch.cat([low, 0 * low], dim=-1), torch.cat([0 * high, high], dim=-1)
            >>> model = NMFSeparator.fit(vocals, rest, (5, 5), features=features, generator=generator)
            >>> y, _ = model(vocals + rest)
            >>> bool((y - vocals).square().mean() < 0.05 * vocals.square().mean())
            True
        """
        features = Features() if features is None else features
        columns = []
        for name, source, count in zip(("vocals", "accompaniment"), (vocals, accompaniment), num_basis, strict=True):
            if source.shape[-1] != features.bins:
                raise ValueError(f"{name} must have shape (..., {features.bins}), got {tuple(source.shape)}")
            V = features.expand(source.flatten(0, -2)) / features.loudest
            W = factorize(V, count, max_iter=max_iter, generator=generator, progress=False).W
            columns.append(unit_columns(W))
        return cls(torch.cat(columns, dim=1), num_basis[0], features)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features of the vocals, and a state that is empty."""
        h = self.amounts(x)
        vocals = h[..., : self.num_vocals] @ self.weight_x[:, : self.num_vocals].T
        rest = h[..., self.num_vocals :] @ self.weight_x[:, self.num_vocals :].T
        share = vocals / (vocals + rest).clamp(min=1e-12)
        return x * share**self.features.exponent, x.new_zeros(*x.shape[:-2], 0)

    def amounts(self, x: Tensor) -> Tensor:
        r"""How much of each column explains each frame, $(*, T, r)$."""
        magnitude = self.features.expand(x) / self.features.loudest
        return solve(NonnegativeLeastSquares(magnitude, self.weight_x), FISTA(max_iter=STEPS)).h

    def extra_repr(self) -> str:
        """The settings shown when the module is printed."""
        bins, columns = self.weight_x.shape
        return f"bins={bins}, num_vocals={self.num_vocals}, num_basis={columns}"
