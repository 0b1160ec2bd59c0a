import base64
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.paper.made import CLASSES, made_images
from torchpfc import FISTA, PFCBlock
from torchpfc.data.images import Images
from torchpfc.paper import probes
from torchpfc.paper.column_pictures import APART
from torchpfc.paper.probes import (
    ITERATIONS,
    NEEDED_MOST,
    accuracy_by_iterations,
    auroc,
    confidence,
    draw_and_read,
    draw_classes,
    false_acceptance,
    hoyer_sparsity,
    image_halves,
    mean_sparsity,
    missing_pixels,
    pictures,
    recognise,
    share_right,
    step_margin,
    unused_columns,
)

metrics_module = pytest.importorskip("sklearn.metrics")
roc_auc_score, roc_curve = metrics_module.roc_auc_score, metrics_module.roc_curve

SCORES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=30)


def block_of(name: str = "mnist", **options: Any) -> PFCBlock:
    data = made_images(name)
    settings = {"solver": FISTA.paper(60), "num_classes": CLASSES, **options}
    return PFCBlock.from_examples(data.train.x[:60], data.train.label[:60], **settings).eval().requires_grad_(False)


# Scores


@given(SCORES, SCORES)
def test_auroc_is_that_of_scikit_learn(negative: list[float], positive: list[float]) -> None:
    expected = roc_auc_score([0] * len(negative) + [1] * len(positive), negative + positive)
    assert auroc(torch.tensor(negative), torch.tensor(positive)) == pytest.approx(expected)


def test_auroc_of_nothing_is_not_a_number() -> None:
    for pair in ((torch.rand(3), torch.rand(0)), (torch.rand(0), torch.rand(3))):
        assert np.isnan(auroc(*pair))


@given(SCORES, SCORES)
def test_false_acceptance_is_the_first_point_of_the_curve_that_accepts_95_percent(
    known: list[float], foreign: list[float]
) -> None:
    low_is_known = -np.array(known + foreign)
    falsely, rightly, _ = roc_curve([1] * len(known) + [0] * len(foreign), low_is_known, drop_intermediate=False)
    expected = falsely[np.argmax(rightly >= 0.95 - 1e-12)]
    assert false_acceptance(torch.tensor(known), torch.tensor(foreign)) == pytest.approx(expected)


def test_false_acceptance_of_a_case_made_by_hand() -> None:
    known = torch.arange(1.0, 101.0)  # 95 % score at most 95
    assert false_acceptance(known, torch.tensor([94.0, 95.0, 95.5, 96.0, 200.0])) == pytest.approx(2 / 5)
    assert false_acceptance(known.flip(0), torch.tensor([1000.0])) == 0.0
    assert false_acceptance(torch.arange(1.0, 21.0), torch.tensor([19.0, 19.5])) == 0.5


@pytest.mark.parametrize(("nonnegative", "margin"), [(True, 1.02), (False, 1.05)])
def test_a_step_with_a_margin_leads_to_other_codes_until_they_settle(nonnegative: bool, margin: float) -> None:
    block, images = block_of(nonnegative=nonnegative).eval(), made_images("mnist").test
    x, W, W_y = (values.double().numpy() for values in (images.x, block.weight_x, block.weight_y))
    target = np.eye(CLASSES)[images.label.numpy()]

    def loss(length: float) -> float:
        h = np.maximum(length * x @ W, 0)  # after one step from zeros
        return float(np.square(h @ W.T - x).mean() / 4 + 3 * np.square(h @ W_y.T - target).mean() / 4)

    block.solver = FISTA(max_iter=1)
    found = step_margin(block, images, 0.75)
    assert found["step_ratio"] == pytest.approx(1 / margin, rel=1e-3)
    assert found["codes_apart"] == pytest.approx(1 - found["step_ratio"], rel=1e-3)
    theirs = 1 / np.linalg.norm(W, 2) ** 2
    assert found["loss_apart"] == pytest.approx(abs(loss(found["step_ratio"] * theirs) / loss(theirs) - 1), rel=1e-2)
    block.solver = FISTA(max_iter=2000)
    settled = step_margin(block, images, 0.75)
    assert all(settled[name] < found[name] / 10 for name in ("codes_apart", "loss_apart"))


