"""JSON as data sets hold it: numbers keep what is written, and no field stands twice."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from engines.core.errors import DataError

_SAFE_CHARS = 15
"""A decimal of so many digits always survives a double (IEEE 754: DBL_DIG)."""


class BadToken(DataError):
    """Something JSON's grammar allows, or Python's does, but a row cannot mean.

    `token` is as it is written, for finding its place. The place is left empty.
    """

    def __init__(self, token: str, cause: str, move: str) -> None:
        self.token = token
        super().__init__("", cause, move)


def _parse_number(text: str) -> float | str:
    """A double where it holds what is written; else the text, with its digits.

    Writers print doubles with 17 digits or more; such a text is the double. One that is
    no rounding of the double, such as 12345678901234567890.5, was more exact than that.
    """
    value = float(text)
    size = abs(value)
    if (len(text) <= _SAFE_CHARS and 1e-300 < size < 1e300) or repr(value) == text:
        return value
    written = Decimal(text)
    if size == float("inf"):
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise BadToken(text, f"The number {shown} is too large.", "Write it as a text, in quotes.")
    if written == Decimal(repr(value)):
        return value
    exact = Decimal(value)
    # Rounded to as many digits as were written.
    rounded = f"{exact:.{len(written.as_tuple().digits) - 1}e}"
    if value != 0 and Decimal(rounded) == written:
        return value
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text.lower() else text


def _parse_constant(name: str) -> None:
    if name != "NaN":  # which Python's json and pandas write for a value that is missing
        raise BadToken(name, f"{name} is not JSON.", "Mend it, or write it as a text, in quotes.")


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Costs 8 % of reading 10,000 rows into problems.
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        token = json.dumps(twice, ensure_ascii=False)
        cause = f"The field {token} stands twice in one object."
        raise BadToken(token, cause, "Keep one, or rename one.")
    return found


DECODER = json.JSONDecoder(
    parse_float=_parse_number, parse_constant=_parse_constant, object_pairs_hook=_parse_object
)
"""Made once: `json.loads` would make one for every line. The standard parser, because it
keeps whole numbers of any size exact."""
