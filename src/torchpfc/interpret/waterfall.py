"""An explanation as a figure: what each part adds, one after another, from nothing to the score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchpfc.interpret.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UP, _DOWN, _SUM = "#0072b2", "#d55e00", "#555555"


def waterfall(
    explanation: Explanation, row: int = 0, *, output: int | str | None = None, parts: int = 8, ax: Axes | None = None
) -> Axes:
    """Draws the sum of one example: a bar for each part, from where the one above ends, and the score at the bottom.

    Needs matplotlib: `pip install "torchpfc[figures]"`.

    Args:
        explanation: The explanation.
        row: Which example.
        output: Which output, by number or name; by default the highest.
        parts: How many parts to draw one by one, those that add most first; the others are added up.
        ax: Where to draw; a figure of its own by default.

    Returns:
        Where it was drawn; `.figure.savefig("why.svg")` saves it.
    """
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'waterfall needs matplotlib ({error}): pip install "torchpfc[figures]"', name="matplotlib"
        ) from None
    one = explanation[row]
    if not one.outputs:
        raise ValueError("explanation must have outputs to draw what parts add to one, got none")
    k = one.number_of(output)
    terms = [term for term in one.terms(output=k) if term.contributions[k]]
    base, total = float(one.base.flatten()[k]), float(one.y[0, k])
    bars = [("base", base)] if base else []
    bars += [(one.name_of(term.part), term.contributions[k]) for term in terms[:parts]]
    if others := terms[parts:]:
        bars.append((f"{len(others)} others", sum(term.contributions[k] for term in others)))
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 0.9 + 0.36 * (len(bars) + 1)), layout="constrained")
    start = 0.0
    for place, (_, added) in enumerate(bars):
        bar = ax.barh(place, added, left=start, color=_UP if added >= 0 else _DOWN)
        ax.bar_label(bar, labels=[f"{added:+.3g}"], padding=3)
        start += added
        ax.plot([start, start], [place - 0.4, place + 1.4], color=_SUM, linewidth=0.8)  # where the next one begins
    ax.bar_label(ax.barh(len(bars), total, color=_SUM), labels=[f"{total:.3g}"], padding=3)
    ax.set_yticks(range(len(bars) + 1), [name for name, _ in bars] + ["sum"])
    ax.invert_yaxis()
    ax.use_sticky_edges = False  # or there would be no room for the numbers
    ax.margins(x=0.2)
    ax.axvline(0, color=_SUM, linewidth=0.8)
    ax.set_xlabel(f"score of {one.outputs[k]}" if one.classes else one.outputs[k])
    return ax
