"""Trains a stack of image classifiers to the paper's protocol, whatever they are made of."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchpfc.checkpoint import save_checkpoint
from torchpfc.data.images import ImageData, Images, load_images
from torchpfc.nn import PFCBlock, keep_nonnegative, stack_models, unstack_models
from torchpfc.nn.constraints import project_nonnegative_
from torchpfc.nn.stack import select_models_
from torchpfc.optim import RMSprop
from torchpfc.paper.devices import dtype_of
from torchpfc.paper.registry import Job, settings
from torchpfc.paper.results import Result
from torchpfc.progress import Ticking
from torchpfc.solvers import ConvergenceWarning, Solver
from torchpfc.training import (
    Batches,
    BestWeights,
    EarlyStopping,
    Evaluation,
    Objective,
    SquaredErrors,
    WarmCodes,
    evaluate,
    fit,
    random_stream,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from torchpfc.paper.images import ImageConfig
    from torchpfc.paper.runner import Context

# Numbers of a code that are solved for at once when measuring; more would only cost memory.
_ENTRIES_AT_ONCE = 30_000_000

# At most one part in so many of the time goes into checkpoints, however large they are.
_CHECKPOINT_SHARE = 20

Found = dict[str, Any]
"""Further metrics, curves and images of one model, by these three names."""


@dataclass(frozen=True)
class Recipe:
    """What is particular to a kind of classifier."""

    name: str
    """Of the experiment."""
    build: Callable[[Any, ImageData, torch.Generator], nn.Module]
    """Makes an untrained model from a config, data and a source of random numbers."""
    loss_weights: Callable[[Any], tuple[float, float]] = lambda config: (1.0, 0.0)
    """What the errors of prediction and reconstruction count."""
    objective: Callable[[Any, Any], Objective] = SquaredErrors
    """Makes the loss of a stack from both, as one weight for each model; the second is 0 where none counts."""
    eval_solver: Callable[[Any], Solver | None] = lambda config: None
    """The solver of all blocks when measuring, if not that of the training."""
    look: Callable[[Any, Any, ImageData, Context], Found] | None = None
    """Measures a trained model further, in float32."""


class Sets:
    """The images of all models of a stack, as one set, and which of them each model learns from."""

    def __init__(self, jobs: Sequence[Job], context: Context) -> None:
        self._device, self._dtype = context.fabric.device, dtype_of(context.precision)
        self.data = {name: load_images(name, context.data_dir) for name in {job.config.dataset: None for job in jobs}}
        self.x, self.target, starts = self._join([data.train for data in self.data.values()])
        splits = [split(len(self.data[job.config.dataset].train), job.config, job.seed) for job in jobs]
        self.train, self.valid = (
            torch.stack([rows + starts[job.config.dataset] for rows, job in zip(part, jobs, strict=True)]).to(
                self._device
            )
            for part in zip(*splits, strict=True)
        )

    def test(self, jobs: Sequence[Job]) -> tuple[Tensor, Tensor, Tensor]:
        """Test images, targets, and the rows of each model."""
        x, target, starts = self._join([data.test for data in self.data.values()])
        rows = [starts[name] + torch.arange(len(self.data[name].test)) for name in (job.config.dataset for job in jobs)]
        return x, target, torch.stack(rows).to(self._device)

    def _join(self, parts: Sequence[Images]) -> tuple[Tensor, Tensor, dict[str, int]]:
        """All images, their targets, and where those of each set start."""
        x = torch.cat([images.x for images in parts])
        classes = max(data.num_classes for data in self.data.values())
        target = F.one_hot(torch.cat([images.label for images in parts]), classes)
        starts = accumulate((len(images) for images in parts[:-1]), initial=0)
        return (
            x.to(self._device, self._dtype),
            target.to(self._device, self._dtype),
            dict(zip(self.data, starts, strict=True)),
        )


def split(count: int, config: ImageConfig, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to learn from, and rows to validate on: as published, without those that do not fill a batch."""
    order = torch.randperm(count, generator=random_stream(seed, "split"))
    size = round(config.validation_share * count)
    whole = size - size % config.batch_size or size
    return order[size:], order[:whole]


