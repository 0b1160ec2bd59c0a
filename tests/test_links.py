"""Every link inside the repository leads somewhere: also where `mkdocs build --strict` does not look."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "docs" / "report.html"]
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r'\]\(([^)\s]+)(?: "[^"]*")?\)|\b(?:href|src)="([^"]+)"')
ELSEWHERE = re.compile(r"\w+:")


def links(text):
    """The addresses that a page names, but for those of other machines."""
    found = ("".join(match.groups(default="")) for match in LINK.finditer(CODE.sub("", BLOCK.sub("", text))))
    return [address for address in found if not ELSEWHERE.match(address)]


@cache
def places(page):
    """What can follow # in an address of the page."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".html":
        return set(re.findall(r'\bid="([^"]+)"', text))
    return {slugify(heading, "-") for heading in re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)}


def broken(page):
    """The links of a page that lead nowhere."""
    for address in links(page.read_text(encoding="utf-8")):
        path, _, place = address.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.is_file() or (place and place not in places(target)):
            yield address


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "other.html").write_text('<p id="here">')
    page = tmp_path / "page.md"
    page.write_text(
        "# A `title`\n[a](other.html#here) [b](other.html#there) [c](gone.md) [d](#a-title) [e](#b-title) `[f](no)`\n"
        '[g](https://example.org) ![h](picture.svg "title") <img src="no.png">\n'
    )
    assert list(broken(page)) == ["other.html#there", "gone.md", "#b-title", "picture.svg", "no.png"]
