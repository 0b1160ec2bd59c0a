"""The rows of the paper's Tables 3 and 4, and of what goes beyond them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchpfc.paper.closed_form import OnePass, run_one_pass
from torchpfc.paper.components import PFCModel
from torchpfc.paper.continual import ORDERED_MLP, SPLIT_MLP, OrderedMNIST, OrderedRun, SplitMNIST, TasksRun, fast
from torchpfc.paper.continual_rates import NOTE, SEARCH_NOTE, chosen_rows, search_rows
from torchpfc.paper.one_pass_learners import PartsMethod, SumsMethod
from torchpfc.paper.registry import Cited, Experiment, Job, Row, Table, as_published, register
from torchpfc.paper.results import Result
from torchpfc.paper.runner import Context
from torchpfc.paper.settings import change
from torchpfc.paper.stack_run import StackRun

SUMS, PARTS = OnePass(method=SumsMethod()), OnePass(method=PartsMethod())
"""Learners that take each example once."""

WITHOUT_WINDOW: dict[str, Any] = {"width": 0, "sweep_speed": 0.0}

CITED = (
    Cited("T3.UPPER.CITED", "offline perceptron, upper bound", "97.94"),
    Cited("T3.MLP.CITED", "perceptron, Adam", "19.90"),
    Cited("T3.EWC.CITED", "elastic weight consolidation, Adam", "20.01"),
    Cited("T3.REPLAY.CITED", "replay methods", "90.79 to 91.79"),
    Cited("T3.EXEMPLAR.CITED", "replay and exemplars", "94.57"),
)
"""What the paper cites from other work."""

NO_LIMIT = 1500
"""Parts of each class where nothing limits them."""


def _table_3(table: str, dataset: str) -> Iterator[Row]:
    """Learners under both protocols, bounds, and baselines that need neither replay nor task ids."""
    mlp, pfc = change(SPLIT_MLP, dataset=dataset), change(SplitMNIST(), dataset=dataset)
    whole = change(pfc, num_basis=1357, lr=1e-5, **WITHOUT_WINDOW)
    unit_window = change(mlp, hidden_features=2000, lr=3e-4, width=15, sweep_speed=0.25)
    learners: dict[str, tuple[str, Any, float | None, float]] = {
        "MLP": ("perceptron, learning rate 2e-6", mlp, 40.11, 3.0),
        "MLP.1e-4": ("perceptron, learning rate 1e-4", change(mlp, lr=1e-4), None, 0.0),
        "MLP.SLW": ("perceptron, window over its hidden units", unit_window, None, 0.0),
        "PFC": ("PFC, RMSprop", whole, 67.07, 3.07),
        "SLW": ("PFC, RMSpropSLW", pfc, 93.73, 1.73),
    }
    for name, (what, config, paper, slack) in learners.items():
        known = paper if dataset == "mnist" else None
        slack = slack if known else 0.0
        yield Row(f"{table}.{name}", config, known, slack, seeds=5, what=what, under="protocol of the paper")
        strict = change(config, protocol="strict")
        yield Row(f"{table}.{name}.strict", strict, seeds=5, what=what, under="strict protocol")
    if dataset == "mnist":
        tuned = change(pfc, width=30, patience=10, l1=0.02, num_basis=3500)
        what = "PFC, RMSpropSLW, settings by validation"
        yield Row(f"{table}.SLW.tuned", tuned, 93.73, ours=True, seeds=5, what=what, under="protocol of the paper")
    others: dict[str, tuple[str, Any]] = {
        "JOINT.MLP": ("perceptron, all classes at once", change(mlp, lr=1e-4, joint=True)),
        "JOINT.PFC": ("PFC, RMSprop, all classes at once", change(whole, lr=3e-4, joint=True)),
        "EWC": ("perceptron, elastic weights", change(mlp, lr=1e-4, penalty=100.0, protocol="strict")),
        "NCM": ("nearest class mean", change(SUMS, dataset=dataset)),
        "LDA": ("streaming LDA", change(SUMS, dataset=dataset, method="lda")),
        "RFF": ("random Fourier features and ridge", change(SUMS, dataset=dataset, method="fourier")),
    }
    for name, (what, config) in others.items():
        yield Row(f"{table}.{name}", config, seeds=5, what=what, under="bounds and baselines")
    for name, count in (("PARTS", 135), (f"PARTS.{NO_LIMIT}", NO_LIMIT)):
        for suffix, also, shift in (("", "", 0), (".shift", ", shifts", 1)):
            config = change(PARTS, dataset=dataset, columns_per_class=count, shift=shift)
            what = f"{10 * count:,} columns{also}"
            yield Row(f"{table}.{name}{suffix}", config, seeds=5, what=what, under="ContinualPFC")


def _table_sweep() -> Iterator[Row]:
    """Width against speed; faster windows need more columns."""
    for width in (5, 15, 45):
        for speed, columns in ((0.125, 2000), (0.25, 2000), (0.5, 5000)):
            config = change(SplitMNIST(), width=width, sweep_speed=speed, num_basis=columns)
            yield Row(f"SWEEP.{width}.{speed:g}", config)


def _table_window() -> Iterator[Row]:
    """The window with other settings, to choose by; what takes longer needs more columns."""
    patient: dict[str, Any] = {"patience": 10, "num_basis": 3000}
    accurate = {**patient, "keep": "accuracy"}
    slow: dict[str, Any] = {"sweep_speed": 0.125, "num_basis": 3000}
    changes: dict[str, tuple[str, dict[str, Any]]] = {"unchanged": ("as published", {})}
    changes |= {f"lr-{lr:g}": (f"learning rate {lr:g}", {"lr": lr}) for lr in (1.5e-4, 6e-4)}
    changes |= {f"weight-{weight:g}": (f"λ = {weight:g}", {"prediction_weight": weight}) for weight in (0.3, 0.8)}
    changes |= {f"l1-{l1:g}": (f"l1 = {l1:g}", {"l1": l1}) for l1 in (0.02, 0.05, 0.1)}
    changes["decay-0"] = ("no weight decay", {"weight_decay": 0.0})
    changes["batch-100"] = ("batch size 100", {"batch_size": 100})
    changes["columns-4000"] = ("4000 parts", {"num_basis": 4000})
    changes["patience-10"] = ("patience 10, 3000 parts", patient)
    changes["accurate"] = ("patience 10, 3000 parts, by accuracy", accurate)
    for l1 in (0.02, 0.05):
        less = {**patient, "num_basis": 2500, "l1": l1}
        changes[f"patience-10.l1-{l1:g}"] = (f"patience 10, 2500 parts, l1 = {l1:g}", less)
        what = f"patience 10, 3000 parts, by accuracy, l1 = {l1:g}"
        changes[f"accurate.l1-{l1:g}"] = (what, {**accurate, "l1": l1})
        changes[f"speed-0.125.l1-{l1:g}"] = (f"speed 0.125, 3000 parts, l1 = {l1:g}", {**slow, "l1": l1})
    penalized: dict[str, Any] = {"patience": 10, "num_basis": 3500, "l1": 0.02}
    more: dict[str, dict[str, Any]] = {
        "patience-10.l1-0.02.columns-3500": penalized,
        "patience-10.l1-0.02.columns-4500": {**penalized, "num_basis": 4500},
        "patience-10.l1-0.02.width-30": {**penalized, "width": 30},
        "patience-7.l1-0.02": {**penalized, "patience": 7},
    }
    for name, changed in more.items():
        what = f"patience {changed['patience']}, {changed['num_basis']} parts, l1 = 0.02"
        changes[name] = (what + ", window of 30" * ("width" in changed), changed)
    for name, (what, changed) in changes.items():
        yield Row(f"WINDOW.{name}", change(SplitMNIST(), **changed), what=what)


def _table_unused() -> Iterator[Row]:
    """A window over handwritten digits, with more and more columns that it does not reach: one, a sixth, and so on."""
    for size in (108, 125, 216, 432):
        yield Row(f"UNUSED.{size}", change(OrderedMNIST(), order="fixed", dataset="digits", num_basis=size), seeds=10)


UNUSED_NOTE = (
    "A window over handwritten digits, with more and more columns that it does not reach. They hold random values, and "
    "take part wherever codes are found. Used alone is the accuracy of the same models without them, on validation "
    "images too; shares are in percent."
)


def _table_levers() -> Iterator[Row]:
    """Our learner with one thing changed at a time, from means that are not refined."""
    changes: dict[str, dict[str, Any]] = {"unchanged": {}, "joint": {"readout": "joint"}, "shift-1": {"shift": 1}}
    changes |= {f"l1-{l1:g}": {"l1": l1} for l1 in (0.0, 0.05, 0.1, 0.3, 0.5)}
    changes |= {f"power-{power:g}": {"power": power} for power in (0.3, 1.0)}
    changes |= {f"refine-{passes}": {"refine": passes} for passes in (1, 5, 20)}
    changes |= {f"columns-{count}": {"columns_per_class": count} for count in (30, 60, 300, 600, NO_LIMIT)}
    changes |= {f"steps-{steps}": {"iterations": steps} for steps in (30, 300)}
    for key, dataset in (("M", "mnist"), ("F", "fashion-mnist")):
        for name, changed in changes.items():
            yield Row(f"PARTS.{key}.{name}", change(PARTS, **{"dataset": dataset, "refine": 0} | changed), seeds=3)


def _table_4() -> Iterator[Row]:
    """Learners in both orders; the window also where accuracy decides, and blocks with the gradient of the optimum."""
    mlp, pfc = ORDERED_MLP, OrderedMNIST()
    whole = change(pfc, num_basis=2600, **WITHOUT_WINDOW)
    rows: tuple[tuple[str, str, OrderedMNIST, float, float], ...] = (
        ("MLP.IID", "perceptron", change(mlp, order="fixed", lr=1e-4, weight_decay=1e-4), 97.91, 0.7),
        ("PFC.IID", "PFC, RMSprop", change(whole, order="fixed"), 97.88, 0.7),
        ("SLW.IID", "PFC, RMSpropSLW", change(pfc, order="fixed"), 96.02, 0.7),
        ("MLP.ORD", "perceptron", mlp, 84.92, 0.7),
        ("PFC.ORD", "PFC, RMSprop", change(whole, lr=5e-6, weight_decay=0.0), 88.19, 0.7),
        ("SLW.ORD", "PFC, RMSpropSLW", pfc, 96.06, 0.06),
    )
    for name, what, config, paper, slack in rows:
        yield Row(f"T4.{name}", config, paper, slack, seeds=3, what=what, under=_order(config))
    accurate = change(pfc, keep="accuracy")
    what = "PFC, RMSpropSLW, epoch of the highest accuracy"
    under = _order(accurate)
    yield Row("T4.SLW.ORD.accurate", accurate, 96.06, slack=0.06, ours=True, seeds=3, what=what, under=under)
    for name, what, config, _, _ in rows:
        if isinstance(config.model, PFCModel):
            what = f"{what}, gradient of the optimum"
            yield Row(f"T4.{name}.implicit", fast(config), seeds=3, what=what, under=_order(config))
    for name, count in (("PARTS.ORD", 135), (f"PARTS.ORD.{NO_LIMIT}", NO_LIMIT)):
        parts = change(PARTS, tasks="classes", columns_per_class=count)
        yield Row(f"T4.{name}", parts, seeds=3, what=f"ContinualPFC, {10 * count:,} columns", under="by label")


def _order(config: OrderedMNIST) -> str:
    return "by label" if config.order.order == "sorted" else "in one random order"


def _runs(name: str, kind: type[StackRun]) -> Callable[[Sequence[Job], Context], Iterator[Result]]:
    """Trains learners with one stack key, in a run of that kind or each in one pass, and measures them."""

    def run(jobs: Sequence[Job], context: Context) -> Iterator[Result]:
        if isinstance(jobs[0].config, OnePass):
            return run_one_pass(name, jobs, context)
        return kind(name, jobs, context).results()

    return run


register(
    Experiment(
        "split-mnist",
        "five tasks of two classes, one after another, without replay or task ids (Table 3)",
        SplitMNIST,
        _runs("split-mnist", TasksRun),
        {"paper": as_published, "fast": fast},
        (
            Table("T3", "Split MNIST", tuple(_table_3("T3", "mnist")), cited=CITED),
            Table("T3F", "Split Fashion-MNIST", tuple(_table_3("T3F", "fashion-mnist"))),
            Table(
                "SWEEP", "Split MNIST: width of the window against its speed", tuple(_table_sweep()), "valid_accuracy"
            ),
            Table("WINDOW", "Split MNIST: the window with other settings", tuple(_table_window()), "valid_accuracy"),
            Table(
                "PARTS",
                "Means of similar examples, one setting changed at a time",
                tuple(_table_levers()),
                "valid_accuracy",
            ),
            Table("RATES", "Learning rates of their own for columns", tuple(chosen_rows()), note=NOTE),
            Table(
                "STRENGTH",
                "How fast rates of columns fall, and what they are compared with",
                tuple(search_rows()),
                "valid_accuracy",
                SEARCH_NOTE,
            ),
        ),
    )
)
register(
    Experiment(
        "ordered-mnist",
        "all classes in the order of their labels, or in one fixed random order (Table 4)",
        OrderedMNIST,
        _runs("ordered-mnist", OrderedRun),
        {"paper": as_published, "fast": as_published},  # rows of T4 show what the other gradient loses
        (
            Table("T4", "MNIST in the order of its labels", tuple(_table_4())),
            Table(
                "UNUSED",
                "Digits in one random order: columns that the window does not reach",
                tuple(_table_unused()),
                "valid_accuracy",
                UNUSED_NOTE,
                over="num_basis",
            ),
        ),
    )
)
