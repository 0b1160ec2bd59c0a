"""Checking the certificate of a replay: the training again, with a replay and without what was forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchpfc.continual.certificate import Certificate, fingerprint
from torchpfc.paper.registry import Job
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import change
from torchpfc.paper.unlearning_replay import Training
from torchpfc.paper.unlearning_settings import Unlearning
from torchpfc.unlearning.verify import Verdict, cannot_be_repeated, compare_bits, compare_hashes

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def verify_replay(certificate: Certificate, data_dir: Path | None, fabric: Fabric) -> Verdict:
    """Checks the certificate of `torchpfc forget --exact`, by two trainings from the beginning.

    One learns everything and is replayed without what was forgotten; the other passes over that from the start.

    Args:
        certificate: What to check.
        data_dir: Where the images are.
        fabric: Where to train.
    """
    if refused := cannot_be_repeated(certificate):
        return refused
    about: dict[str, Any] = certificate.settings or {}
    job = Job(change(Unlearning(), **about["config"]), about["seed"])
    context = Context(fabric, Path(), data_dir, precision=about["precision"])
    training, never = Training(job, context), Training(job, context)
    own = training.record
    if own.sha256 != certificate.learned[0].sha256:
        there = certificate.learned[0]
        return Verdict(refused=(f"{own.name} here has other images than the training had ({there.sha256[:16]}…)",))
    for each in (training, never):
        each.snapshots.skip(batches=about["skipped"], examples=about["examples"])
    training.train()
    before = fingerprint(training.at_best())
    if certificate.examples:
        what: dict[str, Any] = {"examples": certificate.examples}
    else:
        what = {"batches": list(certificate.batches)}
    repeated = training.train_without(**what)
    never.snapshots.skip(**what)
    never.train()
    how = f"training and a replay of {repeated.share:.0%} of it, and a training that passes over what was forgotten"
    both = compare_bits(training.bits(), never.bits(), how)
    # A model of which columns had been emptied in place is no state of a training.
    hashes = compare_hashes(certificate, None if about["in_place"] else before, repeated.sha256_after, fabric.device)
    return Verdict(both.confirmed + hashes.confirmed, both.refused + hashes.refused, hashes.unchecked)