def test_columns_that_were_never_learned_can_change_the_answer() -> None:
    block = PFCBlock(2, 2, num_basis=3, solver=FISTA(max_iter=200))
    with torch.no_grad():
        block.weight_x.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 2.0]]))
        block.weight_y.copy_(torch.tensor([[1.0, 0.0, 9.0], [0.0, 1.0, 0.0]]))
    block.reset_step_size()
    images = Images(torch.eye(2), torch.arange(2), (1, 1, 2))
    found = unused_columns(block.eval(), images, used=2)
    h = block(images.x), block.couple(images.x).h
    assert share_right(h[0], images.label) == 50 and found["used_alone_accuracy"] == 100
    assert found["unused_share_of_codes"] == pytest.approx(100 * (h[1][:, 2].sum() / h[1].sum()).item())
    assert block.num_basis == 3


def test_hoyer_sparsity_from_one_entry_to_all_alike() -> None:
    h = torch.tensor([[0.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    torch.testing.assert_close(hoyer_sparsity(h), torch.tensor([1.0, 0.0, 1.0, 2 - 2**0.5]))
    torch.testing.assert_close(hoyer_sparsity(1e-6 * h), hoyer_sparsity(h), atol=1e-5, rtol=0)
    assert hoyer_sparsity(torch.tensor([float("nan"), 1.0])).isnan()


def test_the_mean_sparsity_is_that_of_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    block, images = block_of(), made_images("mnist").test
    expected = hoyer_sparsity(block.couple(images.x).h).mean().item()
    monkeypatch.setattr(probes, "_ROWS_AT_ONCE", 7)
    assert mean_sparsity(block, images) == pytest.approx(expected, rel=1e-5)
    sparse = block_of(l1=0.5)
    assert mean_sparsity(sparse, images) > expected


# What a block can be asked


def test_accuracy_by_iterations_is_that_of_a_solver_with_so_many_steps() -> None:
    block, images = block_of(), made_images("mnist").test
    own = block.solver
    found = accuracy_by_iterations(block, images)
    assert block.solver is own
    assert found["iterations"] == list(map(float, ITERATIONS))
    for steps, accuracy in zip(ITERATIONS, found["accuracy_at_iterations"], strict=True):
        block.solver = FISTA.paper(steps)
        assert accuracy == pytest.approx(100 * (block(images.x).argmax(1) == images.label).double().mean().item())
    assert found["accuracy_at_iterations"][-1] > 50


def test_images_of_another_kind_are_recognised_by_what_stays_unexplained() -> None:
    block, data = block_of(), made_images("mnist")
    dark = Images(0.1 * data.test.x, data.test.label, data.test.shape)
    strange = Images(data.test.x.flip(1), data.test.label, data.test.shape)
    metrics = recognise(block, data.train, data.test, strange)
    assert set(metrics) == {
        f"ood_{measure}_{score}"
        for measure in ("auroc", "fpr95")
        for score in ("residual", "iterations", "both", "brightness")
    }
    assert metrics["ood_auroc_residual"] > 0.9 and metrics["ood_fpr95_residual"] < 0.5
    assert metrics["ood_auroc_brightness"] == pytest.approx(0.5, abs=0.01)  # the same pixels in another order
    assert metrics["ood_auroc_both"] > 0.6
    control = recognise(block, data.train, data.test, dark)
    assert control["ood_auroc_brightness"] == 0.0 and control["ood_fpr95_brightness"] == 1.0


def test_scores_that_never_vary_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "NEEDED_MOST", 2)  # so that all need as many steps
    block, data = block_of(), made_images("mnist")
    metrics = recognise(block, data.train, data.test, made_images("fashion-mnist").test)
    assert metrics["ood_auroc_iterations"] == 0.5
    assert metrics["ood_auroc_both"] == pytest.approx(metrics["ood_auroc_residual"])


def test_the_scores_are_norms_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    block, x = block_of(), made_images("mnist").test.x
    scores = probes._scores(block, x)
    with monkeypatch.context() as patch:
        patch.setattr(probes, "NEEDED_TOL", 1e-5)
        patch.setattr(probes, "NEEDED_MOST", 3000)
        exact = probes._scores(block, x)
    block.solver = FISTA.paper(3000)
    residual = (x - block.couple(x).x).norm(dim=1)
    torch.testing.assert_close(exact["residual"], residual, atol=1e-3, rtol=1e-3)
    assert (exact["iterations"] > scores["iterations"]).all()
    torch.testing.assert_close(scores["brightness"], x.mean(1))
    assert (scores["iterations"] >= 1).all() and (scores["iterations"] <= NEEDED_MOST).all()
    assert len(scores["iterations"].unique()) > 1


def test_confidence_tells_wrong_answers_from_right_ones() -> None:
    block, images = block_of(), made_images("mnist").test
    images = Images(images.x, torch.cat([(images.label[:9] + 1) % CLASSES, images.label[9:]]), images.shape)
    metrics = confidence(block, images)
    y = block(images.x)
    wrong = (y.argmax(1) != images.label).tolist()
    assert any(wrong) and not all(wrong)
    best, second = y.topk(2).values.unbind(1)
    assert metrics["error_auroc_margin"] == pytest.approx(roc_auc_score(wrong, (second - best).tolist()))
    scores = probes._scores(block, images.x)
    for name in ("iterations", "residual"):
        assert metrics[f"error_auroc_{name}"] == pytest.approx(roc_auc_score(wrong, scores[name].tolist()))
    flawless = Images(images.x, y.argmax(1), images.shape)
    assert all(np.isnan(value) for value in confidence(block, flawless).values())


def test_halves_show_what_their_name_says() -> None:
    halves = image_halves((2, 2, 4))
    left = torch.tensor([[[True, True, False, False]] * 2] * 2)
    upper = torch.tensor([[[True] * 4, [False] * 4]] * 2)
    assert torch.equal(halves["left_half"], left.flatten()) and torch.equal(halves["upper_half"], upper.flatten())


def test_missing_pixels_with_a_mask_and_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    block, images = block_of(), made_images("mnist").test
    metrics = missing_pixels(block, images, torch.Generator().manual_seed(0))
    assert set(metrics) == {
        f"{part}_{way}_accuracy" for part in ("left_half", "upper_half", "scattered") for way in ("mask", "zero_fill")
    }
    mask = image_halves(images.shape)["left_half"]

    def percent(y: Tensor) -> float:
        return 100 * (y.argmax(1) == images.label).double().mean().item()

    assert metrics["left_half_mask_accuracy"] == percent(block.complete(images.x, mask_x=mask.expand_as(images.x)).y)
    assert metrics["left_half_zero_fill_accuracy"] == percent(block(images.x * mask))
    monkeypatch.setattr(probes, "_ROWS_AT_ONCE", 13)
    assert missing_pixels(block, images, torch.Generator().manual_seed(0)) == pytest.approx(metrics, abs=2.0)


def test_classes_are_drawn_and_read() -> None:
    eye = PFCBlock.from_examples(torch.eye(CLASSES, 16), torch.arange(CLASSES)).eval().requires_grad_(False)
    drawn = draw_classes(eye, CLASSES)
    torch.testing.assert_close(drawn, torch.eye(CLASSES, 16))
    assert draw_and_read(eye, CLASSES) == 100.0
    twice = PFCBlock.from_examples(torch.eye(CLASSES, 16), torch.arange(CLASSES) // 2, num_classes=CLASSES).eval()
    assert draw_and_read(twice.requires_grad_(False), CLASSES) < 60.0
    assert draw_classes(twice, CLASSES).isfinite().all()  # also where nothing can be drawn


def header(text: str) -> tuple[int, int]:
    """Width and height of a PNG file in base64."""
    data = base64.b64decode(text, validate=True)
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_pictures_are_grids_of_images() -> None:
    block, data, foreign = block_of(), made_images("mnist"), made_images("fashion-mnist").test
    found = pictures(block, data, data.test, foreign)
    row = 20 * 5 - 1  # twenty images of four pixels and a gap
    pairs = 25 * 5 - 1, 2 * (2 * 5 - 1) + APART  # fifty pairs in two lines
    assert {name: header(text) for name, text in found.items()} == {
        "weights": (row, 3 * 5 - 1),
        "reconstruction_in": pairs,
        "reconstruction_ood": pairs,
        "completion": (row, 3 * 5 - 1),
        "class_to_image": (10 * 5 - 1, 4),
    }
    assert "reconstruction_ood" not in pictures(block, data, data.test, None)
