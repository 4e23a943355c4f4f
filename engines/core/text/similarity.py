"""How alike texts are, offline, which of many fit a question, and what changed word by word."""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
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
    return _share(_features(one), _features(other))


def _share(a: frozenset[str], b: frozenset[str]) -> float:
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
        best: list[int] = (-scores).argsort(kind="stable")[:most].tolist()
        return best

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


class SimilarTexts:
    """Texts by name, and those of them that are as alike to a text as `at_least` (above 0)."""

    def __init__(self, at_least: float) -> None:
        self._at_least = at_least
        self._held: dict[str, tuple[str, frozenset[str]]] = {}  # each with its features

    def hold(self, texts: Mapping[str, str]) -> None:
        """Hold these texts and no others; what was held before costs nothing again."""
        before, self._held = self._held, {}
        for name, text in texts.items():
            if name in before and before[name][0] == text:
                self._held[name] = before[name]
            else:
                self._held[name] = text, frozenset(list_features(text))

    def alike(self, text: str) -> dict[str, float]:
        """Return the texts that are alike, and how much."""
        features = _features(text)
        scores = {name: _share(features, other) for name, (_, other) in self._held.items()}
        return {name: score for name, score in scores.items() if score >= self._at_least}

    def nearest(self, text: str, without: Sequence[str | None] = ()) -> tuple[str, float] | None:
        """The text that is most alike, some left out; of several the first."""
        scores = {name: score for name, score in self.alike(text).items() if name not in without}
        return max(scores.items(), key=lambda item: item[1], default=None)


Entry = tuple[str, str]
"""Id and text."""

_ALIKE = 0.6
"""Similarity from which two texts under different ids are taken for the same one, reworded."""
_SAME_ID = 0.25
"""What an equal id adds to a similarity: a rewording under its own id wins most of the time."""
_MOST_PAIRS = 40_000
"""Of texts that may be alike; where there would be more, only those of one id are compared."""


def pair_entries(older: Sequence[Entry], newer: Sequence[Entry]) -> tuple[tuple[int, int], ...]:
    """Positions of the texts that belong together, in order of the newer list.

    The rule: equal wordings first, those under one id before others; then wordings that are
    equal but for case, blanks and punctuation; then the most alike, from a similarity of 0.6
    on, where an equal id adds 0.25; what is left then pairs by id. So a text that was
    rewritten under its id stays with it, unless another one is clearly its successor. Swapping
    the lists swaps the pairs.
    """
    found: dict[int, int] = {}  # newer → older
    left, right = set(range(len(older))), set(range(len(newer)))

    def take(i: int, j: int) -> None:
        found[j] = i
        left.discard(i)
        right.discard(j)

    def by_key(key: Callable[[Entry], Hashable]) -> None:
        known: dict[Hashable, list[int]] = defaultdict(list)
        for i in sorted(left):
            known[key(older[i])].append(i)
        for j in sorted(right):
            if same := known[key(newer[j])]:
                take(same.pop(0), j)

    by_key(lambda entry: entry)
    by_key(lambda entry: entry[1])
    by_key(lambda entry: (entry[0], _normalize(entry[1])))
    by_key(lambda entry: _normalize(entry[1]))
    # Two pairs that exclude each other differ in the sum of their positions, also mirrored.
    scored = ((-score, i + j, i, j) for score, i, j in _scores(older, newer, left, right))
    for _, _, i, j in sorted(scored):
        if i in left and j in right:
            take(i, j)
    by_key(lambda entry: entry[0])
    return tuple((found[j], j) for j in sorted(found))


def _normalize(text: str) -> Hashable:
    """The words alone; a text without any is itself."""
    return tokens(text) or text


def _scores(
    older: Sequence[Entry], newer: Sequence[Entry], left: set[int], right: set[int]
) -> list[tuple[float, int, int]]:
    are_few = len(left) * len(right) <= _MOST_PAIRS
    scores = []
    for i in left:
        for j in right:
            is_same = older[i][0] == newer[j][0]
            if is_same or are_few:
                score = similarity(older[i][1], newer[j][1]) + _SAME_ID * is_same
                scores.append((score, i, j))
    return [row for row in scores if row[0] >= _ALIKE]
