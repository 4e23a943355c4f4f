"""Numbers in any dress as plain ones: TeX, thousands separators, number words, percent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

_UNITS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_WORDS = {word: n for n, word in enumerate(_UNITS.split())}
_WORDS |= {word: 10 * n for n, word in enumerate(_TENS, 2)}
_ONE = "|".join(sorted((*_WORDS, *_SCALES), key=len, reverse=True))
_SPOKEN = re.compile(rf"\b(?:{_ONE})(?:(?:[\s-]+|\s+and\s+)(?:{_ONE}))*\b", re.IGNORECASE)

_REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\[dtc]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"\1/\2"),
        (r"\\[dtc]?frac\s*(\d)\s*(\d)", r"\1/\2"),
        (r"\^\s*\{?\s*\\circ\s*\}?|°", " degrees"),
        (r"(?<=\d)(?:\{,\}|\\[,;:! ])(?=\d{3}(?!\d))", ""),
        (r"\\(?:text(?:bf|rm|it)?|mathrm|mathbf|boxed|fbox|left|right|displaystyle)\b", " "),
        (r"\\sqrt(?![a-z])|√", " sqrt "),
        (r"(?<=\d)\s+over\s+(?=\d)", "/"),
        (r"\\([%$#&_])", r"\1"),
        (r"[{}]", " "),
        (r"(?<![\d.])(\d{1,3})((?:[,'’\u00a0\u202f\u2009 ]\d{3})+)(?![\d])", None),
        (r"(?<![\d.,])(\d+),(\d{1,2})(?![\d,])", r"\1.\2"),
    )
]
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_./])(\d+(?:\.\d+)?|\.\d+)(?:\s*/\s*(\d+)(?!\d|\.\d|/))?(?!\d|\.\d)"
    r"(\s*(?:%|percent\b|per cent\b|Prozent\b))?"
)


def plain_numbers(text: str) -> str:
    """The text with each number in digits, without TeX or separators."""
    if text.isdecimal():
        return text
    for pattern, new in _REWRITES:
        text = pattern.sub(new if new is not None else _join_groups, text)
    return _SPOKEN.sub(_write_digits, text)


def find_numbers(plain: str) -> Iterator[tuple[frozenset[Fraction], int, re.Match[str]]]:
    """What each number may be, how many digits tell anything, and where; 25 % is 0.25, too."""
    for match in _NUMBER.finditer(plain):
        whole, under, percent = match.groups()
        value = Fraction(whole)
        if under and int(under):
            value /= int(under)
        values = {value, value / 100} if percent else {value}
        digits = (whole.replace(".", "") + (under or "")).strip("0")
        yield frozenset(values), len(digits), match


def _join_groups(match: re.Match[str]) -> str:
    return match[1] + re.sub(r"\D", "", match[2])


def _write_digits(match: re.Match[str]) -> str:
    words = match[0].lower()
    if words == "one":  # one of them, one number
        return words
    total = part = 0
    for word in re.split(r"[\s-]+", words):
        scale = _SCALES.get(word)
        if scale == 100:
            part = max(1, part) * scale
        elif scale:
            total, part = total + max(1, part) * scale, 0
        else:
            part += _WORDS.get(word, 0)
    return str(total + part)
