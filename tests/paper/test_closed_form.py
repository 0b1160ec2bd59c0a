from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

from tests.paper.made import context, made_images, numbers
from torchpfc.continual import ContinualPFC
from torchpfc.paper.closed_form import OnePass, run_one_pass
from torchpfc.paper.one_pass_learners import FourierRidge, PartsLearner, PartsMethod, SumsMethod
from torchpfc.paper.registry import Job, find_experiment
from torchpfc.training import random_stream

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


def test_the_nearest_mean_is_that_of_scikit_learn() -> None:
    found, x, label = learner(SumsMethod(), pieces=7)
    expected = NearestCentroid().fit(x.numpy(), label.numpy()).predict(x.numpy())
    assert np.array_equal(found.scores(x).argmax(-1).numpy(), expected)


def test_streaming_lda_is_that_of_scikit_learn() -> None:
    found, x, label = learner(SumsMethod(method="lda", shrinkage=1e-9), pieces=7)
    priors = np.full(10, 0.1)
    expected = LinearDiscriminantAnalysis(solver="lsqr", priors=priors).fit(x.numpy(), label.numpy())
    assert np.array_equal(found.scores(x).argmax(-1).numpy(), expected.predict(x.numpy()))


@pytest.mark.parametrize("method", ["nearest-mean", "lda", "fourier"])
def test_running_sums_do_not_depend_on_the_portions(method: str) -> None:
    sums = SumsMethod(method=method, features=40)
    (one, x, _), (other, _, _) = learner(sums, pieces=1), learner(sums, pieces=6)
    if method == "fourier":  # the first portion decides the width of the kernel
        assert one.scale != other.scale
        return
    torch.testing.assert_close(one.scores(x), other.scores(x))
    assert one.bytes_kept() == other.bytes_kept() > 0


def test_ridge_is_that_of_all_examples_at_once() -> None:
    method = SumsMethod(method="fourier", features=30, ridge=0.3)
    found, x, label = learner(method, pieces=4)
    features = found._features(x)
    target = torch.nn.functional.one_hot(label, 10).double()
    weight = torch.linalg.solve(features.T @ features + 0.3 * torch.eye(30, dtype=torch.float64), features.T @ target)
    torch.testing.assert_close(found.scores(x), features @ weight)


def test_random_features_approximate_a_normal_kernel() -> None:
    stream = random_stream(0, "features")
    found = FourierRidge(3, 2, CPU, stream, features=5_000, bandwidth=0.5, ridge=0.1)
    found.scale = 0.7
    x = torch.rand(5, 3, dtype=torch.float64)
    features = found._features(x)
    expected = torch.exp(-torch.cdist(x, x).square() / (2 * 0.7**2))
    torch.testing.assert_close(features @ features.T, expected, rtol=0, atol=0.05)


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
