"""How good a separation is: the paper's error, ratios in decibels, and the test of superposition."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.audio.separation import Separated


def feature_mse(estimate: Tensor, target: Tensor) -> float:
    r"""The paper's measure: the mean over slices and bins of the squared error of features (Section 5.11).

    Shape:
        - estimate, target: $(*, \text{bins})$
    """
    _check_shapes(estimate=estimate, target=target)
    return F.mse_loss(estimate, target).item()


def sdr(reference: Tensor, estimate: Tensor) -> float:
    r"""The ratio of a signal to its error in decibels, $10 \log_{10} \|s\|^2 / \|s - \hat s\|^2$, over all of it.

    Nothing is forgiven, no filter and no gain. NaN for a silent reference.

    Shape:
        - reference, estimate: any, the same

    Example:
        >>> round(sdr(torch.ones(100), torch.full((100,), 0.9)), 3)
        20.0
    """
    _check_shapes(estimate=estimate, reference=reference)
    signal = reference.double().square().sum()
    error = (reference.double() - estimate.double()).square().sum()
    if not signal:
        return float("nan")
    return float(10 * torch.log10(signal / error.clamp(min=1e-30)))


class Scores(NamedTuple):
    """Ratios of BSS Eval in decibels; NaN where a window has no signal."""

    sdr: float
    """Signal to all that is wrong."""
    sir: float
    """Signal to what comes from other sources."""
    sar: float
    """Signal to what comes from none."""


class TrackScores(NamedTuple):
    """The ratios of both parts of a track, each the median over its windows."""

    vocals: Scores
    accompaniment: Scores


def bss_eval(reference: Separated, estimate: Separated, rate: int = 44_100) -> TrackScores:
    r"""The ratios of BSS Eval, version 4, of a track, by the package museval.

    As in the evaluation campaigns: windows of one second, filters of 512 taps for the whole track, and the median over
    the windows that are not silent. Where all channels are the same, one is scored: filters from several that are alike
    are not defined. Where a part is silent from beginning to end, no ratio is defined, and all are NaN.

    Args:
        reference: The true parts.
        estimate: The separated ones.
        rate: Samples per second.

    Shape:
        - each part: $(\text{channels}, n)$
    """
    if {part.shape for part in (*reference, *estimate)} != {reference.vocals.shape}:
        shapes = [tuple(part.shape) for part in (*reference, *estimate)]
        raise ValueError(f"all parts must have the same shape, got {shapes}")
    if not all(bool(part.any()) for part in (*reference, *estimate)):
        undefined = Scores(*[float("nan")] * 3)
        return TrackScores(undefined, undefined)
    if all(bool((part == part[:1]).all()) for part in (*reference, *estimate)):
        reference, estimate = (Separated(*(part[:1] for part in parts)) for parts in (reference, estimate))
    true, found = (
        np.stack([part.T.double().cpu().numpy() for part in parts]) for parts in (reference, estimate)
    )  # (2, n, channels)
    ratios = _museval_metrics().bss_eval(true, found, window=rate, hop=rate)
    return TrackScores(*(Scores(*(finite_median(ratios[k][source]) for k in (0, 2, 3))) for source in range(2)))


def median_scores(tracks: Sequence[TrackScores]) -> TrackScores:
    """The median over tracks, as a field's tables have it: each number by itself.

    Args:
        tracks: The scores of each track, which are medians over its windows.

    Example:
        >>> tracks = [TrackScores(Scores(k, 2 * k, 3 * k), Scores(-k, 0, 0)) for k in (1.0, 5.0, 2.0)]
        >>> median_scores(tracks).vocals
        Scores(sdr=2.0, sir=4.0, sar=6.0)
    """
    if not tracks:
        raise ValueError("tracks must have at least one track, got none")
    values = np.array(tracks, dtype=float)  # (tracks, 2, 3)
    return TrackScores(*(Scores(*(finite_median(values[:, i, k]) for k in range(3))) for i in range(2)))


@torch.no_grad()
def superposition_error(model: nn.Module, x1: Tensor, x2: Tensor, a: float = 1.0, b: float = 1.0) -> float:
    r"""How far a model is from answering a sum of inputs with the sum of its answers.

    $$\frac{\|f(a x_1 + b x_2) - (a f(x_1) + b f(x_2))\|}{\|a f(x_1) + b f(x_2)\|}$$

    It is 0 for a linear model. A factorized model may come close to it where the columns that explain one input are not
    those that explain the other.

    Args:
        model: Called as `FactorizedRNN` is; each input is heard from the first state on.
        x1: Features of one sound.
        x2: Features of another.
        a: The amount of the first.
        b: The amount of the second.

    Shape:
        - x1, x2: $(*, T, \text{bins})$

    Example:
        >>> from torchpfc import VanillaRNN
        >>> x1, x2 = torch.rand(2, 3, 5, 20, generator=torch.Generator().manual_seed(0))
        >>> superposition_error(VanillaRNN(20, 8, 20, generator=torch.Generator().manual_seed(0)), x1, x2) > 0.01
        True
    """
    _check_shapes(x2=x2, x1=x1)
    sum_of_answers = a * model(x1)[0] + b * model(x2)[0]
    answer_to_sum = model(a * x1 + b * x2)[0]
    return float((answer_to_sum - sum_of_answers).norm() / sum_of_answers.norm().clamp(min=1e-30))


def _check_shapes(**tensors: Tensor) -> None:
    """Refuses the first of two tensors where it has not the shape of the second."""
    (name, tensor), (other, like) = tensors.items()
    if tensor.shape != like.shape:
        raise ValueError(f"{name} must have the shape of {other} {tuple(like.shape)}, got {tuple(tensor.shape)}")


def finite_median(values: Any) -> float:
    """The median of the numbers that are finite; NaN where none is."""
    kept = np.asarray(values, dtype=float)
    kept = kept[np.isfinite(kept)]
    return float(np.median(kept)) if kept.size else float("nan")


@functools.cache
def _museval_metrics() -> ModuleType:
    """The module with the metrics alone: the whole package would look for a program that decodes stem files."""
    package = importlib.util.find_spec("museval")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("bss_eval needs the package museval: pip install 'torchpfc[audio]'", name="museval")
    loader = SourceFileLoader("museval.metrics", str(Path(package.origin).with_name("metrics.py")))
    module = ModuleType(loader.name)
    loader.exec_module(module)
    return module
