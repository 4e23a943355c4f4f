"""A setting of an engine: its default, its meaning and its bounds, written once.

The validation of run files reads the same declarations.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from engines.core.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

MAX_COUNT = 10_000
"""Repetitions or calls at a time: more is a typing error, and the run would hang on it."""
COUNT: dict[str, Any] = {"ge": 1, "le": MAX_COUNT}
"""Bounds of what is counted so."""
MAX_ROWS = 1_000_000_000
LONGEST_NAME = 120
"""Characters in the name of a library or a run, which is the name of its folder."""
LEAST_TRIED = 8
"""Problems with fewer than which no operation is tried: hardly any could be found to help."""
SHOWN_WHOLE = 30
"""Experiences up to which all stand in a prompt, where a run file does not say otherwise."""

_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "to at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "to at most"),
}


class SettingError(ConfigError, ValueError):
    """A setting that cannot be meant; `name` is its name inside the section.

    It is a ValueError too, since pydantic collects only those.
    """

    def __init__(self, section: str, name: str, cause: str, move: str) -> None:
        self.name = name
        super().__init__(f"{section}.{name}", cause, move)


def setting(default: T, meaning: str, **bounds: float | str | list[Any]) -> T:
    """A field of a settings dataclass; refusals quote its `meaning`, a few words.

    `bounds` are `gt`, `ge`, `lt` and `le` of a number, `min_length` and `pattern` of a text; beside
    them `examples` may hold one value, as it stands on a command line.
    """
    # The names are those of pydantic's Field, which reads this metadata.
    declared: T = field(default=default, metadata={"description": meaning, **bounds})
    return declared


def derived(default: T) -> T:
    """A field that no run file sets under its own name: it follows from other settings."""
    declared: T = field(default=default, metadata={"exclude": True})
    return declared


def is_derived(metadata: Any) -> bool:
    return "exclude" in metadata


def check_bounds(settings: "DataclassInstance", section: str) -> None:
    """Refuse the first number out of bounds with a SettingError."""
    for declared in fields(settings):
        value = getattr(settings, declared.name)
        if move := bounds_text(declared.metadata, value):
            raise SettingError(section, declared.name, f"{value} is out of bounds.", move)


def bounds_text(declared: Mapping[str, Any], value: Any) -> str:
    """What to set instead of a number that is out of bounds; "" for one that is not."""
    for name, (holds, where) in _BOUNDS.items():
        bound = declared.get(name)
        if value is not None and bound is not None and not holds(value, bound):
            return f"Set it {where} {bound:g}: {declared['description']}."
    return ""
