"""The digits of the demo: scikit-learn's 1,797 images of 8x8 pixels, in three parts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 8
"""Pixels along one side of an image."""

NUM_PIXELS = SIDE * SIDE
NUM_CLASSES = 10


@dataclass(frozen=True, eq=False)
class Digits:
    r"""Images and what they show.

    Shape:
        - x: $(n, 64)$, from 0 (paper) to 1 (ink)
        - label: $(n)$
    """

    x: Tensor
    label: Tensor

    def __len__(self) -> int:
        return len(self.label)

    @property
    def target(self) -> Tensor:
        """The labels as rows of zeros with a single 1."""
        return F.one_hot(self.label, NUM_CLASSES).to(self.x.dtype)

    def select(self, rows: Tensor) -> Digits:
        """Some of the digits."""
        return Digits(self.x[rows], self.label[rows])

    def of(self, classes: Collection[int]) -> Digits:
        """Those of some classes."""
        return self.select(torch.isin(self.label, torch.tensor(list(classes))))


@dataclass(frozen=True, eq=False)
class Splits:
    """Digits to learn from, to choose with, and to report on."""

    train: Digits
    validation: Digits
    test: Digits


def load_splits(seed: int) -> Splits:
    """Splits the digits 60 : 20 : 20, with the same share of each class in every part.

    The test digits are the same for every seed. So a setting that was chosen on the validation digits of any seed has
    never seen them.

    Args:
        seed: Decides which of the other digits are for validation.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    digits = Digits(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels, dtype=torch.long))
    rest, test = train_test_split(range(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    train, validation = train_test_split(rest, test_size=0.25, stratify=labels[rest], random_state=seed)
    return Splits(*(digits.select(torch.tensor(rows)) for rows in (train, validation, test)))
