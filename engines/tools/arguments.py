"""The arguments of a call, from the JSON text that a model wrote.

Three slips are mended: a code fence around it, an object written as a text, a comma too many.
Whatever else is wrong is refused in words that a model can act on.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from engines.core.codec import fix_surrogates
from engines.core.errors import did_you_mean

MAX_CHARS = 200_000
_FENCED = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)
# A text is one token even where it is not closed, so that no text is searched twice.
_TEXT_OR_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+"?)|,(?=\s*[}\]])', re.DOTALL)


class ArgumentsRefused(ValueError):
    """Arguments that have no reading, or not the names of the schema; says so to the model."""


def read_arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in `text`, of which none is missing or unknown; ArgumentsRefused else.

    Whether a value fits its type is for the tool to say.
    """
    try:
        value = _read_object(text)
    except RecursionError:
        raise ArgumentsRefused(f"arguments: nested too deeply. {usage_text(schema)}") from None
    except ValueError as error:
        raise ArgumentsRefused(f"arguments: {error}. {usage_text(schema)}") from error
    known = schema["properties"]
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        raise ArgumentsRefused(f"arguments.{missing[0]}: is missing. {usage_text(schema)}")
    unknown = [name for name in value if name not in known]
    if unknown and schema.get("additionalProperties") is False:
        near = did_you_mean(unknown[0][:80], known)
        said = f"arguments: there is no {shown_value(unknown[0])}. {near}{usage_text(schema)}"
        raise ArgumentsRefused(said)
    return value


def usage_text(schema: Mapping[str, Any]) -> str:
    """The names of what a tool takes."""
    required = schema.get("required", ())
    names = [name if name in required else f"{name} (optional)" for name in schema["properties"]]
    return f"It takes: {', '.join(names[:20])}." if names else "It takes no arguments: {}"


def shown_value(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _read_object(text: str) -> dict[str, Any]:
    if len(text) > MAX_CHARS:
        raise ValueError(f"they have {len(text):,} characters, at most {MAX_CHARS:,} are read")
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    value = _read_json(text) if text.strip() else None
    if isinstance(value, str):
        value = _read_json(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"should be a JSON object, is {shown_value(value)}")
    fixed: dict[str, Any] = json.loads(fix_surrogates(json.dumps(value, ensure_ascii=False)))
    return fixed


def _read_json(text: str) -> Any:
    try:
        return _load(text)
    except json.JSONDecodeError as error:
        try:
            return _load(_TEXT_OR_COMMA.sub(lambda found: found[1] or "", text))
        except json.JSONDecodeError:
            cause = f"not JSON ({error.msg} at character {error.pos + 1:,} of {len(text):,})"
            raise ValueError(cause) from error


def _load(text: str) -> Any:
    return json.loads(
        text,
        strict=False,  # a line break may stand within a text
        object_pairs_hook=_read_pairs,
        parse_int=lambda written: int(_read_number(written)),
        parse_float=lambda written: float(_read_number(written)),
        parse_constant=_read_number,
    )


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, value in pairs:
        if name in read:
            raise ValueError(f"{shown_value(name)} stands twice in one object")
        read[name] = value
    return read


def _read_number(written: str) -> str:
    if not math.isfinite(float(written)):
        raise ValueError(f"{written[:20]} is no number that is read here")
    return written
