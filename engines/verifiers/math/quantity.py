r"""What stands beside a number: units, dates, and numbers side by side.

Owns the refusals that no algebra sees: 5 cm is not 5 m, 2 January is not 3 January, 3 4
is not 34. Says nothing (None) of all else, and where only one side has a unit. Converts
nothing: 60 minutes is not found to be 1 hour. Pure.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 120
TAIL_CHARS = 400
"""How far back from the end of a response without a marker a unit is looked for."""

_NAMES = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "mg": "mg milligram",
    "g": "g gram gramme",
    "kg": "kg kilogram kilo",
    "lb": "lb lbs",
    "oz": "oz ounce",
    "t": "t ton tonne",
    "ml": "ml mL milliliter millilitre",
    "l": "l L liter litre",
    "gal": "gal gallon",
    "ms": "ms millisecond",
    "s": "s sec secs second",
    "min": "min mins minute",
    "h": "h hr hrs hour",
    "day": "day",
    "week": "week wk wks",
    "month": "month",
    "year": "year yr yrs",
    "am": "am AM a.m. A.M. a.m A.M",
    "pm": "pm PM p.m. P.M. p.m P.M",
    "$": "$ dollar USD buck",
    "cent": "cent ¢",
    "€": "€ euro EUR",
    "£": "£ GBP",
    "¥": "¥ yen JPY yuan",
    "N": "N newton",
    "J": "J joule",
    "kJ": "kJ kilojoule",
    "W": "W watt",
    "kW": "kW kilowatt",
    "V": "V volt",
    "A": "A amp ampere",
    "Hz": "Hz hertz",
    "kHz": "kHz kilohertz",
    "MHz": "MHz megahertz",
    "Pa": "Pa pascal",
    "kPa": "kPa kilopascal",
    "mol": "mol mole",
    "K": "K kelvin",
    "C": "°C C celsius",
    "F": "°F F fahrenheit",
    "deg": "deg degree °",
    "rad": "rad radian",
    "mph": "mph",
    "/": "/ per",
    "^2": "^2 ^{2} square squared sq",
    "^3": "^3 ^{3} cubic cubed",
}
_UNITS = {alias: unit for unit, aliases in _NAMES.items() for alias in aliases.split()}
_MONEY = frozenset({"$", "cent", "€", "£", "¥"})
# Beside a number they name nothing that is counted.
_FILLERS = frozenset(
    {"the", "and", "are", "was", "each", "total", "altogether", "more", "less", "left", "old"}
    | {"long", "wide", "tall", "high", "deep", "away", "only", "exactly", "about", "unit", "for"}
    | {"approximately", "percent", "time", "pct", "point"}
)

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+|:\d\d(?::\d\d)?)?"
_BARE = re.compile(
    rf"(?P<sign>[$€£¥])?\s*{_NUMBER}(?P<gap>\s*)(?P<after>[A-Za-z°¢µ$€£¥/^{{}}23.\s-]*)"
)
_LAST = re.compile(rf"(?P<sign>[$€£¥])?{_NUMBER}(?P<gap>[ \t]*)(?P<after>°?[A-Za-z.]*)[^\d]*$")
_WORD = re.compile(r"°?[A-Za-z]+(?:\.[A-Za-z]\b\.?)?|[$€£¥¢°/]|\^\{?[23]\}?")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[,;:! ]|~")
_DATE = re.compile(r"\b(\d{4})([-/.])(\d{1,2})\2(\d{1,2})\b|\b(\d{1,2})([-/.])(\d{1,2})\6(\d{4})\b")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))?\s*([APap])\.?[Mm]\.?")
_SPACED = re.compile(r"[-+\d./,\s]{3,80}")
_MIXED = re.compile(r"[-+]?\d+\s+\d+/\d+")


def unlike(gold: str, answer: str, *, marked: bool) -> bool | None:
    """True where two answers cannot be the same, False where they are; None: not said here.

    Args:
        gold: what is expected.
        answer: what is stated.
        marked: the answer is stated as one; else its last number and last date count.
    """
    if (clock := _clock(gold)) and clock == _clock(answer):
        return False
    for known in (_dates, _side_by_side):
        ours, theirs = known(gold, True), known(answer, marked)
        if ours is not None or theirs is not None:
            return ours != theirs
    return True if _differ(_unit(gold, True), _unit(answer, marked)) else None


def _clock(text: str) -> tuple[str, ...] | None:
    found = _CLOCK.fullmatch(_TEXT.sub(r"\1", text).strip(" $."))
    return found and (found[1].lstrip("0"), found[2] or "00", found[3].lower())


def _dates(text: str, marked: bool) -> tuple[str, ...] | None:
    text = text.strip(" $.") if marked else text[-TAIL_CHARS:]
    found = [_DATE.fullmatch(text)] if marked or len(text) < 12 else list(_DATE.finditer(text))
    if not found or found[-1] is None:
        return None
    return tuple(part.lstrip("0") for part in found[-1].groups() if part)


def _side_by_side(text: str, marked: bool) -> tuple[Fraction, ...] | None:
    """Numbers with nothing but blanks between some of them; 2 1/2 is one number."""
    text = text.strip(" $\t\n.")
    if not _SPACED.fullmatch(text) or _MIXED.fullmatch(text) or not re.search(r"\d\s+\d", text):
        return None
    try:
        return tuple(Fraction(part) for part in re.split(r"[\s,]+", text) if part)
    except (ValueError, ZeroDivisionError):
        return None


def _unit(text: str, marked: bool) -> frozenset[str]:
    """Units, known ones by one name, beside a number that is the whole answer."""
    if not marked:
        text = text.strip()[-TAIL_CHARS:]
    if len(text) > max(MAX_CHARS, TAIL_CHARS):
        return frozenset()
    bare = _SPACE.sub(" ", _TEXT.sub(r" \1", text)).replace("\\$", "$").strip(" \n")
    while len(bare) > 2 and bare[0] == bare[-1] == "$":
        bare = bare[1:-1].strip()
    if found := _BARE.fullmatch(bare):
        return _read(found["sign"], found["gap"], found["after"])
    if not marked and (found := _LAST.search(bare)):
        return _read(found["sign"], found["gap"], found["after"]) & frozenset(_NAMES)
    return frozenset()


def _read(sign: str | None, gap: str, after: str) -> frozenset[str]:
    words = _WORD.findall(after)
    if len(words) > 6:
        return frozenset()
    units = {sign} if sign else set[str]()
    for word in words:
        unit = _known(word)
        if unit and len(word) == 1 and word.isalpha() and not gap:
            return frozenset()  # 5m is a product
        if word in ("in", "a", "A", "as", "at") and len(words) > 1:
            continue
        if unit is None and (not gap or len(word) < 3 or _singular(word) in _FILLERS):
            continue
        units.add(unit or _singular(word))
    return frozenset(units)


def _known(word: str) -> str | None:
    forms = (word, word.lower(), _singular(word))
    if len(word) == 1:
        forms = (word,) * 3  # K is not k
    return next((_UNITS[form] for form in forms if form in _UNITS), None)


def _singular(word: str) -> str:
    word = word.lower().rstrip(".")
    for ending, single in (("ies", "y"), ("ches", "ch"), ("xes", "x"), ("s", "")):
        if word.endswith(ending) and not word.endswith("ss") and len(word) > len(ending) + 2:
            return word[: len(word) - len(ending)] + single
    return word


def _differ(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    if not ours or not theirs:
        return False
    if "pound" in ours | theirs:  # of money or of mass
        ours, theirs = (
            frozenset("pound" if u in ("£", "lb") else u for u in s) for s in (ours, theirs)
        )
    if ours & _MONEY and theirs & _MONEY:
        return ours & _MONEY != theirs & _MONEY  # $3 is 3 dollars a day
    known = frozenset(_NAMES)
    if ours & known and theirs & known:
        return ours & known != theirs & known
    return ours.isdisjoint(theirs)
