"""A tool's output as a model is shown it: bounded, and JSON where it was JSON."""

from __future__ import annotations

import json
from functools import partial
from math import isfinite
from typing import Any

from engines.core.codec import fix_surrogates
from engines.core.text.tool_text import clean_text
from engines.core.tools import SHOWN_CHARS

MAX_RESULT_CHARS = 8 * SHOWN_CHARS
"""Of a whole JSON result, in which each text has at most `SHOWN_CHARS`."""
_MAX_READ_CHARS = 2_000_000
_LEFT_OUT = "… [{:,} {} left out] …"


def shorten_result(text: str, limit: int = SHOWN_CHARS) -> str:
    """Cut what is too long, and say how much is left out; JSON stays JSON."""
    text = fix_surrogates(clean_text(text))
    if len(text) <= limit:
        return text
    if len(text) > _MAX_READ_CHARS:
        return _cut(text, limit)
    try:
        value = json.loads(
            text, parse_int=partial(_read_number, int), parse_float=partial(_read_number, float)
        )
        # Ever less of each part, until the whole fits.
        for chars, entries in ((limit, 100), (limit // 4, 25), (limit // 20, 5)):
            short = json.dumps(_shorten(value, chars, entries), ensure_ascii=False)
            if len(short) <= 8 * limit:
                return short
    except ValueError:  # it is no JSON
        return _cut(text, limit)
    except RecursionError:
        pass
    return json.dumps(_cut(text, limit // 2), ensure_ascii=False)


def _shorten(value: Any, chars: int, entries: int) -> Any:
    if isinstance(value, str):
        return _cut(value, chars)
    more = len(value) - entries if isinstance(value, list | dict) else 0
    if isinstance(value, list):
        short = [_shorten(item, chars, entries) for item in value[:entries]]
        return short + [_LEFT_OUT.format(more, "entries")] * (more > 0)
    if isinstance(value, dict):
        kept = list(value.items())[:entries]
        rest = {"…": _LEFT_OUT.format(more, "entries")} if more > 0 else {}
        return {_cut(k, chars): _shorten(v, chars, entries) for k, v in kept} | rest
    return value


def _cut(text: str, limit: int) -> str:
    """Head and tail of a text, with what is missing between them."""
    if len(text) <= limit:
        return text
    note = _LEFT_OUT.format(len(text), "characters")  # of no less than its final length
    kept = max(limit - len(note), 0)
    head = kept - kept // 3
    note = _LEFT_OUT.format(len(text) - kept, "characters")
    return text[:head] + note + text[len(text) - kept // 3 :]


def _read_number(kind: type[int] | type[float], written: str) -> float | str:
    """A number; what has too many digits for Python stays a text."""
    return kind(written) if isfinite(float(written)) else written
