r"""What a checking process does for the `math` verifier: math-verify's equality, of quantities too.

Runs in a process of `engines.process.pool`, because a check may hang or need too much memory.
math-verify compares numbers alone: 5 cm is 5 m to it, and 2516_9 is 2516_8. Units are compared
where both sides name a known one, and converted by exact factors. An answer without unit or base
leaves it to the question.
"""

import functools
import logging
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from importlib.resources import files
from typing import Any

from math_verify import parse, parser, verify

from engines.core.codec import JsonObject
from engines.verifiers.stated_answer import WRAPPED, alters_number, strip_tex

_ENVIRONMENT = re.compile(r"\$[^$]+\$|\\\(|\\\[|\\boxed")
_APART = re.compile(r"(?<=\d)\s+(?=\d)")
_COMMAND = re.compile(r"\\(?:begin|end|text|textbf|mathrm|mathbf)\s*\{[^{}]*\}|\\[A-Za-z]+")
_SPELT = re.compile(r"(?<![\\A-Za-z])(pi|sqrt|sin|cos|tan|log|ln)(?![A-Za-z])")
_QUANTITY_TEXT = re.compile(r"[-+]?[^\w\s\\(]?\d[\d,.]*\s+[A-Za-z]{2,}\.?")
_PERCENT = re.compile(r"([-+]?[\d.,]+)\s*(?:\\?%|percent|pct)")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,4})")
_CURRENCY = re.compile(r"^[A-Z]{1,2}\\?\$(?=[-+]?[\d.])")
_LIST = re.compile(r"[-+]?\d+(?:\s*,\s*[-+]?\d+)+")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+")

_overflows: list[BaseException] = []


def build_task() -> Callable[[JsonObject], JsonObject]:
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


def check(question: JsonObject) -> JsonObject:
    answer, marker, rules = question["answer"], question["marker"], question["rules"]
    marked = marker != "none"
    got = answer
    for at, expected in enumerate(question["expected"]):
        pair = align_labels(expected["text"], answer) if marked else (expected["text"], answer)
        if pair is None:
            continue
        text, said = pair
        same = False if alters_number(text, said) else same_date(text, said)
        if same is None:
            same = same_quantity(text, said + leading_unit(question["after"]), marked=marked)
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
    if marker == "boxed" and not _QUANTITY_TEXT.fullmatch(text):
        return f"\\boxed{{{to_latex(text)}}}"
    return f"${to_latex(text)}$" if is_formula(text, word=3) else f"answer: {text}"


def is_formula(text: str, *, word: int) -> bool:
    """True for what is all mathematics; `word` letters in a row are prose, "3 kg" is too."""
    bare = _COMMAND.sub(" ", _SPELT.sub(" ", text)).strip()
    if re.search(rf"[^\W\d_]{{{word}}}", bare) or _QUANTITY_TEXT.fullmatch(bare) or "\n" in bare:
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


# Kind, factor and names. An s may follow a name; a name of one letter keeps its case.
_TABLE = (files("engines.verifiers") / "units.txt").read_text("utf-8")
_NAMES = {
    form: (kind, Fraction(factor))
    for kind, factor, *names in map(str.split, _TABLE.splitlines())
    for name in names
    for form in ((name, name.lower(), f"{name.lower()}s") if len(name) > 1 else (name,))
}
_NAME = "|".join(map(re.escape, sorted(_NAMES, key=len, reverse=True))).replace("°", r"°\s?")
# "18 in total" has no inches.
_UNIT = (
    rf"(?:(?:square|sq\.?|cubic)\s*)?(?:{_NAME})(?![A-Za-z])"
    r"(?!(?<=[\d\s]in)\s+\w)(?:\^\d|\s(?:squared|cubed))?"
)
_NUMBER = r"[-+]?(?:\d[\d,]{0,30}(?:\.\d{1,30})?|\.\d{1,30})(?:/\d{1,15}|:\d\d(?!\d))?"
_QUANTITY = re.compile(
    rf"(?<![\w.,:/^$€£¥])(?P<sign>(?:[A-Z]{{1,2}})?[$€£¥]\s*)?(?P<number>{_NUMBER})"
    rf"(?:(?:\s|-)*(?P<unit>{_UNIT})(?:\s*(?:/|per\b)\s*(?P<per>{_UNIT}))?|(?![\w.,:/]*\d))",
    re.IGNORECASE,
)
_POWER = re.compile(r"(?:square|cub)(?:d|ic|ed)?|sq\.?|\^\d|\s")
_POWERS = (("sq", 2), ("^2", 2), ("cub", 3), ("^3", 3))
_CIRCLE = re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree\b")
_FORMULA = re.compile(r"(?<!\\)\$([^$]*)(?<!\\)\$")
_FRACTION = re.compile(r"\\[dt]?frac\{(\d{1,15})\}\{(\d{1,15})\}")
_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_BASED = re.compile(
    r"(?<![\w\\])\(?([0-9A-F]{1,60})\)?(?:_\{?\s*|\s+(?:in\s+)?base[\s-]+)"
    rf"\(?(\d\d?|{'|'.join(_BASES)})(?!\w)[\s)}}]*"
)
_LABEL = re.compile(
    r"\s*(?:(?:option|choice)\s+)?(?:\(([A-J])\)|([A-J])\))\s*(\S.*)|\s*([A-J])[.:]\s+([-\d$\\].*)",
    re.DOTALL,
)
_LONE_LETTER = re.compile(r"[\W_]*[A-J][\W_]*")


