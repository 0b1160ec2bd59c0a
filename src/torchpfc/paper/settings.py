"""Settings of experiments: frozen dataclasses, composed of others, with every setting known by one plain name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, Self, TypeVar, get_type_hints

C = TypeVar("C")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def settings(config: Any) -> dict[str, Any]:
    """All settings of a config and of what it is composed of, by name, as they are written to a result.

    Args:
        config: A dataclass, whose fields are settings or dataclasses themselves; no two settings share a name.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Optimizer:
        ...     lr: float = 1e-3
        >>> @dataclasses.dataclass(frozen=True)
        ... class Training:
        ...     epochs: int = 3
        ...     optimizer: Optimizer = Optimizer()
        >>> settings(Training())
        {'epochs': 3, 'lr': 0.001}
        >>> change(Training(), lr=0.1)
        Training(epochs=3, optimizer=Optimizer(lr=0.1))
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        own = settings(value) if dataclasses.is_dataclass(value) else {field.name: value}
        if twice := found.keys() & own.keys():
            raise ValueError(f"settings must have different names, got {', '.join(sorted(twice))} twice")
        found |= own
    return found


def change(config: C, **values: Any) -> C:
    """A config with some settings changed, wherever in it they are.

    Args:
        config: A dataclass, as for `settings`.
        values: The new values, by name.
    """
    known = settings(config)
    for key in values:
        if key not in known:
            hint = "".join(f"; did you mean {close!r}?" for close in get_close_matches(key, known, n=1))
            raise ValueError(f"a setting must be one of {', '.join(known)}, got {key!r}{hint}")
    return _replace(config, values)


def change_settings(config: C, assignments: Sequence[str]) -> C:
    """A config with some settings changed, as the command line has them.

    Args:
        config: A dataclass, as for `settings`.
        assignments: Texts of the form `key=value`; the value is read as the type of that setting.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Settings:
        ...     lr: float = 1e-3
        >>> change_settings(Settings(), ["lr=0.1"])
        Settings(lr=0.1)
    """
    types = _types(config)
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"a setting must have the form key=value, got {assignment!r}")
        changes[key] = _read(key, text, types[key]) if key in types else text
    return change(config, **changes)


def all_settings_but(config: Any, *names: str) -> object:
    """A stack key: equal for configs of one class that differ in these settings alone."""
    return (type(config), *(item for item in settings(config).items() if item[0] not in names))


def check_numbers(config: Any, *names: str, least: float, limit: float = math.inf) -> None:
    """Refuses settings below the least value, or not below the limit.

    Args:
        config: A dataclass that has them itself.
        names: Of the settings.
        least: The smallest value that is allowed.
        limit: What every value must be less than.
    """
    for name in names:
        if not least <= (value := getattr(config, name)) < limit:  # so that NaN does not pass
            most = f" and less than {limit:g}" if limit < math.inf else " and finite" if value > 0 else ""
            raise ValueError(f"{name} must be at least {least:g}{most}, got {value}")


def check_choice(config: Any, name: str, choices: Collection[str]) -> None:
    """Refuses a setting that is none of some words.

    Args:
        config: A dataclass that has it itself.
        name: Of the setting.
        choices: The words.
    """
    if (value := getattr(config, name)) not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_positive(config: Any, name: str) -> None:
    """Refuses a setting that is not greater than 0, or not finite.

    Args:
        config: A dataclass that has it itself.
        name: Of the setting.
    """
    if not 0 < (value := getattr(config, name)) < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")


Count = Annotated[int, partial(check_numbers, least=1)]
"""1 or more."""
Natural = Annotated[int, partial(check_numbers, least=0)]
"""0 or more."""
Amount = Annotated[float, partial(check_numbers, least=0)]
"""Any number that is not negative, but infinity."""
Share = Annotated[float, partial(check_numbers, least=0, limit=1)]
"""From 0 to 1, and not 1 itself."""
Positive = Annotated[float, check_positive]
"""Any number greater than 0, but infinity."""


def one_of(*choices: str) -> Callable[[Any, str], None]:
    """Makes a check for `Annotated`: of a text that must be one of some words."""
    return partial(check_choice, choices=choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Component:
    """Some settings that belong together, and components that are made of others; checks each by its type.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Training(Component):
        ...     epochs: Count = 3
        >>> Training(epochs=0)
        Traceback (most recent call last):
        ValueError: epochs must be at least 1, got 0
    """

    def __post_init__(self) -> None:
        """Checks the settings."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for check in getattr(hint, "__metadata__", ()):
                check(self, name)

    def smoke(self) -> Self:
        """The same for a run of a moment: each of its components smaller, and its own settings where that matters."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        smaller = {name: part.smoke() for name, part in parts.items() if isinstance(part, Component)}
        return dataclasses.replace(self, **smaller)


def _replace(config: C, values: dict[str, Any]) -> C:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = _replace(value, values)
        elif field.name in values:
            changes[field.name] = values[field.name]
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _types(config: Any) -> dict[str, type]:
    """The type of every setting, by name."""
    types: dict[str, type] = {}
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name, None)
        types |= _types(value) if dataclasses.is_dataclass(value) else {name: kind}
    return types


def _read(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in _WORDS:
            raise ValueError(f"{key} must be true or false, got {text!r}")
        return _WORDS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{key} must be of type {kind.__name__}, got {text!r}") from None
