import math
import re
from dataclasses import dataclass
from typing import Any

import pytest

from torchpfc.paper.settings import change, change_settings, check_choice, check_numbers, settings


@dataclass(frozen=True)
class Settings:
    lr: float = 1e-3
    batch_size: int = 200
    dataset: str = "mnist"
    nonnegative: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


def test_values_have_the_type_of_their_field() -> None:
    changed = change_settings(Settings(), ["lr=1", "batch_size=50", "dataset=digits", "nonnegative=no"])
    assert changed == Settings(1.0, 50, "digits", False)
    assert isinstance(changed.lr, float)
    assert change_settings(Settings(), []) == Settings()


def test_the_last_of_two_values_counts_and_a_value_may_hold_an_equals_sign() -> None:
    assert change_settings(Settings(), ["lr=1", "lr=2", "dataset=a=b"]) == Settings(lr=2.0, dataset="a=b")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("YES", True), ("1", True), ("False", False), ("0", False)]
)
def test_words_for_true_and_false(text: str, value: bool) -> None:
    assert change_settings(Settings(), [f"nonnegative={text}"]).nonnegative is value


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("lr", "a setting must have the form key=value, got 'lr'"),
        (
            "batchsize=3",
            "must be one of lr, batch_size, dataset, nonnegative, got 'batchsize'; did you mean 'batch_size'?",
        ),
        ("zzz=3", r"must be one of lr, .*, got 'zzz'$"),
        ("lr=fast", "lr must be of type float, got 'fast'"),
        ("batch_size=1.5", "batch_size must be of type int, got '1.5'"),
        ("batch_size=", "batch_size must be of type int, got ''"),
        ("nonnegative=maybe", "nonnegative must be true or false, got 'maybe'"),
        ("batch_size=0", "batch_size must be at least 1, got 0"),
    ],
)
def test_what_is_wrong_is_named(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change_settings(Settings(), [assignment])


@dataclass(frozen=True)
class Rate:
    lr: float = 1e-3
    decay: float = 1.0


@dataclass(frozen=True)
class Composed:
    epochs: int = 3
    rate: Rate = Rate()

    def __post_init__(self) -> None:
        if self.epochs > 10 / self.rate.decay:
            raise ValueError(f"epochs must be at most 10 / decay, got {self.epochs}")


def test_what_is_composed_has_one_name_for_each_setting() -> None:
    assert settings(Composed()) == {"epochs": 3, "lr": 1e-3, "decay": 1.0}
    assert change(Composed(), epochs=4, decay=0.5) == Composed(4, Rate(1e-3, 0.5))
    assert change_settings(Composed(), ["lr=2", "epochs=5"]) == Composed(5, Rate(2.0))
    assert change(Composed(epochs=10), decay=0.5, epochs=20) == Composed(20, Rate(1e-3, 0.5))


def test_what_is_composed_is_checked_as_a_whole() -> None:
    with pytest.raises(ValueError, match=r"epochs must be at most 10 / decay, got 11"):
        change(Composed(), epochs=11)
    with pytest.raises(ValueError, match=r"a setting must be one of epochs, lr, decay, got 'rate'$"):
        change(Composed(), rate=Rate())


def test_two_settings_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Twice:
        lr: float = 1.0
        rate: Rate = Rate()

    with pytest.raises(ValueError, match="settings must have different names, got lr twice"):
        settings(Twice())


@dataclass(frozen=True)
class Checked:
    lr: float = 0.5
    order: str = "sorted"

    def __post_init__(self) -> None:
        check_numbers(self, "lr", least=0, limit=1)
        check_choice(self, "order", ("sorted", "fixed"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 1.0}, "lr must be at least 0 and less than 1, got 1.0"),
        ({"lr": -1.0}, "lr must be at least 0 and less than 1, got -1.0"),
        ({"lr": math.nan}, "lr must be at least 0 and less than 1, got nan"),
        ({"order": "random"}, "order must be one of sorted, fixed, got 'random'"),
    ],
)
def test_checks_name_the_setting_its_bounds_and_its_value(values: dict[str, Any], message: str) -> None:
    assert Checked().lr == 0.5
    with pytest.raises(ValueError, match=re.escape(message)):
        change(Checked(), **values)
