"""Configs of image experiments, and what they are composed of: images, a model, an optimizer, a window, an order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from torchpfc.data.images import IMAGE_SETS, ImageData, load_images
from torchpfc.data.streams import class_tasks, fixed_shuffle, label_ordered
from torchpfc.nn import MLP, PFCBlock, ResidualPFC
from torchpfc.optim import Age, CodeUse
from torchpfc.paper.settings import (
    Amount,
    Component,
    Count,
    Natural,
    Positive,
    Share,
    all_settings_but,
    check_choice,
    one_of,
)
from torchpfc.solvers import FISTA, Adjoint, Implicit, Solver, Truncated, Unrolled
from torchpfc.training import KEEPS, EarlyStopping, Objective, SquaredErrors, random_stream

if TYPE_CHECKING:
    from torchpfc.paper.runner import Context
    from torchpfc.paper.stack_run import Found

SHUFFLE_SEED = 42
"""Of the one random order, which all models share."""

# Pixels of an image and number of training images: sets that agree in both can be trained on at once.
_SIZES = {"digits": (64, 1437), "mnist": (784, 60_000), "fashion-mnist": (784, 60_000), "cifar10": (3072, 50_000)}


@dataclass(frozen=True, kw_only=True)
class ImageSet(Component):
    """Images, and how many of them are held out."""

    dataset: Annotated[str, one_of(*IMAGE_SETS)] = "mnist"
    validation_share: float = 0.15
    """Share of the training images that is left out of the training, to choose by."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share must be between 0 and 1, got {self.validation_share}")

    @property
    def size(self) -> tuple[int, int]:
        """Pixels of an image, and number of training images."""
        return _SIZES[self.dataset]

    def load(self, data_dir: Path | None) -> ImageData:
        """The images."""
        return load_images(self.dataset, data_dir)

    def tasks(self, data: ImageData, groups: Sequence[Sequence[int]], seed: int) -> list[Phase]:
        """A phase for each group of classes, a random part of their training images held out."""
        tasks = class_tasks(data.train.label, groups, seed=seed, validation_share=self.validation_share)
        tested = [torch.isin(data.test.label, torch.tensor(task.classes)).nonzero()[:, 0] for task in tasks]
        return [Phase(task.train, task.validation, rows) for task, rows in zip(tasks, tested, strict=True)]

    def smoke(self) -> Self:
        """Small digits."""
        return replace(self, dataset="digits")


@dataclass(frozen=True, kw_only=True)
class Optimizer(Component):
    """How far a step goes; the defaults are those of the published experiments."""

    lr: Amount = 3e-4
    weight_decay: Share = 1e-4
    """Share of each weight that a step takes away, not multiplied by the learning rate."""

    def smoke(self) -> Self:
        """One rate for all rows: those that differ in it alone are run once, since nothing is learned."""
        return replace(self, lr=Optimizer.lr)


@dataclass(frozen=True, kw_only=True)
class RatedOptimizer(Optimizer):
    """The same, with rates of columns that fall with their use."""

    use: Annotated[str, one_of("code", "square", "age")] = "code"
    """What counts as use: the code, its square, or age alone."""
    half_after: Positive = 3.0
    """Use after which a column moves half as far, in steps of average use."""
    use_kept: float = 1.0
    """How much of the use before a step keeps; with 1 it never fades."""

    def smoke(self) -> Self:
        """The same for how fast rates fall."""
        return replace(super().smoke(), half_after=RatedOptimizer.half_after)

    @property
    def measure(self) -> CodeUse | Age:
        """What counts as use."""
        return Age() if self.use == "age" else CodeUse(power=1 + (self.use == "square"), keep=self.use_kept)

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if not 0 <= self.use_kept <= 1:
            raise ValueError(f"use_kept must be from 0 to 1, got {self.use_kept}")


