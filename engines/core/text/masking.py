"""Keys and secrets, kept out of whatever is written or shown.

They are masked by value, where a run was given them, and by shape, where nobody announced them;
a key of neither kind cannot be told from any other word. Text that holds none comes back as it
is, and JSON stays JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import orjson

MASK = "***"
SHORTEST = 6
"""Characters of a value below which masking it everywhere would only maim words."""
HELD_BACK = 4_096
"""Characters that a stream keeps while they could still become a secret."""

_PLACEHOLDERS = (
    "anything api-key api_key apikey change-me changeme default dummy example fake-key lm-studio "
    "llama.cpp local localhost no-key no-key-needed no-key-required not-needed not_needed "
    "none nothing null ollama placeholder rehearsal secret sk-no-key-required token unused "
    "your-api-key your_api_key"
)
PLACEHOLDERS = frozenset(_PLACEHOLDERS.split())
"""What is written for a key where none is needed: masking `ollama` everywhere would maim text."""

_STRUCTURE = """
kind action status purpose role finish how outcome stage verdict method
request content_hash prompt_hash digest checksum file fate use learns
"""
STRUCTURE = frozenset(_STRUCTURE.split())
"""Keys of our own lines whose short values are one of a few words, or hashes: the reader of
the line needs them as they are, whatever somebody's password is."""

_PROTOCOL = """
add answer attempts before critique delete experience experiences expected finding group
keep lessons modify operation operations problem proposals question reason reasoning
reflection replaces result results reward rewards summary think verdict correct
"""
PROTOCOL = frozenset(_PROTOCOL.split())
"""Words that a model must say for its reply to be read: as a value they are masked in
settings alone, since a masked `operation` would lose every lesson."""

_RUN = r"[A-Za-z0-9_.~+/=-]"
_GAP = r"(?:\s|\\{1,4}[nrt]){0,40}+"
"""Blanks and new lines, also those of JSON that was printed for people."""
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4}))"
"""No letter or digit before, or the end of an escape of JSON: `\\nsk-…` is a new line."""


def _random_pattern(least: int) -> str:
    """A run of characters that holds a digit near its start: words of a language do not.

    All that is searched ahead is bounded, and nothing is tried twice (the run is
    possessive): a model's text must not cost quadratic time.
    """
    return rf"(?=[A-Za-z_.~+/=-]{{0,80}}+\d){_RUN}{{{least},}}+"


_LETTERS = r"(?=[a-z]{0,200}[A-Z])(?=[A-Z]{0,200}[a-z])[A-Za-z]{30,}+(?![A-Za-z0-9_-])"
"""So many letters in mixed case are no word, even without a digit."""

