"""Which text of one list stands for which text of another, where both have ids. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from engines.core.text.similar_texts import SimilarTexts
from engines.core.text.similarity import similarity, tokens

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
