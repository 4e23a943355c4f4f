"""Dates as answers: to arithmetic, 2020-02-01 is 2017, and 3 June the 3 of 3 May."""

from __future__ import annotations

import re

from engines.verifiers.math.notation import strip_tex

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
