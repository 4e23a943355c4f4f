"""JSON that may be of any form: a value of another one than is expected counts as empty."""

from __future__ import annotations

import json
from typing import Any

import orjson


def parse_json(raw: bytes | str) -> Any:
    """None where it is none, or nested like no message; half a surrogate pair passes."""
    try:
        found = orjson.loads(raw)
    except ValueError:
        try:
            found = json.loads(raw)
        except (ValueError, TypeError, RecursionError):
            return None
    return found if _is_shallow(found) else None


def _is_shallow(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(60):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for many in inner for one in many if isinstance(one, dict | list)]
        if not level:
            return True
    return False


def as_object(value: Any) -> dict[str, Any]:
    """The object itself, or that of a JSON text; empty where it is neither."""
    if isinstance(value, str) and value[:1] == "{":
        value = parse_json(value)
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; empty where it is none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
