"""Whether a text gives a problem away: its question in its own words, or its answer.

Words are those of `engines.core.text.similarity.tokens`, in any language.

* A question leaks where so many of its words stand in a row in the text, unless the same row
  stands in more than `FORM` different questions: then it is how they are put, not what one asks.
  A shorter question leaks where all of it stands there and it is no mere phrase.
* An answer leaks where it stands whole in the text. A number counts from three significant
  digits on (100 has one, 360 two, 128 three), because shorter ones stand in many sentences;
  one of just three may be a well-known constant (365, 3.14) and scores half. Words count as
  two or more, or as one that is the answer of one or two problems only (others are the classes
  of a task, such as "positive") and of no question of its own (rules name those things).
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from engines.core.text.similarity import tokens, window_length
from engines.core.types import Problem

FORM = 5
_CLASS_FROM = 3  # problems that share a one-word answer
_PHRASE = 5  # words of a short question that holds no number
_LEAST = 3
_SIGNIFICANT = 3
_NUMBER_BITS = 24  # of an entry, for the number of its question
_LOW = (1 << _NUMBER_BITS) - 1
_HIGH = (1 << 64) - 1 - _LOW
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class SharedWords:
    """Words that a text has in a row in common with a question; `share` is of the question."""

    held_out: bool
    words: int
    share: float
    text: str


class QuestionIndex:
    """Every row of so many words of the questions, found by hash and then compared.

    Takes 8 bytes a word of them. Held-out questions come first, so that one which stands in
    both sets counts as held out.
    """

    def __init__(
        self, practised: Sequence[Problem], held_out: Sequence[Problem], words: int
    ) -> None:
        self._words = words
        self._last: tuple[int, Set[tuple[str, ...]]] = (-1, frozenset())
        hidden = dict.fromkeys(problem.question for problem in held_out)
        known = dict.fromkeys(problem.question for problem in practised)
        self._texts = list({**hidden, **known})
        self._held_out = len(hidden)
        self._short: dict[tuple[str, ...], int] = {}
        entries: list[int] = []
        for number, text in enumerate(self._texts):
            found = tokens(text)
            own = {row for _, row in word_ngrams(found, words)}
            entries.extend(hash(row) & _HIGH | number for row in own)
            if not own and _is_distinctive(found):
                self._short.setdefault(found, number)
        entries.sort()
        self._entries = array("Q", entries)
        self._lengths = sorted({len(short) for short in self._short})

    def longest_shared(self, text: str) -> tuple[SharedWords, ...]:
        """The longest row a text shares with a held-out question, and with a practised one."""
        said = tokens(text)
        covered: dict[int, set[int]] = {}
        for at, row in word_ngrams(said, self._words):
            for number in self._questions_with(row):
                covered.setdefault(number, set()).update(range(at, at + len(row)))
        found = [self._longest_match(said, number, places) for number, places in covered.items()]
        for length in self._lengths:
            for at in range(len(said) - length + 1):
                number = self._short.get(said[at : at + length], -1)
                if number >= 0:
                    words = " ".join(said[at : at + length])
                    found.append(SharedWords(number < self._held_out, length, 1.0, words))
        found.sort(key=lambda s: (s.words, s.share))  # the last one of each kind stays
        return tuple({shared.held_out: shared for shared in found}.values())

    def _questions_with(self, row: tuple[str, ...]) -> list[int]:
        """Questions that hold a row; none where it is a form of many."""
        key = hash(row) & _HIGH
        at = bisect_left(self._entries, key)
        numbers: list[int] = []
        while at < len(self._entries) and self._entries[at] & _HIGH == key:
            numbers.append(self._entries[at] & _LOW)
            if len(numbers) > FORM:
                return []
            at += 1
        return [n for n in numbers if row in self._ngrams_of(n)]

    def _ngrams_of(self, number: int) -> Set[tuple[str, ...]]:
        """A question's rows. The last one is kept: a text mostly meets one question often."""
        if self._last[0] != number:
            found = tokens(self._texts[number])
            self._last = (number, frozenset(row for _, row in word_ngrams(found, self._words)))
        return self._last[1]

    def _longest_match(self, said: tuple[str, ...], number: int, places: set[int]) -> SharedWords:
        best = start = end = 0
        for at in sorted(places):
            start = at if at - 1 not in places else start
            if at - start + 1 > best:
                best, end = at - start + 1, at + 1
        share = min(1.0, best / len(tokens(self._texts[number])))
        return SharedWords(number < self._held_out, best, share, " ".join(said[end - best : end]))


class AnswerIndex:
    """What may give the answer of a practised problem away, by the problem's id."""

    def __init__(self, practised: Sequence[Problem]) -> None:
        self._problems = {problem.id: problem for problem in practised}
        shared = Counter(
            (text, problem.question)
            for problem in self._problems.values()
            for text in {tokens(accepted) for accepted in problem.accepted_answers}
        )
        self._answered = Counter(text for text, _ in shared)

    def find_leak(self, text: str, problems: Sequence[str]) -> tuple[str, float] | None:
        """The answer of one of these problems that stands in the text, and how telling it is."""
        said = tokens(text)
        numbers = {_normalise_number(n) for n in _NUMBER.findall(text)}
        found = [
            (answer, self._leak_score(answer, said, numbers, problem))
            for problem in (self._problems[name] for name in problems if name in self._problems)
            for answer in map(_final_answer, problem.accepted_answers)
        ]
        best = max(found, key=lambda pair: pair[1], default=("", 0.0))
        return best if best[1] > 0 else None

    def _leak_score(
        self, answer: str, said: tuple[str, ...], numbers: set[str], problem: Problem
    ) -> float:
        own = _NUMBER.findall(answer)
        if len(own) == 1 and _significant_digits(own[0]) >= _SIGNIFICANT:
            if _normalise_number(own[0]) not in numbers:
                return 0.0
            return 0.5 if _significant_digits(own[0]) == _SIGNIFICANT else 1.0
        words = tokens(answer)
        if not words or not _contains_words(words, said) or not any(w.isalpha() for w in words):
            return 0.0
        if sum(w.isalpha() for w in words) > (1 if window_length(words[0], 2) == 2 else 3):
            return 1.0
        asked = _contains_words(words, tokens(problem.question))
        short = sum(map(len, words)) < _LEAST and window_length(words[0], 2) == 2
        if asked or short or self._answered[words] >= _CLASS_FROM:
            return 0.0
        return 0.5


def word_ngrams(found: tuple[str, ...], words: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every row of so many words of a text's tokens, with where it begins."""
    for at, token in enumerate(found):
        size = window_length(token, words)
        if at + size <= len(found):
            yield at, found[at : at + size]


def _is_distinctive(found: tuple[str, ...]) -> bool:
    numbered = any(token.isdecimal() for token in found)
    return len(found) >= (_LEAST if numbered else window_length(found[0], _PHRASE) if found else 1)


def _final_answer(answer: str) -> str:
    """What a worked answer ends in; an answer that is no more than that stays as it is."""
    return answer.rpartition("####")[2].strip()


def _normalise_number(number: str) -> str:
    bare = number.replace(",", "").lstrip("-")
    return bare.rstrip("0").rstrip(".") if "." in bare else bare


def _significant_digits(number: str) -> int:
    return len(_normalise_number(number).replace(".", "").strip("0"))


def _contains_words(words: tuple[str, ...], said: tuple[str, ...]) -> bool:
    size = len(words)
    return any(said[at : at + size] == words for at in range(len(said) - size + 1))
