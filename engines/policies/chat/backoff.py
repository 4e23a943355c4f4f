"""How long to wait before a call is tried again.

Pure: the jitter follows from a seed, so that two runs with one seed wait alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from engines.core.ids import seed_for

FIRST_S = 0.5
LONGEST_S = 30.0


def backoff_s(attempt: int, seed: int, *parts: str) -> float:
    """Exponential from half a second, times a jitter in [0.5, 1) that `seed` and `parts` fix.

    `attempt` counts the tries that have failed before this wait, from 0.
    """
    whole = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, 16))
    jitter = seed_for(seed, "backoff", attempt, *parts) / 2**31
    return whole * (0.5 + jitter / 2)


def asked_wait_s(asked_s: float, attempt: int, seed: int, *parts: str) -> float:
    """What an endpoint asked for and up to a quarter more, so that not all come back at once.

    A wait of nothing grows as well, if from less: it would be tried again at once for ever.
    """
    jitter = seed_for(seed, "retry-after", attempt, *parts) / 2**31
    wait_s = asked_s * (1 + jitter / 4)
    return max(wait_s, backoff_s(attempt, seed, *parts) / 16)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """The wait an endpoint asks for, or None when it asks for none that can be read.

    `retry-after-ms` (not standard, but exact) goes before `retry-after`, which is
    seconds or an HTTP date. A date is read against the endpoint's own `date` header
    where there is one: the two clocks need not agree.
    """
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _parse_number(value)
    if seconds is not None:
        return seconds
    until = _parse_date(value)
    if until is None:
        return None
    return max(0.0, (until - (_parse_date(headers.get("date")) or now)).total_seconds())


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def _parse_date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError):  # years and zones that no calendar has
        return None
