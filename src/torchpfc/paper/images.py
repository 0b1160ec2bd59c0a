"""Image classifiers: settings, the rows of the paper's tables, and rows beyond them (Sections 5.1, 5.2, 5.6, 5.7)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from torchpfc.data.images import IMAGE_SETS, ImageData, load_images
from torchpfc.nn import MLP, PFCBlock, ResidualPFC
from torchpfc.paper import probes
from torchpfc.paper.image_run import ImageRun, Recipe
from torchpfc.paper.registry import Experiment, Job, Row, Table, as_published, register
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import all_settings_but
from torchpfc.paper.stack_run import Found
from torchpfc.solvers import FISTA, Adjoint, Implicit, Truncated, Unrolled
from torchpfc.training import random_stream

GRADIENTS = ("unrolled", "truncated", "implicit")


@dataclass(frozen=True, kw_only=True)
class ImageConfig(ABC):
    """How an image classifier is trained; the defaults are those of the published experiments."""

    dataset: str = "mnist"
    lr: float = 3e-4
    weight_decay: float = 1e-4
    """Share of each weight that a step takes away, not multiplied by the learning rate."""
    batch_size: int = 200
    epochs: int = 300
    """At most."""
    patience: int = 20
    """Epochs without a better validation loss, or without a better validation accuracy, after which to stop."""
    watch_accuracy: bool = True
    """Whether the accuracy can stop the training too, as in the published code."""
    validation_share: float = 0.15
    nonnegative: bool = True

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.dataset not in IMAGE_SETS:
            raise ValueError(f"dataset must be one of {', '.join(IMAGE_SETS)}, got {self.dataset!r}")
        self._check(1, math.inf, "batch_size", "epochs", "patience")
        self._check(0, math.inf, "lr")
        self._check(0, 1, "weight_decay")
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share must be between 0 and 1, got {self.validation_share}")
        count = _PIXELS[self.dataset][1]
        if self.batch_size > (most := count - round(self.validation_share * count)):
            raise ValueError(f"batch_size must be at most {most}, the images to learn from, got {self.batch_size}")
        if most == count:
            raise ValueError(f"validation_share must leave images to validate on, got {self.validation_share}")

    def _check(self, least: float, limit: float, *names: str) -> None:
        """Refuses settings below the least value, or not below the limit."""
        for name in names:
            if not least <= (value := getattr(self, name)) < limit:  # so that NaN does not pass
                most = f" and less than {limit:g}" if limit < math.inf else " and finite" if value > 0 else ""
                raise ValueError(f"{name} must be at least {least}{most}, got {value}")

    def smoke(self) -> Self:
        """A few steps on small digits."""
        return replace(self, dataset="digits", batch_size=100, epochs=2, **self._smaller())

    def stack_key(self) -> object:
        """Everything but the images and the loss: models that differ in these alone learn side by side."""
        return (all_settings_but(self, "dataset", "prediction_weight"), _PIXELS[self.dataset])

    def stack_size(self) -> int:
        """As many as keep a GPU busy."""
        return max(1, min(16, 20_000 // self._units()))

    def cost(self) -> float:
        """Arithmetic of a run, roughly."""
        return self.epochs * self._units() * _PIXELS[self.dataset][0] / 784

    def shared_batch(self) -> int:
        """All images of a batch."""
        return self.batch_size

    def can_be_recorded(self) -> bool:
        """Whether no step of the training waits for the device, so that one can be recorded and replayed."""
        return True

    @abstractmethod
    def _units(self) -> int:
        """How many hidden units or parts there are."""

    @abstractmethod
    def _smaller(self) -> dict[str, Any]:
        """Settings for a model that is quickly trained."""


# Pixels of an image and number of training images: sets that agree in both can be trained on at once.
_PIXELS = {"digits": (64, 1437), "mnist": (784, 60_000), "fashion-mnist": (784, 60_000), "cifar10": (3072, 50_000)}


@dataclass(frozen=True, kw_only=True)
class MLPImage(ImageConfig):
    """A perceptron with one hidden layer (Section 5.1)."""

    hidden_features: int = 300
    lr: float = 1e-4
    nonnegative: bool = False
    """Whether weights are kept from becoming negative, which the paper reports to fail."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        self._check(1, math.inf, "hidden_features")

    def _units(self) -> int:
        return self.hidden_features

    def _smaller(self) -> dict[str, Any]:
        return {"hidden_features": 12}


