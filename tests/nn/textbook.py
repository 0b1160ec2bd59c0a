"""The PFC block as a textbook would write it: plain PyTorch, autograd through every step, no code of the library.

Examples are rows here too, so `W h` reads `h @ W.T`.
"""

import math

import torch
from torch import Tensor

FLOOR = 1e-5


def fista(x: Tensor, W: Tensor, L: Tensor, iterations: int, *, floor: float = FLOOR, cap: bool = True) -> Tensor:
    """FISTA from the floor, every step in the graph; L and the ratio of the cap are constants for the gradient."""
    largest_x = x.detach().abs().amax(-1, keepdim=True)
    previous = torch.zeros(len(x), W.shape[1], dtype=x.dtype)
    ahead = torch.full_like(previous, floor)
    h, t = ahead, 1.0
    for _ in range(iterations):
        gradient = (ahead @ W.T - x) @ W
        h = torch.clamp(ahead - gradient / L, min=floor)
        if cap:
            largest_h = h.detach().amax(-1, keepdim=True)
            h = h * torch.where(largest_h > largest_x, largest_x / largest_h, torch.ones_like(largest_h))
        later = (1 + math.sqrt(1 + 4 * t * t)) / 2
        ahead = h + (t - 1) / later * (h - previous)
        previous, t = h, later
    return h


class RMSpropAndClip:
    """RMSprop with full weight decay at every step; then, for NMF, every weight below the floor becomes the floor."""

    def __init__(self, weights: list[Tensor], *, lr: float, weight_decay: float, nonnegative: bool) -> None:
        self.weights = weights
        self.square_avgs = [torch.zeros_like(weight) for weight in weights]
        self.lr, self.weight_decay, self.nonnegative = lr, weight_decay, nonnegative

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        for weight, v, g in zip(self.weights, self.square_avgs, gradients, strict=True):
            v.copy_(0.99 * v + 0.01 * g**2)
            weight -= self.lr * g / (v.sqrt() + 1e-8)
            weight -= self.weight_decay * weight
            if self.nonnegative:
                weight[weight < FLOOR] = FLOOR
