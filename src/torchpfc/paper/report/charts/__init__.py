"""Charts as SVG, drawn by hand.

A chart is text for the inside of a page, whose style sheet colours it. `standalone` makes a file of it.
"""

from torchpfc.paper.report.charts.areas import Area, area_chart
from torchpfc.paper.report.charts.dots import Dots, dot_chart
from torchpfc.paper.report.charts.graphs import Arrow, Node, graph_chart
from torchpfc.paper.report.charts.heat import Heat, heat_chart
from torchpfc.paper.report.charts.lines import Axes, Panel, Series, line_chart
from torchpfc.paper.report.charts.pictures import Picture, picture_chart
from torchpfc.paper.report.charts.svg import Box, standalone

__all__ = [
    "Area",
    "Arrow",
    "Axes",
    "Box",
    "Dots",
    "Heat",
    "Node",
    "Panel",
    "Picture",
    "Series",
    "area_chart",
    "dot_chart",
    "graph_chart",
    "heat_chart",
    "line_chart",
    "picture_chart",
    "standalone",
]