@dataclass(frozen=True, kw_only=True)
class PFCImage(ImageConfig):
    """One PFC block (Section 5.2)."""

    num_basis: int = 300
    prediction_weight: float = 0.5
    """The loss is this times the error of the prediction, and the rest times that of the reconstruction."""
    iterations: int = 100
    """Steps of the solver in training."""
    gradient: str = "unrolled"
    """How gradients pass through the solver: unrolled, truncated or implicit."""
    gradient_steps: int = 0
    """Steps that carry gradients if truncated; steps of the linear solver if implicit."""
    damping: float = 0.0
    """Of the implicit gradient."""
    warm_codes: bool = False
    """Whether the solve of an example starts where that of the last epoch ended."""
    tol: float = 0.0
    """Violation of the optimality conditions at which the solver stops in training; 0 takes every step."""
    l1: float = 0.0
    """Weight of the sum of the code in what the solver minimizes."""
    eval_iterations: int = 100
    """Steps of the solver on validation and test data, where it starts cold."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.gradient not in GRADIENTS:
            raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, got {self.gradient!r}")
        if not 0 <= self.prediction_weight <= 1:
            raise ValueError(f"prediction_weight must be from 0 to 1, got {self.prediction_weight}")
        self._check(1, math.inf, "num_basis", "iterations", "eval_iterations")
        self._check(0, math.inf, "gradient_steps", "damping", "tol", "l1")
        if self.gradient == "truncated" and self.gradient_steps > self.iterations:
            raise ValueError(f"gradient_steps must be at most iterations, {self.iterations}, got {self.gradient_steps}")

    def cost(self) -> float:
        """Arithmetic of a run, roughly: three steps of the solver take about as long as one of a perceptron."""
        return super().cost() * (1 + self.iterations / 3)

    def can_be_recorded(self) -> bool:
        """Whether no step of the training waits for the device: none that stops at a tolerance."""
        return not self.tol and (self.gradient != "implicit" or self.gradient_steps > 0)

    def make_solver(self, iterations: int | None = None) -> FISTA:
        """The solver, for training unless a number of steps is given."""
        if iterations is not None:
            return FISTA.paper(iterations)
        return replace(FISTA.paper(self.iterations), tol=self.tol or None)

    def make_adjoint(self) -> Adjoint:
        """How gradients pass."""
        if self.gradient == "unrolled":
            return Unrolled()
        if self.gradient == "truncated":
            return Truncated(steps=self.gradient_steps)
        return Implicit.fast(self.gradient_steps, self.damping) if self.gradient_steps else Implicit()

    def options(self, generator: torch.Generator) -> dict[str, Any]:
        """Options of every block."""
        solver, adjoint = self.make_solver(), self.make_adjoint()
        return {
            "nonnegative": self.nonnegative,
            "l1": self.l1,
            "solver": solver,
            "adjoint": adjoint,
            "generator": generator,
        }

    def _units(self) -> int:
        return self.num_basis

    def _smaller(self) -> dict[str, Any]:
        steps = {"truncated": 2, "implicit": 2}.get(self.gradient, 0)
        return {"num_basis": 12, "iterations": 4, "eval_iterations": 5, "gradient_steps": steps}


@dataclass(frozen=True, kw_only=True)
class ResidualImage(PFCImage):
    """Two PFC blocks, the second explaining what the first left over (Section 5.7)."""

    prediction_weight: float = 1.0
    reconstruction_weight: float = 1.0
    """What the reconstruction error of each block counts."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        self._check(0, math.inf, "reconstruction_weight")

    def _units(self) -> int:
        return 2 * self.num_basis


