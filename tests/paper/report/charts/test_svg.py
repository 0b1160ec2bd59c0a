from tests.paper.report.charts.drawing import SVG, parse
from torchpfc.paper.report.charts.svg import draw, standalone, text


def test_a_file_has_its_own_colours_for_light_and_dark():
    chart = draw([text(0, 0, "1 < 2")], 10, 'a > b "c"')
    root = parse(chart)
    assert root.tag == f"{SVG}svg"
    assert root.get("aria-label") == 'a > b "c"'
    style = root.find(f"{SVG}style").text
    assert "prefers-color-scheme: dark" in style
    assert "--series-0" in style
    assert "--ink" in style
    assert [each.text for each in root.iter(f"{SVG}text")] == ["1 < 2"]


def test_a_chart_in_a_page_has_no_style_of_its_own():
    chart = draw([], 10, "")
    assert "<style" not in chart
    assert "<style" in standalone(chart)


def test_a_chart_asks_for_nothing_from_elsewhere():
    written = standalone(draw([], 10, ""))
    assert "url(" not in written
    assert "@import" not in written
    assert written.count("http") == 1  # the name of the format
