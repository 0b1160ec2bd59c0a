"""Training as a plain loop: batches, losses, warm codes, when to stop, and random numbers that a seed decides."""

from torchpfc.training.batches import Batch, Batches
from torchpfc.training.capture import Recorded
from torchpfc.training.codes import WarmCodes
from torchpfc.training.loop import EpochStats, Evaluation, Objective, Scored, SquaredErrors, evaluate, fit
from torchpfc.training.seeding import random_stream
from torchpfc.training.stopping import KEEPS, BestWeights, EarlyStopping

__all__ = [
    "KEEPS",
    "Batch",
    "Batches",
    "BestWeights",
    "EarlyStopping",
    "EpochStats",
    "Evaluation",
    "Objective",
    "Recorded",
    "Scored",
    "SquaredErrors",
    "WarmCodes",
    "evaluate",
    "fit",
    "random_stream",
]
