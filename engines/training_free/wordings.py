"""What the wording of a lesson says of it, by the words in `wordings.yaml`."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from importlib import resources
from typing import Any

import yaml

from engines.core.text.sanitize import one_line
from engines.core.text.similarity import tokens
from engines.core.types import Flag
from engines.training_free.numbers import plain_numbers

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\W?[A-ZÄÖÜ])|(?<=[。！？])|\n+")
_CODE = re.compile(r"`[^`]*`")
_MOST_CHARS = 4_000
"""What is read of a text: a pattern may take time that grows with the square of a sentence."""


def wording_flags(text: str) -> list[Flag]:
    """A flag for each fault, with the words that show it."""
    text = text[:_MOST_CHARS]
    sentences = _SENTENCE.split(text)
    found = []
    for name, (says, finds, unless, whole) in _faults().items():
        for sentence in [_CODE.sub("`code`", text)] if whole else sentences:
            match = next((m for pattern in finds if (m := pattern.search(sentence))), None)
            if match and not any(pattern.search(sentence) for pattern in unless):
                found.append(Flag(name, None, f"{says}: “{one_line(match[0])[:120]}”"))
                break
    return found


def contradiction(one: str, other: str) -> str:
    """How one wording says the opposite of another that is nearly the same; "" where it does not.

    Nearly the same: but for two words on each side, all words of one are those of the other.
    """
    mine, theirs = (Counter(tokens(plain_numbers(text))) for text in (one, other))
    new, gone = list((mine - theirs).elements()), list((theirs - mine).elements())
    if max(len(new), len(gone)) > 2:
        return ""
    for word, old in ((word, old) for word in new for old in gone):
        if (word.isdecimal() and old.isdecimal()) or {word, old} in _words()["opposites"]:
            return f"“{word}”, not “{old}”"
    denial = next((word for word in (*new, *gone) if word in _words()["denials"]), "")
    return f"“{denial}” in one only" if denial and not (new and gone) else ""


def common_names() -> frozenset[str]:
    """Words with a capital that tell of nobody."""
    return frozenset(_words()["names"].split())


@cache
def _words() -> dict[str, Any]:
    source = resources.files(__package__).joinpath("wordings.yaml").read_text("utf-8")
    words = yaml.load(source, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    words["opposites"] = [set(pair.split("/")) for pair in words["opposites"].split()]
    assert isinstance(words, dict)
    return words


@cache
def _faults() -> dict[str, tuple[str, list[re.Pattern[str]], list[re.Pattern[str]], bool]]:
    """By the name of a flag: what it says, what is looked for, what excuses it; whole text?"""
    parts = {name: part.replace(" |", "|") for name, part in _words()["parts"].items()}

    def pattern(words: str, case: bool) -> re.Pattern[str]:
        for _ in range(2):  # a part may hold another
            words = re.sub(r"\{([a-z]+)\}", lambda m: f"(?:{parts[m[1]]})", words)
        return re.compile(words, 0 if case else re.IGNORECASE)

    return {
        name: (
            fault["says"],
            [pattern(words, fault.get("case", False)) for words in fault["find"]],
            [pattern(words, False) for words in fault["unless"]],
            fault.get("case", False),
        )
        for name, fault in _words()["faults"].items()
    }
