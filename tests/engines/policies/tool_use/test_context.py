"""A conversation with tools stays within its budget, and what is sent follows from it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core.errors import CallFailed
from engines.core.text.tokens import prompt_tokens
from engines.core.types import Message, ToolCall
from engines.policies.tool_use import fit_context

START = (Message("system", "Use tools."), Message("user", "How many?"))


def conversation(sizes: Sequence[int]) -> tuple[Message, ...]:
    """A question, then one turn for each size: a call, and a result of so many characters."""
    messages = list(START)
    for n, size in enumerate(sizes):
        call = ToolCall(f"c{n}", "look", '{"at": 1}')
        messages.append(Message("assistant", "", tool_calls=(call,)))
        messages.append(Message("tool", f"{n}".ljust(size, "x"), tool_call_id=f"c{n}"))
    return tuple(messages)


def test_what_fits_is_sent_as_it_is() -> None:
    messages = conversation([100, 100])
    assert fit_context(messages, (), 1_000) == messages


def test_the_oldest_results_are_left_out_first_and_their_length_is_told() -> None:
    sent = fit_context(conversation([2_000] * 4), (), 1_200)
    results = [m.content for m in sent if m.role == "tool"]
    assert results[0] == "(left out to save room: 2,000 characters of an older result)"
    assert [text.startswith("(left out") for text in results] == [True, True, False, False]


def test_nothing_but_results_is_touched_and_a_short_one_stays() -> None:
    messages = conversation([10, 2_000, 2_000, 2_000])
    sent = fit_context(messages, (), 1_100)
    changed = [m for m, was in zip(sent, messages, strict=True) if m != was]
    assert {m.role for m in changed} == {"tool"}
    assert sent[3] == messages[3]  # a note would be longer


def test_the_prompt_changes_in_blocks_so_that_most_turns_only_add_to_the_last() -> None:
    messages, budget, grown = conversation([1_000] * 30), 2_600, 0
    before: tuple[Message, ...] = ()
    for end in range(2, len(messages) + 1, 2):
        sent = fit_context(messages[:end], (), budget)
        grown += sent[: len(before)] == before
        before = sent
    assert grown >= 20


def test_what_does_not_fit_without_old_results_is_refused_with_both_figures() -> None:
    with pytest.raises(CallFailed, match=r"about 1,\d\d\d tokens, and may have 900") as caught:
        fit_context(conversation([10, 4_000]), (), 900)
    assert caught.value.kind == "context"


def test_the_schemas_of_tools_count() -> None:
    tools = ({"name": "look", "description": "x" * 2_000, "parameters": {}},)
    messages = conversation([1_200, 1_200])
    assert fit_context(messages, (), 800) == messages
    assert fit_context(messages, tools, 1_000) != messages


@given(st.lists(st.integers(0, 3_000), max_size=25), st.integers(900, 4_000))
def test_whatever_was_said_the_budget_is_kept_and_an_earlier_turn_never_returns(
    sizes: list[int], budget: int
) -> None:
    messages, gone = conversation(sizes), 0
    for end in range(2, len(messages) + 1, 2):
        try:
            sent = fit_context(messages[:end], (), budget)
        except CallFailed:
            rest = [replace(m, content=m.content[:80]) for m in messages[: end - 2]]
            assert prompt_tokens([*rest, *messages[end - 2 : end]]) > budget * 0.7
            return
        assert prompt_tokens(sent) <= budget
        left_out = {m.tool_call_id for m in sent if m.content.startswith("(left out")}
        assert len(left_out) >= gone
        gone = len(left_out)
