"""How alike texts are, offline, which of many fit a question, and what changed word by word."""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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


_RARE_FIRST = 1.5
"""Times the features that may be missing: so many of the rarest are counted first."""


class SimilarTexts:
    """Texts by name, and those of them that are as alike to a text as `at_least` (above 0)."""

    def __init__(self, at_least: float) -> None:
        self._at_least = at_least
        self._clear()

    def _clear(self) -> None:
        self._places: dict[str, int] = {}  # the bit of each name
        self._texts: list[tuple[str, str, int]] = []  # by bit: name, text, features
        self._live = 0  # bits of texts that are held still
        self._holders: defaultdict[str, list[int]] = defaultdict(list)
        self._masks: dict[str, int] = {}  # of words and trigrams that were looked for

    def hold(self, texts: Mapping[str, str]) -> None:
        """Hold these texts and no others; what was held before costs nothing again."""
        for name, at in list(self._places.items()):
            if texts.get(name) != self._texts[at][1]:
                self._live ^= 1 << self._places.pop(name)
        if len(self._texts) > 2 * len(texts) + 100:  # most of them are gone
            self._clear()
        for name, text in texts.items():
            if name not in self._places:
                self._add(name, text)

    def alike(self, text: str) -> dict[str, float]:
        """The texts that are alike, and how much."""
        features = list_features(text)
        size = len(features)
        scores = {
            self._texts[at][0]: 2 * shared / total if (total := size + self._texts[at][2]) else 1.0
            for shared, level in self._levels(features, self._live)
            for at in _bits(level)
        }
        return {name: score for name, score in scores.items() if score >= self._at_least}

    def nearest(self, text: str, without: Sequence[str | None] = ()) -> tuple[str, float] | None:
        """The text that is most alike, some left out; of several the first that shares most."""
        features = list_features(text)
        size = len(features)
        best, least = "", self._at_least
        others = self._live
        for place in {self._places[name] for name in without if name in self._places}:
            others ^= 1 << place
        for shared, level in self._levels(features, others):
            if best and 2 * shared / (size + shared or 1) <= least:
                break
            for at in _bits(level):
                name, _, other = self._texts[at]
                score = 2 * shared / (size + other) if size + other else 1.0
                if score > least or (score == least and not best):
                    best, least = name, score
        return (best, least) if best else None

    def _add(self, name: str, text: str) -> None:
        features = list_features(text)
        at = len(self._texts)
        for kind in features:
            self._holders[kind].append(at)
        if self._masks:
            for kind in features:
                self._masks.pop(kind, None)
        self._texts.append((name, text, len(features)))
        self._places[name] = at
        self._live |= 1 << at

    def _levels(self, features: Sequence[str], left: int) -> Iterator[tuple[int, int]]:
        """How many features are shared with texts of `left`, most first, with the texts' bits.

        From 2 * shared >= t * (a + b) and b >= shared follows how many must be at least, and so how
        many of the rarest: where no text has these, the frequent ones are not counted.
        """
        least = len(features) * self._at_least / (2 - self._at_least) - 1e-6
        missing = len(features) - least
        planes: list[int] = []  # binary digits of the counts, the lowest first
        kinds = sorted(features, key=lambda kind: len(self._holders.get(kind, ())))
        for counted, kind in enumerate(kinds):
            is_due = counted == round(_RARE_FIRST * missing)
            if is_due and _find_highest(planes, left)[1] < counted - missing:
                return
            carry = self._mask(kind)
            for digit, plane in enumerate(planes):
                planes[digit], carry = plane ^ carry, plane & carry
                if not carry:
                    break
            if carry:
                planes.append(carry)
        while left:
            level, shared = _find_highest(planes, left)
            if shared < least:
                return
            yield shared, level
            left &= ~level

    def _mask(self, kind: str) -> int:
        if kind not in self._masks:
            marked = bytearray(len(self._texts) // 8 + 1)
            for at in self._holders.get(kind, ()):
                marked[at >> 3] |= 1 << (at & 7)
            self._masks[kind] = int.from_bytes(marked, "little")
        return self._masks[kind]


def _find_highest(planes: Sequence[int], among: int) -> tuple[int, int]:
    """The bits of those whose count is highest, and that count, by its binary digits."""
    count = 0
    for digit in range(len(planes) - 1, -1, -1):
        if higher := among & planes[digit]:
            among, count = higher, count | 1 << digit
        # Else none of them has this digit, and all go on.
    return among, count


def _bits(mask: int) -> Iterator[int]:
    for at, byte in enumerate(mask.to_bytes(mask.bit_length() // 8 + 1, "little")):
        while byte:
            low = byte & -byte
            yield at * 8 + low.bit_length() - 1
            byte ^= low


Entry = tuple[str, str]
"""Id and text."""

_ALIKE = 0.6
"""Similarity from which two texts under different ids are taken for the same one, reworded."""
_SAME_ID = 0.25
"""What an equal id adds to a similarity: a rewording under its own id wins most of the time."""
_MOST_PAIRS = 250_000
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
    index = SimilarTexts(_ALIKE)
    if len(left) * len(right) <= _MOST_PAIRS:
        index.hold({str(j): newer[j][1] for j in right})
    of_id: dict[str, list[int]] = defaultdict(list)
    for j in right:
        of_id[newer[j][0]].append(j)
    out = []
    for i in left:
        name, text = older[i]
        scores = {int(j): score for j, score in index.alike(text).items()}
        scores |= {j: similarity(text, newer[j][1]) + _SAME_ID for j in of_id[name]}
        out += [(score, i, j) for j, score in scores.items() if score >= _ALIKE]
    return out
