"""What all settings have in common: their base class and the types of their values."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, LiteralString, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from engines.core.frozen import frozen
from engines.core.settings import is_derived


def as_list(value: object) -> object:
    """One text where several may stand."""
    return [value] if isinstance(value, str) else value


def as_model(value: object) -> object:
    """A plain text where a model with its settings may stand."""
    return {"model": value} if isinstance(value, str) else value


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(_NO_BOOL)
    return value


_NO_BOOL = "a number is needed here, not true or false"
Int = Annotated[int, BeforeValidator(_refuse_bool)]
Float = Annotated[float, BeforeValidator(_refuse_bool)]
NAME_PATTERN, NAME_LENGTH = r"^[A-Za-z0-9][A-Za-z0-9._-]*$", 100
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]


def key(default: Any, meaning: str, **bounds: Any) -> Any:
    """A key of a section with its default: pydantic's Field, whose own type is Any."""
    return Field(default=default, description=meaning, **bounds)


def refusal(at: str, cause: LiteralString, move: str) -> PydanticCustomError:
    """A refusal of two settings that do not fit each other; `at` is the key to change."""
    return PydanticCustomError("unmet", cause, {"at": at, "move": move})


class Settings(BaseModel):
    # An engine's plain dataclass below a section is validated by the same rules.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        coerce_numbers_to_str=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )


@frozen
class Declared:
    """One setting as its class declares it."""

    kinds: tuple[Any, ...]  # its type, or the members of a union
    meaning: str
    required: bool = False

    @property
    def section(self) -> type | None:
        """The class of the settings below it; None where it holds a value."""
        classes = (kind for kind in self.kinds if isinstance(kind, type))
        return next((c for c in classes if issubclass(c, BaseModel) or is_dataclass(c)), None)


def declared_settings(section: type) -> Mapping[str, Declared]:
    """What may be set in a section, by name; pydantic's classes and the engines' alike."""
    if issubclass(section, BaseModel):
        return {
            name: Declared(_kinds(info.annotation), info.description or "", info.is_required())
            for name, info in section.model_fields.items()
        }
    assert is_dataclass(section)
    hints = get_type_hints(section)
    return {
        field.name: Declared(_kinds(hints[field.name]), field.metadata.get("description", ""))
        for field in fields(section)
        if not is_derived(field.metadata)
    }


def _kinds(hint: Any) -> tuple[Any, ...]:
    return (hint, *get_args(hint))


def as_section(kind: type) -> BeforeValidator:
    """Reads the values of an engine's settings class where pydantic by itself is too lenient.

    It would take true for 1, and let a run file set what follows from other settings.
    """

    def read(given: object) -> object:
        if not isinstance(given, dict):
            return given
        known = declared_settings(kind)
        derived = {field.name for field in fields(kind) if field.name not in known}
        values = dict(given)
        for name, value in given.items():
            if name in derived:
                raise _bad_key("extra_forbidden", "unknown", name, value)
            kinds = known[name].kinds if name in known else ()
            if isinstance(value, bool) and {int, float} & set(kinds):
                raise _bad_key("value_error", _NO_BOOL, name, value)
            if any(get_origin(kind) is tuple for kind in kinds):
                values[name] = as_list(value)
        return values

    return BeforeValidator(read)


def _bad_key(kind: LiteralString, message: LiteralString, name: str, value: object) -> Exception:
    """A refusal of one key of a section, before pydantic has come to its keys."""
    return PydanticCustomError(kind, message, {"at": name, "value": value})