@dataclass(frozen=True, kw_only=True)
class OODImage(PFCImage):
    """One PFC block, and what it makes of images it was not made for (Section 5.6)."""

    num_basis: int = 100
    lr: float = 1e-3
    batch_size: int = 50
    epochs: int = 5


def build_mlp(config: MLPImage, data: ImageData, generator: torch.Generator) -> nn.Module:
    """An untrained perceptron."""
    return MLP(data.train.x.shape[1], data.num_classes, config.hidden_features, generator=generator)


def build_block(config: PFCImage, data: ImageData, generator: torch.Generator) -> nn.Module:
    """An untrained block."""
    return PFCBlock(data.train.x.shape[1], data.num_classes, config.num_basis, **config.options(generator))


def build_residual(config: ResidualImage, data: ImageData, generator: torch.Generator) -> nn.Module:
    """Two untrained blocks."""
    return ResidualPFC(data.train.x.shape[1], data.num_classes, config.num_basis, **config.options(generator))


def look_at_codes(block: PFCBlock, config: PFCImage, data: ImageData, context: Context) -> Found:
    """How sparse the codes are."""
    return Found({"sparsity": probes.mean_sparsity(block, data.test.to(context.fabric.device))})


def look_beyond(block: PFCBlock, config: OODImage, data: ImageData, context: Context) -> Found:
    """All that can be asked of a block beside the class."""
    device = context.fabric.device
    test = data.test.to(device)
    found = look_at_codes(block, config, data, context)
    metrics = found.metrics
    metrics |= probes.confidence(block, test)
    metrics |= probes.missing_pixels(block, test, random_stream(0, "missing pixels"))
    metrics["class_to_image_accuracy"] = probes.draw_and_read(block, data.num_classes)
    foreign = None
    if config.dataset in _FOREIGN:
        other = load_images(_FOREIGN[config.dataset], context.data_dir)
        foreign = other.test.to(device)
        own = data.train.select(torch.arange(min(10_000, len(data.train)))).to(device)
        metrics |= probes.recognise(block, own, test, foreign)
        found.data = {other.name: other.fingerprint}
    found.curves = probes.accuracy_by_iterations(block, test)
    found.images = probes.pictures(block, data, test, foreign)
    return found


_FOREIGN = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}


def _eval_solver(config: PFCImage) -> FISTA:
    return config.make_solver(config.eval_iterations)


RECIPES = {
    "mlp-image": Recipe("mlp-image", build_mlp),
    "pfc-image": Recipe(
        "pfc-image",
        build_block,
        loss_weights=lambda config: (config.prediction_weight, 1 - config.prediction_weight),
        eval_solver=_eval_solver,
        look_further=look_at_codes,
    ),
    "residual-image": Recipe(
        "residual-image",
        build_residual,
        loss_weights=lambda config: (config.prediction_weight, config.reconstruction_weight),
        eval_solver=_eval_solver,
    ),
    "ood-image": Recipe(
        "ood-image",
        build_block,
        loss_weights=lambda config: (config.prediction_weight, 1 - config.prediction_weight),
        eval_solver=_eval_solver,
        look_further=look_beyond,
    ),
}


def run_images(recipe: Recipe, jobs: Sequence[Job], context: Context) -> Iterator[Result]:
    """Trains classifiers with one stack key side by side until each has stopped, and measures them."""
    return ImageRun(recipe, jobs, context).results()


