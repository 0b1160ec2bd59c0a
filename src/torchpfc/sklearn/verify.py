"""Checking the certificate of an estimator that was taught batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from torchpfc.continual.certificate import Certificate
from torchpfc.sklearn.base import PFCEstimator
from torchpfc.sklearn.classifier import PFCClassifier
from torchpfc.sklearn.regressor import PFCRegressor
from torchpfc.sklearn.transformer import PFCTransformer
from torchpfc.unlearning.verify import Batch, Verdict, cannot_be_repeated, verify_batches

ESTIMATORS = {kind.__name__: kind for kind in (PFCClassifier, PFCRegressor, PFCTransformer)}


def verify_estimator(certificate: Certificate, data: str | Path) -> Verdict:
    """Checks the certificate of an estimator: all is taught again, with what was forgotten and without.

    Args:
        certificate: Of an estimator after `partial_fit`.
        data: A folder with all batches that it had learned, as `torchpfc.unlearning.save_batch` saves them.
    """
    if refused := cannot_be_repeated(certificate):
        return refused
    kind: type[PFCEstimator] = ESTIMATORS[certificate.learner]

    def train(batches: Sequence[Batch]) -> PFCEstimator:
        return kind.taught_again(certificate, batches)

    return verify_batches(certificate, Path(data), train, kind.bits, torch.device("cpu"))
