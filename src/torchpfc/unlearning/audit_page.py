"""An audit as a page: what models still know, and the certificate of what was done to them."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from torchpfc.markup import element, read_style

if TYPE_CHECKING:
    from torchpfc.unlearning.audit import Audit, Knowledge

_STYLE = """
header { padding-top: 3rem; }
section { margin-top: 3.5rem; }
th, td { text-align: right; padding: 0.6rem 0 0.6rem 1.5rem; border-bottom: 1px solid var(--line); font-weight: 400; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-size: 0.85rem; vertical-align: bottom; }
tbody th { font-weight: 600; }
.wide { overflow-x: auto; }
.range { width: 12rem; }
.range div { position: relative; height: 1rem; background: linear-gradient(var(--line), var(--line)) center / 100% 1px
  no-repeat; }
.range u { position: absolute; left: 50%; width: 1px; height: 1rem; background: var(--soft); }
.range i { position: absolute; top: 0.35rem; height: 0.3rem; background: var(--soft); opacity: 0.6; }
.range b { position: absolute; top: 0.1rem; width: 0.8rem; height: 0.8rem; margin-left: -0.4rem; border-radius: 50%;
  background: var(--accent); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--paper); border: 1px solid var(--line);
  padding: 1rem; }
"""

_COLUMNS = ("model", "kept", "forgotten", "unseen", "attack", "", "steps to relearn")

_HOW_TO_READ = (
    "Kept, forgotten and unseen: the share of such examples that each model gets right (R² where it predicts numbers).",
    "The attack tries to tell forgotten examples from unseen ones by how well the model knows them, one by one. Its"
    " number is how often it is right about a pair: 0.5 is guessing, 1 is always; beside it is a standard error, and"
    " the bar covers two of them to each side, on a scale from 0 to 1.",
    "Steps to relearn are how often some of the forgotten examples had to be shown to a copy of the model until it knew"
    " them as required; empty where that was not measured or took too many.",
)


class Attested(Protocol):
    """What forgetting returns: prints as text, and can be written down."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ...


def draw_audit(audit: Audit, certificate: Attested | None) -> str:
    """Writes the page.

    Args:
        audit: What was found.
        certificate: What forgetting returned.
    """
    title = "What the model still knows"
    head = element("title", title) + element("style", read_style("colours", "type") + _STYLE)
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    verdicts = "".join(element("p", escape(sentence), class_="lead") for sentence in audit.verdicts)
    header = element("header", element("p", "torchpfc audit", class_="over"), element("h1", title), verdicts)
    heads = element("tr", *(element("th", name, scope="col") for name in _COLUMNS))
    rows = "".join(_draw_row(name, known) for name, known in audit.models.items())
    table = element("div", element("table", element("thead", heads), element("tbody", rows)), class_="wide")
    notes = "".join(element("p", sentence, class_="note") for sentence in _HOW_TO_READ)
    sections = element("section", element("h2", "Audit"), table) + element(
        "section", element("h2", "How to read it"), notes
    )
    if certificate is not None:
        plain = json.dumps(certificate.to_dict(), indent=1)
        details = element("details", element("summary", "All of it, as JSON"), element("pre", escape(plain)))
        text = element("pre", escape(str(certificate)))
        sections += element("section", element("h2", "Certificate"), text, details)
    body = element("body", header, element("main", sections), "<footer></footer>")
    return f"<!DOCTYPE html>\n{element('html', element('head', meta, head), body, lang='en')}\n"


def _draw_row(name: str, known: Knowledge) -> str:
    attack = known.membership
    low, high = (min(1, max(0, attack.auroc + sign * 2 * attack.standard_error)) for sign in (-1, 1))
    whisker = element("i", style=f"left: {100 * low:.1f}%; width: {100 * (high - low):.1f}%")
    dot = element("b", style=f"left: {100 * attack.auroc:.1f}%")
    scores = (f"{score:.1%}" for score in (known.retained, known.forgotten, known.test))
    steps = "" if known.relearn_steps is None else str(known.relearn_steps)
    numbers = [*scores, f"{attack.auroc:.3f} ± {attack.standard_error:.3f}"]
    cells = [element("td", number) for number in numbers]
    drawn = element("td", element("div", "<u></u>", whisker, dot), class_="range")
    return element("tr", element("th", escape(name), scope="row"), *cells, drawn, element("td", steps))
