import sys

import pytest
import torch

from torchpfc import PFCBlock
from torchpfc.interpret import Explanation, explain, waterfall

matplotlib = pytest.importorskip("matplotlib", reason="an extra of its own")


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def make_explanation() -> Explanation:
    generator = torch.Generator().manual_seed(0)
    h, weight_y = torch.rand(1, 6, generator=generator), torch.randn(2, 6, generator=generator)
    base = torch.tensor([0.5, 0.0])
    names = tuple("abcde")
    return Explanation(
        torch.rand(1, 5), base + h @ weight_y.mT, h, torch.eye(5, 6), weight_y, base, ("no", "yes"), True, names
    )


def test_each_bar_begins_where_the_one_before_ends_and_the_last_is_the_score():
    explanation = make_explanation()
    ax = waterfall(explanation, output="no", parts=4)
    *bars, total = ax.patches
    reached = 0.0
    for bar in bars:
        assert bar.get_x() == pytest.approx(reached, abs=1e-6)
        reached += bar.get_width()
    assert reached == pytest.approx(float(explanation.y[0, 0]), abs=1e-5) == total.get_width()
    order = [term.part for term in explanation.terms(output=0)]
    expected = ["base", *map(explanation.name_of, order[:4]), "2 others", "sum"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == expected
    assert ax.get_xlabel() == "score of no"


def test_it_draws_where_it_is_told_to_and_the_highest_output_by_default():
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    explanation = make_explanation()
    assert waterfall(explanation, ax=ax) is ax
    assert ax.patches[-1].get_width() == pytest.approx(float(explanation.y.max()), abs=1e-6)


def test_what_cannot_be_drawn_is_said(monkeypatch):
    one = make_explanation()
    nothing = Explanation(one.x, one.y[:, :0], one.h, one.weight_x, one.weight_y[:0], one.base[:0])
    with pytest.raises(ValueError, match="explanation must have outputs"):
        waterfall(nothing)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r'waterfall needs matplotlib .*pip install "torchpfc\[figures\]"'):
        waterfall(explain(PFCBlock(5, 2, num_basis=3), torch.rand(5)))


def test_parts_that_add_nothing_are_not_drawn():
    h, weight_y = torch.ones(1, 3), torch.tensor([[1.0, 0.0, 2.0]])
    explanation = Explanation(torch.ones(1, 2), h @ weight_y.mT, h, torch.ones(2, 3), weight_y, torch.zeros(1))
    assert [tick.get_text() for tick in waterfall(explanation).get_yticklabels()] == ["2", "0", "sum"]
