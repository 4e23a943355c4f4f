"""Which of many texts fit a question best: BM25 over their words.

Words are those of `similarity.tokens`, in any language. The same texts and question give the same
order, whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

FindBest = Callable[[Sequence[str], int], list[int]]
"""Positions most relevant to words, at most so many; the best first, of equal ones the first."""


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
