r"""The many ways to write one answer, as the one that math-verify reads.

Signs and digits that are no ASCII (√3, ½, x², ３, an en dash for a minus), digits in groups, words
for powers of ten, and what a response denies ("not 42"). Linear in the text.
"""

import re
import unicodedata
from decimal import Decimal

_MINUS = re.compile("[\u2212\ufe63\uff0d]")
_DASHES = "[\u2010\u2011\u2012\u2013]"
_DASH_OF_NUMBER = re.compile(rf"(?<![\w)}}\]])-?{_DASHES}(?=[\d.])")
_DASH = re.compile(rf"(?<!\d)\s*{_DASHES}\s*|{_DASHES}(?!\s*\d)")  # 3 to 5 keeps its dash
_LONE_SIGN = re.compile(rf"\s*(?:-|{_DASHES})\s+(?=[\d.][\d.,]*\s*$)")
_FULLWIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_POWER = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]{1,80})\)|\{([^{}]{1,80})\}|(\d+(?:\.\d+)?|[A-Za-z]))")
_FRACTION = re.compile("[¼½¾⅐-⅞]")
WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|~|\\q?quad\b")
_MIXED_PLAIN = re.compile(r"(?<![\w./,])(\d{1,9})\s+(?:and\s+)?(\d{1,9})/(\d{1,9})(?![\d/]|\.\d)")
_MIXED = re.compile(r"([-+]?\d+)\s*\\frac\{(\d+)\}\{(\d+)\}")
_THIN = re.compile(r"(?<=\d)(?:\\[,;!:]|\{,\}|[\u00a0\u2007\u2009\u202f])(?=\d{3}(?!\d))")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_POWERS = enumerate(("thousand", "million", "billion", "trillion"), start=1)
_SCALES = {"dozen": 12, "hundred": 100, **{name: 1000**power for power, name in _POWERS}}
_SCALED = re.compile(
    rf"(?<![\w.,/^])(\d{{1,12}}(?:,\d{{3}}){{0,4}}(?:\.\d{{1,12}})?)(?:\s|\\,|~)*"
    rf"(?:\\text\{{\s*)?\b({'|'.join(_SCALES)})s?\b(?:\s*\}})?",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:[\s,;:(]*\b(?:and|but|or))?[\s,;:]*(?:(?:\b(?:can)?[Nn]ot|n't|\bnicht|\bpas)\s+|不是\s*)"
    r"(?:equal\s+to\s+|be\s+|option\s+)?(?:[$*(\\{\[]*[A-Z][$*)}\]]*|[^\s]*\d[^\s]*)[\s.!*]*$"
)
_BARE = re.compile(r"[\s$\\]*[-+]?\d[\d.,]*(?:\\?%)?[\s$]*")
_DIGITS = r"\d[\d,]*(?:\.\d+)?"
_LAST = re.compile(rf"(?<![\d.,]){_DIGITS}(?=\D*\Z)")
# 3 is said, and "3 out of 5" or "at least 3" meant. A unit behind it is no such word.
_ALTERS = re.compile(
    rf"(?:\A\D*|(?<![\d.,]){_DIGITS}\s+)(?:\b(?:at\s+(?:least|most)|(?:more|less|fewer|greater|other)"
    r"\s+than|(?:any|every)thing\s+but|negative|minus|half\s+of|root\s+of|out\s+of|times"
    r"|to\s+the\s+power(?:\s+of)?)|\\neq?)[\s$({\\]*\Z"
    rf"|\b(?:between|either)\s+{_DIGITS}\s+and\s+\Z|{_DIGITS}\s+or\s+\Z",
    re.IGNORECASE,
)
_ALTERED = re.compile(
    r"\s*(?:squared|factorial|lakhs?|crores?|bn|mn|Mio|Mrd|(?:is|was)\s+(?:not|wrong))\b"
)


def ascii_notation(text: str, *, marked: bool) -> str:
    """An answer with ASCII digits and operators.

    Where it is not `marked` but a whole response, a dash between words stays.
    """
    if not text.isascii():
        text = _convert_unicode(text, marked)
    text = _LONE_SIGN.sub("-", text, count=1) if _LONE_SIGN.match(text) else text
    text = _THIN.sub("", text)
    if _GROUPED.fullmatch(text.strip()):
        text = text.replace(" ", "")
    return _SCALED.sub(_expand_scale, _MIXED_PLAIN.sub(_expand_mixed, text))


def strip_tex(text: str) -> str:
    """A text without TeX's wrappers of words and its spacing."""
    return _SPACING.sub(" ", WRAPPED.sub(r"\1", text))


def alters_number(gold: str, answer: str) -> bool:
    """Whether words beside the last number of an answer say that it is not the bare number."""
    number = _LAST.search(answer := strip_tex(answer)[-200:])
    if number is None or not _BARE.fullmatch(gold):
        return False
    return bool(_ALTERS.search(answer[: number.start()]) or _ALTERED.match(answer, number.end()))


def strip_denial(text: str) -> str:
    """Leave out a closing "not 42", "and not (B)": what is denied is not the answer."""
    found = _DENIED.search(text[-200:])
    return text[: len(text) - len(found[0])] if found else text


def _convert_unicode(text: str, marked: bool) -> str:
    text = _MINUS.sub("-", text).translate(_FULLWIDTH)
    text = _POWER.sub(lambda run: f"^{{{run[0].translate(_RAISED)}}}", text)
    text = _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2] or found[3]}}}", text)
    if _FRACTION.search(text):
        text = _MIXED.sub(r"\1 \2/\3", _FRACTION.sub(_fraction_latex, text))
    text = "".join(str(unicodedata.decimal(c, c)) for c in text).replace("π", "\\pi ")
    return _DASH.sub("-", text) if marked else _DASH_OF_NUMBER.sub("-", text)


def _fraction_latex(found: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", found[0]).split("\u2044")
    return f"\\frac{{{above}}}{{{below}}}"


def _expand_mixed(found: re.Match[str]) -> str:
    whole, above, below = map(int, found.groups())
    return f"{whole * below + above}/{below}" if above < below else found[0]


def _expand_scale(found: re.Match[str]) -> str:
    number = Decimal(found[1].replace(",", "")) * _SCALES[found[2].lower()]
    return f"{number.normalize():f}"
