"""Codes of training examples that solves of the next epoch start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.nn import record_couplings, warm_couplings
from torchpfc.nn.recording import named_blocks


class WarmCodes:
    """One code for each training example and block: where the next epoch's solve of that example starts.

    Args:
        model: A model with PFC blocks, or a stack.
        num_examples: Of the training set.
        gather: Collects a tensor from all processes, in a new first dimension; None where there is one.
    """

    def __init__(
        self, model: nn.Module, num_examples: int, *, gather: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._model = model
        self._gather = gather
        self._codes = {
            name: block.weight_x.new_full(
                (*block.weight_x.shape[:-2], num_examples, block.num_basis), block.solver.floor
            )
            for name, block in named_blocks(model).items()
        }

    @contextmanager
    def used(self, rows: Tensor | None) -> Iterator[None]:
        """Starts the solves of some examples at their codes while the model runs, and keeps what they end at."""
        if rows is None:
            raise ValueError("batches must name their rows to be used with codes, got a batch without")
        self._grow()
        starts = {name: codes[_places(codes, rows)] for name, codes in self._codes.items()}
        with warm_couplings(self._model, starts), record_couplings(self._model) as seen:
            yield
        for name, couplings in seen.items():
            self._keep(self._codes[name], rows, couplings[-1].h.detach())

    def state_dict(self) -> dict[str, Tensor]:
        """All codes, by the name of the block."""
        return self._codes

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over codes that were saved."""
        for name, codes in self._codes.items():
            codes.copy_(state[name])

    def select_(self, members: Tensor) -> None:
        """Keeps the codes of some models of a stack."""
        self._codes = {name: codes[members.to(codes.device)] for name, codes in self._codes.items()}

    def _grow(self) -> None:
        """Follows blocks that have gained parts on the right; their codes start at the floor."""
        for name, block in named_blocks(self._model).items():
            missing = block.num_basis - self._codes[name].shape[-1]
            if missing > 0:
                self._codes[name] = F.pad(self._codes[name], (0, missing), value=block.solver.floor)

    def _keep(self, codes: Tensor, rows: Tensor, h: Tensor) -> None:
        if self._gather is None:
            codes[_places(codes, rows)] = h
            return
        for theirs, code in zip(self._gather(rows), self._gather(h), strict=True):
            codes[_places(codes, theirs)] = code


def _places(codes: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """Indices of rows in codes, which have a first dimension for the models of a stack or none."""
    if codes.ndim == 2:
        return (rows,)
    return torch.arange(len(codes), device=codes.device).unsqueeze(1), rows
