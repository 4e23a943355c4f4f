r"""What stands beside a number and tells it from another: a unit, a currency, a base, a letter.

math-verify compares numbers alone: 5 cm is 5 m to it, and 2516_9 is 2516_8. Units are compared
where both sides name a known one, and converted by exact factors. An answer without unit or base
leaves it to the question.
"""

import re
from fractions import Fraction
from importlib.resources import files

from engines.verifiers.math.notation import strip_tex

# Kind, factor and names. An s may follow a name; a name of one letter keeps its case.
_TABLE = (files("engines.verifiers.math") / "units.txt").read_text("utf-8")
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
