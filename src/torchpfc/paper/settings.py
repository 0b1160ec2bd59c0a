"""Settings from the command line: `key=value`, typed by the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

C = TypeVar("C")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def change_settings(config: C, assignments: Sequence[str]) -> C:
    """A config with some settings changed.

    Args:
        config: A frozen dataclass.
        assignments: Texts of the form `key=value`; the value is read as the type of that field.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Settings:
        ...     lr: float = 1e-3
        >>> change_settings(Settings(), ["lr=0.1"])
        Settings(lr=0.1)
    """
    types = get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"a setting must have the form key=value, got {assignment!r}")
        if key not in types:
            hint = "".join(f"; did you mean {close!r}?" for close in get_close_matches(key, types, n=1))
            raise ValueError(f"a setting must be one of {', '.join(types)}, got {key!r}{hint}")
        changes[key] = _read(key, text, types[key])
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _read(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in _WORDS:
            raise ValueError(f"{key} must be true or false, got {text!r}")
        return _WORDS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{key} must be of type {kind.__name__}, got {text!r}") from None
