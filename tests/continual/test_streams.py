"""Inputs as they come: arrays and lists, with signs and gaps, of any size, one at a time, and wrong ones."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from torchpfc import ContinualPFC
from torchpfc.continual import Likeness, RidgeReadout


def table(seed: int = 0, n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Two classes of three, by features of very different sizes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 4)) + 2.5 * np.eye(3, 4)[label]
    return x * [1e-3, 1.0, 1e4, 1e8], label


@pytest.mark.parametrize("kind", [np.asarray, np.ndarray.tolist, torch.tensor], ids=["array", "list", "tensor"])
def test_a_table_is_learned_as_it_comes(kind) -> None:
    (x, label), (x_test, label_test) = table(), table(1)
    model = ContinualPFC(4, scale="features", columns_per_class=20)
    for c in (2, 0, 1):
        model.learn(kind(x[label == c]), kind(label[label == c]))
    y = model(kind(x_test))
    assert y.shape == (200, 3) and (y.argmax(1).numpy() == label_test).mean() > 0.85


def test_a_raw_table_is_as_good_as_a_standardised_one() -> None:
    x, label = load_wine(return_X_y=True)
    answers = []
    for given in (x, StandardScaler().fit_transform(x)):
        model = ContinualPFC(13, scale="features")
        for c in range(3):
            model.learn(given[::2][label[::2] == c], label[::2][label[::2] == c])
        answers.append(model(given[1::2]).argmax(1).numpy())
        assert (answers[-1] == label[1::2]).mean() > 0.93
    assert (answers[0] == answers[1]).mean() > 0.98


@pytest.mark.parametrize("scale", ["common", "features"])
@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e200])
def test_the_size_of_inputs_changes_nothing(scale: str, size: float) -> None:
    x, label = table()
    x = x / [1e-3, 1.0, 1e4, 1e8]
    models = [ContinualPFC(4, scale=scale, columns_per_class=5, dtype=torch.float64) for _ in range(2)]  # type: ignore
    one, other = models
    one.learn(x, label)
    other.learn(size * x, label)
    torch.testing.assert_close(one(x), other(size * x))


@pytest.mark.parametrize("scale", ["common", "features"])
def test_what_is_missing_does_not_count(scale: str) -> None:
    (x, label), (x_test, label_test) = table(), table(1)
    x, x_test = (part / [1e-3, 1.0, 1e4, 1e8] for part in (x, x_test))
    rng = np.random.default_rng(2)
    x[rng.random(x.shape) < 0.1] = x_test[rng.random(x.shape) < 0.1] = np.nan
    model = ContinualPFC(4, scale=scale, columns_per_class=20)  # type: ignore[arg-type]
    model.learn(x, label)
    y = model(x_test)
    assert not y.isnan().any() and (y.argmax(1).numpy() == label_test).mean() > 0.75
    assert not model(np.full((1, 4), np.nan)).isnan().any()
    x[:, 1] = np.nan  # one that is never there
    model = ContinualPFC(4, scale=scale, columns_per_class=20)  # type: ignore[arg-type]
    model.learn(x, label)
    assert not model(x_test).isnan().any()


@pytest.mark.parametrize("scale", ["common", "features"])
def test_what_never_varies_says_nothing(scale: str) -> None:
    x, label = table()
    x[:, 2] = 7.0
    model = ContinualPFC(4, scale=scale, columns_per_class=3)  # type: ignore[arg-type]
    model.learn(x, label)
    assert not model(x).isnan().any()
    model.learn(np.zeros((3, 4)), [5, 5, 5])
    assert not model(np.zeros((2, 4))).isnan().any()


def test_infinite_and_other_wrong_values_change_nothing() -> None:
    model, (x, label) = ContinualPFC(4, 3, scale="features"), table()
    model.learn(x, label, batch="a")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bad = label.copy()
    bad[-1] = 3
    for error, message, arguments in [
        (ValueError, "label must be from 0 to 2, got 3", (x, bad)),
        (ValueError, "x must be finite, or NaN where it is not observed, got an infinite entry", (x * np.inf, label)),
        (TypeError, "label must be whole numbers, got torch.float64", (x, label / 2)),
        (TypeError, "label must hold real numbers, got <U1", (x, ["a"] * 200)),
        (TypeError, "x must hold real numbers, got complex128", (x + 1j, label)),
        (TypeError, "x must hold real numbers, got torch.complex128", (torch.tensor(x + 1j), label)),
        (ValueError, r"x must have shape \(n, 4\) with n at least 1, got \(0, 4\)", (x[:0], label[:0])),
    ]:
        with pytest.raises(error, match=message):
            model.learn(*arguments)
    for weight, message in [
        (np.where(label == 0, -1.0, 1.0), "weight must be finite and above 0, got -1"),
        (np.full(200, np.nan), "weight must be finite and above 0, got nan"),
        (np.ones(3), r"weight must have shape \(200,\) to match x, got \(3,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.learn(x, label, weight=weight)
    with pytest.raises(ValueError, match="x must be finite"):
        model(x * np.inf)
    with pytest.raises(ValueError, match=r"rows must number each of the 200 examples, got 3 numbers"):
        model.learn(x, label, rows=[1, 2, 3])
    assert before.keys() == model.state_dict().keys() and model.batches == ("a",)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize("scale", ["common", "features"])
def test_a_stream_of_single_examples_grows_to_its_bound_and_no_further(scale: str) -> None:
    (x, label), size = table(n=300), np.array([1e-3, 1.0, 1e4, 1e8])
    sums = RidgeReadout(Likeness.random(4, 8))
    model = ContinualPFC(4, scale=scale, max_parts=30, read_out=sums)  # type: ignore[arg-type]
    numbers = []
    for one, c in zip(x / size, label, strict=True):
        model.learn(one[None], c[None])
        numbers.append(sum(value.numel() for portion in model.portions for value in portion.tensors().values()))
    assert max(numbers) < 200 * numbers[0]  # a sketch grows to 33 points
    assert model.num_basis == 30 and len(model.portions) <= 30 and len(model.batches) == 300
    x_test, label_test = table(1)
    assert (model(x_test / size).argmax(1).numpy() == label_test).mean() > 0.8


@pytest.mark.parametrize("scale", ["common", "features"])
def test_a_part_of_one_example_is_listed_and_can_be_waited_for(scale: str) -> None:
    x, label = np.abs(table(n=9)[0]) / [1e-3, 1.0, 1e4, 1e8], np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    model = ContinualPFC(4, scale=scale)  # type: ignore[arg-type]
    model.learn(x, label)
    assert model.copies == (4,) and model.owners.tolist() == [0, 0, 1, 1, 2]
    waiting = ContinualPFC(4, scale=scale, wait=True)  # type: ignore[arg-type]
    gained = waiting.learn(x, label, batch="a")
    assert gained[2] == range(4, 4) and waiting.copies == () and waiting.inexact == ()
    assert not waiting(x)[:, 2].any()
    waiting.learn(x[:1] + 1, [2], batch="b")
    assert waiting.num_basis == 5 and waiting.copies == () and waiting.inexact == ("a", "b")
    waiting.learn(x[:1], [4], batch="c")
    waiting.forget(["c"])
    waiting.learn(np.tile(x[:1], (5, 1)), [3] * 5)
    assert waiting.copies == (5, 6)  # the mean of equal examples is one of them


def test_explanations_add_up_to_the_scores() -> None:
    x, label = table()
    x[::7, 1] = np.nan
    for read_out in (None, RidgeReadout(Likeness.random(4, 30))):
        for scale in ("common", "features"):
            model = ContinualPFC(4, scale=scale, read_out=read_out, columns_per_class=9)  # type: ignore[arg-type]
            model.learn(x, label)
            out = model.couple(x)
            torch.testing.assert_close(out.y, model(x), rtol=1e-4, atol=1e-5)
            chosen = torch.nn.functional.one_hot(model.owners, 3).to(out.gain)
            torch.testing.assert_close(out.base + out.gain @ chosen, out.y, rtol=1e-5, atol=1e-5)
            assert (out.h >= 0).all() and out.base.any() == (read_out is not None)


def test_what_an_example_counts_is_how_often_it_is_there() -> None:
    x, label = table(n=12)
    weight = np.array([1.0, 2, 3] * 4)
    models = [ContinualPFC(4, scale="features", columns_per_class=1) for _ in range(2)]
    models[0].learn(x, label, weight=weight)
    models[1].learn(x.repeat(weight.astype(int), 0), label.repeat(weight.astype(int)))
    torch.testing.assert_close(models[0].means, models[1].means)
