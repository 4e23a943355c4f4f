"""What a checking process does for the `math` verifier: math-verify's equality.

Runs in a process of `engines.process.pool`, because a check may hang or need too much memory.
"""

import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from math_verify import parse, parser, verify

from engines.verifiers.math import exact_value
from engines.verifiers.math.notation import WRAPPED, alters_number
from engines.verifiers.math.quantity import align_labels, leading_unit, same_date, same_quantity

USUAL_RULES = {"float_rounding": 6, "strict": True}  # under other rules more is equal
_ENVIRONMENT = re.compile(r"\$[^$]+\$|\\\(|\\\[|\\boxed")
_APART = re.compile(r"(?<=\d)\s+(?=\d)")
_COMMAND = re.compile(r"\\(?:begin|end|text|textbf|mathrm|mathbf)\s*\{[^{}]*\}|\\[A-Za-z]+")
_SPELT = re.compile(r"(?<![\\A-Za-z])(pi|sqrt|sin|cos|tan|log|ln)(?![A-Za-z])")
_QUANTITY = re.compile(r"[-+]?[^\w\s\\(]?\d[\d,.]*\s+[A-Za-z]{2,}\.?")
_PERCENT = re.compile(r"([-+]?[\d.,]+)\s*(?:\\?%|percent|pct)")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,4})")
_CURRENCY = re.compile(r"^[A-Z]{1,2}\\?\$(?=[-+]?[\d.])")
_LIST = re.compile(r"[-+]?\d+(?:\s*,\s*[-+]?\d+)+")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+")

_overflows: list[BaseException] = []


def build_task() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A check of which expected answer, if any, an answer equals.

    `match` in its result is the place of the first equal one, None where none is.
    """
    logging.disable(logging.CRITICAL)  # it warns once a process that its timeout is off
    parser.latex2sympy = _record_overflow(parser.latex2sympy)
    parser.parse_expr = _record_overflow(parser.parse_expr)
    # The first parse compiles grammar and patterns, and sympy's first logarithm fills caches
    # that each fork inherits; that must not count against a deadline.
    warm_up = (
        ("\\frac{1}{2}", "0.5"),
        ("$x^2=4$", "x=2"),
        ("3", "so it is 4 apples"),
        ("\\log(2)", "\\log(3)"),
    )
    for text, answer in warm_up:
        expected = [{"text": text, "marker": "marked"}]
        check(
            {"answer": answer, "marker": "marked", "expected": expected, "after": "", "rules": {}}
        )
    return check


def check(question: dict[str, Any]) -> dict[str, Any]:
    answer, marker, rules = question["answer"], question["marker"], question["rules"]
    marked = marker != "none"
    usual = marked and rules == {**rules, **USUAL_RULES}
    got = answer
    for at, expected in enumerate(question["expected"]):
        pair = align_labels(expected["text"], answer) if marked else (expected["text"], answer)
        if pair is None:
            continue
        text, said = pair
        same = False if alters_number(text, said) else same_date(text, said)
        if same is None:
            same = same_quantity(text, said + leading_unit(question["after"]), marked=marked)
        if same is None and usual:
            same = exact_value.same_value(text, said)
        if same is None:
            parsed = list(_parse_cached(to_math_verify(said, marker)))
            got = next((part for part in reversed(parsed) if isinstance(part, str)), "")
            gold = list(_parse_cached(to_math_verify(text, expected["marker"])))
            same = (
                has_same_letters(text, said)
                or is_decimal_comma(text, said)
                or _same_value(gold, parsed, rules)
            )
        if same:
            return {"match": at, "got": got}
    return {"match": None, "got": got}


def _record_overflow(read_one: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what `parse` swallows: an expression beyond our limits is not a wrong one."""

    def read_recording(*args: Any, **options: Any) -> Any:
        try:
            return read_one(*args, **options)
        except (MemoryError, RecursionError) as error:
            _overflows.append(error.with_traceback(None))
            raise

    return read_recording


@functools.lru_cache(maxsize=512)
def _parse_cached(text: str) -> tuple[Any, ...]:
    _overflows.clear()
    # Its own timeouts are off: they arm SIGALRM and turn a timeout into "wrong".
    parts = tuple(parse(text, parsing_timeout=None, raise_on_error=True))
    if _overflows:
        raise _overflows[-1]
    return parts


def _same_value(gold: list[Any], answer: list[Any], rules: Mapping[str, Any]) -> bool:
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True, **rules))
    except ValueError as error:
        # 12:00 is read as 12/0. What has no value equals only its own letters.
        if "nan or zoo" in str(error):
            return False
        raise


def to_math_verify(text: str, marker: str) -> str:
    r"""Dress a stated answer the way math-verify reads it as a whole.

    Left bare, `3\sqrt{2}` is read as 3, `2 1/2` as 1 and `1e5` as 1; boxed, `50\%` as text.
    """
    text = _CURRENCY.sub("$", text)
    if marker == "none":
        text = text.replace("\\$", " ").replace("`", " ")
    if _ENVIRONMENT.search(text) or (marker == "none" and not is_formula(text, word=2)):
        return text
    if match := _PERCENT.fullmatch(text):
        return f"answer: {match[1]}%"
    if match := _SCIENTIFIC.fullmatch(text):
        return f"${match[1]} \\cdot 10^{{{match[2]}}}$"
    if marker == "boxed" and not _QUANTITY.fullmatch(text):
        return f"\\boxed{{{to_latex(text)}}}"
    return f"${to_latex(text)}$" if is_formula(text, word=3) else f"answer: {text}"


def is_formula(text: str, *, word: int) -> bool:
    """True for what is all mathematics; `word` letters in a row are prose, "3 kg" is too."""
    bare = _COMMAND.sub(" ", _SPELT.sub(" ", text)).strip()
    if re.search(rf"[^\W\d_]{{{word}}}", bare) or _QUANTITY.fullmatch(bare) or "\n" in bare:
        return False
    if _LIST.fullmatch(text):
        return not _THOUSANDS.fullmatch(text)
    return bool(re.search(r"[A-Za-z\\(){}\[\]<>;!]|\d:\d", text))


def to_latex(text: str) -> str:
    r"""`sqrt(2)` and `pi/4` as LaTeX."""
    text = re.sub(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    return _SPELT.sub(r"\\\1", text)


def has_same_letters(one: str, other: str) -> bool:
    """Equal but for blanks and markup; case counts in formulas (x, X), not in words.

    A blank between two digits counts: 2 1/2 is not 21/2.
    """
    one, other = (
        "".join(_APART.sub("|", WRAPPED.sub(r"\1", text).replace("$", "")).split())
        for text in (one, other)
    )
    if re.search(r"[^\W\d_]{3}", one):
        one, other = one.casefold(), other.casefold()
    return bool(one) and one == other


def is_decimal_comma(one: str, other: str) -> bool:
    """True for 2,5 and 2.5; 1,000 stays a thousand, and 2,5 beside 2,5 whatever it is."""
    for comma, point in ((one, other), (other, one)):
        comma, point = comma.strip(" $"), point.strip(" $")
        if _DECIMAL_COMMA.fullmatch(comma) and not _THOUSANDS.fullmatch(comma):
            return comma.replace(",", ".") == point
    return False
