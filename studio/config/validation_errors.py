"""Values that a run file may not hold, with place, cause and next move.

Owns our words for what pydantic refused, and the refusal of what no file or request can carry.
"""

from __future__ import annotations

import math
import re

from pydantic import ValidationError

from engines.core.errors import ConfigError
from engines.core.settings import SettingError
from studio.config.aliases import suggest_key
from studio.config.compose import ComposedConfig
from studio.config.settings.base import declared_settings
from studio.config.settings.run import every_setting, section_of
from studio.config.tree import Key, Tree, dotted_name, walk
from studio.errors import plain_words
from studio.secrets.run_files import is_secret

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # of a model, of a dataclass
_LISTS = ("tuple_type", "list_type")


def explain_error(composed: ComposedConfig, error: ValidationError) -> ConfigError:
    """The first refusal in the order of the settings; the others are counted."""
    first, *others = error.errors(include_url=False)
    key: Key = tuple(str(part) for part in first["loc"])
    context = first.get("ctx", {})
    more = f" ({len(others)} more to correct.)" if others else ""
    if isinstance(refused := context.get("error"), SettingError):  # of an engine's own check
        at = (*key, refused.name)
        return composed.error(at, f'"{dotted_name(at)}": {refused.cause}', refused.move + more)
    at = (*key, *str(context["at"]).split(".")) if "at" in context else key
    if first["type"] == "unmet":
        return composed.error(at, f'"{dotted_name(at)}": {first["msg"]}.', context["move"] + more)
    value = context.get("value", first["input"])
    cause, move = _cause_and_move(at, first["type"], first["msg"], value)
    return composed.error(at, cause, move + more)


def _cause_and_move(key: Key, kind: str, message: str, value: object) -> tuple[str, str]:
    name, section = dotted_name(key), section_of(key)
    if kind in _UNKNOWN:
        if "." in key[-1]:
            return f'"{name}" is not a setting.', f"Write it nested: {_nest_setting(key[-1])}."
        parent = section_of(tuple(part for part in key[:-1] if not part.isdecimal()))
        siblings = declared_settings(parent) if parent else ()
        return f'"{name}" is not a setting.', suggest_key(key, siblings, every_setting())
    if section is not None and kind != "value_error":
        known = declared_settings(section)
        required = [field for field, declared in known.items() if declared.required]
        if kind in _LISTS:
            return f'"{name}" is no list.', 'Begin each entry with "- ".'
        keys = ", ".join(f"{name}.{field}" for field in required or known)
        misplaced = f'"{name}" is {_value_text(key, value)}; it holds settings of its own.'
        return f'"{name}" is missing.' if kind == "missing" else misplaced, f"Set {keys}."
    meaning = every_setting().get(name, "").rstrip(".")
    move = f"Set {name}: {meaning}." if meaning else "Correct it."
    if kind == "missing":
        return f'"{name}" is missing.', move
    if kind == "string_pattern_mismatch":
        return f'"{name}" is {_value_text(key, value)}, which does not fit.', move
    shown = "" if isinstance(value, dict) else f" is {_value_text(key, value)}"
    return f'"{name}"{shown}: {plain_words(message).split(", unable to")[0]}.', move


def _nest_setting(dotted: str) -> str:
    """`data.limit` as YAML has it."""
    first, _, rest = dotted.partition(".")
    return f"{first}: {{{_nest_setting(rest)}}}" if rest else f"{first}: …"


def _value_text(key: Key, value: object) -> str:
    if is_secret(key, value) or "headers" in key or "extra_body" in key:
        return "hidden"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}…"


def check_plain_values(composed: ComposedConfig, tree: Tree) -> None:
    """Refuse the first such value, with the place where it is written."""
    for key, value in walk(tree):
        if fault := _find_fault(key, value):
            raise composed.error(key, f'"{dotted_name(key)}" {fault[0]}.', fault[1])


def _find_fault(key: Key, value: object) -> tuple[str, str] | None:
    if isinstance(value, str):
        if "\0" in value:
            return "holds a NUL character", "Remove it."
        if _SURROGATE.search(value):
            return "holds half of a surrogate pair", "Remove that character."
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "is a number beyond 64 bits", "Give a smaller one, or a text in quotes."
    elif isinstance(value, float) and not math.isfinite(value) and "extra_body" in key:
        return "is no number that JSON knows", "Give a finite one."
    return None
