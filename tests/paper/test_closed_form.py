from pathlib import Path
from typing import Any

import pytest
import torch

from tests.paper.made import context, made_images, numbers
from torchpfc.continual import ContinualPFC
from torchpfc.paper.closed_form import OnePass, run_one_pass
from torchpfc.paper.one_pass_learners import PartsLearner, PartsMethod, SumsMethod
from torchpfc.paper.registry import Job, find_experiment

pytestmark = pytest.mark.usefixtures("made_data")

CPU = torch.device("cpu")


def learner(method: Any, *, pieces: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A learner that has seen all classes, in some number of portions by class."""
    data = made_images("mnist")
    x, label = data.train.x.double(), data.train.label
    found = method.make(data, 0, CPU, torch.float64)
    for portion in label.argsort(stable=True).tensor_split(pieces):
        found.learn(x[portion], label[portion])
    return found, x, label


def test_learners_of_running_sums_do_not_depend_on_the_portions() -> None:
    lda = SumsMethod(method="lda")
    (one, x, _), (other, _, _) = learner(lda, pieces=1), learner(lda, pieces=6)
    torch.testing.assert_close(one.scores(x), other.scores(x))
    assert one.bytes_kept() == other.bytes_kept() > 0
    assert learner(SumsMethod(method="fourier", features=40), pieces=2)[0].measures()["columns_used"] == 40


@pytest.mark.parametrize(
    "method", [SumsMethod(), SumsMethod(method="lda"), SumsMethod(method="fourier", features=60), PartsMethod(l1=0.02)]
)
def test_a_class_that_was_never_seen_is_never_the_answer(method: Any) -> None:
    data = made_images("mnist")
    found = method.make(data, 0, CPU, torch.float64)
    seen = data.train.label < 4
    found.learn(data.train.x[seen].double(), data.train.label[seen])
    assert set(found.scores(data.test.x.double()).argmax(-1).tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("joint", [False, True])
def test_parts_are_learned_task_by_task(joint: bool, tmp_path: Path) -> None:
    method = PartsMethod(columns_per_class=4, readout="joint" if joint else "residual", iterations=60)
    jobs = [Job(OnePass(method=method), seed) for seed in range(2)]
    run = find_experiment("split-mnist").run
    results = list(run(jobs, context(tmp_path)))
    for result in results:
        metrics = result.metrics
        assert metrics["columns_used"] == 40 and metrics["bytes_kept"] == 40 * (4 * 16 + 1)
        assert metrics["test_accuracy"] > 30 and len(result.curves["accuracy_matrix"]) == 30
        assert result.experiment == "split-mnist" and ("parts_by_class" in result.images) == (result.seed == 0)
    again = list(run(jobs[:1], context(tmp_path)))
    assert numbers(again[0]) == numbers(results[0])


def test_how_much_the_parts_are_like_examples_is_measured() -> None:
    generator = torch.Generator().manual_seed(0)
    x, label = torch.rand(40, 6, generator=generator), torch.arange(2).repeat(20)
    learner = PartsLearner(ContinualPFC(6, 2, columns_per_class=3), generator)
    found = 0.0
    for c in (0, 1):
        learner.learn(x[label == c], label[label == c])
        parts, seen = learner.model.parts_of(c).T, x[label == c].sqrt()
        found = max(found, torch.cosine_similarity(parts.unsqueeze(1), seen, dim=-1).max().item())
        assert learner.measures()["likeness_to_an_example"] == pytest.approx(found, abs=1e-6)
    assert found < 1


def test_the_order_of_the_classes_makes_no_difference_to_means(tmp_path: Path) -> None:
    run = find_experiment("ordered-mnist").run
    pairs, classes = (
        next(iter(run([Job(OnePass(method=SumsMethod(), tasks=tasks), 0)], context(tmp_path))))
        for tasks in ("pairs", "classes")
    )
    assert len(pairs.curves["accuracy_matrix"]) == 30 and len(classes.curves["accuracy_matrix"]) == 110
    assert classes.experiment == "ordered-mnist" and classes.metrics["test_accuracy"] > 50


def test_without_a_test_validation_images_are_measured(tmp_path: Path) -> None:
    told: list[float] = []
    (result,) = run_one_pass(
        "split-mnist", [Job(OnePass(method=SumsMethod()), 0)], context(tmp_path, test=False, tick=told.append)
    )
    assert "test_accuracy" not in result.metrics and result.metrics["valid_accuracy"] > 50 and told == [1.0]
