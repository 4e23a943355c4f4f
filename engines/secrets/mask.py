"""Keys and secrets, kept out of whatever is written or shown.

They are masked by value, where a run was given them, and by shape, where nobody announced them;
a key of neither kind cannot be told from any other word. Text that holds none comes back as it
is, and JSON stays JSON.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from engines.secrets.rules import (
    GAP,
    HINTS,
    NAMES,
    PREFIXES,
    RUN,
    START,
    Span,
    compile_pattern,
    find_secrets,
)

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
request content_hash prompt_hash digest checksum file fate use learns network
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


Find = Callable[[str], Iterable[Span]]
Tell = Callable[[str], object]


class Mask:
    """Replaces secrets in text: these values, whatever they look like, and known shapes.

    Very short values and placeholders (`PLACEHOLDERS`) are left to their shape. `find_more` finds
    what is known to be secret without its value.
    """

    def __init__(self, values: Iterable[str] = (), find_more: Find | None = None) -> None:
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

    def __call__(self, text: str, tell: Tell | None = None) -> str:
        """`tell` gets each secret that its shape gave away."""
        for value in self.values:
            if value in text:
                text = text.replace(value, MASK)
        spans = [*find_secrets(text)]
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

    def stream(self, pass_on: Callable[[str], None]) -> "StreamMask":
        """A mask for text that comes in pieces."""
        return StreamMask(self, pass_on)

    def _mask_name(self, name: Any) -> Any:
        """A name that a model or a file chose may be a secret; those of fields are words."""
        return self(name) if isinstance(name, str) and not _WORD.fullmatch(name) else name


def hide_spans(text: str, spans: list[Span], tell: Tell | None = None) -> str:
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
            open_shape := compile_pattern(_OPEN).search(tail, start)
        ):
            keep = max(keep, len(tail) - open_shape.start())
        if (block := tail.rfind("-----BEGIN ")) >= 0 and "-----END " not in tail[block:]:
            keep = max(keep, len(tail) - block)
        return keep if keep < HELD_BACK else 0


def _prefix_pattern(words: Iterable[str]) -> str:
    """Matches a part of one of the words that goes up to its last letter but one."""
    parts = {word[:size] for word in words for size in range(1, len(word))}
    return "|".join(re.escape(part) for part in sorted(parts, key=lambda part: (-len(part), part)))


_OPEN = (
    r"(?i)(?:"
    rf"{START}(?:{'|'.join(map(re.escape, PREFIXES))}){RUN}*+"
    rf"|{START}(?:{_prefix_pattern(PREFIXES)})"
    rf"|(?:bearer|basic)(?::?[ \t]{{0,8}}+{RUN}*+)?|(?:{_prefix_pattern(('bearer', 'basic'))})"
    rf"|(?:{'|'.join(NAMES)})(?:\\*[\"'])?{GAP}\\{{0,4}}"
    rf"(?:(?:[:=]|(?:is|provided:){GAP[:-6]}{{1,40}}+){GAP}\\*(?:[\"']{RUN}*+|{RUN}*+)"
    rf"|(?:{_prefix_pattern(('is ', 'provided: '))}))?"
    rf"|(?:{_prefix_pattern(NAMES)})"
    r"|:(?:/(?:/[^\s/@\"'\\]{0,300}+)?)?"
    rf"|(?:{_prefix_pattern(('-----BEGIN ',))})"
    r")\Z"
)


_PARTS = tuple(
    {
        word[:size]
        for word in (*PREFIXES, *NAMES, "bearer", "basic", "-----begin ", "://")
        for size in range(1, len(word))
    }
)


def _may_be_open(low: str) -> bool:
    """Whether `_OPEN` may match in a text of small letters: it takes ten times as long to say."""
    return low.endswith(_PARTS) or any(hint in low for hint in HINTS)


def _candidate_start(text: str) -> int:
    """Where a name, its sign and its value can begin at the earliest: three gaps back."""
    at = len(text)
    for _ in range(4):
        at = len(text[:at].rstrip())
        at = max(text.rfind(" ", 0, at), text.rfind("\n", 0, at), text.rfind("\t", 0, at))
        if at <= 0:
            return 0
    return at


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
