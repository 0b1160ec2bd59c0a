import math

import pytest

from tests.paper.report.charts.drawing import find, parse, words
from torchpfc.paper.report.charts import Dots, dot_chart


def chart(panels, samples=("ours",), **options):
    styles = {name: style for style, name in enumerate(samples)}
    return dot_chart(panels, styles, axis="accuracy", title="a chart", **options)


def marks(drawn):
    """The places of the marks, without that of the legend."""
    return [float(each.get("x1")) for each in find(drawn, "line", "mark")][1:]


def dots(drawn):
    return [(float(each.get("cx")), float(each.get("cy"))) for each in find(drawn, "circle", "dot")][1:]


def test_a_dot_stands_beside_the_mark_on_the_side_of_the_larger_number():
    drawn = chart({"": {"better": Dots(90.0, 89.0, {"ours": [91.0]}), "worse": Dots(91.0, 90.0, {"ours": [90.0]})}})
    (better, upper), (worse, lower) = dots(drawn)
    assert upper < lower
    assert better > marks(drawn)[0]
    assert worse < marks(drawn)[1]
    assert better == pytest.approx(marks(drawn)[1])


def test_panels_have_scales_of_their_own_or_one():
    panels = {name: {"row": Dots(None, None, {"ours": [value, value + 1]})} for name, value in (("a", 1), ("b", 50))}

    def width(drawn):
        return [float(line.get("x2")) - float(line.get("x1")) for line in find(drawn, "line", "range")]

    own, one = width(chart(panels)), width(chart(panels, shared=True))
    assert own == pytest.approx([own[0]] * 2, abs=0.2) and one == pytest.approx([one[0]] * 2, abs=0.2)
    assert own[0] > 20 * one[0]


def test_a_stroke_goes_from_the_mark_down_to_what_is_needed():
    (_, stroke) = find(drawn := chart({"": {"row": Dots(90.0, 89.0, {"ours": [91.0]})}}), "line", "slack")
    assert float(stroke.get("x2")) == marks(drawn)[0]
    assert float(stroke.get("x1")) < marks(drawn)[0]


def test_several_runs_have_a_range_around_their_mean():
    drawn = chart({"": {"row": Dots(None, None, {"ours": [90.0, 94.0, 98.0]})}})
    (line,) = find(drawn, "line", "range")
    (mean, _) = dots(drawn)[0]
    assert mean == pytest.approx((float(line.get("x1")) + float(line.get("x2"))) / 2, abs=0.1)
    assert find(chart({"": {"row": Dots(90.0, None, {"ours": [90.0]})}}), "line", "range") == []


def test_two_samples_of_a_row_do_not_cover_each_other():
    drawn = chart({"": {"row": Dots(90.0, 89.0, {"ours": [91.0], "fast": [91.0]})}}, ["ours", "fast"])
    ((x, y),) = dots(drawn)
    square = find(drawn, "rect", "dot")[1]
    assert float(square.get("x")) + 4 == pytest.approx(x, abs=0.11)
    assert float(square.get("y")) + 4 == pytest.approx(y + 10, abs=0.11)


def test_a_row_that_was_not_run_keeps_its_mark():
    drawn = chart({"": {"row": Dots(90.0, 89.0, {})}})
    assert len(marks(drawn)) == 1
    assert dots(drawn) == []


def test_values_that_are_no_numbers_are_left_out():
    drawn = chart({"": {"row": Dots(90.0, 89.0, {"ours": [math.nan]})}, "empty": {"row": Dots(None, None, {})}})
    assert dots(drawn) == []
    assert "empty" not in words(drawn)


def test_panels_side_by_side_have_their_rows_aligned():
    row = {"a": Dots(90.0, None, {"ours": [91.0]}), "b": Dots(80.0, None, {"ours": [81.0]})}
    drawn = chart({"left": row, "right": {"b": row["b"]}})
    (_, first), (left, second), (right, third) = dots(drawn)
    assert first < second == third
    assert left < right
    assert words(drawn).count("b") == 1


def test_a_fourth_panel_goes_below():
    drawn = chart({str(i): {"a": Dots(90.0, None, {"ours": [91.0]})} for i in range(4)})
    *_, third, fourth = dots(drawn)
    assert third[1] < fourth[1] < float(parse(drawn).get("height"))
    assert fourth[0] > 0


def test_the_legend_names_everything():
    drawn = chart({"": {"row": Dots(90.0, 89.0, {"ours": [91.0]})}}, ["ours", "not here"])
    assert {"the paper's number", "met down to here", "ours", "not here", "accuracy"} <= set(words(drawn))


def test_a_long_legend_takes_another_line():
    names = [f"a sample with a rather long name {i}" for i in range(6)]
    drawn = chart({"": {"row": Dots(90.0, 89.0, {names[0]: [91.0]})}}, names)
    heights = {float(each.get("y")) for each in find(drawn, "text") if each.text in names}
    assert len(heights) > 1


def test_a_long_name_takes_another_line_instead_of_running_into_the_panel():
    name = "a row whose name says all that is to be said of it, and then some more"
    drawn = chart({"": {name: Dots(90.0, 89.0, {"ours": [91.0]}), "short": Dots(90.0, 89.0, {"ours": [91.0]})}})
    above, below = (each for each in find(drawn, "text", "name") if each.text in name)
    assert f"{above.text} {below.text}" == name and max(len(above.text), len(below.text)) < 45
    assert float(below.get("y")) - float(above.get("y")) == 12
    assert (float(above.get("y")) + float(below.get("y"))) / 2 - 4 == pytest.approx(dots(drawn)[0][1], abs=0.11)
