"""How alike texts are, and the word diff."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.text.similarity import (
    format_changes,
    similarity,
    tokens,
    window_length,
    word_count,
    word_diff,
)

_texts = st.lists(st.sampled_from(["one", "two", "three.", " ", "\n", "四！", "  "])).map("".join)
modest = settings(derandomize=True, max_examples=150, deadline=None)


@modest
@given(_texts | st.text(max_size=20), _texts | st.text(max_size=20))
def test_a_word_diff_holds_both_texts(before: str, after: str) -> None:
    changes = word_diff(before, after)
    assert "".join(text for kind, text in changes if kind != "new") == before
    assert "".join(text for kind, text in changes if kind != "cut") == after
    assert all(text for _, text in changes)


@pytest.mark.parametrize("words", [150, 500])
def test_a_long_text_keeps_its_round_trip(words: int) -> None:
    before = " ".join(f"w{n}{'.' if n % 7 == 0 else ''}" for n in range(words))
    after = before.replace("w9 ", "nine ").replace(" w30 ", " ")
    changes = word_diff(before, after)
    assert "".join(text for kind, text in changes if kind != "new") == before
    assert "".join(text for kind, text in changes if kind != "cut") == after
    assert sum(len(text) for kind, text in changes if kind == "same") > len(before) / 2


def test_a_diff_reads_without_colour() -> None:
    assert format_changes(word_diff("add the carry", "always add a carry")) == (
        "{+always +}add [-the-]{+a+} carry"
    )


@modest
@given(_texts, _texts)
def test_similarity_is_symmetric_and_between_nothing_and_one(one: str, other: str) -> None:
    assert similarity(one, other) == similarity(other, one)
    assert 0.0 <= similarity(one, other) <= 1.0
    assert similarity(one, one) == 1.0


def test_the_coefficient_counts_words_and_trigrams() -> None:
    # "ab cd": 2 words, trigrams of "ab cd" = 3; "ab": 1 word, no trigram. Shared: "ab".
    # 2 * 1 / (5 + 1) = 1/3
    assert similarity("ab cd", "AB!") == pytest.approx(1 / 3)
    assert similarity("ab", "xy") == 0.0


def test_a_reworded_experience_is_nearer_than_a_foreign_one() -> None:
    rule = "Carry: when digits add to ten or more, carry one into the next column."
    reworded = "Carrying: if the digits sum to ten or more, carry one to the next column."
    foreign = "Precedence: multiply before you add."
    assert similarity(rule, reworded) > 0.6 > 0.3 > similarity(rule, foreign)
    assert similarity("记得进位再相加", "相加时记得进位") > similarity("记得进位再相加", "先乘后加")


def test_letters_of_scripts_without_blanks_are_words_of_their_own() -> None:
    assert tokens("Carry: 进位 2,5 ねこ") == ("carry", "进", "位", "2", "5", "ね", "こ")
    assert (window_length("carry", 8), window_length("进", 8)) == (8, 12)
    assert (word_count("one two three"), word_count("先乘后加再减"), word_count("")) == (3, 4, 0)
