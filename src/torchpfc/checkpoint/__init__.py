"""Files that are either whole or not there, and the one way to read them, whoever sent them."""

from torchpfc.checkpoint.files import (
    CorruptFileError,
    check_writable,
    read_json,
    read_regular,
    reading,
    write_atomically,
)
from torchpfc.checkpoint.states import (
    MOST_OF_A_MODEL,
    STATE_FILE,
    delete_stale,
    load_checkpoint,
    load_tensors,
    save_checkpoint,
)

__all__ = [
    "MOST_OF_A_MODEL",
    "STATE_FILE",
    "CorruptFileError",
    "check_writable",
    "delete_stale",
    "load_checkpoint",
    "load_tensors",
    "read_json",
    "read_regular",
    "reading",
    "save_checkpoint",
    "write_atomically",
]
