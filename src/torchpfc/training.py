"""Training as a plain loop: for one model or a stack of them, on a GPU with the whole step as one launch."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from torchpfc.nn import record_couplings, warm_couplings
from torchpfc.nn.recording import named_blocks
from torchpfc.optim.windowed import WindowedOptimizer

# Steps that are taken one by one before the next is recorded: the first ones make the state of the optimizer.
_EAGER_STEPS = 3


class Batch(NamedTuple):
    r"""Examples to learn from.

    Shape:
        - x: $(n, m)$, or $(s, n, m)$ with other examples for each model of a stack
        - target: $(n, k)$ or $(s, n, k)$
        - rows: $(n)$ or $(s, n)$
    """

    x: Tensor
    target: Tensor
    rows: Tensor | None = None
    """Which examples these are, counted within the training set; needed for warm codes only."""


class Scored(NamedTuple):
    """What an objective finds: the loss of each model, and its predictions."""

    loss: Tensor
    """A scalar, or $(s)$ for a stack."""
    y: Tensor


Objective = Callable[[nn.Module, Tensor, Tensor], Scored]


@dataclass(frozen=True, eq=False)
class SquaredErrors:
    r"""The paper's loss: mean squared errors of the prediction and of the reconstruction of every block's input.

    Args:
        prediction: What the error of the prediction counts, or one weight for each model of a stack.
        reconstruction: What each error of a reconstruction counts; 0 leaves them out.
    """

    prediction: float | Tensor = 1.0
    reconstruction: float | Tensor = 0.0

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Scored:
        """Applies the model and measures it."""
        if isinstance(self.reconstruction, float | int) and not self.reconstruction:
            y = model(x)
            return Scored(self.prediction * _mean_square(y - target), y)
        with record_couplings(model) as seen:
            y = model(x)
        loss = self.prediction * _mean_square(y - target)
        for couplings in seen.values():
            for coupling in couplings:
                error = _mean_square(coupling.x - coupling.target)
                loss = loss + self.reconstruction * error / len(couplings)
        return Scored(loss, y)


class Batches:
    """A data set as tensors on one device, in batches whose order is new in every epoch.

    The order depends on the seed and the epoch alone, so a run that goes on at some epoch sees the same batches as one
    that was never stopped.

    Args:
        x: All inputs.
        target: All targets.
        batch_size: Examples in a batch.
        rows: Which examples belong to this set, by default all. A stack may have others for each model.
        seeds: Decide the order, one for each model where `rows` differ. None keeps the order of `rows`.
        drop_last: Whether to leave out the rest that does not fill a batch.
        share: (k, n) takes the k-th of n equal parts of each batch, for one of n processes. Only whole batches can be
            divided so.

    Shape:
        - x: $(N, m)$
        - target: $(N, k)$
        - rows: $(n)$ or $(s, n)$

    Example:
        >>> batches = Batches(torch.rand(10, 3), torch.rand(10, 2), batch_size=4)
        >>> tuple(len(batch.x) for batch in batches)
        (4, 4, 2)
    """

    def __init__(
        self,
        x: Tensor,
        target: Tensor,
        *,
        batch_size: int,
        rows: Tensor | None = None,
        seeds: int | Sequence[int] | None = None,
        drop_last: bool = False,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        if len(x) != len(target):
            raise ValueError(f"target must have as many rows as x ({len(x)}), got {len(target)}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if batch_size % share[1]:
            raise ValueError(f"batch_size must be a multiple of the {share[1]} processes, got {batch_size}")
        if share[1] > 1 and not drop_last:
            raise ValueError(f"drop_last must be True where {share[1]} processes share batches, got False")
        self.x, self.target, self.batch_size = x, target, batch_size
        self.rows = torch.arange(len(x), device=x.device) if rows is None else rows.to(x.device)
        self.seeds = [seeds] if isinstance(seeds, int) else seeds
        if self.seeds is not None and len(self.seeds) != (1 if self.rows.ndim == 1 else len(self.rows)):
            raise ValueError(f"seeds must be one for each set of rows, got {len(self.seeds)}")
        self.drop_last = drop_last
        self.share = share
        self.epoch = 0

    def __len__(self) -> int:
        full, rest = divmod(self.rows.shape[-1], self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        order = self._order()
        part, parts = self.share
        for k in range(len(self)):
            chosen = order[..., k * self.batch_size : (k + 1) * self.batch_size][..., part::parts]
            rows = self.rows.gather(-1, chosen)
            yield Batch(self.x[rows], self.target[rows], chosen)

    def _order(self) -> Tensor:
        if self.seeds is None:
            return torch.arange(self.rows.shape[-1], device=self.rows.device).expand(self.rows.shape)
        count = self.rows.shape[-1]
        orders = [torch.randperm(count, generator=random_stream(seed, "order", self.epoch)) for seed in self.seeds]
        return torch.stack(orders).view(self.rows.shape).to(self.rows.device)


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
    def used(self, rows: Tensor) -> Iterator[None]:
        """Starts the solves of some examples at their codes while the model runs, and keeps what they end at."""
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


class EpochStats(NamedTuple):
    """What an epoch was like."""

    epoch: int
    loss: Tensor
    """Mean over the batches, for each model."""
    steps: int
    seconds: float


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Any],
    objective: Objective,
    *,
    epochs: int,
    first_epoch: int = 0,
    codes: WarmCodes | None = None,
    capture: bool | None = None,
    backward: Callable[[Tensor], Any] = torch.Tensor.backward,
) -> Iterator[EpochStats]:
    """Trains epoch by epoch; what to do between epochs, and when to stop, is up to the caller.

    Args:
        model: A model, or a stack of models.
        optimizer: Of its parameters.
        batches: Yields `Batch` or pairs (x, target). If it has a method `set_epoch`, that is called before each epoch.
        objective: Finds the losses of a batch. Those of a stack are added up, so each model learns as if alone.
        epochs: Number of the epoch to end before.
        first_epoch: Number of the first epoch.
        codes: Where to start solves, for batches with `rows`.
        capture: Whether to record a whole step once and replay it, which takes batches of equal shapes on a CUDA device
            and an optimizer without a window, which moves on the host. None records where that is so.
        backward: Finds the gradients of a loss.

    Yields:
        The statistics of each epoch after it.

    Example:
        >>> from torchpfc import PFCBlock, RMSprop, keep_nonnegative
        >>> block = PFCBlock(8, 3, num_basis=5)
        >>> optimizer = RMSprop(block.parameters())
        >>> handle = keep_nonnegative(block, optimizer)
        >>> batches = Batches(torch.rand(20, 8), torch.rand(20, 3), batch_size=10, seeds=0)
        >>> sum(stats.steps for stats in fit(block, optimizer, batches, SquaredErrors(), epochs=3))
        6
    """
    device = next(model.parameters()).device
    step: Callable[[Batch], Tensor] = _Step(model, optimizer, objective, codes, backward)
    windowed = isinstance(optimizer, WindowedOptimizer)
    if windowed and capture:
        raise ValueError("capture must be False with an optimizer whose window moves from step to step, got True")
    if (device.type == "cuda" and not windowed) if capture is None else capture:
        step = Recorded(step, optimizer.zero_grad)  # gpu-only: graphs are CUDA's
    for epoch in range(first_epoch, epochs):
        if hasattr(batches, "set_epoch"):
            batches.set_epoch(epoch)
        model.train()
        start, total, steps = time.perf_counter(), torch.zeros((), device=device), 0
        for batch in batches:
            total = total + step(Batch(*batch))
            steps += 1
        if not steps:
            raise ValueError("batches must hold at least one batch, got none")
        loss = (total / steps).cpu()  # waits for the device, so that the time is that of the work
        yield EpochStats(epoch, loss, steps, time.perf_counter() - start)


class Evaluation(NamedTuple):
    """How good each model is."""

    loss: Tensor
    """Mean over the examples."""
    accuracy: Tensor
    """Share of examples whose largest output is that of the target."""


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], objective: Objective) -> Evaluation:
    """Measures a model, or every model of a stack, without changing it.

    Args:
        model: The model.
        batches: As for `fit`.
        objective: As for `fit`.
    """
    losses, hits, count = [], [], 0
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            x, target, _ = Batch(*batch)
            scored = objective(model, x, target)
            losses.append(scored.loss * x.shape[-2])
            hits.append((scored.y.argmax(-1) == target.argmax(-1)).sum(-1))
            count += x.shape[-2]
    finally:
        model.train(was_training)
    if not count:
        raise ValueError("batches must hold at least one example, got none")
    return Evaluation(torch.stack(losses).sum(0).cpu() / count, torch.stack(hits).sum(0).cpu().double() / count)


KEEPS = ("loss", "accuracy")
"""By which number on validation data the best epoch can be chosen."""


class EarlyStopping:
    """Tells which model is at its best, and which has not got better for too long.

    The published code has two counters, one for the validation loss and one for the validation accuracy: the first to
    reach the patience stops the training. The best model is that of the lowest loss. Where the loss says little about
    accuracy, accuracy can decide alone.

    Args:
        patience: Epochs without improvement after which to stop.
        count: Number of models in a stack; None for a single model.
        watch_accuracy: Whether accuracy counts too.
        keep: Which model is the best: that of the lowest "loss", or that of the highest "accuracy". In the second case
            accuracy alone counts, for stopping too.

    Example:
        >>> stopping = EarlyStopping(patience=2)
        >>> for loss in (1.0, 0.5, 0.6, 0.7):
        ...     better = stopping.update(torch.tensor(loss), torch.tensor(0.9))
        >>> bool(stopping.stopped)
        True
    """

    def __init__(
        self, patience: int, count: int | None = None, *, watch_accuracy: bool = True, keep: str = "loss"
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        if keep not in KEEPS:
            raise ValueError(f"keep must be one of {', '.join(KEEPS)}, got {keep!r}")
        shape = () if count is None else (count,)
        self.patience = patience
        self.watch_accuracy = watch_accuracy
        self.keep = keep
        self.state = {
            "best_loss": torch.full(shape, torch.inf),
            "best_accuracy": torch.full(shape, -torch.inf),
            "worse_losses": torch.zeros(shape, dtype=torch.long),
            "worse_accuracies": torch.zeros(shape, dtype=torch.long),
        }

    def update(self, loss: Tensor, accuracy: Tensor) -> Tensor:
        """Takes in an epoch; says which models it makes better than they ever were. NaN never does."""
        state = self.state
        lower, higher = loss < state["best_loss"], accuracy > state["best_accuracy"]
        state["best_loss"] = torch.where(lower, loss, state["best_loss"])
        state["best_accuracy"] = torch.where(higher, accuracy, state["best_accuracy"])
        state["worse_losses"] = (state["worse_losses"] + 1) * ~lower
        state["worse_accuracies"] = (state["worse_accuracies"] + 1) * ~higher
        return lower if self.keep == "loss" else higher

    @property
    def stopped(self) -> Tensor:
        """Which models have not got better for too long."""
        by_loss, by_accuracy = (self.state[name] >= self.patience for name in ("worse_losses", "worse_accuracies"))
        if self.keep == "accuracy":
            return by_accuracy
        return by_loss | by_accuracy if self.watch_accuracy else by_loss

    def state_dict(self) -> dict[str, Tensor]:
        """All that decides when to stop."""
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over what was saved."""
        self.state.update(state)

    def select_(self, members: Tensor) -> None:
        """Goes on with some models of a stack."""
        self.state = {name: value[members] for name, value in self.state.items()}


