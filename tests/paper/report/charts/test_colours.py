"""The colours of charts, as eyes see them that lack one kind of cone.

The matrices are those of Machado, Oliveira and Fernandes (2009) for a complete lack, on linear RGB.
"""

import re
from itertools import combinations

import numpy as np
import pytest

from torchpfc.markup import read_style
from torchpfc.paper.report.charts.svg import STYLES

SIGHT = {
    "all cones": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ @ np.ones(3)


def colours(name):
    """The values that a variable has in light, in dark and in print."""
    style = read_style("colours") + read_style("charts/chart", package="torchpfc.paper.report")
    found = re.findall(rf"--{name}: #(\w\w)(\w\w)(\w\w);", style)
    values = np.array([[int(part, 16) / 255 for part in each] for each in found])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return dict(zip(("light", "dark", "print"), linear, strict=True))


def lab(linear):
    x, y, z = np.cbrt(TO_XYZ @ linear.clip(0, 1) / WHITE)  # none is dark enough to need the other branch of the formula
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_colours_can_be_told_apart(mode, sight):
    seen = [lab(SIGHT[sight] @ colours(f"series-{i}")[mode]) for i in range(STYLES)]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 20


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_every_colour_stands_out_from_the_paper(mode):
    paper = TO_XYZ[1] @ colours("paper")[mode]
    for i in range(STYLES):
        dark, bright = sorted([paper, TO_XYZ[1] @ colours(f"series-{i}")[mode]])
        assert (bright + 0.05) / (dark + 0.05) >= 3  # what WCAG asks of graphics