def fast(config: PFCImage) -> PFCImage:
    """The gradient of the optimum instead of that of the steps.

    With free weights a third of the steps is enough; with non-negative ones fewer steps lose accuracy on Fashion-MNIST.
    Where parts are many, the model is used with as many steps as it was trained with. On CIFAR-10 with many parts, this
    loses accuracy unless weights are free and nothing is reconstructed; the rest stays as it is.
    """
    many = config.num_basis > _FEW_PARTS
    if many and config.dataset == "cifar10" and (config.nonnegative or config.prediction_weight < 1):
        return config
    implicit = replace(config, gradient="implicit", damping=1e-3)
    if config.nonnegative:
        return replace(implicit, gradient_steps=15)
    implicit = replace(implicit, iterations=30, gradient_steps=8)
    return replace(implicit, eval_iterations=implicit.iterations) if many else implicit


_FEW_PARTS = 512


# The numbers of the paper's Tables 1, 2 and 6: accuracy in percent on the test set.
_SETS = {"M": ("mnist", 0.2), "F": ("fashion-mnist", 0.3), "C": ("cifar10", 1.0)}  # the name, and what counts as met
_SIZES = (300, 2000, 5000)
_SEEDS_OF_SIZE = {300: 3, 2000: 1, 5000: 1}
_TABLE_1 = {
    "M": (98.01, 98.26, 98.32),
    "F": (88.07, 88.72, 88.85),
    "C": (51.59, 52.78, 53.17),
}
_TABLE_2 = {
    ("M", "N.r"): (96.83, 97.78, 98.08),
    ("M", "N.x"): (97.54, 98.14, 98.27),
    ("M", "S.r"): (97.51, 98.47, 98.65),
    ("M", "S.x"): (98.68, 98.84, 98.88),
    ("F", "N.r"): (88.62, 90.21, 90.67),
    ("F", "N.x"): (88.24, 90.02, 90.64),
    ("F", "S.r"): (88.60, 90.58, 90.82),
    ("F", "S.x"): (89.77, 90.56, 90.78),
    ("C", "N.r"): (53.25, 58.69, 60.12),
    ("C", "N.x"): (54.42, 58.30, 59.68),
    ("C", "S.r"): (51.54, 57.46, 59.69),
    ("C", "S.x"): (54.32, 55.78, 57.90),
}
_TABLE_6 = {
    "M": (97.81, 98.30, 98.09),
    "F": (88.92, 89.89, 90.08),
    "C": (54.00, 56.26, 58.15),
}
_LAMBDA = {1.0: None, 0.9: 96.21, 0.5: 95.21, 0.1: 85.94, 0.0: None}


def _table_1() -> Iterator[Row]:
    for key, accuracies in _TABLE_1.items():
        dataset, slack = _SETS[key]
        for size, paper in zip(_SIZES, accuracies, strict=True):
            yield Row(f"T1.{key}.{size}", MLPImage(dataset=dataset, hidden_features=size), paper, slack, seeds=5)
    yield Row("T1.M.300.nonnegative", MLPImage(nonnegative=True), seeds=3)


def _table_2() -> Iterator[Row]:
    for (key, kind), accuracies in _TABLE_2.items():
        dataset, slack = _SETS[key]
        nonnegative, weight = kind[0] == "N", 0.5 if kind[2] == "r" else 1.0
        for size, paper in zip(_SIZES, accuracies, strict=True):
            config = PFCImage(dataset=dataset, num_basis=size, nonnegative=nonnegative, prediction_weight=weight)
            yield Row(f"T2.{key}.{size}.{kind}", config, paper, slack, seeds=_SEEDS_OF_SIZE[size])


def _table_6() -> Iterator[Row]:
    for key, accuracies in _TABLE_6.items():
        dataset, slack = _SETS[key]
        for size, paper in zip(_SIZES, accuracies, strict=True):
            config = ResidualImage(dataset=dataset, num_basis=size)
            yield Row(f"T6.{key}.{size}", config, paper, slack, seeds=_SEEDS_OF_SIZE[size])
        small = ResidualImage(dataset=dataset)
        yield Row(f"T6.{key}.300.x", replace(small, reconstruction_weight=0.0), seeds=3)
        yield Row(f"T6.{key}.300.S", replace(small, nonnegative=False), seeds=3)


