import math
from itertools import pairwise

import pytest

from tests.paper.report.charts.drawing import SVG, find, parse, words
from torchpfc.paper.report.charts import Axes, Panel, Series, line_chart

AXES = Axes(x="epoch", y="accuracy in %")


def series(y, *, label="a line", x=None, spread=0.0, **options):
    low, high = [value - spread for value in y], [value + spread for value in y]
    return Series(label, list(range(1, len(y) + 1)) if x is None else x, y, low, high, **options)


def chart(*lines, axes=AXES):
    return line_chart([[Panel("a panel", lines)]], axes, title="a & b")


def path(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def lines_of(drawn):
    """Those inside a panel; the legend has others."""
    return [path(line) for line in find(drawn, "polyline", "line") if line.get("points") != "0,0 18,0"]


def test_a_line_goes_up_where_its_values_do():
    ((a, b, c),) = lines_of(chart(series([10.0, 30.0, 20.0])))
    assert a[0] < b[0] < c[0]
    assert a[1] > c[1] > b[1]
    assert c[1] - b[1] == pytest.approx(a[1] - c[1], abs=0.2)


def test_a_chart_says_what_it_shows():
    drawn = chart(series([1.0, 2.0], label="one <line>"))
    assert parse(drawn).get("aria-label") == "a & b"
    assert parse(drawn).get("role") == "img"
    assert {"one <line>", "a panel", "epoch", "accuracy in %"} <= set(words(drawn))


def test_many_lines_have_no_bands_that_would_cover_each_other():
    for count, bands in ((8, 8), (9, 0)):
        lines = [series([float(k), k + 1.0], spread=0.5) for k in range(count)]
        companions = [series([2.0, 3.0], faint=True)]
        assert len(find(chart(*lines, *companions), "polygon", "band")) == bands
        beside = line_chart([[Panel("many", lines), Panel("one", lines[:1])]], AXES, title="two panels")
        assert len(find(beside, "polygon", "band")) == (bands + 1 if bands else 0)


def test_a_band_is_drawn_where_runs_differ():
    (band,) = find(chart(series([1.0, 2.0], spread=0.5), series([3.0, 4.0])), "polygon", "band")
    assert len(path(band)) == 4
    ((_, y_first), (_, y_last)) = lines_of(chart(series([1.0, 2.0], spread=0.5), series([3.0, 4.0])))[0]
    above_first, above_last, below_last, below_first = (y for _, y in path(band))
    assert above_first < y_first < below_first
    assert above_last < y_last < below_last


def test_lines_differ_in_colour_and_in_dashes():
    drawn = chart(*(series([1.0, 2.0 + i], label=str(i), style=i) for i in range(18)))
    groups = [each for each in find(drawn, "g") if each.find(f"{SVG}title") is not None]
    looks = [(each.get("class"), each.find(f"{SVG}polyline").get("stroke-dasharray")) for each in groups]
    assert len(set(looks)) == 18
    assert len({dashes for _, dashes in looks[:6]}) == 6
    assert {f"s{i}" for i in range(6)} <= {each.get("class") for each in find(drawn, "g")}


def test_a_faint_line_lies_behind_and_is_not_in_the_legend():
    drawn = chart(series([1.0, 2.0], label="front"), series([3.0, 4.0], label="back", faint=True))
    groups = [each.get("class") for each in find(drawn, "g") if each.find(f"{SVG}title") is not None]
    assert groups == ["s0 faint", "s0"]
    assert "front" in words(drawn)
    assert "back" not in words(drawn)


def test_few_points_are_drawn_as_dots_and_many_are_not():
    assert len(find(chart(series([1.0] * 20)), "circle", "dot")) == 20
    assert find(chart(series([1.0] * 21)), "circle", "dot") == []


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_left_out(odd):
    assert lines_of(chart(series([1.0, odd, 3.0]))) == lines_of(chart(series([1.0, 3.0], x=[1, 3])))
    assert "nan" not in chart(series([1.0, odd, 3.0]))


def test_what_is_not_positive_has_no_place_on_a_logarithmic_axis():
    axes = Axes(x="iterations", y="loss", log_x=True, log_y=True)
    drawn = chart(series([5.0, 0.0, 1.0, 0.1], x=[0, 1, 10, 100]), axes=axes)
    assert [len(line) for line in lines_of(drawn)] == [2]


def test_a_panel_without_lines_says_so():
    drawn = chart(series([math.nan]), series([]))
    assert "no numbers" in words(drawn)
    assert lines_of(drawn) == []


def test_the_beginning_of_a_line_may_be_out_of_view():
    values = [10.0, *(90.0 + i / 10 for i in range(19))]
    whole, settled = (
        {text for text in words(chart(series(values), axes=Axes(x="x", y="y", settling=share)))} for share in (0.0, 0.1)
    )
    assert "40" in whole
    assert "40" not in settled
    assert "91.0" in settled or "91" in settled


def test_panels_of_a_row_share_axes_only_when_asked_to():
    row = [Panel(name, [series([value, value + 1])]) for name, value in (("low", 1.0), ("high", 9.0))]
    own = line_chart([row], AXES, title="")
    shared = line_chart([row], Axes(x="x", y="y", shared=True), title="")
    assert [y for _, y in lines_of(own)[0]] == [y for _, y in lines_of(own)[1]]
    assert lines_of(shared)[0][0][1] > lines_of(shared)[1][0][1]


def test_panels_whose_ends_are_to_be_read_do_not_share_axes_that_would_flatten_one():
    high, low = ([Panel("", [series([start, start + rise])]) for rise in (1.0, 40.0)] for start in (90.0, 20.0))
    settling = Axes(x="x", y="y", shared=True, settling=0.1)

    def rises(row, axes):
        return [line[0][1] - line[-1][1] for line in lines_of(line_chart([row], axes, title=""))]

    flat = [high[0], low[1]]
    assert rises(flat, settling)[0] == pytest.approx(rises(flat, settling)[1], abs=0.2)
    together = rises(flat, Axes(x="x", y="y", shared=True))
    assert together[0] < together[1] / 10
    alike = rises([low[1], Panel("", [series([30.0, 50.0])])], settling)
    assert alike[1] == pytest.approx(alike[0] / 2, abs=0.2)


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("last", [20_000, 1_000_000, 60])
def test_no_label_below_stands_on_another(last, log_x):
    lines = series([1.0, 2.0, 3.0], x=[1.0, last / 2, last])
    drawn = line_chart([[Panel("a panel", [lines])] * 3], Axes(x="x", y="y", log_x=log_x), title="")
    bottom = max(float(text.get("y")) for text in find(drawn, "text") if text.text.isdigit())
    labels = [text for text in find(drawn, "text") if float(text.get("y")) == bottom]
    assert len(labels) >= 6
    reach = [(float(text.get("x")), len(text.text) * 0.56 * 12, text.get("class") == "end") for text in labels]
    edges = sorted(
        (x - (width if at_end else width / 2), x + (0 if at_end else width / 2)) for x, width, at_end in reach
    )
    assert all(before[1] + 3 < after[0] for before, after in pairwise(edges))


def test_a_fourth_panel_goes_below():
    drawn = line_chart([[Panel(str(i), [series([1.0, 2.0])]) for i in range(4)]], AXES, title="")
    first, *_, fourth = lines_of(drawn)
    assert first[0][0] == fourth[0][0]
    assert first[0][1] < fourth[0][1]
    height = float(parse(drawn).get("height"))
    assert max(y for line in lines_of(drawn) for _, y in line) < height


def test_whole_numbers_below_have_whole_ticks():
    assert [text for text in words(chart(series([1.0, 2.0, 3.0]))) if text in ("1", "1.5", "2", "2.5", "3")][-3:] == [
        "1",
        "2",
        "3",
    ]
    assert "1.25" in words(chart(series([7.0, 8.0], x=[1.0, 1.75])))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_panels_fill_the_width(count):
    drawn = line_chart([[Panel(str(i), [series([1.0, 2.0])]) for i in range(count)]], AXES, title="")
    assert max(x for line in lines_of(drawn) for x, _ in line) == 760
    assert len({line[0][0] for line in lines_of(drawn)}) == count


def test_ticks_can_be_at_the_points_and_none_stands_on_another():
    axes = Axes(x="parts", y="share", log_x=True, at_points=True)
    drawn = chart(series([1.0, 2.0, 3.0, 4.0], x=[7, 1000, 1001, 3000]), axes=axes)
    assert {"7", "1000", "3000"} <= set(words(drawn)) and "1001" not in words(drawn)
    ends_there = [label.text for label in find(drawn, "text", "end")]
    assert "3000" in ends_there and "1000" not in ends_there  # one at the right edge does not stick out
