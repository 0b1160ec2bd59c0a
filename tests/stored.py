"""Folders that were saved, changed by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes what state.json says, as somebody does who leaves its seal out."""
    path = folder / "state.json"
    content = json.loads(path.read_text())
    del content["seal"]
    change(content)
    path.write_text(json.dumps(content))
