import pytest

from torchpfc.markup import element, read_style


def test_attributes_are_escaped_and_spelled_as_html_has_them():
    assert element("a", "text", href='x"&<', aria_label="l", class_="c") == (
        '<a href="x&quot;&amp;&lt;" aria-label="l" class="c">text</a>'
    )


def test_an_image_has_no_end():
    assert element("img", src="x") == '<img src="x">'


def test_style_sheets_are_joined_in_order():
    both = read_style("colours", "type")
    assert both.index("--ground:") < both.index("body {")
    with pytest.raises(FileNotFoundError):
        read_style("nothing")
