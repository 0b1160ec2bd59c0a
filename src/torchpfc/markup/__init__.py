"""HTML and SVG as text, and the style that all pages share."""

from __future__ import annotations

from html import escape
from importlib.resources import files

VOID = frozenset({"img"})
"""Elements that have no end."""


def element(name: str, *children: str, **attributes: object) -> str:
    """An element with what is inside it.

    Args:
        name: Of the element.
        children: HTML.
        attributes: Text; an underscore in a name becomes a hyphen, and one at its end is left out.

    Example:
        >>> element("p", "1 &lt; 2", class_="note")
        '<p class="note">1 &lt; 2</p>'
    """
    given = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    end = "" if name in VOID else f"</{name}>"
    return f"<{name}{given}>{''.join(children)}{end}"


def read_style(*names: str, package: str = "torchpfc.markup") -> str:
    """Some style sheets as one.

    Args:
        names: Of the sheets: `colours` for light, dark and print; `type` for text and tables.
        package: Whose sheets.
    """
    return "".join((files(package) / f"{name}.css").read_text(encoding="utf-8") for name in names)
