"""The index of texts finds what comparing each with each finds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.text.similarity import SimilarTexts, similarity

WORDS = (
    "carry",
    "the tens",
    "before",
    "you",
    "add",
    "ones",
    "42",
    "a column",
    "十",
    "进位",
    "never",
)
SENTENCE = st.lists(st.sampled_from([*WORDS, "Über", "!!", "x^2"]), max_size=14).map(" ".join)


def held(index: SimilarTexts, texts: dict[str, str]) -> SimilarTexts:
    index.hold(texts)
    return index


def compared(text: str, texts: dict[str, str], at_least: float) -> dict[str, float]:
    scores = {name: similarity(text, other) for name, other in texts.items()}
    return {name: score for name, score in scores.items() if score >= at_least}


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(SENTENCE, max_size=12),
    later=st.lists(SENTENCE, max_size=6),
    text=SENTENCE,
    at_least=st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.85, 1.0]),
)
def test_the_index_finds_what_comparing_all_finds_also_after_a_change(
    texts: list[str], later: list[str], text: str, at_least: float
) -> None:
    first = {f"E{n}": one for n, one in enumerate(texts)}
    index = held(SimilarTexts(at_least), first)
    # Some names now say something else, and some are gone.
    second = dict(list(first.items())[::2]) | {f"E{n * 3}": one for n, one in enumerate(later)}
    for now in (first, second):
        held(index, now)
        full = compared(text, now, at_least)
        assert index.alike(text) == full
        left = {name: score for name, score in full.items() if name != "E0"}
        best = max(left.values(), default=0.0)
        nearest = index.nearest(text, ("E0",))
        assert nearest in [(name, score) for name, score in left.items() if score == best] or (
            nearest is None and not left
        )


@pytest.mark.parametrize("at_least", [0.8, 0.85])
def test_near_copies_among_many_texts_are_found(at_least: float) -> None:
    chance = random.Random(3)
    words = [f"{a}{b}{c}" for a in "bcdfgk" for b in "aeiou" for c in ("r", "lt", "nd", "ss")]
    texts = {f"E{n}": " ".join(chance.choices(words, k=20)) for n in range(300)}
    index = held(SimilarTexts(at_least), texts)
    for name in list(texts)[:40]:
        some = texts[name].split()
        some[chance.randrange(20)] = chance.choice(words)
        text = " ".join(some)
        assert name in (found := index.alike(text))
        assert found == compared(text, texts, at_least)
