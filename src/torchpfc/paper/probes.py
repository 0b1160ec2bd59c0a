"""What a trained block knows beside its answers: whether an input is like what it learned, and what is missing."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from torchpfc.data.images import ImageData, Images
from torchpfc.nn import PFCBlock
from torchpfc.paper.column_pictures import as_images, draw_images, draw_pairs
from torchpfc.paper.components import solving
from torchpfc.solvers import ConvergenceWarning, NonnegativeLeastSquares, solve

ITERATIONS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200)
"""Numbers of steps at which the accuracy is measured."""

NEEDED_TOL, NEEDED_MOST = 1e-2, 1000
"""An input needs as many steps as it takes to violate the optimality conditions by less than this; the most it gets."""

_ROWS_AT_ONCE = 2000
_TINY = 1e-12


def accuracy_by_iterations(block: PFCBlock, images: Images) -> dict[str, list[float]]:
    """The accuracy in percent when the solver stops after some number of steps."""
    found = []
    for steps in ITERATIONS:
        with solving(block, replace(block.solver, max_iter=steps)):
            found.append(share_right(torch.cat([block(x) for x in _chunks(images.x)]), images.label))
    return {"iterations": [float(steps) for steps in ITERATIONS], "accuracy_at_iterations": found}


def recognise(block: PFCBlock, own: Images, known: Images, foreign: Images) -> dict[str, float]:
    """How well images of another kind are told from those that the block was made for.

    Scores are the norm of what stays unexplained, the number of steps that the solver needs, and the sum of both after
    each was standardized on images of the own kind. The mean brightness, which needs no model, is the control.

    Args:
        block: Trained.
        own: Images of the own kind, to standardize with; neither known nor foreign ones.
        known: Test images of the own kind.
        foreign: Test images of another kind.
    """
    reference, inside, outside = (_scores(block, images.x) for images in (own, known, foreign))
    for scores in (inside, outside):
        residual, iterations = (
            # What never varies on images of the own kind tells nothing, and must not be divided by.
            (scores[name] - reference[name].mean()) / reference[name].std().clamp(min=_TINY)
            for name in ("residual", "iterations")
        )
        scores["both"] = residual + iterations
    metrics = {}
    for name in ("residual", "iterations", "both", "brightness"):
        metrics[f"ood_auroc_{name}"] = auroc(inside[name], outside[name])
        metrics[f"ood_fpr95_{name}"] = false_acceptance(inside[name], outside[name])
    return metrics


def confidence(block: PFCBlock, images: Images) -> dict[str, float]:
    """How well wrong answers are told from right ones: by steps needed, by the residual, and by the lead in score."""
    y = torch.cat([block(x) for x in _chunks(images.x)])
    wrong = y.argmax(-1) != images.label
    best, second = y.topk(2).values.unbind(-1)
    scores = _scores(block, images.x) | {"margin": second - best}
    return {
        f"error_auroc_{name}": auroc(scores[name][~wrong], scores[name][wrong])
        for name in ("iterations", "residual", "margin")
    }


def missing_pixels(block: PFCBlock, images: Images, generator: torch.Generator) -> dict[str, float]:
    """Accuracy in percent with pixels unobserved: with a mask, and with zeros in their place."""
    halves = image_halves(images.shape)
    scattered = torch.rand(images.x.shape, generator=generator).to(images.x.device) < 0.5
    metrics = {}
    for name, mask in (*halves.items(), ("scattered", scattered)):
        observed = mask.to(images.x.device).expand_as(images.x)
        parts = list(zip(_chunks(images.x), _chunks(observed), strict=True))
        masked = torch.cat([block.complete(x, mask_x=seen).y for x, seen in parts])
        filled = torch.cat([block(x * seen) for x, seen in parts])
        metrics[f"{name}_mask_accuracy"] = share_right(masked, images.label)
        metrics[f"{name}_zero_fill_accuracy"] = share_right(filled, images.label)
    return metrics


def image_halves(shape: tuple[int, int, int]) -> dict[str, Tensor]:
    """Masks that leave the left and the upper half of an image to be seen."""
    columns, rows = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    columns[:, :, : shape[2] // 2] = True
    rows[:, : shape[1] // 2] = True
    return {"left_half": columns.flatten(), "upper_half": rows.flatten()}


def pictures(block: PFCBlock, data: ImageData, known: Images, foreign: Images | None) -> dict[str, str]:
    """Parts, reconstructions, completions and images of classes, each a grid in a PNG file."""
    shape, num_shown, num_pairs = data.test.shape, 20, 50
    largest = block.weight_x.sum(0).argsort(descending=True)[:100]
    found = {"weights": draw_images(as_images(block.weight_x[:, largest]), shape, columns=20)}
    for name, images in (("reconstruction_in", known), ("reconstruction_ood", foreign)):
        if images is not None:
            x = images.x[:num_pairs]
            found[name] = draw_pairs(x, block.couple(x).x, shape)
    x, mask = known.x[:num_shown], image_halves(shape)["left_half"].to(known.x.device)
    completed = block.complete(x, mask_x=mask.expand_as(x))
    found["completion"] = draw_images(torch.cat([x * mask, completed.filled_x, x]), shape, columns=num_shown)
    found["class_to_image"] = draw_images(draw_classes(block, data.num_classes), shape, columns=data.num_classes)
    return found


def draw_classes(block: PFCBlock, num_classes: int) -> Tensor:
    """An image of each class, drawn by the block run backwards, as bright as images are."""
    drawn = block.complete(y=torch.eye(num_classes, device=block.weight_x.device)).x
    return drawn / drawn.amax(1, keepdim=True).clamp(min=_TINY)


def draw_and_read(block: PFCBlock, num_classes: int) -> float:
    """Share in percent of classes whose image, drawn by the block run backwards, is read as that class."""
    drawn = draw_classes(block, num_classes)
    return share_right(block(drawn), torch.arange(num_classes, device=drawn.device))


def step_margin(block: PFCBlock, images: Images, prediction_weight: float) -> dict[str, float]:
    """How far codes and loss are from those with the paper's step, the inverse of the largest eigenvalue itself.

    The step of a block is a little shorter, since it goes by an estimate with a margin.

    Args:
        block: Trained.
        images: Some are enough.
        prediction_weight: The loss is this times the error of the prediction, and the rest times that of the input.
    """
    x, W = images.x[:_ROWS_AT_ONCE], block.weight_x
    target = F.one_hot(images.label[:_ROWS_AT_ONCE], block.out_features).to(x)
    largest = torch.linalg.eigvalsh(W.T.double() @ W.double())[-1].to(W)
    problem = NonnegativeLeastSquares(x, W, l1=block.l1)
    ours, theirs = (solve(problem, block.solver, lipschitz=L).h for L in (block.lipschitz(), largest))

    def loss(h: Tensor) -> float:
        prediction, reconstruction = F.mse_loss(h @ block.weight_y.T, target), F.mse_loss(h @ W.T, x)
        return (prediction_weight * prediction + (1 - prediction_weight) * reconstruction).item()

    return {
        "codes_apart": ((ours - theirs).norm() / theirs.norm()).item(),
        "loss_apart": abs(loss(ours) / loss(theirs) - 1),
        "step_ratio": (largest / block.lipschitz()).item(),
    }


def columns_in_codes(block: PFCBlock, images: Images, share: float = 0.99) -> float:
    """The fewest columns that hold a share of all codes.

    Args:
        block: Trained.
        images: Of the kind that it was trained on.
        share: Which share.
    """
    held = torch.cat([block.couple(x).h for x in _chunks(images.x)]).double().sum(0).sort(descending=True).values
    return 1.0 + int((held.cumsum(0) < share * held.sum()).sum())


def unused_columns(block: PFCBlock, images: Images, used: int) -> dict[str, float]:
    """What columns that were never learned do: their share of the codes in percent, and the accuracy without them.

    Args:
        block: Trained.
        images: Of the kind that it was trained on.
        used: How many columns, the first, were learned.
    """
    h = torch.cat([block.couple(x).h for x in _chunks(images.x)])
    fewer = copy.deepcopy(block)
    fewer.remove_basis(range(used, block.num_basis))
    y = torch.cat([fewer(x) for x in _chunks(images.x)])
    return {
        "unused_share_of_codes": 100 * (h[:, used:].sum() / h.sum()).item(),
        "used_alone_accuracy": share_right(y, images.label),
    }


def hoyer_sparsity(h: Tensor) -> Tensor:
    r"""Hoyer's measure, $(\sqrt r - \|h\|_1 / \|h\|_2) / (\sqrt r - 1)$: 1 for one entry or none, 0 for all alike."""
    root = math.sqrt(h.shape[-1])
    norm = torch.linalg.vector_norm(h, dim=-1)
    ratio = (h.abs().sum(-1) / norm).where(norm != 0, 1.0)
    return torch.sub(root, ratio) / (root - 1)


