"""What benchmarks of training steps have in common: the textbook step, a step as one launch, and timing in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc import PFCBlock

FLOOR = 1e-5
CAPTURE_WARM_UP = 3

Step = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


def textbook_lipschitz(W: Tensor) -> Tensor:
    """The largest eigenvalue of the Gram matrix, from 40 power iterations."""
    with torch.no_grad():
        gram = W.T @ W
        vector = torch.rand(len(gram), device=W.device)
        for _ in range(40):
            vector = gram @ vector
            vector = vector / vector.norm()
        return vector @ (gram @ vector)


def textbook_codes(
    x: Tensor, W: Tensor, iterations: int, L: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """FISTA as the paper writes it, differentiated by autograd.

    Args:
        x: Examples in rows.
        W: Parts in columns.
        iterations: Steps to take.
        L: What divides the gradient; found by power iterations where there is none.
        start: The codes to begin with; the floor where there are none.
    """
    L = textbook_lipschitz(W) if L is None else L
    limit = x.detach().amax(1, keepdim=True)
    h = torch.full((len(x), W.shape[1]), FLOOR, device=x.device) if start is None else start
    previous = ahead = h
    t = 1.0
    for _ in range(iterations):
        h = torch.clamp(ahead - (ahead @ W.T - x) @ W / L, min=FLOOR)
        with torch.no_grad():
            largest = h.amax(1, keepdim=True)
            scale = torch.where(largest > limit, limit / largest, 1.0)
        h = h * scale
        later = (1 + math.sqrt(1 + 4 * t * t)) / 2
        ahead = h + (t - 1) / later * (h - previous)
        previous, t = h, later
    return h


def textbook_step(
    block: PFCBlock, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor, iterations: int
) -> None:
    """Trains a block on one batch, with reconstruction loss."""
    optimizer.zero_grad()
    h = textbook_codes(x, block.weight_x, iterations)
    loss = F.mse_loss(h @ block.weight_y.T, target) + F.mse_loss(h @ block.weight_x.T, x)
    loss.backward()
    optimizer.step()


def captured(step: Step) -> Step:
    """The same step as one launch."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CAPTURE_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_tensors_of: Step = step) -> None:  # a graph does not keep what it works on alive
        graph.replay()

    return replay


def wall_clock(step: Step, repeats: int) -> float:
    """Seconds of a step, the work of a device included."""
    _wait_for_device()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    _wait_for_device()
    return (time.perf_counter() - start) / repeats


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measure(
    forms: Mapping[Name, Step],
    rounds: int,
    *,
    clock: Callable[[Step, int], float] = wall_clock,
    warm_up: int = 1,
    timed_seconds: float = 0.0,
    after_round: Step = lambda: None,
) -> dict[Name, list[float]]:
    """Seconds of a step of each form, in every round; the forms take turns, so that a busy machine slows all alike.

    Args:
        forms: Steps by name.
        rounds: How often each form has its turn.
        clock: Gives the seconds of a step, over some repeats.
        warm_up: Steps of each form that are not timed, at first.
        timed_seconds: How long a turn should last; one step where that takes longer.
        after_round: Called at the end of every round.
    """
    repeats = dict.fromkeys(forms, 1)
    for name, step in forms.items():
        for _ in range(warm_up):
            step()
        if timed_seconds:
            repeats[name] = max(1, round(timed_seconds / clock(step, 1)))
    seconds: dict[Name, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, step in forms.items():
            seconds[name].append(clock(step, repeats[name]))
        after_round()
    return seconds
