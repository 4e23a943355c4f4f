"""Which experiences stand in a problem's prompt: all, or of many the pinned and most relevant.

Relevance is BM25 between question and experience, by the words of `similarity.tokens`, which are
those of any language. The same library and question choose the same, whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engines.core.library import Experience, Library
from engines.core.text.similarity import tokens

Shown = tuple[str, ...] | None
"""Ids of the experiences that are chosen; None: all of them."""
_Scores = Callable[[list[str]], list[float]]


@dataclass(slots=True)
class PromptWriter:
    """Writes the guidance of a prompt; `cite` asks for the ids of experiences that help.

    A library of more than `above` experiences is not shown whole: each problem gets those that
    are pinned and the `most` that fit its question best. `above` None shows every library whole.
    """

    cite: bool = False
    above: int | None = 30
    most: int = 10
    _indexed: tuple[Experience, ...] = field(default=(), init=False)
    _scores: _Scores = field(default=lambda words: [], init=False)

    def write(self, library: Library | None, question: str) -> tuple[str, Shown]:
        """The text, and which experiences stand in it."""
        if library is None:
            return "", None
        shown = self.choose(library, question)
        return library.guidance(self.cite, shown), shown

    def choose(self, library: Library, question: str) -> Shown:
        """In the library's order. One that shares no word is chosen last, the oldest first."""
        entries = library.experiences
        if self.above is None or len(entries) <= self.above:
            return None
        if entries is not self._indexed:
            self._indexed, self._scores = entries, _index(entries)
        scores = self._scores(list(tokens(question)))
        free = [at for at, entry in enumerate(entries) if not entry.pinned]
        best = sorted(free, key=lambda at: (-scores[at], at))[: self.most]
        pinned = (at for at, entry in enumerate(entries) if entry.pinned)
        return tuple(entries[at].id for at in sorted((*best, *pinned)))

    def describe(self, library: Library | None) -> str:
        """What tells the prompts of one library from those of another: the text of all of it."""
        if library is None:
            return ""
        text = library.guidance(self.cite)
        whole = self.above is None or len(library.experiences) <= self.above
        return text if whole else f"{text}\n\n(the {self.most} most relevant for each problem)"


def _index(entries: tuple[Experience, ...]) -> _Scores:
    import bm25s  # brings numpy along, which small libraries need not wait for

    index = bm25s.BM25()
    index.index([list(tokens(entry.text)) for entry in entries], show_progress=False)

    def score(words: list[str]) -> list[float]:
        if not words:
            return [0.0] * len(entries)
        found: list[float] = index.get_scores(words).tolist()
        return found

    return score
