import importlib
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchpfc.paper import devices
from torchpfc.paper.devices import dtype_of, open_fabric


def test_one_process_on_the_cpu() -> None:
    fabric = open_fabric("cpu", "32")
    assert fabric.device == torch.device("cpu") and fabric.world_size == 1 and fabric.is_global_zero


@pytest.mark.parametrize(
    ("precision", "products"), [("tf32", "high"), ("32", "highest"), ("64", "highest"), ("bf16", "highest")]
)
def test_the_precision_of_products_is_chosen_for_all(precision: str, products: str) -> None:
    open_fabric("cpu", precision)
    assert torch.get_float32_matmul_precision() == products
    assert dtype_of(precision) == (torch.float64 if precision == "64" else torch.float32)


def test_float64_passes_through_a_model_unchanged() -> None:
    fabric = open_fabric("cpu", "64")
    model = fabric.setup(torch.nn.Linear(2, 2).double())
    assert model(torch.rand(3, 2, dtype=torch.float64)).dtype == torch.float64


def test_half_precision_is_left_to_runs() -> None:
    model = open_fabric("cpu", "bf16").setup(torch.nn.Linear(2, 2))
    model.register_forward_hook(lambda module, args, y: seen.append(y.dtype))
    seen: list[torch.dtype] = []
    assert model(torch.rand(3, 2)).dtype == torch.float32 and seen == [torch.float32]


@pytest.mark.parametrize(
    ("given", "gpus", "message"),
    [
        (("gpu",), 0, "device must be auto, cpu or cuda, got 'gpu'"),
        (("cpu", "16"), 0, "precision must be one of tf32, 32, 64, bf16, got '16'"),
        (("cuda",), 0, "device must be cpu or auto, got 'cuda', but PyTorch finds no GPU here"),
        (("cpu", "32", 0), 0, "devices must be at least 1, got 0"),
        (("cuda", "32", 3), 2, "devices must be at least 1 and at most 2, the number of GPUs, got 3"),
        (("auto", "32", 3), 2, "devices must be at least 1 and at most 2, the number of GPUs, got 3"),
    ],
)
def test_what_cannot_be_is_named(given: Any, gpus: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ValueError, match=message):
        open_fabric(*given)
    assert torch.get_float32_matmul_precision() == before


class Recorded:
    """Takes the place of Fabric."""

    def __init__(self, **options: Any) -> None:
        self.options, self.launched = options, False

    def launch(self) -> None:
        self.launched = True


@pytest.mark.parametrize(
    ("device", "gpus", "processes", "expected"),
    [
        ("auto", 0, 1, ("cpu", 1, "auto")),
        ("auto", 2, 2, ("cuda", 2, "ddp")),
        ("cuda", 2, 1, ("cuda", 1, "auto")),
        ("cpu", 2, 5, ("cpu", 5, "ddp")),
    ],
)
def test_what_fabric_is_asked_for(
    device: str, gpus: int, processes: int, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(devices, "_fabric_class", lambda: Recorded)
    fabric: Any = open_fabric(device, "32", processes)
    assert fabric.launched
    assert tuple(fabric.options[name] for name in ("accelerator", "devices", "strategy")) == expected


@pytest.mark.parametrize("package", ["lightning_fabric", "lightning.fabric"])
def test_fabric_is_found_in_either_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == package else None)
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(Fabric=name))
    assert devices._fabric_class() == package  # type: ignore[comparison-overlap]
