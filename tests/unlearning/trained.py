"""A small block after one epoch through a window, for tests of what it is made to forget."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc import FISTA, PFCBlock, RMSprop, RMSpropSLW, Windowed, keep_nonnegative
from torchpfc.data.streams import Stream
from torchpfc.optim.ledger import Ledger
from torchpfc.training import SquaredErrors, WarmCodes, fit
from torchpfc.unlearning import forget

IN, OUT, BASIS, BATCHES, BATCH_SIZE = 6, 3, 16, 6, 4
WINDOW: dict[str, Any] = {"width": 4, "sweep_speed": 2}
COLUMNS = range(4, 10)  # what batches 2 and 3 could write
KEPT = [0, 1, 2, 3, *range(10, 16)]

MAKERS: dict[str, Callable[..., Optimizer]] = {
    "RMSprop": lambda params: RMSprop(params, lr=1e-2, weight_decay=1e-3),
    "RMSpropSLW": lambda params: RMSpropSLW(params, lr=1e-2, weight_decay=1e-3, **WINDOW),
    "windowed Adam": lambda params: Windowed(torch.optim.Adam(params, lr=1e-2, amsgrad=True), **WINDOW),
    "SGD": lambda params: torch.optim.SGD(params, lr=1e-1, momentum=0.9),
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_options(**options: Any) -> dict[str, Any]:
    return {"solver": FISTA.paper(8), "init_range": (0.0, 0.5), "dtype": torch.float64, **options}


def make_block(seed: int = 0, **options: Any) -> PFCBlock:
    return PFCBlock(IN, OUT, BASIS, generator=seeded(seed), **make_options(**options))


def make_stream() -> Stream:
    count = BATCHES * BATCH_SIZE
    x = torch.rand(count, IN, generator=seeded(1), dtype=torch.float64)
    return Stream(x, torch.eye(OUT, dtype=torch.float64).repeat(count, 1)[:count], batch_size=BATCH_SIZE)


class Trained:
    """A model after one epoch through a window."""

    def __init__(self, model: nn.Module, kind: str = "RMSpropSLW", *, nonnegative: bool = True) -> None:
        self.model, self.stream, self.ledger = model, make_stream(), Ledger()
        self.codes = WarmCodes(model, len(self.stream.x))
        self.optimizer = MAKERS[kind](model.parameters())
        if nonnegative:
            keep_nonnegative(model, self.optimizer)
        self.ledger.watch(self.optimizer)
        self.train()

    def train(self) -> None:
        batches = self.ledger.follow(self.stream)
        list(fit(self.model, self.optimizer, batches, SquaredErrors(), epochs=1, codes=self.codes))
        if isinstance(self.optimizer, RMSpropSLW | Windowed):
            self.optimizer.reset_window()

    def forget(self, **what: Any) -> Any:
        if "examples" not in what:
            what.setdefault("batches", [2, 3])
        return forget(self.model, self.ledger, optimizer=self.optimizer, codes=self.codes, **what)

    def column_state(self) -> list[Tensor]:
        return [
            value
            for p in self.model.parameters()
            for value in self.optimizer.state[p].values()
            if isinstance(value, Tensor) and value.shape == p.shape
        ]
