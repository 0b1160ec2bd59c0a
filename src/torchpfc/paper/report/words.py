"""Settings and numbers as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchpfc.paper.report.compare import Sample, in_percent, is_share

MINUS = "−"

TINY = 1e-5
"""What is closer to zero is written with a power of ten."""

NAMES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "digits": "digits",
    "nmf": "without backpropagation",
    "lstm": "LSTM",
    "gru": "GRU",
    "paper": "protocol of the paper",
    "strict": "strict protocol",
    "sorted": "in the order of labels",
    "fixed": "in one random order",
    "nearest-mean": "nearest class mean",
    "lda": "streaming LDA",
    "fourier": "random Fourier features and ridge",
    "pairs": "two classes at a time",
    "classes": "one class at a time",
    "loss": "epoch of the lowest loss",
    "accuracy": "epoch of the highest accuracy",
    "residual": "class of the least residual",
    "joint": "all parts at once",
    "batches": "forgets batches with wrong labels",
    "class": "forgets a class",
    "examples": "forgets scattered examples",
    "generated": "made-up songs",
    "musdb18hq": "MUSDB18-HQ",
}
"""Values that have a spelling of their own."""

PHRASES = {
    "num_basis": "{} parts",
    "hidden_features": "{} hidden units",
    "iterations": "{} iterations",
    "prediction_weight": "λ = {}",
    "lr": "learning rate {}",
    "l1": "l1 = {}",
    "pause": "pause of {}",
    "width": "window of {}",
    "sweep_speed": "speed {}",
    "columns_per_class": "{} parts a class",
}
"""How to say a number; any other one follows the name of its setting."""

ANSWERS = {
    "nonnegative": ("non-negative", "signed"),
    "bptt": ("BPTT", "no BPTT"),
    "joint": ("all classes at once", "task by task"),
}
"""How to say yes and no; any other setting is named, or named after a "no"."""

ACRONYMS = {"ood", "auroc", "fpr95", "mb", "mse", "sdr", "sir", "sar"}
"""Words of a metric that are no words."""


# What Markdown and HTML give a meaning to. An underscore inside a word has none.
_MARKS = re.compile(r"[\\`*~|&<>\[\]]|(?<![^\W_])_|_(?![^\W_])")


def literal(text: str) -> str:
    """A text of a result file as it is, whatever Markdown or HTML would make of it.

    Example:
        >>> literal("*a_b* <!-- end -->")
        '&#42;a_b&#42; &#60;!-- end --&#62;'
    """
    return _MARKS.sub(lambda found: f"&#{ord(found[0])};", " ".join(text.split()))


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which some configs differ, in the order in which a config has them.

    Example:
        >>> varying([{"a": 1, "b": 2}, {"a": 1, "b": 0}])
        ['b']
    """
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


def describe(config: Mapping[str, Any], names: Iterable[str]) -> str:
    """Some settings of a config in words.

    Example:
        >>> describe({"dataset": "mnist", "num_basis": 300, "nonnegative": False, "tol": None}, ["num_basis", "tol"])
        '300 parts, no tol'
    """
    return ", ".join(_phrase(name, config[name]) for name in names if name in config)


def _phrase(name: str, value: Any) -> str:
    spoken = name.replace("_", " ")
    if value is None:
        return f"no {spoken}"
    if isinstance(value, bool):
        yes, no = ANSWERS.get(name, (spoken, f"no {spoken}"))
        return yes if value else no
    if isinstance(value, str):
        return NAMES.get(value, value)
    return PHRASES.get(name, f"{spoken} {{}}").format(_plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def name_metric(metric: str) -> str:
    """What a column of numbers holds, with its unit.

    Example:
        >>> name_metric("test_accuracy"), name_metric("ood_auroc")
        ('test accuracy in %', 'OOD AUROC')
    """
    name = " ".join(word.upper() if word in ACRONYMS else word for word in metric.split("_"))
    return f"{name} in %" if in_percent(metric) else name


def on_axis(metric: str) -> tuple[float, str]:
    """What charts multiply a metric with, and what they call it: shares of runs are in percent, as in tables.

    Example:
        >>> on_axis("success"), on_axis("test_accuracy")
        ((100.0, 'success in %'), (1.0, 'test accuracy in %'))
    """
    name = name_metric(metric)
    return (100.0, f"{name} in %") if is_share(metric) else (1.0, name)


def name_preset(preset: str) -> str:
    """The head of a column."""
    return f"{preset} preset"


def number(value: float, metric: str) -> str:
    """A number of a table: accuracies with two decimals, whole numbers as they are, anything else with four digits.

    What is close to zero has two digits and a power of ten, and a share of the runs is in percent.

    Example:
        >>> number(96.831, "test_accuracy"), number(0.93312, "auroc"), number(1234.5, "steps"), number(50.0, "epochs")
        ('96.83', '0.9331', '1234', '50')
        >>> number(0.35, "success")
        '35 %'
    """
    if is_share(metric):
        return f"{100 * value:.3g} %"
    if 0 < abs(value) < TINY and not in_percent(metric):
        return f"{value:.1e}".replace("-", MINUS)
    return f"{value:.{_decimals(value, metric)}f}".replace("-", MINUS)


def deviation(sample: Sample) -> str | None:
    """The spread of a sample, with as many decimals as its mean, if it has one."""
    if sample.deviation is None:
        return None
    return f"± {sample.deviation:.{_decimals(sample.mean, sample.metric)}f}"


def signed(value: float, metric: str) -> str:
    """A difference.

    Example:
        >>> signed(0.5, "test_accuracy"), signed(-0.53, "test_accuracy"), signed(-0.001, "test_accuracy")
        ('+0.50', '−0.53', '0.00')
    """
    text = number(value, metric)
    shown = float(text.replace(MINUS, "-"))
    if shown == 0:
        return text.removeprefix(MINUS)
    return f"+{text}" if shown > 0 else text


def minutes(seconds: float) -> str:
    """A time, rounded as much as its length allows.

    Example:
        >>> minutes(30), minutes(3000), minutes(30000)
        ('0.5', '50', '500')
    """
    value = seconds / 60
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def plural(count: int, word: str) -> str:
    """A number of things.

    Example:
        >>> plural(1, "row"), plural(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _decimals(value: float, metric: str) -> int:
    if in_percent(metric):
        return 2
    if not math.isfinite(value) or value == round(value):
        return 0
    return min(8, max(0, 3 - math.floor(math.log10(abs(value)))))
