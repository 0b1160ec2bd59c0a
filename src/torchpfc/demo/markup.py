"""Words, numbers and pictures as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from torchpfc.demo.digits import SIDE
from torchpfc.demo.png import data_uri
from torchpfc.paper.report.markup import element


def picture(image: Tensor, alt: str) -> str:
    r"""A framed picture of a digit or a part.

    Shape:
        - image: $(64)$, 0 is paper and 1 is ink
    """
    source = data_uri(image.view(SIDE, SIDE))
    return element("span", element("img", src=source, alt=alt, width=SIDE, height=SIDE), class_="frame")


def percent(share: float, digits: int = 1) -> str:
    r"""A share from 0 to 1 in percent.

    Example:
        >>> percent(0.5)
        '50.0\xa0%'
    """
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def round_to_sum(values: Sequence[float], digits: int = 2) -> list[str]:
    """Rounds values so that they still add up to their rounded sum; each is off by less than one last place.

    Example:
        >>> round_to_sum([0.335, 0.335, 0.33])
        ['0.34', '0.33', '0.33']
    """
    scaled = [value * 10**digits for value in values]
    whole = [math.floor(value) for value in scaled]
    missing = round(sum(scaled)) - sum(whole)
    furthest_first = sorted(range(len(values)), key=lambda i: whole[i] - scaled[i])
    for i in furthest_first[:missing]:
        whole[i] += 1
    return [f"{value / 10**digits:.{digits}f}" for value in whole]
