r"""Turns formulas into MathML while the site is built.

The arithmatex extension leaves `\(...\)` and `\[...\]` in elements of class `arithmatex`, for a script to draw in the
browser. Every current browser draws MathML by itself, so pages need no script, and no network to fetch it.
"""

import html
import logging
import re
from typing import Any

from latex2mathml.converter import convert

log = logging.getLogger("mkdocs.hooks.mathml")

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\s*\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]\s*</(?P=tag)>', re.DOTALL
)


def on_page_content(content: str, **kwargs: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return FORMULA.sub(_to_mathml, content)


def _to_mathml(match: re.Match[str]) -> str:
    display = "block" if match["open"] == "[" else "inline"
    latex = html.unescape(match["latex"]).strip()
    mathml = convert(latex.replace(r"\arg", r"\mathrm{arg}\,"), display=display)  # the one command missing so far
    if "\\" in mathml:  # what the converter does not know it passes on as it is
        log.warning("formula with a command that MathML conversion does not know: %s", latex)
    return mathml
