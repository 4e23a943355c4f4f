"""A reply of JSON as it streams, for people: its keys and values a line each."""

from __future__ import annotations

import json
from dataclasses import dataclass

from engines.core.protocols import OnText

_HIGH = ("d8", "d9", "da", "db")
"""With what the first half of a surrogate pair begins."""


@dataclass(slots=True)
class SpokenStream:
    """Passes on what a member says without the marks of JSON; what is no JSON as it comes."""

    show: OnText
    is_json: bool | None = None  # None: nothing but blanks came yet
    in_text: bool = False
    escape: str = ""  # as far as it came, such as \u00e

    def __call__(self, text: str) -> None:
        if self.is_json is None and text.strip():
            self.is_json = text.lstrip().startswith("{")
        shown = "".join(map(self._translate, text)) if self.is_json else text
        if shown:
            self.show(shown)

    def _translate(self, char: str) -> str:
        if self.escape or (self.in_text and char == "\\"):
            return self._unescape(char)
        if char == '"':
            self.in_text = not self.in_text
            return ""
        if self.in_text:
            return char
        return {":": ": ", ",": "\n"}.get(char, "" if char in "{}[]" or char.isspace() else char)

    def _unescape(self, char: str) -> str:
        self.escape += char
        pair = self.escape[2:4].lower() in _HIGH
        if len(self.escape) < (2 if self.escape[1:2] not in ("", "u") else 12 if pair else 6):
            return ""
        written, self.escape = self.escape, ""
        try:
            return str(json.loads(f'"{written}"')).replace("\t", " ").replace("\r", "")
        except ValueError:
            return written[1:]