def _table_lambda() -> Iterator[Row]:
    for weight, paper in _LAMBDA.items():
        yield Row(f"F.LAM.{weight:g}", OODImage(prediction_weight=weight), paper, 0.2, seeds=3)


def _table_beyond() -> Iterator[Row]:
    for key in ("M", "F"):
        config = OODImage(dataset=_SETS[key][0], num_basis=300, lr=3e-4, batch_size=200, epochs=300)
        for kind, weight in (("r", 0.5), ("x", 1.0)):
            yield Row(f"OOD.{key}.{kind}", replace(config, prediction_weight=weight), seeds=3)


def _table_training() -> Iterator[Row]:
    """One thing changed at a time, on three rows of Table 2, and on a fourth what its accuracy depends on most."""
    fewer: dict[str, tuple[str, dict[str, Any]]] = {
        f"K{steps}": (f"{steps} iterations", {"iterations": steps, "eval_iterations": steps})
        for steps in (10, 20, 40, 70, 100)
    }
    implicit = {"gradient": "implicit", "gradient_steps": 15, "damping": 1e-3}
    for steps in (20, 40, 100):
        what, values = fewer[f"K{steps}"]
        fewer[f"implicit-{steps}"] = f"implicit, {what}", values | implicit
    changes = fewer | {
        f"truncated-{n}": (f"gradient of the last {n}", {"gradient": "truncated", "gradient_steps": n})
        for n in (20, 50, 80)
    }
    changes["tol-1e-2"] = "tolerance 0.01", {"tol": 1e-2}
    changes["no-decay"] = "no weight decay", {"weight_decay": 0.0}
    changes |= {f"l1-{l1:g}": (f"l1 = {l1:g}", {"l1": l1}) for l1 in (0.003, 0.01, 0.03, 0.1)}
    rows = {
        "M.300.N.r": ("MNIST", PFCImage(), changes),
        "M.300.S.x": ("MNIST, signed, λ = 1", PFCImage(nonnegative=False, prediction_weight=1.0), changes),
        "F.300.N.r": ("Fashion-MNIST", PFCImage(dataset="fashion-mnist"), changes),
        "C.2000.N.r": ("CIFAR-10, 2000 parts", PFCImage(dataset="cifar10", num_basis=2000), fewer),
    }
    for name, (under, config, changed) in rows.items():
        for change, (what, values) in changed.items():
            yield Row(f"TRAIN.{name}.{change}", replace(config, **values), what=what, under=under)


def _register(name: str, summary: str, config: type, tables: Sequence[Table], faster: Callable[[Any], Any]) -> None:
    register(
        Experiment(
            name,
            summary,
            config,
            partial(run_images, RECIPES[name]),
            {"paper": as_published, "fast": faster},
            tuple(tables),
        )
    )


_register(
    "mlp-image",
    "a perceptron with one hidden layer, the baseline (Table 1)",
    MLPImage,
    [Table("T1", "A perceptron with one hidden layer", tuple(_table_1()))],
    as_published,
)
_register(
    "pfc-image",
    "one PFC block (Table 2)",
    PFCImage,
    [
        Table("T2", "One PFC block", tuple(_table_2())),
        Table("TRAIN", "One PFC block, one setting changed at a time", tuple(_table_training())),
    ],
    fast,
)
_register(
    "residual-image",
    "two PFC blocks with a subtractive skip connection (Table 6)",
    ResidualImage,
    [Table("T6", "Two PFC blocks", tuple(_table_6()))],
    fast,
)
_register(
    "ood-image",
    "what a block makes of images it was not made for, and of parts of images (Section 5.6)",
    OODImage,
    [
        Table("F.LAM", "Prediction against reconstruction, 100 parts and 5 epochs", tuple(_table_lambda())),
        Table("OOD", "Beyond the answer", tuple(_table_beyond())),
    ],
    fast,
)
