import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.paper.made import context, made_images, small
from torchpfc import MLP, PFCBlock, ResidualPFC
from torchpfc.paper import experiments
from torchpfc.paper.components import ImageConfig, Inference, MLPModel, PFCModel, ResidualModel
from torchpfc.paper.images import MLPImage, OODImage, PFCImage, ResidualImage
from torchpfc.paper.registry import Row
from torchpfc.paper.settings import change, settings
from torchpfc.paper.stack_run import Found
from torchpfc.solvers import FISTA, Implicit, Truncated, Unrolled


def all_rows() -> dict[str, Row]:
    rows = [row for experiment in experiments().values() for table in experiment.tables for row in table.rows]
    assert len({row.id for row in rows}) == len(rows)
    return {row.id: row for row in rows}


# The tables of the paper


@pytest.mark.parametrize(
    ("id", "kind", "paper", "slack", "expected"),
    [
        (
            "T1.M.300",
            MLPImage,
            98.01,
            0.2,
            {"dataset": "mnist", "hidden_features": 300, "lr": 1e-4, "nonnegative": False},
        ),
        (
            "T1.F.2000",
            MLPImage,
            88.72,
            0.3,
            {"dataset": "fashion-mnist", "hidden_features": 2000, "weight_decay": 1e-4},
        ),
        ("T1.C.5000", MLPImage, 53.17, 1.0, {"dataset": "cifar10", "hidden_features": 5000, "batch_size": 200}),
        ("T2.M.300.N.r", PFCImage, 96.83, 0.2, {"num_basis": 300, "nonnegative": True, "prediction_weight": 0.5}),
        ("T2.M.2000.S.x", PFCImage, 98.84, 0.2, {"num_basis": 2000, "nonnegative": False, "prediction_weight": 1.0}),
        (
            "T2.F.5000.N.x",
            PFCImage,
            90.64,
            0.3,
            {"dataset": "fashion-mnist", "nonnegative": True, "prediction_weight": 1.0},
        ),
        ("T2.C.300.S.r", PFCImage, 51.54, 1.0, {"dataset": "cifar10", "nonnegative": False, "prediction_weight": 0.5}),
        ("T2.C.5000.N.r", PFCImage, 60.12, 1.0, {"num_basis": 5000, "lr": 3e-4, "weight_decay": 1e-4}),
        ("T6.M.300", ResidualImage, 97.81, 0.2, {"prediction_weight": 1.0, "reconstruction_weight": 1.0}),
        ("T6.F.2000", ResidualImage, 89.89, 0.3, {"nonnegative": True, "num_basis": 2000}),
        ("T6.C.5000", ResidualImage, 58.15, 1.0, {"lr": 3e-4, "batch_size": 200, "epochs": 300, "patience": 20}),
        ("F.LAM.0.9", OODImage, 96.21, 0.2, {"prediction_weight": 0.9, "num_basis": 100, "epochs": 5}),
        ("F.LAM.0.5", OODImage, 95.21, 0.2, {"prediction_weight": 0.5, "lr": 1e-3, "batch_size": 50}),
        ("F.LAM.0.1", OODImage, 85.94, 0.2, {"prediction_weight": 0.1, "nonnegative": True, "weight_decay": 1e-4}),
        ("F.LAM.1", OODImage, None, 0.2, {"prediction_weight": 1.0}),
        ("F.LAM.0", OODImage, None, 0.2, {"prediction_weight": 0.0}),
    ],
)
def test_rows_have_the_settings_and_numbers_of_the_paper(
    id: str, kind: type, paper: float | None, slack: float, expected: dict[str, Any]
) -> None:
    row = all_rows()[id]
    assert type(row.config) is kind and row.paper == paper and row.slack == slack
    assert settings(row.config).items() >= expected.items()


