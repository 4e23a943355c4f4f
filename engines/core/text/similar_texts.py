"""Which of many texts are alike, without comparing all of them.

Finds what `similarity` of every pair would find. The words and trigrams that a text shares with
each of the others are counted for all of them at once, in integers with a bit for each text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from engines.core.text.similarity import list_features

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
