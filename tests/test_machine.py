import platform
from pathlib import Path

import pytest
import torch

from torchpfc import machine
from torchpfc.machine import cpu_name, describe_hardware, describe_versions


def test_the_processor_has_a_name_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert describe_hardware(torch.device("cpu"))["cpu"] == cpu_name() != ""
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A processor: fast\nmodel name : B\n")
    for file, expected in (("cpuinfo", "A processor: fast"), ("missing", "arm64")):
        monkeypatch.setattr(machine, "CPU_INFO", tmp_path / file)
        monkeypatch.setattr(platform, "processor", lambda: "")
        monkeypatch.setattr(platform, "machine", lambda: "arm64")
        assert cpu_name() == expected


def test_versions_are_those_that_run() -> None:
    assert describe_versions()["torch"] == torch.__version__
