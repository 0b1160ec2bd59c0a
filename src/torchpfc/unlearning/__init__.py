"""Taking knowledge out: from batches or examples to the columns that hold them, exact replay, and an audit of both."""

from torchpfc.continual.certificate import Certificate, fingerprint
from torchpfc.unlearning.audit import Audit, Membership, Relearning, audit, membership_attack, steps_to_relearn
from torchpfc.unlearning.forget import forget
from torchpfc.unlearning.keeping import keep_forgotten
from torchpfc.unlearning.models import SavedModel, load_ledger, load_model, save_ledger, save_model
from torchpfc.unlearning.replay import retrain_without
from torchpfc.unlearning.snapshots import Snapshots
from torchpfc.unlearning.verify import Verdict, save_batch, verify

__all__ = [
    "Audit",
    "Certificate",
    "Membership",
    "Relearning",
    "SavedModel",
    "Snapshots",
    "Verdict",
    "audit",
    "fingerprint",
    "forget",
    "keep_forgotten",
    "load_ledger",
    "load_model",
    "membership_attack",
    "retrain_without",
    "save_batch",
    "save_ledger",
    "save_model",
    "steps_to_relearn",
    "verify",
]
