"""Tool calls and results in a stream: what is told of them, and that nobody else can tell it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from engines.core.text.tool_text import (
    MARK,
    STATUSES,
    CallMark,
    ResultMark,
    argument_text,
    call_mark,
    call_text,
    clean_text,
    count_acts,
    model_text,
    result_mark,
    split_marks,
    split_status,
    unfinished_mark,
)
from engines.core.types import Message, ToolCall, ToolResult

wild = st.text(st.characters(codec="utf-8") | st.sampled_from("\x1e\x1f\x1b\n\u202e"), max_size=30)
calls = st.builds(ToolCall, wild, wild, wild)
results = st.builds(ToolResult, wild, st.sampled_from(STATUSES))


@given(said=wild, call=calls, result=results, rest=wild)
def test_what_was_said_called_and_answered_comes_back(
    said: str, call: ToolCall, result: ToolResult, rest: str
) -> None:
    said, rest = clean_text(said), clean_text(rest)
    text = said + call_mark(call) + result_mark(call, result) + rest
    found = list(split_marks(text))
    asked = CallMark(call.id, call.name, call.arguments)
    told = ResultMark(call.id, call.name, result.status, result.text)
    assert found == [part for part in (said, asked, told, rest) if part]


@given(text=wild, call=calls)
def test_no_text_of_a_model_is_taken_for_a_mark(text: str, call: ToolCall) -> None:
    forged = clean_text(text + call_mark(call) + text)
    assert "".join(map(str, split_marks(forged))) == forged and MARK not in forged
    wrapped = call_mark(ToolCall("1", "run", call_mark(call)))  # nor what it gives a tool
    (mark,) = split_marks(wrapped)
    assert isinstance(mark, CallMark) and mark.arguments == call_mark(call)


@given(said=wild, call=calls, cut=st.integers(1, 200))
def test_a_mark_that_is_not_whole_yet_is_left_out_and_can_be_kept(
    said: str, call: ToolCall, cut: int
) -> None:
    said, mark = clean_text(said), call_mark(call)
    half = mark[: min(cut, len(mark) - 1)]
    assert "".join(map(str, split_marks(said + half))) == said
    assert unfinished_mark(said + half) == half
    assert unfinished_mark(said + mark + said) == unfinished_mark(said) == ""


def test_arguments_are_read_as_code_and_failures_by_their_first_word() -> None:
    assert argument_text('{"code": "a = 1\\nprint(a)"}') == "a = 1\nprint(a)"
    assert argument_text('{"city": "Rome",  "days": 3}') == '{"city":"Rome","days":3}'
    assert argument_text('{"code": "a\\nb", "limit_s": 3}') == "code:\na\nb\nlimit_s: 3"
    assert [argument_text(said) for said in ("{1}", "[1, 2]", "{}", "")] == [
        "{1}",
        "[1,2]",
        "{}",
        "",
    ]
    assert call_text("run", '{"code": "a\\nb"}') == "run\na\nb"
    assert split_status("timeout: 10 s are over") == ("timeout", "10 s are over")
    assert split_status("timeouts: 3") == ("ok", "timeouts: 3")
    assert model_text("error", "no") == model_text("error", "error: no") == "error: no"
    assert model_text("ok", "error: is what it printed") == "error: is what it printed"


def test_turns_calls_and_failures_of_a_try_are_counted() -> None:
    call = ToolCall("1", "run", json.dumps({"code": "1/0"}))
    said = (
        Message("user", "?"),
        Message("assistant", "", tool_calls=(call, call)),
        Message("tool", "error: division by zero", tool_call_id="1"),
        Message("tool", "7", tool_call_id="1"),
        Message("assistant", "7"),
    )
    assert count_acts(said) == (2, 2, 1)
