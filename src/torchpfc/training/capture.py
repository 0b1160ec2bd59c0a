"""A step of training as one launch, on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Steps that are taken one by one before the next is recorded: the first ones make the state of the optimizer.
_EAGER_STEPS = 3


class Recorded:  # gpu-only: graphs are CUDA's
    """A step that is recorded once, as a graph of all that it launches, and replayed from then on.

    Args:
        step: Takes a named tuple of tensors, the first of them called x, and returns a tensor.
        prepare: Called before the recording, such as to drop gradients.
    """

    def __init__(self, step: Callable[[Any], Tensor], prepare: Callable[[], object] = lambda: None) -> None:
        self._step, self._prepare = step, prepare
        self._steps = 0
        self._stream = _side_stream(torch.cuda.current_device())
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Any) -> Tensor:
        """Takes the step, with all tensors as large as those of the first one."""
        if self._steps < _EAGER_STEPS:
            self._steps += 1
            return self._take_eagerly(batch)
        if self._graph is None:
            self._record(batch)
        if batch.x.shape != self._batch.x.shape:
            shapes = f"{tuple(self._batch.x.shape)}, got {tuple(batch.x.shape)}; drop the last, or do not capture"
            raise ValueError(f"batches must keep their shape while a step is replayed, {shapes}")
        for held, given in zip(self._batch, batch, strict=True):
            if held is not None and given is not None:
                held.copy_(given)
        assert self._graph is not None
        self._graph.replay()
        return self._loss

    def _take_eagerly(self, batch: Any) -> Tensor:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _record(self, batch: Any) -> None:
        self._batch = type(batch)(*(None if part is None else part.clone() for part in batch))
        self._prepare()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._loss = self._step(self._batch)


@cache
def _side_stream(device: int) -> torch.cuda.Stream:  # gpu-only: streams are CUDA's
    """Where steps are recorded: libraries keep memory for every stream that they ever worked on, so there is one."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
