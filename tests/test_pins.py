"""The versions that are pinned, against the Python versions that the package says it supports."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def test_all_pins_can_be_installed_with_the_oldest_python() -> None:
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = re.fullmatch(r">=\s*(\d+\.\d+)", supported)
    assert oldest is not None
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(Requirement(line).name) for line in lines if line and not line.startswith("#")}
    needs = {
        f"{name} {found.version}": found.metadata["Requires-Python"] or ""
        for found in distributions()
        if (name := canonicalize_name(found.metadata["Name"])) in pins
    }
    assert len(needs) > 20, "the pinned packages are not those that are installed"
    assert not {name: need for name, need in needs.items() if f"{oldest[1]}.0" not in SpecifierSet(need)}
