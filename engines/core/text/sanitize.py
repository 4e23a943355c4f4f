r"""Text from models, tools, data and people, so that what is read is what is there.

What is hidden or steers is shown by its code point, as `\u202e`. Nothing is dropped, because a
gap would hide that something was there; and nothing is decoded, because hidden text that is
spelled out would be an instruction again.

What stands where its script needs it stays as it is: joiners within Arabic, Indic and
emoji sequences, one variation selector after a character that has variants. Elsewhere the same
characters carry text that nobody sees.
"""

import json
import re
import unicodedata

from engines.core.codec import fix_surrogates

_SUSPECT = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls: escape sequences begin with one
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # take no room
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # joiners, marks, separators
    "\ufe00-\ufe0f"  # variation selectors: 16 of them spell anything
    "\ud800-\udfff"  # halves of pairs, which no file can hold
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"  # tags and more variation selectors
    "]"
)
_JOINED = (
    (0x0600, 0x08FF),  # Arabic, Syriac, Thaana, N'Ko, Mandaic
    (0x0900, 0x0DFF),  # the scripts of India and Sri Lanka
    (0x0F00, 0x109F),  # Tibetan, Myanmar
    (0x1780, 0x18AF),  # Khmer, Mongolian
    (0x1A20, 0x1BFF),
    (0xA800, 0xABFF),
    (0xFB50, 0xFDFF),
    (0xFE70, 0xFEFC),
    (0x10A00, 0x11FFF),
)
"""Blocks of scripts whose letters a joiner or non-joiner shapes."""


def escape_unsafe(text: str) -> str:
    """Show by code point what steers, reorders, hides or breaks lines unseen; new lines stay."""
    if (text.isascii() and text.isprintable()) or not _SUSPECT.search(text):
        return text

    def escape(match: re.Match[str]) -> str:
        char, at = match[0], match.start()
        if _is_needed(char, text, at):
            return char
        code = ord(char)
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return _SUSPECT.sub(escape, text)


def escape_unsafe_json(line: str) -> str:
    """JSON that says the same with nothing hidden in it: such characters stand as escapes."""
    return _SUSPECT.sub(lambda match: json.dumps(match[0])[1:-1], line)


def _is_needed(char: str, text: str, at: int) -> bool:
    """Whether a character that can hide text does here what it is there for."""
    before = text[at - 1] if at else ""
    after = text[at + 1] if at + 1 < len(text) else ""
    code = ord(char)
    if not before:
        return False
    if char in "\u200c\u200d":
        if _is_joined(before) and (char == "\u200d" or _is_joined(after)):
            return True
        return char == "\u200d" and _is_picture(before) and _is_picture(after)
    if code in (0xFE0E, 0xFE0F):
        return before in "0123456789#*©®‼⁉™ℹ" or (before != "\ufe0f" and _is_picture(before))
    return 0xE0100 <= code <= 0xE01EF and "CJK UNIFIED" in unicodedata.name(before, "")


def _is_joined(char: str) -> bool:
    letter = char != "" and unicodedata.category(char)[0] in "LM"
    return letter and any(low <= ord(char) <= high for low, high in _JOINED)


def _is_picture(char: str) -> bool:
    if not char:
        return False
    if char == "\ufe0f":
        return True
    return not char.isascii() and unicodedata.category(char) in ("So", "Sk", "Sm")


def one_line(text: str) -> str:
    """Fold white space and show what is hidden: an experience is one line of a prompt.

    A person approves what can be seen, so nothing else may come into a library.
    """
    return escape_unsafe(" ".join(fix_surrogates(text).split()))
