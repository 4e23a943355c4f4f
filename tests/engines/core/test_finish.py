"""The words with which servers end a reply."""

from __future__ import annotations

import pytest

from engines.core.types import is_cut, meaning_of


@pytest.mark.parametrize(
    ("meaning", "words"),
    [
        ("ended", "stop STOP eos eos_token stop_sequence end_turn tool_calls tool-calls null"),
        ("cut", "length MAX_TOKENS model_length max_output_tokens pause_turn limit"),
        ("filtered", "content_filter SAFETY RECITATION SPII refusal sensitive"),
        ("broken", "error abort cancelled insufficient_system_resource OTHER network_error"),
        ("unknown", "because"),
    ],
)
def test_a_word_means_the_same_in_every_servers_spelling(meaning: str, words: str) -> None:
    assert {meaning_of(word) for word in words.split()} == {meaning}
    assert all(is_cut(word) == (meaning == "cut") for word in words.split())


def test_gemini_puts_its_own_word_behind_a_colon() -> None:
    assert meaning_of("content_filter: RECITATION") == "filtered"
    assert meaning_of("function_call_filter: MALFORMED_FUNCTION_CALL") == "broken"


def test_no_word_at_all_is_an_ordinary_end() -> None:
    assert meaning_of("") == "ended"
