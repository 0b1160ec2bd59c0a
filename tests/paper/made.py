"""Made-up images, and what a run needs, for tests of experiments."""

from pathlib import Path
from typing import Any

import torch

from torchpfc.data.images import ImageData, Images
from torchpfc.paper.devices import open_fabric
from torchpfc.paper.images import PFCImage
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import change

SHAPE, CLASSES = (1, 4, 4), 10
TRAIN, TEST = 200, 60

TIMES = ("milliseconds_per_step",)
"""Metrics that no two runs have in common."""


def made_images(name: str, data_dir: Path | None = None) -> ImageData:
    """Noisy images of ten patterns, other ones for each name."""
    generator = torch.Generator().manual_seed(len(name))
    patterns = torch.rand(CLASSES, 16, generator=generator).round()

    def draw(count: int) -> Images:
        label = torch.randint(CLASSES, (count,), generator=generator)
        x = 0.7 * patterns[label] + 0.5 * torch.rand(count, 16, generator=generator)
        return Images(x.clamp(max=1.0), label, SHAPE)

    return ImageData(name, draw(TRAIN), draw(TEST), CLASSES, f"fingerprint of {name}", "")


def small(**changes: Any) -> PFCImage:
    """A config that trains in a moment."""
    settings: dict[str, Any] = {
        "num_basis": 6,
        "iterations": 5,
        "eval_iterations": 8,
        "batch_size": 20,
        "epochs": 12,
        "patience": 2,
        "lr": 3e-3,
    }
    return change(PFCImage(), **{**settings, **changes})


def context(folder: Path, **options: Any) -> Context:
    """For one process on the CPU."""
    settings: dict[str, Any] = {"precision": "64", "checkpoint_seconds": 0.0, **options}
    return Context(open_fabric("cpu", settings["precision"]), folder, **settings)


def numbers(result: Result) -> dict[str, Any]:
    """All that two equal runs must have in common."""
    metrics = {name: value for name, value in result.metrics.items() if name not in TIMES}
    return {"metrics": metrics, "curves": dict(result.curves), "images": dict(result.images), "config": result.config}
