"""Reads charts back."""

import xml.etree.ElementTree as ET

from torchpfc.paper.report.charts import standalone

SVG = "{http://www.w3.org/2000/svg}"


def parse(chart):
    return ET.fromstring(standalone(chart))


def find(chart, tag, kind=None):
    """The elements with a tag, and with a class where one is given."""
    found = parse(chart).iter(f"{SVG}{tag}")
    return [each for each in found if kind is None or kind in each.get("class", "").split()]


def words(chart):
    return [each.text for each in find(chart, "text")]
