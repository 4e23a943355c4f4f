"""What may be written of a verifier: settings checked against their types, files found.

Each refusal has the key it is about, so that whoever knows the run file can name its line.
"""

import dataclasses
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from engines.core.errors import VerifierError, did_you_mean
from engines.core.settings import bounds_text, is_derived

S = TypeVar("S")
At = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NoSettings:
    """Settings of a verifier that has none."""


class SpecError(VerifierError):
    """A verifier's setting that cannot be; `at` is its key inside the specification."""

    def __init__(self, at: At, place: str, cause: str, move: str) -> None:
        self.at = at
        super().__init__(place, cause, move)


def parse_settings(kind: type[S], name: str, given: Mapping[str, Any], at: At) -> S:
    """Make a verifier's settings, a dataclass, from plain values.

    Raises SpecError: an unknown setting, or a value that cannot be.
    """
    place, hints = f'verifier "{name}"', get_type_hints(kind)
    known = {
        field.name: field.metadata
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if not is_derived(field.metadata)
    }
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            cause = f'there is no setting "{key}".'
            raise SpecError((*at, str(key)), place, cause, known_names_text(str(key), known))
        value = tuple(value) if isinstance(value, list) else value
        if not _matches_type(value, hints[key]):
            cause = f"{key} is {_value_text(value)}."
            raise SpecError((*at, key), place, cause, f"Set it to {_type_text(hints[key])}.")
        if move := bounds_text(known[key], value):
            raise SpecError((*at, key), place, f"{key} is {_value_text(value)}.", move)
        values[key] = value
    try:
        return kind(**values)
    except VerifierError as error:
        said = re.findall(r"\w+", error.cause)
        key_at = next(((*at, key) for key in given if key in said), at)
        raise SpecError(key_at, error.place, error.cause, error.move) from error


def check_settings(place: str, *rules: tuple[bool, str, str]) -> None:
    """Refuse settings of which a rule does not hold; each names its cause and the next move.

    Types and declared bounds need no rule: `parse_settings` checks them.
    """
    for holds, cause, move in rules:
        if not holds:
            raise VerifierError(place, cause, move)


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """A verifier's file, with or without `.py`: a whole path, else in the first folder with it."""
    given = Path(name).expanduser()
    for folder in folders or (Path(),):
        for candidate in (folder / given, folder / f"{given}.py"):
            if candidate.is_file():
                return candidate
    return None


def require_file(name: str, folders: Sequence[Path], at: At) -> Path:
    """See `find_file`; SpecError where no folder has it."""
    if found := find_file(name, folders):
        return found
    names = sorted({file.name for folder in folders for file in folder.glob("*.py")})
    nearest = get_close_matches(f"{Path(name).stem}.py", names, n=1, cutoff=0.5)
    move = "Give a path, or see `studio data verifiers`."
    if nearest:
        move = f'Did you mean "{nearest[0]}"?'
    places = ", ".join(str(folder) for folder in folders) or "the current folder"
    searched = "" if Path(name).is_absolute() else f" Searched: {places}."
    raise SpecError((*at, "file"), f'verifier "{name}"', f"There is no such file.{searched}", move)


def known_names_text(given: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"{did_you_mean(given, names)}Known: {', '.join(names)}."


def _value_text(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return {"True": "true", "False": "false", "None": "null"}.get(text, text)[:60]


def _matches_type(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(value == known and type(value) is type(known) for known in arguments)
    if origin in (Union, types.UnionType):
        return any(_matches_type(value, inner) for inner in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = [arguments[0]] * len(value) if arguments[-1] is ... else list(arguments)
        return len(kinds) == len(value) and all(map(_matches_type, value, kinds))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return value is None if hint is type(None) else type(value) is hint


def _type_text(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(str(known) for known in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(inner) for inner in arguments)
    if origin is tuple:
        kinds = [_type_text(inner) for inner in arguments if inner is not ...]
        return f"a list of {' and '.join(kinds)}"
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return names.get(hint, "null")
