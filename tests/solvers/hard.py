"""Ordinary problems on which solvers fail: for the tests and for `benchmarks/hard_nnls.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]
Family = Callable[[int, int, Generator], Array]


def decays(m: int, r: int, rng: Generator) -> Array:
    """Exponentials, as in relaxation times."""
    return np.exp(-np.linspace(0, 5, m)[:, None] * np.geomspace(0.1, 20, r))


def bumps(m: int, r: int, rng: Generator) -> Array:
    """Overlapping peaks, as in spectra."""
    return np.exp(-0.5 * ((np.linspace(0, 1, m)[:, None] - np.linspace(0, 1, r)) / 0.08) ** 2)


def hilbert(m: int, r: int, rng: Generator) -> Array:
    return 1 / (np.arange(m)[:, None] + np.arange(r) + 1.0)


def vandermonde(m: int, r: int, rng: Generator) -> Array:
    return np.linspace(0, 1, m)[:, None] ** np.arange(r)


def vandermonde_signed(m: int, r: int, rng: Generator) -> Array:
    return np.linspace(-1, 1, m)[:, None] ** np.arange(r)


def kernel(m: int, r: int, rng: Generator) -> Array:
    """Radial functions at random places."""
    places, centres = rng.random((m, 1, 2)), rng.random((r, 2))
    return np.exp(-((places - centres) ** 2).sum(-1) / 0.1)


def steps(m: int, r: int, rng: Generator) -> Array:
    return (np.arange(m)[:, None] / m >= np.arange(r) / r).astype(float)


def uniform(m: int, r: int, rng: Generator) -> Array:
    return rng.random((m, r))


def signed(m: int, r: int, rng: Generator) -> Array:
    return rng.standard_normal((m, r))


def spectrum(m: int, r: int, rng: Generator) -> Array:
    """Signed, with singular values from 1 to 1e-10."""
    left, right = (np.linalg.qr(rng.standard_normal((size, r)))[0] for size in (m, r))
    return (left * np.geomspace(1, 1e-10, r)) @ right.T


def near_twins(m: int, r: int, rng: Generator) -> Array:
    W = rng.random((m, r))
    W[:, r // 2 : 2 * (r // 2)] = W[:, : r // 2] + 1e-7 * rng.standard_normal((m, r // 2))
    return W


def twins_and_zeros(m: int, r: int, rng: Generator) -> Array:
    W = rng.random((m, r))
    W[:, r // 3 : 2 * (r // 3)] = W[:, : r // 3]
    W[:, -max(r // 10, 1) :] = 0
    return W


def low_rank(m: int, r: int, rng: Generator) -> Array:
    return rng.random((m, max(r // 4, 1))) @ rng.random((max(r // 4, 1), r))


def wide(m: int, r: int, rng: Generator) -> Array:
    """More parts than features."""
    return rng.random((r // 2, r))


def two_sizes(m: int, r: int, rng: Generator) -> Array:
    """Columns of sizes 1 and 1e-3."""
    return rng.random((m, r)) * np.where(np.arange(r) % 2, 1.0, 1e-3)


def all_sizes(m: int, r: int, rng: Generator) -> Array:
    """Columns from 1e-6 to 1e6."""
    return rng.random((m, r)) * rng.permutation(np.geomspace(1e-6, 1e6, r))


def sparse(m: int, r: int, rng: Generator) -> Array:
    return rng.random((m, r)) * (rng.random((m, r)) < 0.1)


FAMILIES: dict[str, tuple[Family, float]] = {
    **{
        f"{family.__name__}, noise {noise:g}": (family, noise)
        for family in (
            decays,
            bumps,
            hilbert,
            vandermonde,
            vandermonde_signed,
            kernel,
            steps,
            uniform,
            signed,
            spectrum,
        )
        for noise in (1e-2, 1e-12)
    },
    **{
        f"{family.__name__}, noise {noise:g}": (family, noise)
        for family, noise in (
            (near_twins, 1e-2),
            (near_twins, 1e-12),
            (twins_and_zeros, 1e-2),
            (low_rank, 1e-2),
            (low_rank, 1e-12),
            (wide, 1e-2),
            (wide, 1e-12),
            (two_sizes, 1e-2),
            (all_sizes, 1e-2),
            (all_sizes, 1e-12),
            (sparse, 1e-2),
            (bumps, 1.0),
            (uniform, 1.0),
            (decays, 1e-6),
            (bumps, 1e-6),
        )
    },
}


def make(name: str, m: int, r: int, n: int, seed: int = 0) -> tuple[Array, Array]:
    """Rows x that mix a third of the columns of W, with noise of a given size relative to each row."""
    family, noise = FAMILIES[name]
    rng = np.random.default_rng(seed)
    W = family(m, r, rng)
    h = rng.exponential(size=(n, r)) * (rng.random((n, r)) < 0.3)
    x = h @ W.T
    added = rng.standard_normal(x.shape)
    added *= np.linalg.norm(x, axis=1, keepdims=True) / np.linalg.norm(added, axis=1, keepdims=True)
    return x + noise * added, W


def violation(x: Array, W: Array, h: Array) -> Array:
    """How much each row violates the KKT conditions of W with unit columns, relative to the norm of x."""
    norms = np.linalg.norm(W, axis=0)
    norms[norms == 0] = 1
    sizes = np.linalg.norm(x, axis=1)
    sizes[sizes == 0] = 1
    gradient = (h @ W.T - x) @ (W / norms)
    return np.where(h > 0, np.abs(gradient), -gradient).max(1, initial=0) / sizes


def residual(x: Array, W: Array, h: Array) -> Array:
    return np.linalg.norm(x - h @ W.T, axis=1)
