"""Audits of learners with labels: planted cases in which the attack must see membership, or must not."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.svm import LinearSVC

from torchpfc import ContinualPFC
from torchpfc.sklearn import PFCClassifier
from torchpfc.unlearning import Audit, Knowledge, Membership, Relearning, Reteaching, audit, membership
from torchpfc.unlearning.learners import losses_of_learner, score_of_learner


def make_data(count: int, seed: int) -> tuple[Any, Any]:
    """Labels are random, so that knowing one means having seen it."""
    generator = np.random.default_rng(seed)
    return generator.random((count, 6)), generator.choice(["no", "yes"], count)


RETAINED, FORGOTTEN, TEST = (make_data(60, seed) for seed in (1, 2, 3))
DATA = {"retained": RETAINED, "forgotten": FORGOTTEN, "test": TEST}
EVERYTHING = tuple(np.concatenate(pair) for pair in zip(RETAINED, FORGOTTEN, strict=True))


@pytest.mark.parametrize("make", [lambda: KNeighborsClassifier(1), lambda: KNeighborsClassifier(5, weights="distance")])
def test_the_attack_sees_what_a_memoriser_has_seen(make: Any) -> None:
    found = audit({"before": make().fit(*EVERYTHING), "after": make().fit(*RETAINED)}, **DATA)
    before, after = found.models.values()
    assert before.membership.deviation > 5 and before.forgotten == before.retained == 1
    assert abs(after.membership.deviation) < 2 and after.forgotten < 0.75
    assert found.verdicts == ("The attack tells members of before, and no longer of after.",)


def test_the_attack_sees_that_nothing_was_forgotten() -> None:
    memoriser = KNeighborsClassifier(1).fit(*EVERYTHING)
    found = audit({"before": memoriser, "after": memoriser}, **DATA)
    assert found.verdicts == ("The attack tells members of before, and still of after.",)


def test_the_attack_sees_nothing_in_what_knows_nothing() -> None:
    guess = DummyClassifier(strategy="prior").fit(*EVERYTHING)
    found = audit({"all": guess, "without": guess}, **DATA)
    assert all(abs(known.membership.deviation) < 2 for known in found.models.values())
    assert found.verdicts == ("The attack does not tell members of all either, so it proves nothing of the others.",)


def test_a_memoriser_of_numbers_is_seen_and_a_line_is_not() -> None:
    numbers = {name: (x, (y == "yes") + x[:, 0]) for name, (x, y) in DATA.items()}
    both = tuple(np.concatenate(pair) for pair in zip(numbers["retained"], numbers["forgotten"], strict=True))
    found = audit({"near": KNeighborsRegressor(1).fit(*both), "line": LinearRegression().fit(*both)}, **numbers).models
    assert found["near"].membership.deviation > 5 and found["near"].forgotten == 1
    assert abs(found["line"].membership.deviation) < 2


def test_the_continual_learner_forgets_and_the_attack_says_so() -> None:
    """Few examples in each part, so that there is something to see before."""
    before = ContinualPFC(6, columns_per_class=15, power=1.0, l1=0.0)
    never = ContinualPFC(6, columns_per_class=15, power=1.0, l1=0.0)
    data = {name: (x, (y == "yes").astype(int)) for name, (x, y) in DATA.items()}
    for model in (before, never):
        model.learn(*data["retained"], batch="kept")
    before.learn(*data["forgotten"], batch="gone")
    after = deepcopy(before)
    after.forget(["gone"])
    found = audit({"before": before, "after": after, "never": never}, relearning=Reteaching(60, max_steps=2), **data)
    known = found.models
    assert known["before"].membership.deviation > 3 and known["before"].relearn_steps == 0
    assert known["after"] == known["never"]
    assert abs(known["after"].membership.deviation) < 2 and known["after"].relearn_steps == 1
    assert after.batches == ("kept",)  # the copies learned, not the models


def test_an_estimator_taught_in_batches_is_audited() -> None:
    models = {name: PFCClassifier(random_state=0, parts_per_batch=60) for name in ("before", "after")}
    for model in models.values():
        model.partial_fit(*RETAINED, batch_id="kept").partial_fit(*FORGOTTEN, batch_id="gone")
    models["after"].forget(["gone"])
    known = audit(models, **DATA).models
    assert known["before"].membership.deviation > 2 > abs(known["after"].membership.deviation)


def test_a_reference_that_is_the_model_itself_leaves_nothing_to_tell() -> None:
    memoriser = KNeighborsClassifier(1).fit(*EVERYTHING)
    assert audit({"all": memoriser}, reference=memoriser, **DATA).models["all"].membership.auroc == 0.5


def test_a_class_that_is_not_known_has_infinite_losses() -> None:
    model = GaussianNB().fit([[0.0], [1.0], [0.1], [1.1]], ["a", "b", "a", "b"])
    losses = losses_of_learner(model, np.zeros((2, 1)), ["a", "c"])
    assert losses[0] <= 0 and losses[1] == torch.inf
    nothing = ContinualPFC(1)
    assert losses_of_learner(nothing, np.zeros((2, 1)), [0, 1]).isinf().all()
    assert score_of_learner(nothing, np.zeros((2, 1)), [0, 1]) == 0
    reference = audit({"model": nothing}, reference=nothing, **dict.fromkeys(DATA, (np.zeros((3, 1)), [0, 1, 0])))
    assert reference.models["model"].membership.auroc == 0.5


def test_two_classes_are_scored_from_both_sides() -> None:
    model = LinearSVC().fit([[0.0], [1.0]], [0, 1])
    one, two = losses_of_learner(model, [[1.0], [1.0]], [0, 1])
    assert one == -two > 0


def test_steps_to_relearn_are_those_that_it_takes() -> None:
    x, y = np.eye(4), np.arange(4)
    model = ContinualPFC(4)
    assert Reteaching(1).steps(model, x, y, level=1.0) == 4
    assert Reteaching(3, level=0.5).steps(model, x, y, level=1.0) == 1
    assert Reteaching(1, max_steps=3).steps(model, x, y, level=1.0) is None
    assert Reteaching(1).steps(model, x, y, level=0.0) == 0
    assert model.batches == ()


def test_wrong_arguments_are_refused_in_one_line() -> None:
    model = GaussianNB().fit(*RETAINED)
    with pytest.raises(TypeError, match="relearning must be a Reteaching here, got a Relearning"):
        audit({"model": model}, relearning=Relearning(lambda m: None, 0.1), **DATA)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="models must hold at least one, got none"):
        audit({}, **DATA)
    with pytest.raises(ValueError, match="portion must be at least 1, got 0"):
        Reteaching(0)
    with pytest.raises(TypeError, match="relearning must be None for a model without partial_fit, got KNeighbors"):
        audit({"model": KNeighborsClassifier().fit(*RETAINED)}, relearning=Reteaching(), **DATA)
    with pytest.raises(ValueError, match=r"y must have shape \(60,\) to match x, got \(59,\)"):
        losses_of_learner(model, FORGOTTEN[0], FORGOTTEN[1][1:])
    with pytest.raises(ValueError, match="members must have losses that are numbers, got NaN"):
        membership(torch.tensor([1.0, torch.nan]), torch.ones(2))


# As text and as a page


class Paper:
    """Stands for a certificate."""

    def to_dict(self) -> dict[str, Any]:
        return {"batches": ["<b>monday</b>"]}

    def __str__(self) -> str:
        return "Forgot <script>alert(1)</script>"


FOUND = Audit(
    {
        "<i>before</i>": Knowledge(0.9, 0.8, 0.7, Membership(0.75, 0.05, 40, 40), None),
        "after": Knowledge(0.9, 0.6, 0.7, Membership(0.48, 0.05, 40, 40), 3),
    }
)


def test_an_audit_prints_as_a_table_with_its_verdict() -> None:
    lines = str(FOUND).splitlines()
    assert lines[2].split() == ["after", "90.0%", "60.0%", "70.0%", "0.480", "±", "0.050", "3"]
    assert lines[-1] == "The attack tells members of <i>before</i>, and no longer of after."


def test_an_audit_is_plain_values() -> None:
    plain = json.loads(json.dumps(FOUND.to_dict()))
    assert plain["models"]["after"]["membership"]["auroc"] == 0.48
    assert plain["verdicts"] == list(FOUND.verdicts)


def test_the_page_holds_audit_and_certificate_and_nothing_that_runs_or_loads(tmp_path: Path) -> None:
    FOUND.save_html(tmp_path / "audit.html", Paper())
    page = (tmp_path / "audit.html").read_text("utf-8")
    for text in ("0.750 ± 0.050", "60.0%", "no longer of after", "Forgot &lt;script&gt;", "&lt;b&gt;monday&lt;/b&gt;"):
        assert text in page
    assert "&lt;i&gt;before&lt;/i&gt;" in page
    assert not [tag for tag in ("<script", "<i>before", "<b>monday", "http:", "https:", "src=") if tag in page]


def test_a_page_without_a_certificate_has_no_place_for_one(tmp_path: Path) -> None:
    FOUND.save_html(tmp_path / "audit.html")
    assert "Certificate" not in (tmp_path / "audit.html").read_text("utf-8")