_SHAPES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("sk-", "pk-", "rk-"), rf"{_START}[spr]k-(?:{_random_pattern(16)}|{_LETTERS})"),
    (("sk_", "pk_", "rk_"), rf"{_START}[spr]k_(?:live|test|prod)_{_random_pattern(10)}"),
    (
        ("gsk_", "hf_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "r8_", "npm_", "github_pat_"),
        rf"{_START}(?:gsk|hf|gh[pousr]|r8|npm|github_pat)_(?:{_random_pattern(16)}|{_LETTERS})",
    ),
    (
        ("glpat-", "nvapi-", "pplx-", "tvly-", "xai-", "xoxa-", "xoxb-", "xoxp-", "xoxs-"),
        rf"{_START}(?:glpat|nvapi|pplx|tvly|xai|xox[abps])-{_random_pattern(10)}",
    ),
    (("jina_", "fw_"), rf"{_START}(?:jina|fw)_{_random_pattern(16)}"),
    (("dop_v1_", "doo_v1_", "dor_v1_"), rf"{_START}do[opr]_v1_[0-9a-f]{{32,}}+"),
    (("sg.",), rf"{_START}SG\.[A-Za-z0-9_-]{{16,}}+\.{_random_pattern(16)}"),
    (("ya29.",), rf"{_START}ya29\.{_random_pattern(20)}"),
    (("age-secret-key-1",), rf"{_START}AGE-SECRET-KEY-1[0-9A-Z]{{16,}}+"),
    (("akia", "asia"), rf"{_START}A[KS]IA[0-9A-Z]{{16}}"),
    (("aiza",), rf"{_START}AIza[0-9A-Za-z_-]{{30,}}+"),
    (
        ("eyj",),
        rf"{_START}(?<![_-])eyJ[A-Za-z0-9_-]{{10,2000}}+\.eyJ[A-Za-z0-9_-]{{10,4000}}+"
        r"\.[A-Za-z0-9_-]{8,}+",
    ),
    (
        ("bearer", "basic"),
        rf"(?i)(?:bearer|basic)(?::?[ \t]{{1,8}}+|:)(?P<said>{_random_pattern(12)})",
    ),
    (
        ("-----begin ",),
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:(?!-----)[\s\S]){0,9000}?-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"|(?:[A-Za-z0-9+/=\s]|\\[nr])*+)",
    ),
    (
        ("://",),
        r"(?<=[A-Za-z])://(?:(?P<run>[^\s/@:\"'\\]{0,100}:[^\s/@\"'\\]{1,200})(?=@)"
        r"|(?P<said>[A-Za-z0-9_.~%+=-]{12,200}+)(?=@))",
    ),
)
"""What a shape contains in small letters, and the pattern of what begins there.

The whole match is the secret, or its group `run`, or its group `said` if that looks drawn.
"""
_NAMES = (
    "key", "token", "secret", "password", "passwd", "authorization", "signature", "cookie",
)  # fmt: skip
_TO = rf"(?:\\*[\"'])?(?:{_GAP}[:=]|\s(?:is|provided:)){_GAP}(?:\\*[\"'])?"
_NAMED = rf"(?i)(?:{'|'.join(_NAMES)}){_TO}(?P<run>{_random_pattern(16)})(?!\()"
_HINTS = tuple((hint, shape) for hints, shape in (*_SHAPES, (_NAMES, _NAMED)) for hint in hints)
_NUMBERS = re.compile(r"\[[-\d.,e]*+\]")
"""A list of token ids or log-probabilities, in which no hint can stand: most of a record."""
_LETTER_AFTER_DIGIT = re.compile(r"\d[A-Za-z]")
_HEX = re.compile(r"[0-9a-fA-F-]{32,}|0[xX][0-9a-fA-F]{40,}")
_NUMBER = re.compile(r"0[xXbBoO][0-9a-fA-F_]+")
_BASE64 = re.compile(r"[A-Za-z0-9/+]{40}")

_Found = tuple[int, int]
_Tell = Callable[[str], object]
_Find = Callable[[str], Iterable[_Found]]


class Mask:
    """Replaces secrets in text: these values, whatever they look like, and known shapes.

    Very short values and placeholders (`PLACEHOLDERS`) are left to their shape. `find_more` finds
    what is known to be secret without its value.
    """

    def __init__(self, values: Iterable[str] = (), find_more: _Find | None = None) -> None:
        self._find_more = find_more
        known_words = PLACEHOLDERS | PROTOCOL
        spelled = {
            form
            for value in values
            if len(value) >= SHORTEST and value.strip("*") and value.lower() not in known_words
            for part in _value_parts(value)
            for form in _encoded_forms(part)
        }
        # The longest first, so that no part of one is left over by another.
        self.values: tuple[str, ...] = tuple(sorted(spelled, key=lambda v: (-len(v), v)))

    def __call__(self, text: str, tell: _Tell | None = None) -> str:
        """`tell` gets each secret that its shape gave away."""
        for value in self.values:
            if value in text:
                text = text.replace(value, MASK)
        spans = [*_find_by_shape(text)]
        if self._find_more is not None:
            spans += self._find_more(text)
        return hide_spans(text, spans, tell)

    def line(self, raw: bytes) -> bytes:
        """A line of JSON without its secrets; the very same object where it holds none.

        Only texts are masked: numbers, our own names of fields and what has a meaning to
        readers of the line (`STRUCTURE`) stay, whatever somebody's password is.
        """
        text = raw.decode("utf-8", "replace")
        if self(text) == text:
            return raw
        data = orjson.loads(raw)
        masked = self.tree(data)
        return raw if masked == data else orjson.dumps(masked)

    def tree(self, value: Any, key: str = "") -> Any:
        """A copy of plain JSON values without secrets, also where a name tells them."""
        if isinstance(value, str):
            if key in STRUCTURE and len(value) <= 64:
                return value
            masked = self(value)
            if masked == value and key and value != MASK:
                # `"api_key": "…"` as it would be masked in one text.
                named = f"{key}={value}"
                masked = self(named)[len(key) + 1 :] if self(named) != named else value
            return masked
        if isinstance(value, dict):
            return {
                self._mask_name(name): self.tree(inner, str(name)) for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.tree(inner, key) for inner in value]
        return value

    def stream(self, pass_on: Callable[[str], None]) -> StreamMask:
        """A mask for text that comes in pieces."""
        return StreamMask(self, pass_on)

    def _mask_name(self, name: Any) -> Any:
        """A name that a model or a file chose may be a secret; those of fields are words."""
        return self(name) if isinstance(name, str) and not _WORD.fullmatch(name) else name


