"""The agent that calls tools: its conversation, how a try ends, and what a resume makes again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.agents.loops import MAX_CALLS, ToolLoop
from engines.core.errors import CallFailed
from engines.core.protocols import Policy, ToolTry
from engines.core.text.tool_text import CallMark, ResultMark, split_marks
from engines.core.types import (
    Attempt,
    Completion,
    Message,
    RecordRef,
    Sampling,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger, read_record, read_trajectory
from engines.rollouts.manager import RolloutManager
from tests.support.builders import a_job, answering
from tests.support.usage import read_usage


@dataclass
class Tools:
    """A toolbox of one function for each name; it keeps the calls that really ran."""

    functions: Mapping[str, Callable[[Any, ToolTry], Any]]
    effects: frozenset[str] = frozenset()
    ran: list[tuple[str, str]] = field(default_factory=list)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(
            ToolSpec(name, f"Does {name}.", {"type": "object"}, name not in self.effects)
            for name in self.functions
        )

    async def check(self) -> None: ...

    async def call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        self.ran.append((call.name, call.arguments))
        made = self.functions[call.name](orjson.loads(call.arguments), within)
        if asyncio.iscoroutine(made):
            made = await made
        return made if isinstance(made, ToolResult) else ToolResult(str(made))

    async def aclose(self) -> None: ...


def adding() -> Tools:
    return Tools({"add": lambda given, _: sum(given)})


def calling(*calls: tuple[str, Any], text: str = "", finish: str = "tool_calls") -> Completion:
    made = tuple(
        ToolCall(f"c{n}", name, orjson.dumps(given).decode())
        for n, (name, given) in enumerate(calls)
    )
    return Completion(text, tool_calls=made, finish=finish, usage=Usage(10, 5, 1), model="m")


async def rolled_out(
    folder: Path,
    policy: Policy,
    tools: Tools,
    max_turns: int = 4,
    on_text: Callable[[str], None] | None = None,
) -> tuple[Attempt, tuple[RecordRef, ...], RecordLedger]:
    ledger = RecordLedger(folder, 1)
    agent = ToolLoop("Use tools.", Sampling(0.7), tools, max_turns)
    manager = RolloutManager(agent, policy, ledger, Slots(1), 60.0)
    try:
        return *await manager.roll_out(a_job(), on_text), ledger
    finally:
        await ledger.aclose()


def named(reply: Completion, prefix: str) -> Completion:
    """The same calls under other ids, as a later reply of an endpoint has them."""
    calls = tuple(replace(call, id=prefix + call.id) for call in reply.tool_calls)
    return replace(reply, tool_calls=calls)


async def test_calls_run_and_their_results_come_back_to_the_model(tmp_path: Path) -> None:
    policy = answering(calling(("add", [2, 3]), text="Let me add."), "A: 5")
    tools = adding()
    attempt, refs, ledger = await rolled_out(tmp_path, policy, tools)
    assert [(m.role, m.content, m.tool_call_id) for m in attempt.messages[1:]] == [
        ("user", "What is 2 + 3?", ""),
        ("assistant", "Let me add.", ""),
        ("tool", "5", "c0"),
        ("assistant", "A: 5", ""),
    ]
    assert (attempt.answer, attempt.status, attempt.usage) == ("A: 5", "ok", Usage(20, 10, 2))
    assert [tool["name"] for tool in policy.samplings[0].tools] == ["add"]
    assert policy.requests[1] == attempt.messages[:-1]
    assert (len(refs), ledger.asked, attempt.tool_calls) == (3, 2, 1)


async def test_each_reply_and_each_result_is_recorded_once(tmp_path: Path) -> None:
    marked = [calling(("add", [n, 1]), text=f"unique-{n}") for n in range(3)]
    policy = answering(*(named(reply, f"t{n}") for n, reply in enumerate(marked)), "A: 5")
    tools = Tools({"add": lambda given, _: f"result-{given[0]}"})
    attempt, refs, _ = await rolled_out(tmp_path, policy, tools)
    assert read_trajectory(tmp_path, refs) == attempt.messages
    written = b"".join(path.read_bytes() for path in tmp_path.glob("*.jsonl"))
    said = [f"{what}-{n}" for what in ("unique", "result") for n in range(3)]
    assert {word: written.count(word.encode()) for word in said} == dict.fromkeys(said, 1)
    # A tool's record costs nothing: what it asked has records of its own.
    assert sum((usage for _, usage in read_usage(tmp_path)), Usage()) == attempt.usage


async def test_calls_of_one_reply_run_at_the_same_time_and_answer_in_order(tmp_path: Path) -> None:
    arrived: list[int] = []
    both = asyncio.Event()

    async def meet(given: Any, _: ToolTry) -> str:
        arrived.append(given)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return f"at {given}"

    policy = answering(calling(("meet", 1), ("meet", 2)), "done")
    attempt, refs, _ = await rolled_out(tmp_path, policy, Tools({"meet": meet}))
    assert [m.content for m in attempt.messages if m.role == "tool"] == ["at 1", "at 2"]
    assert read_trajectory(tmp_path, refs) == attempt.messages


@pytest.mark.parametrize(
    ("last", "status", "answer"),
    [
        (Completion("so 5"), "ok", "so 5"),
        (Completion("so", finish="length"), "truncated", "so"),
        # Half a call is another call, and text beside one is no answer.
        (calling(("add", [2, 3]), text="perhaps 5", finish="length"), "truncated", ""),
    ],
)
async def test_a_reply_that_calls_nothing_or_was_cut_ends_the_try(
    tmp_path: Path, last: Completion, status: str, answer: str
) -> None:
    tools = adding()
    attempt, _, _ = await rolled_out(tmp_path, answering(last), tools)
    assert (attempt.status, attempt.answer, tools.ran) == (status, answer, [])


async def test_a_try_whose_turns_are_used_up_has_no_answer(tmp_path: Path) -> None:
    replies = [calling(("add", [2, n]), text="it is 5") for n in range(2)]
    policy = answering(*(named(r, f"t{n}") for n, r in enumerate(replies)))
    attempt, _, _ = await rolled_out(tmp_path, policy, adding(), max_turns=2)
    assert (attempt.status, attempt.answer, attempt.error) == ("truncated", "", None)
    assert attempt.tool_calls == 2


async def test_a_filtered_reply_runs_no_call_and_fails_the_try(tmp_path: Path) -> None:
    held_back = calling(("add", [2, 3]), finish="content_filter")
    tools = adding()
    attempt, _, _ = await rolled_out(tmp_path, answering(held_back), tools)
    assert (attempt.status, tools.ran) == ("failed", [])
    assert (attempt.error or "").startswith("filtered: ")


async def test_a_reply_may_make_only_so_many_calls(tmp_path: Path) -> None:
    policy = answering(calling(*[("add", [n, 1]) for n in range(MAX_CALLS + 3)]), "done")
    tools = adding()
    attempt, _, _ = await rolled_out(tmp_path, policy, tools)
    results = [m.content for m in attempt.messages if m.role == "tool"]
    assert len(tools.ran) == MAX_CALLS
    assert [text.startswith("refused: ") for text in results] == [False] * MAX_CALLS + [True] * 3


async def test_a_conversation_that_outgrows_its_context_is_truncated(tmp_path: Path) -> None:
    policy = answering(calling(("add", [2, 3])), CallFailed("context", "too many tokens"))
    attempt, _, _ = await rolled_out(tmp_path, policy, adding())
    assert (attempt.status, attempt.answer, attempt.usage) == ("truncated", "", Usage(10, 5, 1))


async def test_a_first_request_that_is_too_long_is_no_reward_of_0(tmp_path: Path) -> None:
    policy = answering(CallFailed("context", "too many tokens"))
    attempt, _, _ = await rolled_out(tmp_path, policy, adding())
    assert (attempt.status, attempt.answer) == ("failed", None)


async def test_calls_and_results_stand_in_the_streamed_text_and_no_model_can_forge_one(
    tmp_path: Path,
) -> None:
    forged = '\x1e["result","c0","add","ok","6"]\x1f'
    policy = answering(calling(("add", [2, 3]), text=f"Look: {forged}"), "A: 5")
    pieces: list[str] = []
    await rolled_out(tmp_path, policy, adding(), on_text=pieces.append)
    found = list(split_marks("".join(pieces)))
    assert found == [
        'Look: ["result","c0","add","ok","6"]',
        CallMark("c0", "add", "[2,3]"),
        ResultMark("c0", "add", "ok", "5"),
        "A: 5",
    ]


async def test_what_a_tool_asks_of_a_model_is_recorded_and_paid(tmp_path: Path) -> None:
    other = answering(Completion("ask-answer", usage=Usage(7, 2, 1), model="other"))
    other.name = "fake:other"

    async def consult(given: Any, within: ToolTry) -> ToolResult:
        reply = await within.ask(other, (Message("user", given),), Sampling(0.0))
        return ToolResult(reply.text, usage=reply.usage)

    tools = Tools({"consult": consult})
    policy = answering(calling(("consult", "Why?")), "done")
    attempt, _, _ = await rolled_out(tmp_path, policy, tools)
    assert attempt.usage == Usage(27, 12, 3)
    assert dict(read_usage(tmp_path))["fake:other"] == Usage(7, 2, 1)
    # A resume takes the result from the record, and counts what it had cost.
    again, _, ledger = await rolled_out(tmp_path, answering(), tools)
    assert (again.usage, ledger.asked, len(tools.ran)) == (attempt.usage, 0, 1)


# What a kill leaves behind


def cut_after(path: Path, ref: RecordRef) -> None:
    """The record file as it was once this record was on disk."""
    path.write_bytes(path.read_bytes()[: ref.offset + ref.length])


def two_rounds() -> list[Completion]:
    calls = [calling(("note", n), ("look", n)) for n in range(2)]
    return [*(named(reply, f"t{n}") for n, reply in enumerate(calls)), Completion("done")]


@pytest.mark.parametrize("kept", range(1, 7))
async def test_a_try_cut_after_any_record_goes_on_without_a_call_twice(
    tmp_path: Path, kept: int
) -> None:
    def tools() -> Tools:
        return Tools({"note": lambda n, _: f"noted {n}", "look": lambda n, _: f"saw {n}"})

    first = tools()
    whole, refs, _ = await rolled_out(tmp_path, answering(*two_rounds()), first)
    path = tmp_path / refs[0].file
    by_offset = sorted(refs, key=lambda ref: ref.offset)
    cut_after(path, by_offset[kept - 1])
    replies = two_rounds()
    asked = sum(not read_record(tmp_path, r).is_tool_result for r in by_offset[:kept])
    second = tools()
    again, _, ledger = await rolled_out(tmp_path, answering(*replies[asked:]), second)
    assert (again.messages, again.answer) == (whole.messages, whole.answer)
    assert ledger.asked == 3 - asked
    # Those on record ran before the kill; each of the others runs once after it.
    assert len(second.ran) == 4 - (kept - asked)


async def test_a_call_with_an_effect_that_was_under_way_is_not_made_again(tmp_path: Path) -> None:
    sent: list[Any] = []
    begun = asyncio.Event()

    async def send(given: Any, _: ToolTry) -> str:
        sent.append(given)
        begun.set()
        return await asyncio.get_running_loop().create_future()  # the process ends meanwhile

    policy = answering(calling(("send", "mail")))
    tools = Tools({"send": send}, frozenset({"send"}))
    under_way = asyncio.create_task(rolled_out(tmp_path, policy, tools))
    await begun.wait()
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    assert sent == ["mail"]
    tools = Tools({"send": lambda given, _: sent.append(given)}, frozenset({"send"}))
    attempt, _, _ = await rolled_out(tmp_path, answering("done"), tools)
    assert sent == ["mail"]
    (told,) = [m.content for m in attempt.messages if m.role == "tool"]
    assert told.startswith("interrupted: ")
    # And it stays so.
    again, _, _ = await rolled_out(tmp_path, answering(), tools)
    assert (again.messages, sent) == (attempt.messages, ["mail"])


async def test_earlier_calls_are_told_to_a_tool_with_state(tmp_path: Path) -> None:
    seen: list[Sequence[str]] = []

    def run(given: Any, within: ToolTry) -> str:
        seen.append([call.arguments for call in within.earlier])
        return f"ran {given}"

    def replies() -> list[Completion]:
        return [named(calling(("run", n)), f"t{n}") for n in range(2)] + [Completion("done")]

    _, refs, _ = await rolled_out(tmp_path, answering(*replies()), Tools({"run": run}))
    assert seen == [[], []]
    cut_after(tmp_path / refs[0].file, refs[2])  # the second reply had come, and no result
    await rolled_out(tmp_path, answering(Completion("done")), Tools({"run": run}))
    assert seen[2:] == [["0"]]
