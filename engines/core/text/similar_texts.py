"""Which of many texts are alike, without comparing all of them.

Finds what `similarity_above` finds of every pair. Two texts that are that alike share one of the
rarest words or trigrams of both: only texts that share one there are compared (prefix filtering).

Source: Bayardo, Ma and Srikant, Scaling Up All Pairs Similarity Search, WWW 2007, section 4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from engines.core.text.similarity import (
    count_features,
    similarity,
    similarity_above,
    similarity_bound,
)
from engines.core.time_slice import TimeSlice

_SAMPLE = 500
"""Texts that tell what is rare. Any order finds the same; a better one compares less."""


class SimilarTexts:
    """Texts by name, and those of them that are as alike to a text as `at_least` (above 0)."""

    def __init__(self, at_least: float) -> None:
        self._at_least = at_least
        self._texts: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._rank: dict[str, int] = {}  # of words and trigrams: the rarer, the lower
        self._holders: defaultdict[int, list[str]] = defaultdict(list)  # by the rank they share

    async def hold(self, texts: Mapping[str, str]) -> None:
        """Hold these texts and no others; what was held before costs nothing again."""
        for name in [name for name, text in self._texts.items() if texts.get(name) != text]:
            del self._texts[name], self._sizes[name]
        turn = TimeSlice()
        if not self._rank:
            found: Counter[str] = Counter()
            for text in islice(texts.values(), 0, None, len(texts) // _SAMPLE + 1):
                found.update(count_features(text)[1])
                await turn.give_way()
            self._rank = {kind: at for at, kind in enumerate(sorted(found, key=found.__getitem__))}
        for name, text in texts.items():
            if name not in self._texts:
                self._add(name, text)
                await turn.give_way()

    def alike(self, text: str) -> dict[str, float]:
        """The texts that are alike, and how much."""
        scores = {
            name: similarity_above(text, self._texts[name], self._at_least)
            for name in self._candidates(text)
        }
        return {name: score for name, score in scores.items() if score is not None}

    def nearest(self, text: str, without: Sequence[str | None] = ()) -> dict[str, float]:
        """Those of the texts that are most alike, some left out; more than one score the same."""
        bounds = [
            (bound, name)
            for name in self._candidates(text)
            if name not in without
            and (bound := similarity_bound(text, self._texts[name])) >= self._at_least
        ]
        best: dict[str, float] = {}
        least = self._at_least
        for bound, name in sorted(bounds, reverse=True):
            if bound < least:
                break
            score = similarity(text, self._texts[name])
            if score >= least:
                best = {**(best if score == least else {}), name: score}
                least = score
        return best

    def _candidates(self, text: str) -> list[str]:
        """Those that may be alike: they share something rare, and their sizes lie near."""
        size, kinds = count_features(text)
        known = sorted(self._rank[kind] for kind in kinds if kind in self._rank)
        # No text held has an unknown kind: those stand first, and nothing is found by them.
        prefix = known[: max(0, self._prefix_length(size) - (len(kinds) - len(known)))]
        near = {name for rank in prefix for name in self._holders.get(rank, ())}
        if not kinds:
            near = {name for name, other in self._sizes.items() if not other}
        least = self._least_overlap(size)
        return [
            name
            for name in near
            if (other := self._sizes.get(name, -1)) >= least and size >= self._least_overlap(other)
        ]

    def _add(self, name: str, text: str) -> None:
        size, kinds = count_features(text)
        ranks = sorted(self._rank.setdefault(kind, -len(self._rank)) for kind in kinds)
        for rank in ranks[: self._prefix_length(size)]:
            self._holders[rank].append(name)
        self._texts[name], self._sizes[name] = text, size

    def _least_overlap(self, size: int) -> float:
        """Features that a text shares with any that is alike: from 2 * shared >= t * (a + b)."""
        return size * self._at_least / (2 - self._at_least) - 1e-6

    def _prefix_length(self, size: int) -> int:
        """One more than the features that it may have alone."""
        return int(size - self._least_overlap(size)) + 1
