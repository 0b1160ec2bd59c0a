"""Taking knowledge out: from batches or examples to the columns that hold them, exact replay, and an audit of both."""

from torchpfc.continual.certificate import Certificate, fingerprint
from torchpfc.unlearning.audit import Audit, Knowledge, Relearning, audit, steps_to_relearn
from torchpfc.unlearning.forget import forget
from torchpfc.unlearning.keeping import keep_forgotten
from torchpfc.unlearning.learners import Reteaching, losses_of_learner, score_of_learner
from torchpfc.unlearning.membership import Membership, membership, membership_attack
from torchpfc.unlearning.models import SavedModel, load_ledger, load_model, save_ledger, save_model
from torchpfc.unlearning.replay import retrain_without
from torchpfc.unlearning.snapshots import Snapshots
from torchpfc.unlearning.verify import Verdict, save_batch, verify

__all__ = [
    "Audit",
    "Certificate",
    "Knowledge",
    "Membership",
    "Relearning",
    "Reteaching",
    "SavedModel",
    "Snapshots",
    "Verdict",
    "audit",
    "fingerprint",
    "forget",
    "keep_forgotten",
    "load_ledger",
    "load_model",
    "losses_of_learner",
    "membership",
    "membership_attack",
    "retrain_without",
    "save_batch",
    "save_ledger",
    "save_model",
    "score_of_learner",
    "steps_to_relearn",
    "verify",
]
