"""Arrays in .npz files, which may come from strangers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchpfc.data.formats import DataError


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file by name; `DataError` where it is none.

    Args:
        path: The file.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # a pickle could run code
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, AttributeError, TypeError) as error:
        raise DataError(f"{path} must be an .npz file without pickled objects ({error})") from None
    except Exception as error:  # zipfile and zlib have errors of their own for files that are damaged
        raise DataError(f"{path} must be an .npz file ({error})") from None
