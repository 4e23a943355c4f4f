"""How near two wordings of a lesson are, judged by their words alone.

It plays the part of a model's judgement, so it shares no code with the studio's check of that.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"^([^:]{1,80}):\s+(.*)$", re.S)
_SMALL_WORDS = """
a an the of to in into it its is are be one that this which what when if and or as at by
for from on so than then there with you your do does up
"""
_DENIALS = "never not no don't dont without avoid instead"
_PLAIN = frozenset(_SMALL_WORDS.split())
_NOT = frozenset(_DENIALS.split())


def split_experience(text: str) -> tuple[str, str]:
    """Name and sentence of an experience; the name is empty where there is none."""
    if match := _NAME.match(text.strip()):
        return match[1].strip(), match[2].strip()
    return "", text.strip()


def content_words(text: str) -> frozenset[str]:
    """The words that carry meaning, with plain endings cut."""
    found = re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.lower())
    return (
        frozenset(re.sub(r"(?:ing|ed|es|s)$", "", w) if len(w) > 3 else w for w in found) - _PLAIN
    )


def has_negation(text: str) -> bool:
    return any(w in _NOT for w in re.findall(r"[\w']+", text.lower()))


def word_similarity(one: str, other: str) -> float:
    """Shared words as a share of all words of both sentences, names left out; 0 to 1."""
    a, b = content_words(split_experience(one)[1]), content_words(split_experience(other)[1])
    return len(a & b) / len(a | b) if a | b else 1.0


def word_coverage(text: str, part: str) -> float:
    """How much of the part's words the text has; 0 to 1."""
    wanted = content_words(part)
    return len(wanted & content_words(text)) / len(wanted) if wanted else 1.0


def has_same_name(one: str, other: str) -> bool:
    a, b = split_experience(one)[0].casefold(), split_experience(other)[0].casefold()
    return bool(a) and a == b
