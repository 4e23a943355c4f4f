"""Keys and secrets, kept out of whatever is written or shown.

Owns what a secret looks like and how it is masked: by value, for those that a run was
given, and by shape, for those that nobody announced. Text that holds none comes back as
it is, so that nothing else is ever altered. The replacement never breaks JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MASK = "***"
SHORTEST = 6
"""Characters of a value below which masking it everywhere would only maim words."""


def _random(least: int) -> str:
    """A run of characters that holds a digit near its start: words of a language do not.

    All that could be searched far ahead is bounded: a model's text must not cost
    quadratic time.
    """
    return rf"(?=[A-Za-z_.~+/=-]{{0,80}}\d)[A-Za-z0-9_.~+/=-]{{{least},}}"


_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (hints, re.compile(pattern))
    for hints, pattern in (
        (("sk-", "pk-", "rk-"), rf"(?<![A-Za-z0-9])(?:sk|pk|rk)-{_random(16)}"),
        (
            ("gsk_", "hf_", "ghp_", "gho_", "ghs_", "ghu_", "r8_", "npm_", "github_pat_"),
            rf"(?<![A-Za-z0-9])(?:gsk|hf|gh[pousr]|r8|npm|github_pat)_{_random(16)}",
        ),
        (
            ("glpat-", "nvapi-", "pplx-", "tvly-", "xai-", "xoxa-", "xoxb-", "xoxp-", "xoxs-"),
            rf"(?<![A-Za-z0-9])(?:glpat|nvapi|pplx|tvly|xai|xox[abps])-{_random(10)}",
        ),
        (("jina_",), rf"(?<![A-Za-z0-9])jina_{_random(16)}"),
        (("akia",), r"(?<![A-Za-z0-9])AKIA[0-9A-Z]{16}"),
        (("aiza",), r"(?<![A-Za-z0-9])AIza[0-9A-Za-z_-]{30,}"),
        (("eyj",), r"(?<![A-Za-z0-9])eyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{8,}"),
        (("bearer ", "basic "), rf"(?i)(?<=bearer ){_random(12)}|(?<=basic ){_random(12)}"),
        (
            ("private key",),
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\[nr])*"
            r"(?:-----END [A-Z ]*PRIVATE KEY-----)?",
        ),
        (("://",), r"(?<=://)[^\s/@:\"'\\]{1,100}:[^\s/@\"'\\]{1,200}(?=@)"),
        (
            ("key", "token", "secret", "passw", "auth", "signature"),
            r"(?i)(?<![A-Za-z0-9])(?P<name>(?:[a-z]{1,20}[_-]){0,4}(?:api[_-]?key|key|token|secret|password|"
            r"passwd|authorization|signature))(?P<is>(?:\\*[\"'])?\s?[:=]\s?(?:\\*[\"'])?)"
            rf"{_random(16)}",
        ),
    )
)


class Mask:
    """Replaces secrets in text.

    Args:
        values: what must never be seen, whatever it looks like; very short ones are left
            to their shape.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        wanted = {value for value in values if len(value) >= SHORTEST and value != MASK}
        spelled = {form for value in wanted for form in _spellings(value)}
        # The longest first, so that no part of one is left over by another.
        self.values: tuple[str, ...] = tuple(sorted(spelled, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        for value in self.values:
            if value in text:
                text = text.replace(value, MASK)
        low = text.lower()
        for hints, shape in _SHAPES:
            if any(hint in low for hint in hints):
                text = shape.sub(_masked, text)
        return text

    def line(self, raw: bytes) -> bytes:
        """A line of JSON without its secrets; the very same object where it holds none."""
        text = raw.decode("utf-8", "replace")
        masked = self(text)
        return raw if masked == text else masked.encode()


NO_SECRETS = Mask()
"""Knows no value: masks by shape alone."""


def _spellings(value: str) -> tuple[str, ...]:
    """A value as it stands in text, in JSON, and in JSON within JSON."""
    once = json.dumps(value)[1:-1]
    wide = json.dumps(value, ensure_ascii=False)[1:-1]
    return (value, once, wide, json.dumps(wide, ensure_ascii=False)[1:-1])


def _masked(match: re.Match[str]) -> str:
    named = match.groupdict()
    return f"{named['name']}{named['is']}{MASK}" if named.get("name") else MASK
