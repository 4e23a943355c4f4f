"""What may be written of a verifier: settings checked against their types, files found.

Each refusal has the key it is about, so that whoever knows the run file can name its line.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from engines.core.errors import VerifierError, did_you_mean
from engines.core.settings import is_derived

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
    place = f'verifier "{name}"'
    known = {
        field.name: field.metadata
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if not is_derived(field.metadata)
    }
    for key in given:
        if key not in known:
            cause = f'there is no setting "{key}".'
            raise SpecError((*at, str(key)), place, cause, known_names_text(str(key), known))
    try:
        # From JSON a strict check still takes a list for a tuple, and 1 for 1.0.
        return TypeAdapter(kind).validate_json(orjson.dumps(given, default=str), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        cause = f"{key} is {orjson.dumps(given[key], default=str).decode()[:60]}."
        move = f"{first['msg']}: {known[key]['description']}."
        raise SpecError((*at, key), place, cause, move) from error
    except VerifierError as error:
        words = re.findall(r"\w+", error.cause)
        key_at = next(((*at, key) for key in given if key in words), at)
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
    if file := find_file(name, folders):
        return file
    names = sorted({file.name for folder in folders for file in folder.glob("*.py")})
    places = ", ".join(str(folder) for folder in folders) or "the current folder"
    cause = f"There is no such file. Searched: {places}."
    nearest = did_you_mean(f"{Path(name).stem}.py", names)
    move = f"{nearest}Give a path, or see `studio data verifiers`."
    raise SpecError((*at, "file"), f'verifier "{name}"', cause, move)


def known_names_text(given: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"{did_you_mean(given, names)}Known: {', '.join(names)}."
