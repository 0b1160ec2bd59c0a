import math

from tests.paper.report.charts.drawing import find, words
from torchpfc.paper.report.charts import Arrow, Node, graph_chart


def chart(count, arrows):
    nodes = [Node(str(i % 3), i % 3, f"note {i}") for i in range(count)]
    return graph_chart(nodes, arrows, {"reads 0": 0, "reads 1": 1, "reads 2": 2}, title="A ring")


def test_states_lie_on_a_ring_with_their_labels():
    svg = chart(8, [])
    discs = [each for each in find(svg, "circle", "dot")][3:]  # after those of the legend
    assert len(discs) == 8
    places = [(float(disc.get("cx")), float(disc.get("cy"))) for disc in discs]
    centre = [sum(values) / 8 for values in zip(*places, strict=True)]
    radii = [math.dist(place, centre) for place in places]
    assert max(radii) - min(radii) < 1
    assert places[0][1] == min(y for _, y in places)  # from the top
    assert places[2][0] == max(x for x, _ in places)  # clockwise
    assert words(svg)[-8:] == ["0", "1", "2", "0", "1", "2", "0", "1"]
    assert [each.text for each in find(svg, "title")] == [f"note {i}" for i in range(8)]


def test_each_transition_is_an_arrow_as_dark_as_it_is_strong():
    svg = chart(5, [Arrow(0, 1, 1.0), Arrow(1, 4, 0.5), Arrow(2, 2, 0.0)])
    assert len(find(svg, "path", "arrow")) == len(find(svg, "polygon", "head")) == 3
    assert [each.get("opacity") for each in find(svg, "g") if each.get("opacity")] == ["1", "0.5", "0.1"]


def test_many_states_are_drawn_smaller_and_without_labels():
    svg = chart(150, [Arrow(0, 75, 1.0)])
    discs = find(svg, "circle", "dot")
    assert len(discs) == 3 + 150 and float(discs[-1].get("r")) < 5
    assert set(words(svg)) == {"reads 0", "reads 1", "reads 2"}
    assert find(chart(1, []), "circle", "dot")
