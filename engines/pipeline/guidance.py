"""Which experiences stand in a problem's prompt: all, or of many the pinned and most relevant.

Relevance is BM25 between question and experience, by the words of `similarity.tokens`, which are
those of any language. The same library and question choose the same, whoever asks.
"""

from dataclasses import dataclass, field
from functools import partial

from engines.core import settings, waiting
from engines.core.library import Experience, Library
from engines.core.text.similarity import FindBest, index_words, tokens
from engines.pipeline.effect.worth import Keep

Shown = tuple[str, ...] | None
"""Ids of the experiences that are chosen; None: all of them."""


@dataclass(slots=True)
class PromptWriter:
    """Writes the guidance of a prompt; `cite` asks for the ids of experiences that help.

    A library of more than `above` experiences is not shown whole: each problem gets those that
    are pinned and the `most` that fit its question best. `above` None shows every library whole.
    """

    cite: bool = False
    above: int | None = settings.SHOWN_WHOLE
    most: int = 10
    _indexed: tuple[Experience, ...] = field(default=(), init=False)
    _find_best: FindBest = field(default=lambda words, most: [], init=False)
    _pinned: list[int] = field(default_factory=list, init=False)

    def write(
        self, library: Library | None, question: str, keep: Keep | None = None
    ) -> tuple[str, Shown]:
        """The text, and which experiences stand in it: of those chosen, what `keep` leaves."""
        if library is None:
            return "", None
        shown = self.choose(library, question)
        if keep is not None:
            chosen = tuple(e.id for e in library.experiences) if shown is None else shown
            kept = tuple(filter(keep, chosen))
            shown = shown if kept == chosen else kept
        return library.guidance(self.cite, shown), shown

    def choose(self, library: Library, question: str) -> Shown:
        """In the library's order. One that shares no word is chosen last, the oldest first."""
        entries = library.experiences
        if self._shows_all(library):
            return None
        self._index(entries)
        most = min(self.most + len(self._pinned), len(entries))
        best = self._find_best(tokens(question), most)
        free = [at for at in best if not entries[at].pinned][: self.most]
        return tuple(entries[at].id for at in sorted((*free, *self._pinned)))

    async def prepare(self, library: Library | None) -> None:
        """Get ready to choose from a library; thousands of experiences take a second."""
        if library is not None and not self._shows_all(library):
            await waiting.run_to_end(partial(self._index, library.experiences))

    def describe(self, library: Library | None) -> str:
        """What tells the prompts of one library from those of another: the text of all of it."""
        if library is None:
            return ""
        text = library.guidance(self.cite)
        chosen = f"{text}\n\n(the {self.most} most relevant for each problem)"
        return text if self._shows_all(library) else chosen

    def _shows_all(self, library: Library) -> bool:
        return self.above is None or len(library.experiences) <= self.above

    def _index(self, entries: tuple[Experience, ...]) -> None:
        if entries is not self._indexed:
            if entries != self._indexed:
                self._find_best = _index_words(entries)
                self._pinned = [at for at, entry in enumerate(entries) if entry.pinned]
            self._indexed = entries


def _index_words(entries: tuple[Experience, ...]) -> FindBest:
    return index_words([tokens(entry.text) for entry in entries])