@dataclass(frozen=True, kw_only=True)
class Schedule(Component):
    """How long a model learns; the defaults are those of the published experiments."""

    batch_size: Count = 200
    epochs: Count = 300
    """At most."""
    patience: Count = 20
    """Epochs without a better validation loss, or without a better validation accuracy, after which to stop."""
    watch_accuracy: bool = True
    """Whether the accuracy can stop the training too, as in the published code."""

    def smoke(self) -> Self:
        """Two epochs, which no patience ends."""
        return replace(self, batch_size=100, epochs=2, patience=Schedule.patience)


@dataclass(frozen=True, kw_only=True)
class Window(Component):
    """A window that slides over columns, or hidden units."""

    width: Natural = 0
    """Columns in the window; 0 learns all of them at every step."""
    sweep_speed: Amount = 0.0
    """Columns that the window moves in one step."""

    def columns_reached(self, position: float, count: int) -> int:
        """How many of all columns steps could change before the window came to a position."""
        if not self.width:
            return count
        return min(count, int(position - self.sweep_speed + self.width)) if position > 0 else 0

    def smoke(self) -> Self:
        """One window for all rows that have one, which fits into few columns."""
        return replace(self, width=4, sweep_speed=0.25) if self.width else self


@dataclass(frozen=True, kw_only=True)
class Order(Component):
    """The order of the images, the same in every epoch."""

    order: Annotated[str, one_of("sorted", "fixed")] = "sorted"
    """sorted: by label. fixed: in one random order."""

    def arrange(self, label: Tensor, rows: Tensor) -> Tensor:
        """Some rows in this order.

        Args:
            label: Of all images.
            rows: Which of them there are.
        """
        if self.order == "sorted":
            return label_ordered(label, rows=rows)
        return rows[fixed_shuffle(len(rows), seed=SHUFFLE_SEED)]


