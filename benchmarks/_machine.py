"""What every benchmark writes beside its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from torchpfc.checkpoint import write_atomically
from torchpfc.machine import describe_hardware, describe_versions


def describe() -> dict[str, Any]:
    """Versions and hardware."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {"versions": describe_versions(), "hardware": describe_hardware(device)}


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Writes a result file whole or not at all."""
    write_atomically(path, json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")
