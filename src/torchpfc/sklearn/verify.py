"""Checking the certificate of an estimator that was taught batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from torchpfc.continual.certificate import Certificate
from torchpfc.sklearn.base import PFCEstimator
from torchpfc.sklearn.classifier import PFCClassifier
from torchpfc.sklearn.regressor import PFCRegressor
from torchpfc.sklearn.saving import labels_from_json
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
    if certificate.learner not in ESTIMATORS or certificate.settings is None:
        raise ValueError(f"learner must be one of {', '.join(ESTIMATORS)}, got {certificate.learner}")
    kind: type[PFCEstimator] = ESTIMATORS[certificate.learner]
    params, classes = certificate.settings["params"], certificate.settings["classes"]
    announced = {} if classes is None else {"classes": labels_from_json(classes)}

    def train(batches: Sequence[Batch]) -> PFCEstimator:
        estimator = kind(**params)
        for record, arrays in batches:
            given = {"y": arrays.get("y"), "sample_weight": arrays.get("weight")}
            given = {name: value for name, value in given.items() if value is not None}
            estimator.batch_seed_ = record.seed or 0  # the same for all batches
            estimator.partial_fit(arrays["x"], batch_id=record.name, **given, **announced)
        return estimator

    return verify_batches(certificate, Path(data), train, kind.bits, torch.device("cpu"))
