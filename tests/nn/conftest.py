import pytest
import torch


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Layers of PyTorch take no generator: a test draws the same weights whichever tests ran before it."""
    torch.manual_seed(0)
