"""A reply of JSON as it streams, for people: its keys and values a line each."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core.protocols import OnText


@dataclass(slots=True)
class SpokenStream:
    """Passes on what a member says without the marks of JSON; what is no JSON as it comes."""

    show: OnText
    is_json: bool | None = None  # None: nothing but blanks came yet
    in_text: bool = False
    escaped: bool = False

    def __call__(self, text: str) -> None:
        if self.is_json is None and text.strip():
            self.is_json = text.lstrip().startswith("{")
        shown = "".join(map(self._translate, text)) if self.is_json else text
        if shown:
            self.show(shown)

    def _translate(self, char: str) -> str:
        if self.escaped:
            self.escaped = False
            return {"n": "\n", "t": " "}.get(char, char)
        if self.in_text and char == "\\":
            self.escaped = True
            return ""
        if char == '"':
            self.in_text = not self.in_text
            return ""
        if self.in_text:
            return char
        return {":": ": ", ",": "\n"}.get(char, "" if char in "{}[]" or char.isspace() else char)