def test_every_cell_of_the_image_tables_has_its_row() -> None:
    rows = all_rows()
    cells = [f"{key}.{size}" for key in "MFC" for size in (300, 2000, 5000)]
    wanted = [f"T1.{cell}" for cell in cells] + [f"T6.{cell}" for cell in cells]
    wanted += [f"T2.{cell}.{kind}.{loss}" for cell in cells for kind in "NS" for loss in "rx"]
    assert len(wanted) == 9 + 36 + 9
    for id in wanted:
        table, key, size, *kind = id.split(".")
        row, config = rows[id], settings(rows[id].config)
        assert row.paper is not None and 50 < row.paper < 99
        assert config["dataset"] == {"M": "mnist", "F": "fashion-mnist", "C": "cifar10"}[key]
        assert config["hidden_features" if table == "T1" else "num_basis"] == int(size)
        if kind:
            assert config["nonnegative"] == (kind[0] == "N")
            assert config["prediction_weight"] == (0.5 if kind[1] == "r" else 1.0)
        assert row.seeds >= {"T1": 5, "T2": 3 if size == "300" else 1, "T6": 3 if size == "300" else 1}[table]


def test_the_columns_of_the_tables_add_up() -> None:
    """The sum of each column, added up by hand from the paper: a digit that is wrong shows."""
    sums = Counter[str]()
    for id, row in all_rows().items():
        if id[:2] in ("T1", "T2", "T6") and row.paper is not None:
            table, key, _, *kind = id.split(".")
            sums[".".join([table, key, *kind])] += round(100 * row.paper)
    assert {name: total / 100 for name, total in sums.items()} == {
        "T1.M": 294.59, "T1.F": 265.64, "T1.C": 157.54,
        "T2.M.N.r": 292.69, "T2.M.N.x": 293.95, "T2.M.S.r": 294.63, "T2.M.S.x": 296.40,
        "T2.F.N.r": 269.50, "T2.F.N.x": 268.90, "T2.F.S.r": 270.00, "T2.F.S.x": 271.11,
        "T2.C.N.r": 172.06, "T2.C.N.x": 172.40, "T2.C.S.r": 168.69, "T2.C.S.x": 168.00,
        "T6.M": 294.20, "T6.F": 268.89, "T6.C": 168.41,
    }  # fmt: skip


def test_what_goes_beyond_the_paper_is_there() -> None:
    rows = all_rows()
    assert rows["T1.M.300.nonnegative"].config.model.nonnegative
    for key in "MFC":
        assert rows[f"T6.{key}.300.x"].config.model.reconstruction_weight == 0
        assert not rows[f"T6.{key}.300.S"].config.model.nonnegative
    changed = [settings(row.config) for id, row in rows.items() if id.startswith("TRAIN.M.300.N.r.")]
    assert {config["iterations"] for config in changed} >= {10, 100}
    assert {config["gradient_steps"] for config in changed if config["gradient"] == "truncated"} == {20, 50, 80}
    assert any(config["tol"] for config in changed) and any(not config["weight_decay"] for config in changed)
    assert len({config["l1"] for config in changed}) >= 4
    assert len([id for id in rows if id.startswith("OOD.")]) >= 2


def test_defaults_are_those_of_the_published_experiments() -> None:
    for config in (MLPImage(), PFCImage(), ResidualImage()):
        schedule = config.schedule
        assert (schedule.batch_size, schedule.epochs, schedule.patience) == (200, 300, 20) and schedule.watch_accuracy
        assert config.optimizer.weight_decay == 1e-4 and config.images.validation_share == 0.15
    for config in (PFCImage(), ResidualImage(), OODImage()):
        inference = config.model.inference
        assert inference.solver == inference.eval_solver == FISTA.paper(100)
        assert inference.adjoint == Unrolled() and not inference.warm_codes and not inference.l1


KEPT = ("dataset", "nonnegative", "num_basis", "hidden_features", "prediction_weight", "reconstruction_weight", "l1")


def test_presets_change_how_a_row_is_trained_and_not_what_it_is() -> None:
    for experiment in experiments().values():
        assert set(experiment.presets) == {"paper", "fast"}
        for table in experiment.tables:
            for row in table.rows:
                assert experiment.presets["paper"](row.config) is row.config
                before, after = settings(row.config), settings(experiment.presets["fast"](row.config))
                assert {name: after[name] for name in KEPT if name in before} == {
                    name: before[name] for name in KEPT if name in before
                }
                assert type(experiment.presets["fast"](row.config)) is type(row.config)


