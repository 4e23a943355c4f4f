"""How alike texts are, offline, which of many fit a question, and what changed word by word."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

Change = tuple[Literal["same", "cut", "new"], str]
FindBest = Callable[[Sequence[str], int], list[int]]
"""Positions most relevant to words, at most so many; the best first, of equal ones the first."""

_WORD = re.compile(r"\w+")
_BLANKLESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, kana and the ideographs of the basic plane."""
_LETTER = re.compile(f"[{_BLANKLESS}]")
_TOKENS = re.compile(f"[{_BLANKLESS}]|[^\\W{_BLANKLESS}]+")
_TOKEN = re.compile(r"\s+|[^\s]+")
_SENTENCE = re.compile(r"[^.!?。！？]*[.!?。！？]*\s*")
_MAX_WORDS = 200
"""difflib takes 2 ms at 100 words and 300 at 1,000; above this, sentences come first."""

MOST_CHARS = 2_000
"""What is compared of a text: five times an experience, and a model may propose 200,000."""


def similarity(one: str, other: str) -> float:
    """Dice coefficient of word and character-trigram counts, in [0, 1].

    Words catch reordered wordings, trigrams inflected ones and languages that do
    not put blanks between words.
    """
    a, b = _features(one), _features(other)
    total = len(a) + len(b)
    return 2 * len(a & b) / total if total else 1.0


def tokens(text: str) -> tuple[str, ...]:
    """Words in order, folded; a script that puts no blanks between words gives its letters."""
    return tuple(_TOKENS.findall(text.casefold()))


def index_words(documents: Sequence[Sequence[str]]) -> FindBest:
    """Index the words of texts; a text that shares none of a question's is found last."""
    import bm25s  # brings numpy along, which short lists need not wait for

    index = bm25s.BM25()
    if any(documents):  # else it divides by their mean length
        index.index(list(map(list, documents)), show_progress=False)

    def find_best(words: Sequence[str], most: int) -> list[int]:
        most = min(most, len(documents))
        if not words or not any(documents):
            return list(range(most))
        scores = index.get_scores(list(words))
        parted = scores.copy()
        parted.partition(-most)  # a tenth of what sorting all of them takes
        (at,) = (scores >= parted[-most]).nonzero()
        chosen: list[int] = at[(-scores[at]).argsort(kind="stable")][:most].tolist()
        return chosen

    return find_best


def window_length(token: str, words: int) -> int:
    """How many tokens from this one on make up so many words.

    A word of Chinese or Japanese has about one and a half letters.
    """
    return words * 3 // 2 if _LETTER.fullmatch(token) else words


def word_count(text: str) -> int:
    """Words of a text; of scripts without blanks, letters at one and a half a word."""
    found = tokens(text)
    letters = sum(_LETTER.fullmatch(token) is not None for token in found)
    return len(found) - letters + round(letters / 1.5)


def word_diff(before: str, after: str) -> tuple[Change, ...]:
    """Pieces in reading order; joining same and cut gives `before`, same and new `after`."""
    old, new = _TOKEN.findall(before), _TOKEN.findall(after)
    if max(len(old), len(new)) > 2 * _MAX_WORDS:  # a token is a word or a gap
        old, new = _SENTENCE.findall(before), _SENTENCE.findall(after)
    changes: list[Change] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            changes.append(("same", "".join(old[i:j])))
            continue
        if i < j:
            changes.append(("cut", "".join(old[i:j])))
        if k < m:
            changes.append(("new", "".join(new[k:m])))
    return tuple(changes)


def format_changes(changes: Sequence[Change]) -> str:
    """Render as `[-old-]` and `{+new+}`, readable without any colour."""
    marks = {"same": "{}", "cut": "[-{}-]", "new": "{{+{}+}}"}
    return "".join(marks[kind].format(text) for kind, text in changes)


def list_features(text: str) -> list[str]:
    """The words and trigrams of a text, each repeat as one of its own with a number behind it.

    A trigram that happens to be a word counts as that word, repeated.
    """
    words = _WORD.findall(text[:MOST_CHARS].casefold())
    joined = " ".join(words)
    grams = map("".join, zip(joined, joined[1:], joined[2:], strict=False))
    bag = Counter((*words, *grams))
    repeats = [f"{gram}\0{n}" for gram, count in bag.items() if count > 1 for n in range(1, count)]
    return [*bag, *repeats]


@lru_cache(maxsize=512)  # a lesson compares each text with every other one
def _features(text: str) -> frozenset[str]:
    """As a set: two of them intersect at the speed of C, five times that of counters."""
    return frozenset(list_features(text))
