import re
from importlib.resources import files

import pytest

from torchpfc.explorer.server import STATIC

FOLDER = files("torchpfc.explorer") / "static"
NAMES = sorted(file.name for file in FOLDER.iterdir())


def read(name):
    return (FOLDER / name).read_text(encoding="utf-8")


def test_every_file_has_an_address_and_every_address_a_file():
    assert sorted(name for name, _ in STATIC.values()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_from_elsewhere(name):
    text = read(name).replace("http://www.w3.org/2000/svg", "")  # the name of a language, which nobody loads
    assert not re.search(r"(https?:)?//[\w.-]+\.\w|@import|url\(", text.replace("// ", ""))


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_scripts_import_only_each_other_and_never_read_text_as_html(name):
    text = read(name)
    assert set(re.findall(r'from "\./(\w+)\.js"', text)) <= {file.removesuffix(".js") for file in NAMES}
    assert not re.search(r'from "(?!\./)', text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def test_the_page_needs_no_inline_code():
    page = read("index.html")
    assert "<script>" not in page and "<style>" not in page
    assert not re.search(r"\son\w+=|\sstyle=", page)


def test_the_page_is_made_for_phones_screen_readers_and_both_colour_schemes():
    page, style = read("index.html"), read("style.css")
    for needed in (
        'lang="en"',
        'name="viewport"',
        'content="light dark"',
        'aria-label="Views"',
        'role="status"',
        "<main",
    ):
        assert needed in page
    for needed in ("prefers-color-scheme: dark", "max-width: 44rem", ":focus-visible", "prefers-reduced-motion"):
        assert needed in style


def test_ids_that_scripts_look_for_are_there():
    page = read("index.html")
    for name in NAMES:
        for found in re.findall(r'getElementById\("([\w-]+)"\)', read(name) if name.endswith(".js") else ""):
            assert f'id="{found}"' in page


def test_styles_that_the_report_has_are_the_same_here():
    report = (files("torchpfc.markup") / "colours.css").read_text(encoding="utf-8")
    for variable in ("ground", "paper", "ink", "soft", "line", "accent"):
        pattern = rf"--{variable}: (#\w+)"
        assert re.findall(pattern, read("style.css")) == re.findall(pattern, report)[:2]