def train_stack(recipe: Recipe, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains models with one stack key side by side until each has stopped, and measures them.

    Args:
        recipe: What they are made of.
        jobs: The models.
        context: Where, and on what.
    """
    run = _Run(recipe, jobs, context)
    run.train()
    yield from run.measure()


class _Run:
    """The training of a stack: what changes while it goes on, and what it leaves behind."""

    def __init__(self, recipe: Recipe, jobs: Sequence[Job], context: Context) -> None:
        self.recipe, self.jobs, self.context, self.fabric = recipe, jobs, context, context.fabric
        self.config: Any = jobs[0].config  # for all that the jobs have in common
        self.device, self.dtype = context.fabric.device, dtype_of(context.precision)
        self.sets = Sets(jobs, context)
        self.stack = self._build([random_stream(job.seed, "weights") for job in jobs])
        self.optimizer = RMSprop(self.stack.parameters(), lr=self.config.lr, weight_decay=self.config.weight_decay)
        exact = torch.promote_types(self.dtype, torch.float32)
        self.rate = torch.tensor(self.config.lr, device=self.device, dtype=exact)
        _keep_nonnegative(self.stack, self.optimizer, self.config.nonnegative)
        self.members = torch.arange(len(jobs))  # those still learning
        self.stopping = EarlyStopping(self.config.patience, len(jobs), watch_accuracy=self.config.watch_accuracy)
        self.best = BestWeights(self.stack)
        self.codes: WarmCodes | None = None
        if getattr(self.config, "warm_codes", False):
            self.codes = WarmCodes(self.stack, self.sets.train.shape[1], gather=_gather(self.fabric))
        self.epoch = 0
        self.seconds = [0.0 for _ in jobs]
        self.steps, self.step_seconds = 0, 0.0
        self.history: list[dict[str, list[float]]] = [
            {"train_loss": [], "valid_loss": [], "valid_accuracy": []} for _ in jobs
        ]
        self.context.resume(self._restore)
        self._saved, self._save_seconds = time.monotonic(), 0.0

    def train(self) -> None:
        """Trains until all models have stopped."""
        with warnings.catch_warnings():
            # Where there is a tolerance, that some rows do not reach it in all steps is part of the setting.
            warnings.simplefilter("ignore", ConvergenceWarning)
            while len(self.members) and self.epoch < self.config.epochs:
                self._train_until_one_stops()
        self.members = self.members[:0]
        self._save()

    def _train_until_one_stops(self) -> None:
        config, fabric, members = self.config, self.fabric, self.members
        model, optimizer = fabric.setup(self.stack, self.optimizer)
        self._set_rate()
        batches = Batches(
            self.sets.x,
            self.sets.target,
            batch_size=config.batch_size,
            rows=self.sets.train[members.to(self.device)],
            seeds=[self.jobs[i].seed for i in members.tolist()],
            drop_last=True,
            share=(fabric.global_rank, fabric.world_size),
        )
        epochs = fit(
            model,
            optimizer,
            Ticking(batches, lambda done: self.context.tick(done / config.epochs)),
            self._objective(members),
            epochs=config.epochs,
            first_epoch=self.epoch,
            codes=self.codes,
            capture=self.device.type == "cuda" and fabric.world_size == 1 and config.can_be_recorded(),
            backward=fabric.backward,
        )
        for stats in epochs:
            begin = time.perf_counter()
            valid = self._evaluate(self.sets.x, self.sets.target, self.sets.valid[members.to(self.device)], members)
            valid = fabric.broadcast(valid)  # or processes might disagree on when to stop
            better = self.stopping.update(valid.loss, valid.accuracy)
            self.best.keep(self.stack, better, members)
            self._record(_mean(fabric, stats.loss), valid)
            for i in members.tolist():
                self.seconds[i] += (stats.seconds + time.perf_counter() - begin) / len(members)
            self.steps, self.step_seconds = self.steps + stats.steps, self.step_seconds + stats.seconds
            self.epoch = stats.epoch + 1
            self._set_rate()
            if stopped := self.stopping.stopped.any():
                self._let_go()
            if len(self.members):
                self._save_if_due()
            if stopped:
                return

    def measure(self) -> Iterator[Result]:
        """Measures the models at their best."""
        everyone = torch.arange(len(self.jobs))
        self.stack = self._build([torch.Generator() for _ in self.jobs])
        self.stack.load_state_dict(self.best.values)
        valid = self._evaluate(self.sets.x, self.sets.target, self.sets.valid, everyone)
        test = self._evaluate(*self.sets.test(self.jobs), everyone) if self.context.test else None
        for i, model in enumerate(unstack_models(self.stack)):
            yield self._result(i, model, valid, test)

    def _result(self, i: int, model: nn.Module, valid: Evaluation, test: Evaluation | None) -> Result:
        job, history = self.jobs[i], self.history[i]
        data = self.sets.data[job.config.dataset]
        metrics = {
            "valid_accuracy": 100 * valid.accuracy[i].item(),
            "valid_loss": valid.loss[i].item(),
            "best_epoch": _best_epoch(history["valid_loss"]),
            "epochs": len(history["valid_loss"]),
            "milliseconds_per_step": 1e3 * self.step_seconds / max(self.steps, 1),
        }
        if test is not None:
            metrics |= {"test_accuracy": 100 * test.accuracy[i].item(), "test_loss": test.loss[i].item()}
        found: Found = {}
        if self.recipe.look is not None and self.context.test:
            with torch.no_grad(), solving(model.eval().float(), self.recipe.eval_solver(job.config)):
                found = self.recipe.look(model, job.config, data, self.context)
        return Result(
            experiment=self.recipe.name,
            config=settings(job.config),
            seed=job.seed,
            metrics=metrics | found.get("metrics", {}),
            curves=history | found.get("curves", {}),
            images=found.get("images", {}),
            data={data.name: data.fingerprint} | found.get("data", {}),
            seconds=self.seconds[i],
            **self.context.provenance(len(self.jobs)),
        )

    def _build(self, generators: Sequence[torch.Generator]) -> nn.Module:
        models = [
            self.recipe.build(job.config, self.sets.data[job.config.dataset], generator)
            for job, generator in zip(self.jobs, generators, strict=True)
        ]
        return stack_models(models).to(self.device, self.dtype)

    def _objective(self, members: Tensor) -> Objective:
        weights = [self.recipe.loss_weights(self.jobs[i].config) for i in members.tolist()]
        prediction, reconstruction = torch.tensor(weights, device=self.device, dtype=self.dtype).unbind(1)
        return self.recipe.objective(prediction, reconstruction if reconstruction.any() else 0.0)

    def _evaluate(self, x: Tensor, target: Tensor, rows: Tensor, members: Tensor) -> Evaluation:
        size = min(rows_at_once(self.stack, len(rows)), rows.shape[1])
        batches = Batches(x, target, batch_size=size, rows=rows)
        with solving(self.stack, self.recipe.eval_solver(self.config)):
            return evaluate(self.stack, batches, self._objective(members))

    def _record(self, train_loss: Tensor, valid: Evaluation) -> None:
        for k, i in enumerate(self.members.tolist()):
            self.history[i]["train_loss"].append(train_loss[k].item())
            self.history[i]["valid_loss"].append(valid.loss[k].item())
            self.history[i]["valid_accuracy"].append(100 * valid.accuracy[k].item())

    def _set_rate(self) -> None:
        """Sets the learning rate of the next epoch, where it changes: in the tensor that a recorded step reads."""
        decay = getattr(self.config, "lr_decay", 1.0)
        self.rate.fill_(self.config.lr * decay**self.epoch)
        for group in self.optimizer.param_groups if decay != 1 else ():
            group["lr"] = self.rate

    def _let_go(self) -> None:
        """Goes on without the models that have stopped."""
        going = (~self.stopping.stopped).nonzero()[:, 0]
        self.members = self.members[going]
        if len(going):
            select_models_(self.stack, going, self.optimizer)
            self.stopping.select_(going)
            if self.codes is not None:
                self.codes.select_(going)

    def _save_if_due(self) -> None:
        wait = self.context.checkpoint_seconds
        if time.monotonic() - self._saved >= (max(wait, _CHECKPOINT_SHARE * self._save_seconds) if wait else 0.0):
            self._save()

    def _save(self) -> None:
        begin = time.monotonic()
        if self.fabric.is_global_zero:  # the others need not wait: they do at the next step
            save_checkpoint(self.context.folder, self._state())
        self._saved = time.monotonic()
        self._save_seconds = self._saved - begin

    def _state(self) -> dict[str, Any]:
        state = {
            "epoch": self.epoch,
            "members": self.members,
            "best": self.best.values,
            "history": self.history,
            "seconds": self.seconds,
            "steps": self.steps,
            "step_seconds": self.step_seconds,
        }
        if len(self.members):
            state["model"], state["optimizer"] = self.stack.state_dict(), self.optimizer.state_dict()
            state["stopping"] = self.stopping.state
            state["codes"] = None if self.codes is None else self.codes.state_dict()
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self.members = state["members"]
        self.best.values = {name: value.to(self.device, self.dtype) for name, value in state["best"].items()}
        self.epoch, self.history, self.seconds = state["epoch"], state["history"], state["seconds"]
        self.steps, self.step_seconds = state["steps"], state["step_seconds"]
        if not len(self.members):
            return
        select_models_(self.stack, self.members)
        self.stack.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.stopping.state = state["stopping"]
        if self.codes is not None:
            self.codes.select_(self.members)
            self.codes.load_state_dict(state["codes"])


def _best_epoch(losses: Sequence[float]) -> int:
    """The epoch of the lowest loss, counted from 1; 0, before the first, where none was finite."""
    finite = [(loss, epoch) for epoch, loss in enumerate(losses, start=1) if math.isfinite(loss)]
    return min(finite)[1] if finite else 0


def _gather(fabric: Fabric) -> Callable[[Tensor], Tensor] | None:
    """Collects a tensor from all processes, where there are several."""
    if fabric.world_size == 1:
        return None
    return lambda tensor: cast("Tensor", fabric.all_gather(tensor))


def _mean(fabric: Fabric, loss: Tensor) -> Tensor:
    """The mean over processes, each of which has seen an equal part of every batch."""
    return cast("Tensor", fabric.all_reduce(loss.to(fabric.device))).cpu()


def rows_at_once(stack: nn.Module, count: int) -> int:
    """How many images to measure a stack of some models on at a time."""
    return max(1, _ENTRIES_AT_ONCE // (count * max(p.shape[-1] for p in stack.parameters())))


@contextmanager
def solving(model: nn.Module, solver: Solver | None) -> Iterator[None]:
    """Lets all blocks of a model use another solver meanwhile."""
    blocks = [module for module in model.modules() if isinstance(module, PFCBlock)] if solver is not None else []
    before = [block.solver for block in blocks]
    for block in blocks:
        assert solver is not None
        block.solver = solver
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            block.solver = own


def _keep_nonnegative(stack: nn.Module, optimizer: RMSprop, nonnegative: bool) -> None:
    """Holds the weights of blocks, or the matrices of a perceptron, to it."""
    if not nonnegative:
        return
    if any(isinstance(module, PFCBlock) for module in stack.modules()):
        keep_nonnegative(stack, optimizer)
        return
    matrices = [parameter for name, parameter in stack.named_parameters() if name.endswith("weight")]

    def project(*_: Any) -> None:
        for matrix in matrices:
            project_nonnegative_(matrix)

    project()
    optimizer.register_step_post_hook(project)
