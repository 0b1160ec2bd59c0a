from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# No deadline: the first call of an operation can take a hundred times as long as the next. The same examples every
# time: a failure then belongs to the change that was tested.
settings.register_profile("torchpfc", deadline=None, derandomize=True)
settings.load_profile("torchpfc")

# Problems in tests are small: threads cost more than they bring, and on a busy machine they wait for each other.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes by their number: contents may hold the time (gzip writes it), and workers must find the same names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def same_matmul_precision() -> Iterator[None]:
    """A run chooses the precision of products for the whole process."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