class BestWeights:
    """A copy of the weights of each model at its best.

    Args:
        model: A model, or a stack.
    """

    def __init__(self, model: nn.Module) -> None:
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def keep(self, model: nn.Module, better: Tensor, members: Tensor | None = None) -> None:
        """Takes over the weights of those models that are better than before.

        Args:
            model: The model, or the stack.
            better: Which ones are.
            members: Which models of the stack that this was made for are left in it, if not all.
        """
        for name, value in model.state_dict().items():
            if better.ndim:
                places = better.nonzero()[:, 0] if members is None else members[better]
                self.values[name][places.to(value.device)] = value[better.to(value.device)]
            elif better and self.values[name].shape == value.shape:
                self.values[name].copy_(value)
            elif better:  # the model has gained or lost parts
                self.values[name] = value.detach().clone()

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, by name."""
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over weights that were saved, whatever their shapes."""
        self.values = {name: state[name].to(value.device, value.dtype) for name, value in self.values.items()}


def random_stream(seed: int, *purpose: object) -> torch.Generator:
    """A generator for one purpose: other purposes and other seeds get numbers that have nothing to do with these.

    Args:
        seed: Of the run.
        purpose: What the numbers are for.

    Example:
        >>> first, second = (torch.rand(1, generator=random_stream(0, "weights")) for _ in range(2))
        >>> torch.equal(first, second)
        True
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


class _Step:
    """One step of training."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        objective: Objective,
        codes: WarmCodes | None,
        backward: Callable[[Tensor], Any],
    ) -> None:
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.codes, self.backward = codes, backward

    def __call__(self, batch: Batch) -> Tensor:
        """Learns from a batch and returns the losses before."""
        self.optimizer.zero_grad()
        with self._warm(batch):
            loss = self.objective(self.model, batch.x, batch.target).loss
        self.backward(loss.sum())
        self.optimizer.step()
        return loss.detach()

    def _warm(self, batch: Batch) -> AbstractContextManager[None]:
        if self.codes is None:
            return nullcontext()
        if batch.rows is None:
            raise ValueError("batches must name their rows to be used with codes, got a batch without")
        return self.codes.used(batch.rows)


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


def _mean_square(error: Tensor) -> Tensor:
    """The mean over examples and features: one number for each model of a stack."""
    return error.square().mean((-2, -1))


def _places(codes: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """Indices of rows in codes, which have a first dimension for the models of a stack or none."""
    if codes.ndim == 2:
        return (rows,)
    return torch.arange(len(codes), device=codes.device).unsqueeze(1), rows
