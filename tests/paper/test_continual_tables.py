from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from torchpfc.paper import experiments
from torchpfc.paper.components import PFCModel
from torchpfc.paper.continual import ORDERED_MLP, SPLIT_MLP, OrderedMNIST, SplitMNIST
from torchpfc.paper.continual_rates import CHOSEN
from torchpfc.paper.continual_tables import PARTS, SUMS
from torchpfc.paper.registry import Row
from torchpfc.paper.report.compare import Line, fill
from torchpfc.paper.report.continual import mean_matrix
from torchpfc.paper.results import Result
from torchpfc.paper.settings import change, settings
from torchpfc.solvers import Implicit


def rows(name: str) -> dict[str, Row]:
    return {row.id: row for table in experiments()[name].tables for row in table.rows}


@pytest.mark.parametrize(
    ("id", "paper", "needed", "expected"),
    [
        ("T3.MLP", 40.11, 37.11, {"hidden_features": 1357, "lr": 2e-6, "width": 0}),
        ("T3.MLP.1e-4", None, None, {"hidden_features": 1357, "lr": 1e-4}),
        ("T3.PFC", 67.07, 64.0, {"num_basis": 1357, "lr": 1e-5, "width": 0}),
        ("T3.SLW", 93.73, 92.0, {"num_basis": 2000, "lr": 3e-4, "width": 15, "sweep_speed": 0.25}),
        ("T3.SLW.strict", None, None, {"protocol": "strict", "width": 15}),
        ("T3F.SLW", None, None, {"dataset": "fashion-mnist", "protocol": "paper"}),
    ],
)
def test_rows_of_table_3_have_the_settings_and_numbers_of_the_paper(
    id: str, paper: float | None, needed: float | None, expected: dict[str, Any]
) -> None:
    row, common = rows("split-mnist")[id], {"weight_decay": 1e-4, "batch_size": 200, "patience": 5, "epochs": 300}
    assert row.paper == paper and row.seeds == 5
    if paper is not None and needed is not None:
        assert paper - row.slack == pytest.approx(needed)
    assert settings(row.config).items() >= (expected | common).items()


@pytest.mark.parametrize(
    ("id", "paper", "units", "lr", "decay", "order", "epochs"),
    [
        ("T4.MLP.IID", 97.91, 2600, 1e-4, 1e-4, "fixed", 200),
        ("T4.PFC.IID", 97.88, 2600, 2e-3, 1e-4, "fixed", 100),
        ("T4.SLW.IID", 96.02, 3000, 2e-3, 1e-4, "fixed", 100),
        ("T4.MLP.ORD", 84.92, 2600, 5e-7, 0.0, "sorted", 200),
        ("T4.PFC.ORD", 88.19, 2600, 5e-6, 0.0, "sorted", 100),
        ("T4.SLW.ORD", 96.06, 3000, 2e-3, 1e-4, "sorted", 100),
    ],
)
def test_rows_of_table_4_have_the_settings_and_numbers_of_the_paper(
    id: str, paper: float, units: int, lr: float, decay: float, order: str, epochs: int
) -> None:
    row = rows("ordered-mnist")[id]
    config: Any = row.config
    assert row.paper == paper and row.seeds == 3 and row.slack <= 0.7 and config.model.units == units
    expected = {"lr": lr, "weight_decay": decay, "order": order, "epochs": epochs, "batch_size": 50, "patience": 5}
    expected |= {"width": 50, "sweep_speed": 2.5} if ".SLW." in id else {"width": 0, "sweep_speed": 0.0}
    assert settings(config).items() >= expected.items()


def test_table_4_has_every_block_with_another_gradient_too() -> None:
    found = {id: settings(row.config) for id, row in rows("ordered-mnist").items()}
    blocks = {id for id in found if ".PFC." in id or ".SLW." in id} - {"T4.SLW.ORD.accurate"}
    assert {f"{id}.implicit" for id in blocks if not id.endswith(".implicit")} == {
        id for id in blocks if id.endswith(".implicit")
    }
    assert all(found[id]["gradient"] == ("implicit" if id.endswith(".implicit") else "unrolled") for id in blocks)


def test_the_window_is_also_run_with_the_most_accurate_epoch_and_nothing_else_changed() -> None:
    found = {id: row.config for id, row in rows("ordered-mnist").items()}
    assert found["T4.SLW.ORD.accurate"] == change(found["T4.SLW.ORD"], keep="accuracy")


