from dataclasses import dataclass

import pytest

from torchpfc.paper.settings import change_settings


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