def mean_sparsity(block: PFCBlock, images: Images) -> float:
    """The mean sparsity of the codes of images."""
    return torch.cat([hoyer_sparsity(block.couple(x).h) for x in _chunks(images.x)]).mean().item()


def auroc(negative: Tensor, positive: Tensor) -> float:
    """The chance that a positive scores above a negative, ties counting half; NaN without one of either."""
    if not len(negative) or not len(positive):
        return float("nan")
    ordered = negative.double().sort().values
    below = torch.searchsorted(ordered, positive.double())
    at_most = torch.searchsorted(ordered, positive.double(), right=True)
    return ((below + at_most).double().mean() / (2 * len(negative))).item()


def false_acceptance(known: Tensor, foreign: Tensor) -> float:
    """The share of foreign images that score no higher than 95 % of the known ones do (FPR95)."""
    ordered = known.double().sort().values
    limit = ordered[-(-95 * len(ordered) // 100) - 1]  # whole numbers: 0.95 n can lie a little above one
    return (foreign.double() <= limit).double().mean().item()


def _scores(block: PFCBlock, x: Tensor) -> dict[str, Tensor]:
    residuals, iterations = [], []
    solver = replace(block.solver, max_iter=NEEDED_MOST, tol=NEEDED_TOL, check_every=1)
    for chunk in _chunks(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # to need more than the most is an answer too
            found = solve(NonnegativeLeastSquares(chunk, block.weight_x, l1=block.l1), solver)
        residuals.append(found.residual)
        iterations.append(found.iterations.to(x.dtype))
    return {"residual": torch.cat(residuals), "iterations": torch.cat(iterations), "brightness": x.mean(1)}


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x, _ROWS_AT_ONCE)


def share_right(y: Tensor, label: Tensor) -> float:
    """The share of scores, in percent, of which the largest is that of the class."""
    return 100 * (y.argmax(-1) == label).double().mean().item()