def test_rows_of_the_window_say_what_they_change() -> None:
    found = rows("split-mnist")
    window = {id: row for id, row in found.items() if id.startswith("WINDOW.")}
    published = settings(found["T3.SLW"].config)
    changed = {id: dict(settings(row.config).items() - published.items()) for id, row in window.items()}
    assert changed["WINDOW.unchanged"] == {} and changed["WINDOW.lr-0.0006"] == {"lr": 6e-4}
    words = {"weight_decay": "no weight decay", "keep": "by accuracy"}
    for id, row in window.items():
        said = [words.get(name, str(value)) for name, value in changed[id].items()]
        assert all(word in row.what for word in said) and len(said) == len(row.what.split(", ")) - (not said), id


def test_settings_by_validation_are_those_of_a_row_they_were_chosen_from() -> None:
    found = {id: row.config for id, row in rows("split-mnist").items()}
    assert found["T3.SLW.tuned"] == found["WINDOW.patience-10.l1-0.02.width-30"]


@pytest.mark.parametrize(
    ("experiment", "id", "published", "needed"),
    [("split-mnist", "T3.SLW.tuned", "T3.SLW", 93.73), ("ordered-mnist", "T4.SLW.ORD.accurate", "T4.SLW.ORD", 96.0)],
)
def test_our_settings_of_the_window_have_to_reach_the_paper(
    experiment: str, id: str, published: str, needed: float
) -> None:
    found = rows(experiment)
    assert found[id].paper is not None and found[id].paper == found[published].paper
    assert found[id].paper - found[id].slack == pytest.approx(needed)


def test_rates_of_columns_are_compared_with_the_paper_and_chosen_from_the_rows_of_a_search() -> None:
    found: dict[str, Any] = {id: row.config for id, row in rows("split-mnist").items()}
    assert found["RATES.M.RMSprop"] == found["T3.PFC"] and found["RATES.M.SLW"] == found["T3.SLW"]
    for name in CHOSEN:
        assert found[f"RATES.{name}"] in [found[id] for id in found if id.startswith(f"STRENGTH.{name}.")], name
    transferred = found["RATES.D.square"].optimizer
    assert found["RATES.M.square"] == replace(found["T3.PFC"], optimizer=transferred)


@pytest.fixture(scope="module")
def lines() -> dict[str, Line]:
    """What the committed results say of rates."""
    experiment, folder = experiments()["split-mnist"], Path(__file__).parents[2] / "docs" / "results" / "split-mnist"
    results = [Result.load(path) for path in folder.iterdir()]
    tables = [table for table in experiment.tables if table.id in ("RATES", "STRENGTH")]
    return {line.row.id: line for table in tables for line in fill(experiment, table, results).lines}


def test_the_settings_of_rates_have_the_highest_accuracy_on_held_out_images(lines: dict[str, Line]) -> None:
    for name in CHOSEN:
        searched = [line for id, line in lines.items() if id.startswith(f"STRENGTH.{name}.")]
        assert all(len(line.samples["fast"].results) == 3 for line in searched), name
        best = max(searched, key=lambda line: round(line.samples["fast"].mean, 6))  # of equal ones the first
        assert best.row.config == lines[f"RATES.{name}"].row.config, name


@pytest.mark.parametrize("preset", ["paper", "fast"])
def test_what_is_said_of_rates_is_what_was_found(preset: str, lines: dict[str, Line]) -> None:
    found = {name: lines[f"RATES.{name}"].samples[preset] for name in CHOSEN}
    accuracy = {name: sample.mean for name, sample in found.items()}
    assert all(accuracy["D.SLW"] - accuracy[f"D.{use}"] <= 3 for use in ("code", "square", "mean"))
    assert all(accuracy["D50.SLW"] - accuracy[f"D50.{use}"] >= 9 for use in ("square", "mean"))
    forgotten = {name: fmean(run.metrics["forgetting"] for run in sample.results) for name, sample in found.items()}
    assert 40 < forgotten["D.RMSprop"] < 60 and accuracy["D.RMSprop"] < 60
    for use in ("code", "square", "mean"):
        *earlier, last = mean_matrix(found[f"D.{use}"].results)[-1]
        assert last < min(earlier)
    assert forgotten["D.age"] < 5 and accuracy["D.age"] < 40


def test_what_is_said_of_rates_on_mnist_is_what_was_found(lines: dict[str, Line]) -> None:
    samples = {name: lines[f"RATES.M.{name}"].deciding for name in ("RMSprop", "SLW", "code", "square", "mean", "age")}
    assert all(samples.values())
    found = {name: sample.mean for name, sample in samples.items() if sample is not None}
    assert 9 < found["code"] - found["RMSprop"] < 12 and abs(found["square"] - found["mean"]) < 1
    assert 0 < found["square"] - found["RMSprop"] < 7.55  # the deviation of the latter
    assert all(found["SLW"] - found[name] > 17 for name in ("code", "square", "mean", "age"))
    searched = {id: line.samples["fast"].mean for id, line in lines.items() if id.startswith("STRENGTH.M.")}
    best = max(searched, key=searched.__getitem__)
    assert best == "STRENGTH.M.square.0.01-10"
    assert searched[best] - searched["STRENGTH.M.square.0.01-3"] > 8