# Settings


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        (PFCImage, {"dataset": "svhn"}, "dataset must be one of digits, mnist, fashion-mnist, cifar10, got 'svhn'"),
        (PFCImage, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (PFCImage, {"epochs": 0}, "epochs must be at least 1, got 0"),
        (PFCImage, {"patience": -1}, "patience must be at least 1, got -1"),
        (PFCImage, {"lr": -1.0}, "lr must be at least 0, got -1.0"),
        (PFCImage, {"lr": math.nan}, "lr must be at least 0, got nan"),
        (PFCImage, {"lr": math.inf}, "lr must be at least 0 and finite, got inf"),
        (PFCImage, {"weight_decay": 1.0}, "weight_decay must be at least 0 and less than 1, got 1.0"),
        (PFCImage, {"validation_share": 1.0}, "validation_share must be between 0 and 1, got 1.0"),
        (
            PFCImage,
            {"dataset": "digits", "validation_share": 1e-6},
            "validation_share must leave images to validate on",
        ),
        (
            PFCImage,
            {"dataset": "digits", "batch_size": 1222},
            "batch_size must be at most 1221, the images to learn from",
        ),
        (PFCImage, {"gradient": "exact"}, "gradient must be one of unrolled, truncated, implicit, got 'exact'"),
        (PFCImage, {"prediction_weight": 1.1}, "prediction_weight must be from 0 to 1, got 1.1"),
        (PFCImage, {"num_basis": 0}, "num_basis must be at least 1, got 0"),
        (PFCImage, {"iterations": 0}, "iterations must be at least 1, got 0"),
        (PFCImage, {"eval_iterations": 0}, "eval_iterations must be at least 1, got 0"),
        (PFCImage, {"gradient_steps": -1}, "gradient_steps must be at least 0, got -1"),
        (PFCImage, {"damping": -1.0}, "damping must be at least 0, got -1.0"),
        (PFCImage, {"tol": math.nan}, "tol must be at least 0, got nan"),
        (PFCImage, {"l1": -0.1}, "l1 must be at least 0, got -0.1"),
        (
            PFCImage,
            {"gradient": "truncated", "gradient_steps": 20, "iterations": 10},
            "gradient_steps must be at most iterations, 10, got 20",
        ),
        (ResidualImage, {"reconstruction_weight": -1.0}, "reconstruction_weight must be at least 0, got -1.0"),
        (ResidualImage, {"num_basis": 0}, "num_basis must be at least 1, got 0"),
        (MLPImage, {"hidden_features": 0}, "hidden_features must be at least 1, got 0"),
    ],
)
def test_a_setting_out_of_range_is_named(kind: type, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(kind(), **setting)


@pytest.mark.parametrize(
    ("changes", "adjoint", "waits"),
    [
        ({}, Unrolled(), False),
        ({"gradient": "truncated", "gradient_steps": 20}, Truncated(20), False),
        ({"gradient": "implicit", "gradient_steps": 7, "damping": 0.1}, Implicit.fast(7, 0.1), False),
        ({"gradient": "implicit"}, Implicit(), True),
        ({"tol": 0.1}, Unrolled(), True),
    ],
)
def test_how_gradients_pass_and_which_steps_wait_for_the_device(
    changes: dict[str, Any], adjoint: Any, waits: bool
) -> None:
    inference = Inference(**changes)
    assert inference.adjoint == adjoint and inference.waits is waits
    assert inference.solver.tol == (changes.get("tol") or None)
    assert Inference(**changes, eval_iterations=30).eval_solver == FISTA.paper(30)


def test_models_stack_where_only_images_and_weights_of_the_loss_differ() -> None:
    config = PFCImage()
    same = [change(config, dataset="fashion-mnist"), change(config, prediction_weight=1.0)]
    assert all(other.stack_key() == config.stack_key() for other in same)
    different: tuple[dict[str, Any], ...] = (
        {"dataset": "cifar10"}, {"lr": 1.0}, {"num_basis": 9}, {"l1": 1.0}, {"nonnegative": False}, {"epochs": 9}
    )  # fmt: skip
    others = [change(config, **changes) for changes in different]
    assert all(other.stack_key() != config.stack_key() for other in others)
    assert ResidualImage().stack_key() != change(ResidualImage(), reconstruction_weight=0.0).stack_key()
    sizes = [change(PFCImage(), num_basis=size).stack_size() for size in (10, 300, 2000, 5000, 100_000)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 1 and sizes[0] == 16


def test_what_takes_longer_costs_more() -> None:
    costs = [
        config.cost()
        for config in (
            OODImage(),
            MLPImage(),
            change(PFCImage(), iterations=10),
            PFCImage(),
            ResidualImage(),
            change(PFCImage(), num_basis=2000),
            change(PFCImage(), dataset="cifar10", num_basis=2000),
        )
    ]
    assert costs == sorted(costs) and len(set(costs)) == len(costs)


def test_smoke_makes_every_row_small() -> None:
    for row in all_rows().values():
        if not isinstance(row.config, ImageConfig):
            continue
        large, small = settings(row.config), settings(row.config.smoke())
        assert (small["dataset"], small["epochs"], small["batch_size"]) == ("digits", 2, 100)
        assert max(small.get("num_basis", 0), small.get("hidden_features", 0)) <= 12
        assert small.get("gradient") == large.get("gradient") and small["nonnegative"] == large["nonnegative"]


# Models, and looking at them


def test_models_are_what_their_config_says() -> None:
    data, generator = made_images("mnist"), torch.Generator().manual_seed(3)
    mlp = MLPModel(hidden_features=7).build(data, generator)
    assert isinstance(mlp, MLP) and mlp.hidden.weight.shape == (7, 16) and mlp.output.weight.shape == (10, 7)
    block = small(l1=0.5, nonnegative=False).model.build(data, generator)
    assert isinstance(block, PFCBlock) and block.weight_x.shape == (16, 6) and block.weight_y.shape == (10, 6)
    assert block.l1 == 0.5 and not block.nonnegative and block.solver == FISTA.paper(5)
    model = change(ResidualImage(), num_basis=4).model.build(data, generator)
    assert isinstance(model, ResidualPFC) and len(model.blocks) == 2
    for config in (small(), MLPImage(), ResidualImage()):
        one, other, third = (
            config.model.build(data, torch.Generator().manual_seed(seed)).state_dict() for seed in (1, 1, 2)
        )
        assert all(torch.equal(one[key], other[key]) for key in one)
        assert not any(torch.equal(one[key], third[key]) for key in one if "weight" in key)


def test_weights_of_the_losses() -> None:
    assert MLPModel().loss_weights() == (1.0, 0.0)
    assert PFCModel(prediction_weight=0.75).loss_weights() == (0.75, 0.25)
    assert change(OODImage(), prediction_weight=0.0).model.loss_weights() == (0.0, 1.0)
    assert ResidualModel(reconstruction_weight=0.5).loss_weights() == (1.0, 0.5)
    assert MLPModel().eval_solver() is None
    inference = Inference(iterations=3, eval_iterations=7, tol=0.1)
    assert PFCModel(inference=inference).eval_solver() == FISTA.paper(7)


IMAGES = {"weights", "reconstruction_in", "completion", "class_to_image"}


@torch.no_grad()
@pytest.mark.usefixtures("made_data")
@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10"])
def test_looking_beyond_the_answer(dataset: str, tmp_path: Path) -> None:
    data = made_images(dataset)
    block = PFCBlock.from_examples(data.train.x[:40], data.train.label[:40], num_classes=10).eval()
    found, codes = Found({}), Found({})
    change(OODImage(), dataset=dataset).look_further(found, block, data, context(tmp_path))
    has_foreign = dataset != "cifar10"
    foreign = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}.get(dataset)
    assert found.data == ({foreign: f"fingerprint of {foreign}"} if foreign else {})
    assert set(found.images) == (IMAGES | {"reconstruction_ood"} if has_foreign else IMAGES)
    assert set(found.curves) == {"iterations", "accuracy_at_iterations"}
    metrics = found.metrics
    expected = {"sparsity", "class_to_image_accuracy", "error_auroc_iterations", "scattered_mask_accuracy"}
    assert set(metrics) >= expected and ("ood_auroc_brightness" in metrics) == has_foreign
    assert all(isinstance(value, float) for value in metrics.values())
    small().look_further(codes, block, data, context(tmp_path))
    apart = {name: value for name, value in codes.metrics.items() if name != "sparsity"}
    assert codes == Found({"sparsity": metrics["sparsity"], **apart})
    assert set(apart) == {"codes_apart", "loss_apart", "step_ratio"}
