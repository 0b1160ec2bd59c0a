import pytest

from tests.paper.report.charts.drawing import find, words
from torchpfc.paper.report.charts import Heat, heat_chart

HEAT = Heat("a grid", ["one", "two"], ["x", "y", "z"], [[0.0, 50.0, 100.0], [25.0, float("nan"), 75.0]])


def opacities(svg):
    return [float(each.get("fill-opacity").removesuffix("%")) for each in find(svg, "rect", "cell")]


def test_larger_numbers_are_darker():
    svg = heat_chart([HEAT], rows="tasks", columns="letters", title="shades")
    found = opacities(svg)
    assert len(found) == 5 and found[0] < found[3] < found[1] < found[4] < found[2]
    assert {"a grid", "one", "two", "x", "z", "100", "25"} <= set(words(svg)) and "nan" not in words(svg)
    assert len(find(svg, "rect", "frame")) == 1  # the cell without a number


def test_limits_make_grids_comparable():
    pale = Heat("pale", ["a"], ["b"], [[10.0]])
    alone, common = heat_chart([pale], rows="", columns="", title=""), None
    common = heat_chart([pale], rows="", columns="", title="", limits=(0.0, 100.0))
    assert opacities(alone)[0] > opacities(common)[0]
    assert Heat("none", ["a"], ["b"], [[float("nan")]]).range == (0.0, 1.0)


def test_many_grids_go_on_below():
    svg = heat_chart([HEAT] * 4, rows="", columns="", title="four")
    tops = {each.get("y") for each in find(svg, "text", "title")}
    assert len(tops) == 2
    assert all(0 <= float(each.get("x")) <= 760 for each in find(svg, "rect", "cell"))


def test_numbers_must_fill_the_grid():
    with pytest.raises(ValueError, match=r"values must have 1 rows of 2, got rows of \[1\]"):
        Heat("", ["a"], ["b", "c"], [[1.0]])
