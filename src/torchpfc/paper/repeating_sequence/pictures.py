"""Pictures of what a factorized RNN has learned of a sequence: its weights, and the factorization as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.interpret import column_order, columns_in_use, ordered_weights
from torchpfc.nn import NMFRNN
from torchpfc.paper.drawing import LINE, WHITE, draw_framed

CELL = 5
"""Pixels of an entry, along each side."""

SPARE = 5
"""Columns that are not in use, and shown nevertheless."""


def pictures(network: NMFRNN, symbols: Tensor, seed_length: int, generated: Tensor) -> dict[str, str]:
    r"""All pictures of a network that has learned to go on with a sequence, as PNG files in base64.

    Args:
        network: The network.
        symbols: The sequence that it learned, at least as long as the generated one.
        seed_length: With how many slices of it the generated one begins.
        generated: What it went on with, the seed included.

    Shape:
        - symbols: $(T)$
        - generated: $(S, \text{input_size})$
    """
    order = column_order(network)
    shown = min(len(order), len(columns_in_use(network)) + SPARE)
    count, size = len(generated), network.input_size
    rows = ordered_weights(network, order.to(network.weight.device))[:, :shown]
    # The three matrices; of states, those of the columns that are shown.
    W = [rows[: network.output_size], rows[network.output_size : -size][:shown], rows[-size:]]
    trained = F.one_hot(symbols[:count], size).to(generated)
    seed = torch.where(torch.arange(count, device=generated.device).unsqueeze(1) < seed_length, trained, 0.0)
    states = network.infer(generated)[:, order.to(generated.device)][:, :shown]
    before = factorization([_next(seed), torch.zeros_like(states), seed], W, torch.zeros_like(states))
    last = F.pad(states, (0, 0, 1, 0))[:-1]
    after = factorization([_next(generated), last, generated], W, states)
    return {
        "stacked_weights": draw_framed(stack_blocks([block / _largest(W) for block in W])),
        "factorization_before": draw_framed(before),
        "factorization_after": draw_framed(after),
        "sequences": draw_framed(stack_blocks([x.T.clamp(0, 1) for x in (trained, seed, generated)])),
    }


def factorization(V: Sequence[Tensor], W: Sequence[Tensor], H: Tensor) -> Tensor:
    """V beside W beside H, each dark where it is large: what is to be explained, the parts, and the amounts."""
    blocks = [block.T / _largest(V) for block in V]
    left, middle = stack_blocks(blocks), stack_blocks([block / _largest(W) for block in W])
    right = enlarge(H.T / _largest([H]))
    above = CELL * len(W[0]) + 1  # level with the states in V and W
    right = F.pad(right, (0, 0, above, len(left) - above - len(right)))
    gap = torch.full((len(left), 3 * CELL), WHITE)
    return torch.cat([left, gap, middle, gap, right], dim=1)


def stack_blocks(blocks: Sequence[Tensor]) -> Tensor:
    """Matrices below one another, enlarged, with a line between them."""
    line = torch.full((1, CELL * blocks[0].shape[1]), LINE)
    return torch.cat([part for block in blocks for part in (line, enlarge(block))][1:])


def enlarge(block: Tensor) -> Tensor:
    """Each entry as a square."""
    return block.detach().cpu().float().repeat_interleave(CELL, 0).repeat_interleave(CELL, 1)


def _next(x: Tensor) -> Tensor:
    """What comes after each slice; nothing after the last."""
    return F.pad(x, (0, 0, 0, 1))[1:]


def _largest(blocks: Sequence[Tensor]) -> float:
    return max(max(float(block.max()) for block in blocks), 1e-12)
