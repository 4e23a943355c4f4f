"""What no setting may hold, whatever it is called.

Owns the refusal of values that files, requests or journals cannot carry: text with NUL,
half of a surrogate pair, numbers beyond 64 bits. Ranges of single settings are
`studio.config.settings.run`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from studio.config.compose import ComposedConfig, dotted_name
from studio.config.yaml_positions import Key


def check_plain_values(composed: ComposedConfig, leaves: Iterable[tuple[Key, Any]]) -> None:
    """Refuse the first such value, with the place where it is written.

    Raises:
        ConfigError: with place, cause and next move.
    """
    for key, value in leaves:
        cause = _find_fault(key, value)
        if cause is not None:
            raise composed.error(key, f'"{dotted_name(key)}" {cause[0]}.', cause[1])


def _find_fault(key: Key, value: object) -> tuple[str, str] | None:
    if isinstance(value, str):
        if "\0" in value:
            return "holds a NUL character", "Remove it."
        if any("\ud800" <= char <= "\udfff" for char in value):
            return "holds half of a surrogate pair", "Remove that character."
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "is a number beyond 64 bits", "Give a smaller one, or a text in quotes."
    elif isinstance(value, float) and not math.isfinite(value) and "extra_body" in key:
        return "is no number that JSON knows", "Give a finite one."
    return None