@dataclass(frozen=True, kw_only=True)
class Inference(Component):
    """How blocks find codes, in training and when they are measured, and how gradients pass."""

    iterations: Count = 100
    """Steps of the solver in training."""
    gradient: Annotated[str, one_of("unrolled", "truncated", "implicit")] = "unrolled"
    """How gradients pass through the solver: unrolled, truncated or implicit."""
    gradient_steps: Natural = 0
    """Steps that carry gradients if truncated; steps of the linear solver if implicit."""
    damping: Amount = 0.0
    """Of the implicit gradient."""
    warm_codes: bool = False
    """Whether the solve of an example starts where that of the last epoch ended."""
    tol: Amount = 0.0
    """Violation of the optimality conditions at which the solver stops in training; 0 takes every step."""
    l1: Amount = 0.0
    """Weight of the sum of the code in what the solver minimizes."""
    eval_iterations: Count = 100
    """Steps of the solver on validation and test data, where it starts cold."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.gradient == "truncated" and self.gradient_steps > self.iterations:
            raise ValueError(f"gradient_steps must be at most iterations, {self.iterations}, got {self.gradient_steps}")

    @property
    def solver(self) -> FISTA:
        """The solver in training."""
        return replace(FISTA.paper(self.iterations), tol=self.tol or None)

    @property
    def eval_solver(self) -> FISTA:
        """The solver when measuring."""
        return FISTA.paper(self.eval_iterations)

    @property
    def adjoint(self) -> Adjoint:
        """How gradients pass."""
        if self.gradient == "unrolled":
            return Unrolled()
        if self.gradient == "truncated":
            return Truncated(steps=self.gradient_steps)
        return Implicit.fast(self.gradient_steps, self.damping) if self.gradient_steps else Implicit()

    @property
    def waits(self) -> bool:
        """Whether a step of the training waits for the device, as those do that stop at a tolerance."""
        return bool(self.tol) or (self.gradient == "implicit" and not self.gradient_steps)

    def smoke(self) -> Self:
        """A few steps, and one weight of the sum for all rows that have one."""
        steps = 0 if self.gradient == "unrolled" else 2
        return replace(self, iterations=4, eval_iterations=5, gradient_steps=steps, l1=0.02 if self.l1 else 0.0)


class ImageModel(Component, ABC):
    """A classifier of images, and the loss that it learns by."""

    @property
    def nonnegative(self) -> bool:
        """Whether weights are kept from becoming negative."""
        return False

    @property
    def inference(self) -> Inference | None:
        """How its blocks find codes; None where that is a part of the model, or it has none."""
        return None

    @property
    @abstractmethod
    def units(self) -> int:
        """How many hidden units or parts there are."""

    @abstractmethod
    def build(self, data: ImageData, generator: torch.Generator) -> nn.Module:
        """An untrained model."""

    def loss_weights(self) -> tuple[float, float]:
        """What the errors of prediction and reconstruction count."""
        return 1.0, 0.0

    def errors(self, prediction: float | Tensor, reconstruction: float | Tensor) -> Objective:
        """The loss of a model, or of a stack with one weight for each; the second is 0 where none counts."""
        return SquaredErrors(prediction, reconstruction)

    def eval_solver(self) -> Solver | None:
        """The solver of all blocks when measuring, if not that of the training."""
        return None if self.inference is None else self.inference.eval_solver

    def cost(self) -> float:
        """Arithmetic of an image: three steps of the solver take about as long as one of a perceptron."""
        return self.units * (1.0 if self.inference is None else 1 + self.inference.iterations / 3)


@dataclass(frozen=True, kw_only=True)
class MLPModel(ImageModel):
    """A perceptron with one hidden layer (Section 5.1)."""

    nonnegative: bool = False
    """Whether weights are kept from becoming negative, which the paper reports to fail."""
    hidden_features: Count = 300

    @property
    def units(self) -> int:
        """Hidden units."""
        return self.hidden_features

    def build(self, data: ImageData, generator: torch.Generator) -> nn.Module:
        """An untrained perceptron."""
        return MLP(data.train.x.shape[1], data.num_classes, self.hidden_features, generator=generator)

    def smoke(self) -> Self:
        """A few hidden units."""
        return replace(self, hidden_features=12)


@dataclass(frozen=True, kw_only=True)
class PFCModel(ImageModel):
    """One PFC block (Section 5.2)."""

    nonnegative: bool = True
    num_basis: Count = 300
    prediction_weight: float = 0.5
    """The loss is this times the error of the prediction, and the rest times that of the reconstruction."""
    inference: Inference = Inference()

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if not 0 <= self.prediction_weight <= 1:
            raise ValueError(f"prediction_weight must be from 0 to 1, got {self.prediction_weight}")

    @property
    def units(self) -> int:
        """Parts."""
        return self.num_basis

    def build(self, data: ImageData, generator: torch.Generator) -> PFCBlock:
        """An untrained block."""
        return PFCBlock(data.train.x.shape[1], data.num_classes, self.num_basis, **self.options(generator))

    def options(self, generator: torch.Generator) -> dict[str, Any]:
        """Options of a block like this."""
        return {
            "nonnegative": self.nonnegative,
            "l1": self.inference.l1,
            "solver": self.inference.solver,
            "adjoint": self.inference.adjoint,
            "generator": generator,
        }

    def loss_weights(self) -> tuple[float, float]:
        """One weight, and the rest."""
        return self.prediction_weight, 1 - self.prediction_weight

    def smoke(self) -> Self:
        """A few parts."""
        return replace(super().smoke(), num_basis=12)


@dataclass(frozen=True, kw_only=True)
class ResidualModel(ImageModel):
    """Two PFC blocks, the second explaining what the first left over (Section 5.7)."""

    block: PFCModel = PFCModel(prediction_weight=1.0)
    """What either is like; the prediction counts as much as it says, and the reconstructions as follows."""
    reconstruction_weight: Amount = 1.0
    """What the reconstruction error of each block counts."""

    @property
    def nonnegative(self) -> bool:
        """As each block."""
        return self.block.nonnegative

    @property
    def inference(self) -> Inference:
        """That of each block."""
        return self.block.inference

    @property
    def units(self) -> int:
        """Parts of both."""
        return 2 * self.block.units

    def build(self, data: ImageData, generator: torch.Generator) -> nn.Module:
        """Two untrained blocks."""
        options = self.block.options(generator)
        return ResidualPFC(data.train.x.shape[1], data.num_classes, self.block.num_basis, **options)

    def loss_weights(self) -> tuple[float, float]:
        """Both weights."""
        return self.block.prediction_weight, self.reconstruction_weight


class Phase(NamedTuple):
    """What one model learns before it goes on to the next phase."""

    train: Tensor
    """Training images to learn from, in their order."""
    valid: Tensor
    """Training images that are held out."""
    test: Tensor
    """Test images of the same kind."""


@dataclass(frozen=True, kw_only=True)
class ImageConfig(Component, ABC):
    """An image classifier and how it is trained."""

    images: ImageSet = ImageSet()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    model: ImageModel

    def __post_init__(self) -> None:
        """Checks the choice of an epoch, and what settings have to do with each other."""
        super().__post_init__()
        check_choice(self, "keep", KEEPS)
        count, share, units = self.images.size[1], self.images.validation_share, self.model.units
        if self.schedule.batch_size > (most := count - round(share * count)):
            raise ValueError(
                f"batch_size must be at most {most}, the images to learn from, got {self.schedule.batch_size}"
            )
        if most == count:
            raise ValueError(f"validation_share must leave images to validate on, got {share}")
        if self.window.width > units:
            raise ValueError(f"width must be at most the number of units, {units}, got {self.window.width}")

    @property
    def window(self) -> Window:
        """The window over the columns; by default none."""
        return Window()

    @property
    def order(self) -> Order | None:
        """The order of the images; by default none, so that every epoch has one of its own."""
        return None

    @property
    def keep(self) -> str:
        """By which number on validation data the best epoch is chosen."""
        return "loss"

    @property
    def lr_decay(self) -> float:
        """What the learning rate is multiplied with after every epoch."""
        return 1.0

    def stack_key(self) -> object:
        """Everything but the images and the loss: models that differ in these alone learn side by side."""
        return all_settings_but(self, "dataset", "prediction_weight"), self.images.size

    def stack_size(self) -> int:
        """As many as keep a GPU busy."""
        return max(1, min(16, 20_000 // self.model.units))

    def cost(self) -> float:
        """Arithmetic of a run, roughly."""
        return self.schedule.epochs * self.model.cost() * self.images.size[0] / 784

    def shared_batch(self) -> int:
        """All images of a batch; rates of columns go by the codes of all of them."""
        return 1 if isinstance(self.optimizer, RatedOptimizer) else self.schedule.batch_size

    def make_stopping(self, count: int | None = None) -> EarlyStopping:
        """Stops by the loss and the accuracy on validation images, as published, or by the accuracy alone.

        Args:
            count: Models in a stack; None for a single one.
        """
        schedule = self.schedule
        return EarlyStopping(schedule.patience, count, watch_accuracy=schedule.watch_accuracy, keep=self.keep)

    def split(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows to learn from, and rows to validate on: as published, without those that do not fill a batch."""
        order = torch.randperm(count, generator=random_stream(seed, "split"))
        size = round(self.images.validation_share * count)
        whole = size - size % self.schedule.batch_size or size
        return order[size:], order[:whole]

    def phases(self, data: ImageData, seed: int) -> Sequence[Phase]:
        """What to learn, in turn: all images at once, a random part of them held out.

        All models of a stack have equally many images in each phase.
        """
        train, valid = self.split(len(data.train), seed)
        if self.order is not None:
            train = self.order.arrange(data.train.label, train)
        return [Phase(train, valid, torch.arange(len(data.test)))]

    def look_further(self, found: Found, model: Any, data: ImageData, context: Context) -> None:
        """Adds to what was found what else there is to say of a trained model, which computes in float32."""


@contextmanager
def solving(model: nn.Module, solver: Solver | None) -> Iterator[None]:
    """Lets all blocks of a model use another solver meanwhile; None leaves each its own."""
    before = {block: block.solver for block in model.modules() if isinstance(block, PFCBlock)}
    for block, own in before.items():
        block.solver = own if solver is None else solver
    try:
        yield
    finally:
        for block, own in before.items():
            block.solver = own
