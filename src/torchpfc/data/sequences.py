"""Sequences of symbols: a pattern that repeats, and symbols to be copied after a pause (Sections 5.8 and 5.9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PATTERN = (0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 2, 2, 2, 2, 2, 1, 3, 2, 1)
"""The published pattern, of four symbols."""


def random_pattern(length: int, num_symbols: int, generator: torch.Generator) -> tuple[int, ...]:
    """A pattern in which each symbol occurs, and which is not a shorter one repeated.

    Args:
        length: How many symbols it has.
        num_symbols: How many there are to choose from.
        generator: Source of the choice.

    Example:
        >>> pattern = random_pattern(6, 3, torch.Generator().manual_seed(0))
        >>> len(pattern), sorted(set(pattern))
        (6, [0, 1, 2])
    """
    if not 2 <= num_symbols <= length:
        raise ValueError(f"num_symbols must be from 2 to the length, {length}, got {num_symbols}")
    while True:
        pattern = tuple(torch.randint(num_symbols, (length,), generator=generator).tolist())
        shifted = (pattern[k:] + pattern[:k] for k in range(1, length))
        if len(set(pattern)) == num_symbols and pattern not in shifted:
            return pattern


@dataclass(frozen=True)
class CopyTask:
    r"""Symbols to remember, a pause, and as many slices in which they are asked for.

    The input is one-hot and has two further symbols: one for the pause, one that asks. The targets are the symbols, in
    the slices that ask for them.

    Args:
        pause: Slices between the last symbol and the first question.
        num_tokens: Symbols to remember.
        num_symbols: How many there are to choose from.

    Example:
        >>> task = CopyTask(pause=1, num_tokens=2, num_symbols=3)
        >>> task.inputs(torch.tensor([[2, 0]])).argmax(-1)
        tensor([[2, 0, 3, 4, 4]])
    """

    pause: int = 5
    num_tokens: int = 10
    num_symbols: int = 10

    def __post_init__(self) -> None:
        """Checks the settings."""
        for name, least in (("pause", 0), ("num_tokens", 1), ("num_symbols", 2)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    @property
    def input_size(self) -> int:
        """Size of the input of a slice."""
        return self.num_symbols + 2

    @property
    def slices(self) -> int:
        """Length of a sequence."""
        return 2 * self.num_tokens + self.pause

    @property
    def asked(self) -> Tensor:
        """True for the slices that have a target."""
        return torch.arange(self.slices) >= self.num_tokens + self.pause

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        r"""Symbols to remember, $(\text{count}, \text{num_tokens})$."""
        return torch.randint(self.num_symbols, (count, self.num_tokens), generator=generator)

    def inputs(self, tokens: Tensor) -> Tensor:
        r"""What a network reads, $(*, \text{slices}, \text{input_size})$ in float32."""
        rest = [self.num_symbols] * self.pause + [self.num_symbols + 1] * self.num_tokens
        later = torch.tensor(rest, device=tokens.device).expand(*tokens.shape[:-1], -1)
        return F.one_hot(torch.cat([tokens, later], dim=-1), self.input_size).float()

    def targets(self, tokens: Tensor) -> Tensor:
        r"""What it should answer, $(*, \text{slices}, \text{num_symbols})$ in float32; zeros where nothing is asked."""
        answers = F.one_hot(tokens, self.num_symbols).float()
        return F.pad(answers, (0, 0, self.slices - self.num_tokens, 0))