def hide_spans(text: str, spans: list[_Found], tell: _Tell | None = None) -> str:
    """A mask in place of each, and one where they overlap. `tell` gets what was there."""
    pieces, end = [], 0
    for start, stop in sorted(spans):
        if tell:
            tell(text[start:stop])
        if start >= end:
            pieces += [text[end:start], MASK]
        end = max(end, stop)
    return "".join([*pieces, text[end:]]) if spans else text


_WORD = re.compile(r"[a-z_]{1,40}")

NO_SECRETS = Mask()
"""Knows no value: masks by shape alone."""


class StreamMask:
    """Masks text that comes in pieces, however a secret is spread over them.

    Holds back only what could be the beginning of a secret, at most `HELD_BACK`
    characters; `flush` gives out the rest. What has been given out is never masked later.
    """

    def __init__(self, mask: Mask, pass_on: Callable[[str], None]) -> None:
        self._mask, self._pass_on = mask, pass_on
        self._held = ""

    def __call__(self, text: str) -> None:
        self._held += text
        keep = self._partial_secret_length(self._held)
        self._release(len(self._held) - keep)

    def flush(self) -> None:
        self._release(len(self._held))

    def _release(self, upto: int) -> None:
        if upto > 0:
            ready, self._held = self._held[:upto], self._held[upto:]
            self._pass_on(self._mask(ready))

    def _partial_secret_length(self, text: str) -> int:
        """How many characters at the end could be the beginning of a secret."""
        keep = 0
        for value in self._mask.values:
            tail = text[1 - len(value) :]
            at = tail.find(value[0])
            while at >= 0 and len(tail) - at > keep:
                if value.startswith(tail[at:]):
                    keep = len(tail) - at
                at = tail.find(value[0], at + 1)
        tail = text[-HELD_BACK:]
        start = _candidate_start(tail)
        if _may_be_open(tail[start:].lower()) and (
            open_shape := _compile_pattern(_OPEN).search(tail, start)
        ):
            keep = max(keep, len(tail) - open_shape.start())
        if (block := tail.rfind("-----BEGIN ")) >= 0 and "-----END " not in tail[block:]:
            keep = max(keep, len(tail) - block)
        return keep if keep < HELD_BACK else 0


def _prefix_pattern(words: Iterable[str]) -> str:
    """Matches a part of one of the words that goes up to its last letter but one."""
    parts = {word[:size] for word in words for size in range(1, len(word))}
    return "|".join(re.escape(part) for part in sorted(parts, key=lambda part: (-len(part), part)))


_PREFIXES = tuple(hint for hints, shape in _SHAPES if shape.startswith(_START) for hint in hints)
_OPEN = (
    r"(?i)(?:"
    rf"{_START}(?:{'|'.join(map(re.escape, _PREFIXES))}){_RUN}*+"
    rf"|{_START}(?:{_prefix_pattern(_PREFIXES)})"
    rf"|(?:bearer|basic)(?::?[ \t]{{0,8}}+{_RUN}*+)?|(?:{_prefix_pattern(('bearer', 'basic'))})"
    rf"|(?:{'|'.join(_NAMES)})(?:\\*[\"'])?{_GAP}\\{{0,4}}"
    rf"(?:(?:[:=]|(?:is|provided:){_GAP[:-6]}{{1,40}}+){_GAP}\\*(?:[\"']{_RUN}*+|{_RUN}*+)"
    rf"|(?:{_prefix_pattern(('is ', 'provided: '))}))?"
    rf"|(?:{_prefix_pattern(_NAMES)})"
    r"|:(?:/(?:/[^\s/@\"'\\]{0,300}+)?)?"
    rf"|(?:{_prefix_pattern(('-----BEGIN ',))})"
    r")\Z"
)


