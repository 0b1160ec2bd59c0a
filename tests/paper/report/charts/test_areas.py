import pytest

from tests.paper.report.charts.drawing import find, words
from tests.paper.report.made import png
from torchpfc.paper.report.charts import Area, Box, Picture, area_chart
from torchpfc.paper.report.charts.areas import TALLEST
from torchpfc.paper.report.songs import column_areas, spectrogram_areas


def number(element, *names):
    return tuple(float(element.get(name)) for name in names)


def chart(picture, *areas):
    return area_chart([(picture, areas)], title="", scale=("silence", "loud"))


def frames(svg):
    """Boxes around areas; the first is that of the scale."""
    return [number(each, "x", "y", "width", "height") for each in find(svg, "rect") if each.get("class") == "frame"][1:]


def test_areas_lie_where_they_are_in_the_picture():
    areas = Area("left", Box(0, 0, 40, 50)), Area("right", Box(60, 25, 40, 25))
    svg = chart(Picture("both", png(100, 50)), *areas)
    (image,) = find(svg, "image")
    x, y, width, height = number(image, "x", "y", "width", "height")
    assert frames(svg) == [
        pytest.approx((x, y, 0.4 * width, height), abs=0.2),
        pytest.approx((x + 0.6 * width, y + 0.5 * height, 0.4 * width, 0.5 * height), abs=0.2),
    ]
    assert words(svg)[:5] == ["silence", "loud", "both", "left", "right"]


def test_ticks_stand_at_their_share_of_an_edge():
    area = Area("", Box(0, 0, 100, 50), {0.0: "0 s", 0.5: "1 s", 1.0: "2 s"}, {0.25: "2 kHz"})
    svg = chart(Picture("", png(100, 50)), area)
    ((x, y, width, height),) = frames(svg)
    ticks = [number(each, "x1", "y1") for each in find(svg, "line")]
    below = [(x + share * width, y + height) for share in (0, 0.5, 1)]
    beside = (x - 4, y + 0.75 * height)
    assert ticks == [pytest.approx(place, abs=0.2) for place in (*below, beside)]


def test_a_high_picture_is_squeezed_and_a_second_one_stands_below():
    high, low = Picture("high", png(10, 500)), Picture("low", png(100, 50))
    svg = area_chart([(high, ()), (low, ())], title="", scale=("", ""))
    one, two = (number(each, "y", "height", "width") for each in find(svg, "image"))
    assert one[1] == TALLEST and one[2] == two[2] and two[0] > one[0] + one[1]


def test_spectrograms_are_named_and_have_seconds_and_kilohertz():
    areas = spectrogram_areas(Picture("", png(3 * 216 + 2 * 6 + 2, 352)))
    assert [area.name for area in areas] == ["mixture", "true vocals", "estimate of the vocals"]
    assert [area.box for area in areas] == [Box(1 + k * 222, 1, 216, 350) for k in range(3)]
    for area in areas:
        assert {name: share * 216 * 1024 / 44_100 for share, name in area.across.items()} == pytest.approx(
            {f"{second} s": second for second in range(6)}
        )
    hertz = {name: share * 350 * 44_100 / 2048 for share, name in areas[0].up.items()}
    assert hertz == pytest.approx({"0 kHz": 0, "2 kHz": 2000, "4 kHz": 4000, "6 kHz": 6000})
    assert not areas[1].up and not areas[2].up


def test_rows_of_columns_lie_one_below_the_other():
    above, below = column_areas(Picture("", png(256, 702)))
    assert (above.box, below.box) == (Box(0, 0, 256, 350), Box(0, 352, 256, 350))
    assert (above.name, below.name) == ("in the mixture", "in the vocals")
