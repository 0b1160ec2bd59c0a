import pytest

from tests.paper.report.charts.drawing import find, words
from tests.paper.report.made import png
from torchpfc.paper.report.charts import Picture, picture_chart


def places(pictures):
    names = ("x", "y", "width", "height")
    return [tuple(float(each.get(name)) for name in names) for each in find(picture_chart(pictures, title=""), "image")]


def test_pictures_keep_their_shape_and_have_their_names_below():
    pictures = [Picture("wide", png(100, 50)), Picture("high", png(100, 200))]
    (x1, y1, w1, h1), (x2, y2, w2, h2) = places(pictures)
    assert w1 / h1 == pytest.approx(2, rel=0.01)
    assert w2 / h2 == pytest.approx(0.5, rel=0.01)
    assert x1 + w1 < x2
    assert y1 == y2
    assert words(picture_chart(pictures, title="")) == ["wide", "high"]


def test_pictures_stand_side_by_side_where_there_is_room():
    assert [y for _, y, _, _ in places([Picture(str(i), png(600, 10)) for i in range(3)])] != [0, 0, 0]
    rows = [y for _, y, _, _ in places([Picture(str(i), png(100, 100)) for i in range(4)])]
    assert rows[0] == rows[1] == rows[2] < rows[3]


def test_strips_have_a_line_each_and_all_the_room():
    (_, first, width, _), (_, second, _, _) = places([Picture(str(i), png(300, 100)) for i in range(2)])
    assert first < second
    assert width == 760
    assert len({y for _, y, _, _ in places([Picture(str(i), png(299, 100)) for i in range(2)])}) == 1


def test_a_small_picture_is_not_blown_up():
    ((_, _, width, height),) = places([Picture("small", png(28, 28))])
    assert width == height == 84


@pytest.mark.parametrize("text", ["", "!", "iVBORw0KGgo=", "AAAA" * 20])
def test_what_is_no_png_is_refused(text):
    with pytest.raises(ValueError, match=r"png must be a PNG file in base64, got '"):
        Picture("broken", text)
