"""What one module needs of another is public."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchpfc

SOURCE = Path(torchpfc.__file__).parent

PUBLIC = {"_replace", "_asdict", "_fields"}  # of named tuples, documented as public
TORCH = {"_version"}  # of a tensor: counts changes in place, and has no other name
KERNELS = "_foreach_"  # operations on lists of tensors, as torch.optim uses them


def private_names(source: str) -> Iterator[str]:
    """Names with an underscore that a module takes from another."""
    nodes = list(ast.walk(ast.parse(source)))
    own = PUBLIC | TORCH | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchpfc"):
            yield from (alias.name for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            whose = ast.unparse(node.value)
            if whose not in ("self", "cls", "super()") and not node.attr.startswith(KERNELS):
                yield f"{whose}.{node.attr}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_module_uses_no_private_name_of_another(path: Path) -> None:
    assert list(private_names(path.read_text(encoding="utf-8"))) == []


def test_private_names_of_others_are_seen() -> None:
    assert list(private_names("from torchpfc.nn.block import _helper, PFCBlock\nblock._cache\nself._own")) == [
        "_helper",
        "block._cache",
    ]
    assert list(private_names("class A:\n    def _own(self): pass\ndef f(a): return a._own, a._replace()")) == []