def test_cited_numbers_are_marked_and_never_run() -> None:
    table = experiments()["split-mnist"].tables[0]
    assert {cited.id: cited.value for cited in table.cited} == {
        "T3.UPPER.CITED": "97.94",
        "T3.MLP.CITED": "19.90",
        "T3.EWC.CITED": "20.01",
        "T3.REPLAY.CITED": "90.79 to 91.79",
        "T3.EXEMPLAR.CITED": "94.57",
    }
    assert not {cited.id for cited in table.cited} & set(rows("split-mnist"))


def test_every_learner_is_there_for_both_data_sets_under_both_protocols() -> None:
    found = rows("split-mnist")
    for table in ("T3", "T3F"):
        for name in ("MLP", "MLP.1e-4", "MLP.SLW", "PFC", "SLW"):
            assert found[f"{table}.{name}"].config == change(found[f"{table}.{name}.strict"].config, protocol="paper")
        assert {"JOINT.MLP", "JOINT.PFC", "EWC", "NCM", "LDA", "RFF", "PARTS"} <= {
            id.removeprefix(f"{table}.") for id in found
        }
    sweep: list[Any] = [row.config for id, row in found.items() if id.startswith("SWEEP.")]
    windows = {(config.window.width, config.window.sweep_speed) for config in sweep}
    assert len({width for width, _ in windows}) == len({speed for _, speed in windows}) == 3 and len(windows) == 9


def test_presets_change_how_a_block_is_trained_and_nothing_else() -> None:
    for name in ("split-mnist", "ordered-mnist", "unlearning"):
        for row in rows(name).values():
            config: Any = row.config
            fast: Any = experiments()[name].presets["fast"](config)
            if isinstance(getattr(config, "model", None), PFCModel) and name != "ordered-mnist":  # loses accuracy there
                inference = config.model.inference
                assert fast.model.inference.adjoint == Implicit.fast(15, 1e-3)
                assert fast.model.inference.iterations < inference.iterations
                same = ("gradient", "gradient_steps", "damping", "iterations")
                assert change(fast, **{name: getattr(inference, name) for name in same}) == config
            else:
                assert fast == config


@pytest.mark.parametrize(
    ("config", "setting", "message"),
    [
        (SplitMNIST(), {"protocol": "loose"}, "protocol must be one of paper, strict, got 'loose'"),
        (SplitMNIST(), {"keep": "last"}, "keep must be one of loss, accuracy, got 'last'"),
        (SplitMNIST(), {"width": 3000}, "width must be at most the number of units, 2000, got 3000"),
        (SPLIT_MLP, {"width": -1}, "width must be at least 0, got -1"),
        (SPLIT_MLP, {"penalty": -1.0}, "penalty must be at least 0, got -1.0"),
        (OrderedMNIST(), {"order": "random"}, "order must be one of sorted, fixed, got 'random'"),
        (ORDERED_MLP, {"sweep_speed": float("inf")}, "sweep_speed must be at least 0 and finite, got inf"),
        (PARTS, {"readout": "all"}, "readout must be one of residual, joint, got 'all'"),
        (PARTS, {"l1": -0.1}, "l1 must be at least 0, got -0.1"),
        (PARTS, {"tasks": "triples"}, "tasks must be one of pairs, classes, got 'triples'"),
        (SUMS, {"method": "svm"}, "method must be one of nearest-mean, lda, fourier, got 'svm'"),
        (SUMS, {"ridge": 0.0}, "ridge must be positive and finite, got 0.0"),
        (SUMS, {"dataset": "svhn"}, "dataset must be one of digits, mnist, fashion-mnist, cifar10, got 'svhn'"),
        (SUMS, {"validation_share": 1.0}, "validation_share must be between 0 and 1, got 1.0"),
    ],
)
def test_a_setting_out_of_range_is_named(config: Any, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(config, **setting)


def test_models_stack_where_only_the_protocol_or_the_order_differs() -> None:
    assert SplitMNIST().stack_key() == SplitMNIST(protocol="strict").stack_key()
    assert OrderedMNIST().stack_key() == change(OrderedMNIST(), order="fixed").stack_key()
    different: tuple[dict[str, Any], ...] = ({"width": 3}, {"dataset": "fashion-mnist"}, {"joint": True}, {"lr": 1.0})
    for changes in different:
        assert change(SplitMNIST(), **changes).stack_key() != SplitMNIST().stack_key()
    assert SplitMNIST().stack_key() != OrderedMNIST().stack_key() != SPLIT_MLP.stack_key() != SplitMNIST().stack_key()