def same_quantity(gold: str, answer: str, *, marked: bool) -> bool | None:
    """Whether an answer has the unit or base of the expected one; None: that decides nothing.

    Of a whole response (not `marked`) the last quantity counts.
    """
    if based := _BASED.fullmatch(gold := _plain(gold)):
        *_, other = [None, *_BASED.finditer(_plain(answer))]
        if other is None:
            return None
        same = (based[1], _base(based[2])) == (other[1], _base(other[2]))
        return same if marked or not same else None
    if not (wanted := _QUANTITY.fullmatch(gold)) or not (wanted["unit"] or wanted["sign"]):
        return None
    whole = _QUANTITY.fullmatch(answer := _plain(answer))
    *_, given = [None, *(q for q in _QUANTITY.finditer(answer) if q["unit"] or q["sign"])]
    if given is None:
        return None
    (kinds, one), (other_kinds, other_one) = _reading(wanted), _reading(given)
    if kinds.isdisjoint(other_kinds):
        return False
    if _value(wanted["number"]) * one == _value(given["number"]) * other_one:
        return True if whole else None
    return None if one == other_one else False


def align_labels(gold: str, answer: str) -> tuple[str, str] | None:
    r"""What to compare where a side leads with a choice's letter, as `\textbf{(B)}\ 12` does.

    Letter with letter where one side is no more, else the values. None: the letters differ.
    """
    (gold_letter, gold_value), (letter, value) = _split_label(gold), _split_label(answer)
    if letter and _LONE_LETTER.fullmatch(strip_tex(gold)):
        return gold, letter
    if gold_letter and _LONE_LETTER.fullmatch(strip_tex(answer)):
        return gold_letter, answer
    return None if letter and gold_letter and letter != gold_letter else (gold_value, value)


def leading_unit(text: str) -> str:
    r"""The unit that follows a box (`\boxed{5}$ cm`), after a blank; "" where none does."""
    found = re.match(rf"[\s}}$]*({_UNIT})", strip_tex(text), re.IGNORECASE)
    return f" {found[1]}" if found else ""


def _split_label(text: str) -> tuple[str, str]:
    if found := _LABEL.fullmatch(strip_tex(text)):
        return found[1] or found[2] or found[4], (found[3] or found[5]).strip()
    return "", text


def _plain(text: str) -> str:
    """A quantity without its TeX."""
    text = strip_tex(_FORMULA.sub(r"\1", text)).replace("\\%", "%").replace("\\$", "$")
    text = re.sub(r"\^\{(\d)\}", r"^\1", _FRACTION.sub(r"\1/\2", _CIRCLE.sub("°", text)))
    return text.strip().rstrip(".")


def _base(text: str) -> int:
    return int(text) if text.isdigit() else _BASES.index(text) + 2


def _value(number: str) -> Fraction:
    above, _, below = number.replace(",", "").replace(":", ".").partition("/")
    return Fraction(above) / (int(below or 1) or 1)


def _reading(quantity: re.Match[str]) -> tuple[set[str], Fraction]:
    """What kinds of unit it may be of, and the factor to the kind's own unit."""
    kinds, factor = {""}, Fraction(1)
    for part, mark in (("unit", ""), ("per", "/")) if quantity["unit"] else (("sign", ""),):
        text = (quantity[part] or "").strip()
        power = next((n for name, n in _POWERS if name in text.lower()), 1)
        name = _POWER.sub("", text) if part != "sign" else text.upper()
        kind, one = _NAMES.get(name) or _NAMES.get(
            name.lower() * (len(name) > 1), (name, Fraction(1))
        )
        raised = str(power) if power > 1 else ""
        if name:
            kinds = {f"{had}{mark}{new}{raised}" for had in kinds for new in kind.split("|")}
            factor *= one ** (-power if mark else power)
    return kinds, factor


_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY, _YEAR = r"(?P<day>\d\d?)(?:st|nd|rd|th)?", r"(?:,?\s+(?P<year>\d{4}))?"
_FORMS = (
    re.compile(r"(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)"),
    re.compile(r"(?P<day>\d\d?)/(?P<month>\d\d?)/(?P<year>\d{4})"),  # or the month first
    re.compile(rf"(?:[a-z]{{3,6}}day,?\s+)?{_MONTH}\s+{_DAY}{_YEAR}", re.IGNORECASE),
    re.compile(rf"(?:[a-z]{{3,6}}day,?\s+)?{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}", re.IGNORECASE),
)


def same_date(gold: str, answer: str) -> bool | None:
    """Whether an answer is the expected date; None: none is expected, or no date is given."""
    wanted, given = _read_date(gold), _read_date(answer)
    if wanted is None or given is None:
        return False if wanted and wanted[0] and re.fullmatch(r"\W*\d+\W*", answer) else None
    return wanted == given if wanted[0] and given[0] else wanted[1:] == given[1:]


def _read_date(text: str) -> tuple[int, int, int] | None:
    """Year (0 where there is none), month and day."""
    text = " ".join(strip_tex(text).split()).strip(" .$")
    for found in filter(None, (form.fullmatch(text) for form in _FORMS)):
        name = found["month"].lower()
        month = int(name) if name.isdigit() else _MONTHS.index(name[:3]) // 3 + 1
        return int(found["year"] or 0), month, int(found["day"])
    return None
