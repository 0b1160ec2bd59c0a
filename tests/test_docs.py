import re
from pathlib import Path

import pytest

from torchpfc._version import __version__

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.relative_to(ROOT).as_posix())
        for page in PAGES
        if PYTHON.search(page.read_text(encoding="utf-8"))
    ],
)
def test_the_python_code_of_a_page_runs_from_top_to_bottom(page):
    text = page.read_text(encoding="utf-8")
    names = {}
    for block in PYTHON.finditer(text):
        # Blank lines in front make a traceback name the line of the page.
        code = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize(("file", "pattern"), [("CHANGELOG.md", r"^## (\S+)"), ("CITATION.cff", r"^version: (\S+)")])
def test_a_file_names_the_version_of_the_package(file, pattern):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(pattern, text, re.MULTILINE)[1] == __version__
