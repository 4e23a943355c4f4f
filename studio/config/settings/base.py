"""What all settings have in common: their base class and the types of their values.

Owns ranges that hold everywhere. What may be set is `studio.config.settings.run`'s to say.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST = 10_000
"""Times or calls at once, of whatever: more is a slip of the keyboard, and would only spin."""
MOST_ROWS = 1_000_000_000


def as_list(value: object) -> object:
    """One text where several may stand."""
    return [value] if isinstance(value, str) else value


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not true or false")
    return value


Int = Annotated[int, BeforeValidator(_refuse_bool)]
Float = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)]


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", coerce_numbers_to_str=True, hide_input_in_errors=True
    )
