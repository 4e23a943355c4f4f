"""Compares renderers of one subject: every figure of a text has to be in the subject's JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from engines.core.codec import dumps
from studio.render.json import json_data

_FIGURE = re.compile(
    r"(?<![\w.])(?P<sign>[-+]?)\$?(?P<digits>\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(?P<unit> ?%|[kM]\b)?"
)
"""A number that stands by itself: digits of a name, such as `s1p0r2`, `E17` and `v3`, are none."""
_SCALES = {"%": 0.01, "k": 1e3, "M": 1e6}


def missing_figures(text: str, facts: object, *, besides: Collection[str] = ()) -> list[str]:
    """Return the figures of a text that the JSON of the facts does not hold, as they stand there.

    A figure of the text may be rounded. The length of a list or an object counts as a figure of
    the JSON, and so do the figures in its texts and keys. `besides` are figures that are no facts,
    such as a scale.
    """
    data = json.loads(dumps(json_data(facts)))
    exact = list(_numbers(data))
    quoted = set(_texts(data))
    missing = []
    for match in _FIGURE.finditer(text):
        figure = match[0].strip()
        digits = match["digits"].rstrip(",")
        if figure in besides or digits in besides or digits in quoted:
            continue
        scale = _SCALES.get((match["unit"] or "").strip(), 1.0)
        if not any(_is_rounded(digits, scale, number) for number in exact):
            missing.append(figure)
    return missing


def _is_rounded(digits: str, scale: float, number: float) -> bool:
    """Tell if the digits are the number, as exactly as they tell it."""
    plain, _, exponent = digits.replace(",", "").partition("e")
    decimals = len(plain.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - decimals) * scale
    return abs(float(digits.replace(",", "")) * scale - abs(number)) <= unit * 0.500001


def _numbers(data: Any) -> Iterator[float]:
    match data:
        case bool() | None:
            return
        case int() | float():
            if math.isfinite(data):
                yield data
        case list():
            yield len(data)
            for entry in data:
                yield from _numbers(entry)
        case dict():
            yield len(data)
            for entry in data.values():
                yield from _numbers(entry)


def _texts(data: Any) -> Iterator[str]:
    """The figures that stand in texts and keys."""
    match data:
        case str():
            for match_ in _FIGURE.finditer(data):
                yield match_["digits"].rstrip(",")
        case list():
            for entry in data:
                yield from _texts(entry)
        case dict():
            for key, entry in data.items():
                yield from _texts(key)
                yield from _texts(entry)
