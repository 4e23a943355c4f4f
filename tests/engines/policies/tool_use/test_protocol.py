"""Tools in plain text: what a model is told, which blocks are calls, how results are quoted."""

from __future__ import annotations

import orjson
import pytest

from engines.core.types import Completion, Message, Sampling, ToolCall
from engines.policies.tool_use import ToolUsePolicy, as_text, spell_calls, with_calls
from tests.support.builders import answering

PYTHON = {"name": "python", "description": "Runs a\nprogram.", "parameters": {"properties": {}}}
LOOK = {"name": "look", "description": "Looks.", "parameters": {"properties": {"at": {}}}}
TOOLS = (PYTHON, LOOK)
ASKED = (Message("system", "Solve it."), Message("user", "How many?"))


def calls_in(text: str, *, finish: str = "stop", tools: tuple[dict, ...] = TOOLS) -> list:  # type: ignore[type-arg]
    reply = with_calls(Completion(text, finish=finish), tools)
    return [(call.name, call.arguments) for call in reply.tool_calls]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A: 5", []),
        ("```python\nprint(5)\n```", [("python", '{"code":"print(5)"}')]),
        ("Let me see.\n```py\nx = 1\nx\n```\n", [("python", '{"code":"x = 1\\nx"}')]),
        ('```tool\n{"name": "look", "arguments": {"at": 3}}\n```', [("look", '{"at":3}')]),
        ('```tool\n{"name": "look"}\n```', [("look", "{}")]),
        ('```tool\n{"name": "look", "arguments": "{\\"at\\": 3}"}\n```', [("look", '{"at": 3}')]),
        (
            '```python\n1\n```\nand\n```tool\n{"name": "look"}\n```',
            [("python", '{"code":"1"}'), ("look", "{}")],
        ),
        # No call: other languages, a block in a line, one that has not ended.
        ("```json\n{}\n```", []),
        ("```\nprint(5)\n```", []),
        ("say ```python print(5)``` here", []),
        ("```python\nprint(5)\n", []),
        # A call that nobody can make is refused by the toolbox, not taken for an answer.
        ("```tool\nlook at 3\n```", [("", "look at 3")]),
        ("```tool\n[1]\n```", [("", "[1]")]),
        ('```tool\n{"name": 3}\n```', [("", '{"name": 3}')]),
        ("```tool\n\n```", [("", "")]),
    ],
)
def test_blocks_are_calls(text: str, expected: list[tuple[str, str]]) -> None:
    assert calls_in(text) == expected


def test_a_program_is_a_call_only_where_the_interpreter_is_offered() -> None:
    assert calls_in("```python\nprint(5)\n```", tools=(LOOK,)) == []


def test_a_reply_that_was_cut_makes_no_call() -> None:
    assert calls_in("```python\nprint(5)\n```\nand then", finish="length") == []


def test_tools_are_described_behind_the_instructions() -> None:
    system, user = as_text(ASKED, TOOLS)
    assert system.content.startswith("Solve it.\n\n## Tools\n")
    assert "\n- python: Runs a program. Arguments: {}\n- look: Looks." in system.content
    assert user == ASKED[1]
    assert as_text(ASKED[1:], TOOLS)[0].role == "system"


def test_results_are_quoted_in_one_message_and_calls_spelled_where_they_were_typed() -> None:
    said = Message("assistant", "Look.", tool_calls=(ToolCall("a", "look", '{"at":3}'),))
    program = Message("assistant", "", tool_calls=(ToolCall("b", "python", '{"code":"1+1"}'),))
    told = (
        Message("tool", "## Now obey\nsecond line", tool_call_id="a"),
        Message("tool", "2", tool_call_id="b"),
    )
    sent = as_text((*ASKED, said, told[0], program, told[1]), TOOLS)[2:]
    assert [(m.role, m.content) for m in sent] == [
        ("assistant", 'Look.\n\n```tool\n{"name":"look","arguments":{"at":3}}\n```'),
        ("user", "Tool results\n\nlook:\n| ## Now obey\n| second line"),
        ("assistant", "```python\n1+1\n```"),
        ("user", "Tool results\n\npython:\n| 2"),
    ]
    assert not any(m.tool_calls for m in sent)


def test_calls_that_were_written_as_blocks_stay_as_they_were_written() -> None:
    text = "So:\n```py\n1\n```"
    assert spell_calls(text, (ToolCall("a", "python", '{"code":"1"}'),)) == text
    odd = spell_calls("", (ToolCall("a", "look", "not json"),))
    assert orjson.loads(odd.splitlines()[1]) == {"name": "look", "arguments": "not json"}


async def test_the_policy_speaks_text_below_and_typed_calls_above() -> None:
    inner = answering("```python\n1\n```")
    policy = ToolUsePolicy(inner, "text")
    reply = await policy.complete(ASKED, Sampling(0.5, stop=("END",), tools=TOOLS))
    assert reply.tool_calls == (ToolCall("call-1", "python", '{"code":"1"}'),)
    assert inner.samplings[0] == Sampling(0.5, stop=("END", "\nTool results"))
    assert "## Tools" in inner.requests[0][0].content


@pytest.mark.parametrize(
    ("given", "ids"),
    [(("", ""), ["call-2", "call-3"]), (("x", "x"), ["x", "call-3"]), (("old",), ["call-2"])],
)
async def test_every_call_has_an_id_of_its_own(given: tuple[str, ...], ids: list[str]) -> None:
    old = Message("assistant", "", tool_calls=(ToolCall("old", "look", "{}"),))
    made = Completion("", tool_calls=tuple(ToolCall(name, "look", "{}") for name in given))
    reply = await ToolUsePolicy(answering(made)).complete((*ASKED, old), Sampling(tools=TOOLS))
    assert [call.id for call in reply.tool_calls] == ids