_PARTS = tuple(
    {
        word[:size]
        for word in (*_PREFIXES, *_NAMES, "bearer", "basic", "-----begin ", "://")
        for size in range(1, len(word))
    }
)


def _may_be_open(low: str) -> bool:
    """Whether `_OPEN` may match in a text of small letters: it takes ten times as long to say."""
    return low.endswith(_PARTS) or any(hint in low for hint, _ in _HINTS)


def _candidate_start(text: str) -> int:
    """Where a name, its sign and its value can begin at the earliest: three gaps back."""
    at = len(text)
    for _ in range(4):
        at = len(text[:at].rstrip())
        at = max(text.rfind(" ", 0, at), text.rfind("\n", 0, at), text.rfind("\t", 0, at))
        if at <= 0:
            return 0
    return at


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiled when first needed: all of them cost 5 ms, and most texts need none."""
    return re.compile(pattern)


def _find_by_shape(text: str) -> Iterator[_Found]:
    low = text.lower()
    if len(low) != len(text):  # some letters grow when they are made small
        low = "".join(small if len(small := char.lower()) == 1 else char for char in text)
    words = _NUMBERS.sub("", low)
    for hint, shape in _HINTS:
        if hint not in words:
            continue
        at = low.find(hint)
        while at >= 0:
            if (match := _compile_pattern(shape).match(text, at)) and _has_random_part(match):
                yield _secret_span(match)
                at = low.find(hint, match.end())
            else:
                at = low.find(hint, at + 1)


def _secret_span(match: re.Match[str]) -> _Found:
    """Where a secret stands; the full stop after it belongs to the sentence."""
    named = [name for name, value in match.groupdict().items() if value is not None]
    start, stop = match.span(named[0] if named else 0)
    while match.string[stop - 1] == ".":
        stop -= 1
    return start, stop


def is_random(run: str) -> bool:
    """Whether a value is drawn by chance, and not an expression, a number or a file's name."""
    if _HEX.fullmatch(run):
        return any(char.isalpha() for char in run)
    if _NUMBER.fullmatch(run):
        return False
    if _BASE64.fullmatch(run) and run.lower() != run and run.upper() != run:
        return any(char.isdigit() for char in run)
    pieces = re.split(r"[_.~+/=-]", run[:500])
    return any(len(piece) >= 10 and _LETTER_AFTER_DIGIT.search(piece) for piece in pieces)


def _has_random_part(match: re.Match[str]) -> bool:
    """Of what could as well be a word or a sum: whether a part mixes letters and digits."""
    if match.re.pattern == _NAMED:
        return is_random(match["run"])
    said = match.groupdict().get("said")
    if said is None:
        return True
    return any(
        len(piece) >= 8 and any(map(str.isalpha, piece)) and any(map(str.isdigit, piece))
        for piece in re.split(r"[_.~+/=%-]", said[:500])
    )


def _value_parts(value: str) -> set[str]:
    """A value of several lines or gaps: whole, folded into one line, and each long line."""
    lines = {line.strip() for line in value.splitlines()} if "\n" in value else set()
    found = {value, " ".join(value.split()), *(line for line in lines if len(line) >= 12)}
    return {part for part in found if len(part) >= SHORTEST and not part.startswith("-----")}


def _encoded_forms(value: str) -> set[str]:
    """A value as it stands in text, in JSON, in JSON within JSON, in a URL, and in HTML."""
    # Both cost more than all of this module, and most commands know no secret.
    from html import escape
    from urllib.parse import quote

    found = {value}
    for _ in range(2):
        found |= {
            json.dumps(form, ensure_ascii=not wide)[1:-1]
            for form in found
            for wide in (False, True)
        }
    return found | {quote(value, safe="", errors="replace"), escape(value)}
