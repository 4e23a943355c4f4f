"""A team's try: who is asked what, when it ends, and the defects of multi-agent code it avoids."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.agents.team import Member, Team
from engines.core.errors import CallFailed
from engines.core.protocols import ToolTry
from engines.core.team import FIXED, PlanForm, Speaker
from engines.core.types import (
    NOTHING_FOUND,
    Attempt,
    Completion,
    Message,
    RecordRef,
    Sampling,
    ToolResult,
    Usage,
)
from engines.policies.limits import Slots
from engines.policies.tool_use import TeamPolicy
from engines.record.ledger import RecordLedger, read_trajectory
from engines.rollouts.manager import RolloutManager
from engines.tools.function import FunctionTool
from engines.tools.toolbox import CheckedToolbox, Entry
from tests.support.builders import FakePolicy, a_job, answering

ANALYSIS = '{"concise_summary": "a sum", "required_skills": "adding"}'
NONE = '{"tool_name": "none", "justification": "known"}'
GO_ON, STOP = '{"stop_signal": false}', '{"stop_signal": true}'


def plan(goal: str, tool: str = "look_up") -> str:
    return orjson.dumps({"justification": "why", "sub_goal": goal, "tool_name": tool}).decode()


def command(word: str, tool: str = "look_up") -> str:
    return orjson.dumps({"command": {"tool": tool, "arguments": {"word": word}}}).decode()


PAGES = {"Ada": "Ada was born in Kelden.", "Kelden": "Kelden lies on the Orle."}


def tools(seen: list[list[str]]) -> CheckedToolbox:
    async def look_up(word: str, within: ToolTry) -> ToolResult:  # noqa: D417
        """Look a word up.

        Args:
            word: a name
        """
        seen.append([call.arguments for call in within.earlier])
        if word == "broken":
            raise RuntimeError("the service is down")
        if word == "slow":
            await asyncio.Event().wait()
        return ToolResult(PAGES.get(word, f"{NOTHING_FOUND}."), usage=Usage(1, 1, 1))

    return CheckedToolbox([Entry(FunctionTool(look_up), "look_up", 0.05)])


class Colleagues:
    """A model a role, each with its replies."""

    def __init__(self, **replies: list[str | Completion | Exception]) -> None:
        replies = {"planner_fixed": [ANALYSIS], "generator": ["#### Orle"], **replies}
        self.of: dict[Speaker, FakePolicy] = {
            name: answering(*replies.get(name, [])) for name in ("planner_main", *FIXED)
        }

    def asked(self, speaker: Speaker, turn: int = -1) -> str:
        return self.of[speaker].requests[turn][-1].content


async def tried(
    folder: Path,
    models: Colleagues,
    *,
    form: PlanForm = "json",
    context: int | None = None,
    history: tuple[Message, ...] = (),
    seen: list[list[str]] | None = None,
    **team: Any,
) -> tuple[Attempt, tuple[RecordRef, ...]]:
    def member(speaker: Speaker) -> TeamPolicy:
        return TeamPolicy(models.of[speaker], speaker, form, team.get("max_steps", 5), context)

    members: Mapping[Speaker, Member] = {s: Member(member(s), Sampling(0.0)) for s in FIXED}
    agent = Team(
        "Be exact.", Sampling(0.7), tools([] if seen is None else seen), members, form=form, **team
    )
    ledger = RecordLedger(folder, 1)
    manager = RolloutManager(agent, member("planner_main"), ledger, Slots(1), 60.0)
    try:
        return await manager.roll_out(replace(a_job(guidance="[E1] Look twice."), history=history))
    finally:
        await ledger.aclose()


def two_steps() -> Colleagues:
    return Colleagues(
        planner_main=[plan("Ada's birthplace"), plan("its river")],
        executor=[command("Ada"), command("Kelden")],
        verifier=[GO_ON, STOP],
    )


async def test_every_role_speaks_and_the_trajectory_is_recorded_once(tmp_path: Path) -> None:
    models = two_steps()
    attempt, refs = await tried(tmp_path, models)
    said = [m.speaker or m.role for m in attempt.messages]
    step = ["planner_main", "executor", "tool", "verifier"]
    assert said == ["system", "user", "planner_fixed", *step, *step, "generator"]
    assert (attempt.answer, attempt.status, attempt.tool_calls) == ("#### Orle", "ok", 2)
    assert attempt.metrics == {"grounded": 1.0, "steps": 2.0, "unreadable_replies": 0.0}
    assert read_trajectory(tmp_path, refs) == attempt.messages
    assert attempt.usage == Usage(82, 42, 10)  # of eight replies, and of the tool twice
    assert [c.id for m in attempt.messages for c in m.tool_calls] == ["call-1", "call-2"]
    systems = {r[0].content for model in models.of.values() for r in model.requests}
    assert systems == {"Be exact.\n\n[E1] Look twice."}  # the library stands before every role


async def test_fixed_roles_are_asked_at_temperature_0_and_for_json(tmp_path: Path) -> None:
    models = two_steps()
    await tried(tmp_path, models)
    drawn = {name: model.samplings[0] for name, model in models.of.items()}
    assert {name: one.temperature for name, one in drawn.items()} == {
        "planner_main": 0.7,
        **dict.fromkeys(FIXED, 0.0),
    }
    assert [name for name, one in drawn.items() if not one.json_object] == ["generator"]
    assert not any(one.tools for one in drawn.values())  # a command is text, and is read here


async def test_the_verifier_sees_what_the_step_it_judges_gave(tmp_path: Path) -> None:
    """Defect: the memory was read before the new action was added."""
    models = two_steps()
    await tried(tmp_path, models)
    assert "| Ada was born in Kelden." in models.asked("verifier", 0)
    assert "| Kelden lies on the Orle." in models.asked("verifier", 1)
    assert "(nothing yet)" in models.asked("planner_main", 0)
    assert "Sub-goal: its river" in models.asked("generator")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("broken", "error: RuntimeError: the service is down"),
        # Defect: a timer that sets a flag ended no tool; this one is cancelled.
        ("slow", "timeout: It gave no result within 0.05 s and was ended."),
    ],
)
async def test_a_tools_error_goes_to_memory_so_that_the_planner_changes_course(
    tmp_path: Path, word: str, told: str
) -> None:
    models = Colleagues(
        planner_main=[plan("Ada"), plan("its river"), plan("nobody")],
        executor=[command(word), command("Kelden"), command("Nobody")],
        verifier=[GO_ON, GO_ON, STOP],
    )
    attempt, _ = await tried(tmp_path, models)
    assert f"| {told}" in models.asked("planner_main", 1)
    assert attempt.metrics["grounded"] == 1.0  # by one step of three


async def test_a_command_is_a_tool_and_arguments_and_never_run_as_code(tmp_path: Path) -> None:
    """Defect: `exec` of a reply with empty globals still imports os."""
    code = "__import__('os').environ.update(TEAM_WAS_HERE='1')"
    models = Colleagues(
        planner_main=[plan("Ada"), NONE],
        executor=[f"execution = tool.execute({code})", orjson.dumps({"command": code}).decode()],
        verifier=[GO_ON],
    )
    attempt, _ = await tried(tmp_path, models)
    assert "TEAM_WAS_HERE" not in os.environ
    assert [m.content for m in attempt.messages if m.role == "tool"] == [f"{NOTHING_FOUND}."]


@pytest.mark.parametrize(
    ("word", "given"),
    [("9" * 30, "9" * 30), (r'"\ud83d!"', '"\ufffd!"'), ('"é"', '"é"')],
)
async def test_arguments_that_are_unusual_json_are_passed_on(
    tmp_path: Path, word: str, given: str
) -> None:
    models = Colleagues(
        planner_main=[plan("Ada"), NONE],
        executor=[f'{{"command": {{"tool": "look_up", "arguments": {{"word": {word}}}}}}}'],
        verifier=[GO_ON],
    )
    attempt, refs = await tried(tmp_path, models)
    (call,) = (call for message in attempt.messages for call in message.tool_calls)
    assert call.arguments == f'{{"word": {given}}}'
    assert read_trajectory(tmp_path, refs) == attempt.messages


async def test_a_plan_that_breaks_off_is_mended(tmp_path: Path) -> None:
    """Defect: `json.loads` of what json-repair had read failed for every plan."""
    models = Colleagues(
        planner_main=[plan("Ada")[:-1], NONE], executor=[command("Ada")], verifier=[GO_ON]
    )
    attempt, _ = await tried(tmp_path, models)
    assert (attempt.tool_calls, attempt.metrics["unreadable_replies"]) == (1, 0.0)


async def test_the_word_stop_in_a_sentence_stops_nothing(tmp_path: Path) -> None:
    """Defect: STOP was looked for anywhere in the reply."""
    models = Colleagues(
        planner_main=[plan("Ada"), NONE],
        executor=[command("Ada")],
        verifier=['{"analysis": "do not STOP", "stop_signal": false}'],
    )
    await tried(tmp_path, models)
    assert len(models.of["planner_main"].requests) == 2


async def test_an_unreadable_reply_is_asked_for_once_more_with_what_was_wrong(
    tmp_path: Path,
) -> None:
    models = Colleagues(
        planner_main=["I would look it up.", plan("Ada"), NONE],
        executor=["{}", command("Ada")],
        verifier=[Completion("maybe", finish="length"), GO_ON],
    )
    attempt, _ = await tried(tmp_path, models)
    again = models.of["planner_main"].requests[1][-2:]
    assert [m.role for m in again] == ["assistant", "user"]
    assert "no JSON object was found" in again[1].content
    assert "stop_signal" in models.asked("verifier", 1)
    assert "It was cut off at its length limit." in models.asked("verifier", 1)
    assert "cut off" not in again[1].content
    assert (attempt.tool_calls, attempt.metrics["unreadable_replies"]) == (1, 0.0)


@pytest.mark.parametrize(
    ("replies", "steps"),
    [
        ({"planner_main": ["?", "?"]}, 0),  # answers from what is known by then
        ({"planner_main": [NONE], "planner_fixed": ["?", "?"]}, 0),
        (
            {
                "planner_main": [plan("Ada"), plan("its river"), NONE],
                "executor": ["?", "?", command("Kelden")],
                "verifier": [GO_ON, GO_ON],
            },
            2,
        ),
        (
            {
                "planner_main": [plan("Ada"), NONE],
                "executor": [command("Ada")],
                "verifier": ["?", "?"],
            },
            1,
        ),
    ],
)
async def test_what_stays_unreadable_degrades_gracefully(
    tmp_path: Path, replies: dict[str, list[str]], steps: int
) -> None:
    models = Colleagues(**replies)  # type: ignore[arg-type]
    attempt, refs = await tried(tmp_path, models)
    assert (attempt.answer, attempt.status) == ("#### Orle", "ok")
    assert (attempt.metrics["steps"], attempt.metrics["unreadable_replies"]) == (steps, 1.0)
    assert read_trajectory(tmp_path, refs) == attempt.messages
    if steps == 2:  # the step without a command is still known when the next one was taken
        told = models.asked("generator")
        assert "no command could be read" in told and told.count("### Step") == 2


async def test_the_steps_are_limited_and_then_it_is_answered(tmp_path: Path) -> None:
    models = Colleagues(
        planner_main=[plan("Ada")] * 2, executor=[command("Ada")] * 2, verifier=[GO_ON] * 2
    )
    attempt, _ = await tried(tmp_path, models, max_steps=2)
    assert (attempt.answer, attempt.metrics["steps"]) == ("#### Orle", 2.0)
    assert "Steps left: 1" in models.asked("planner_main", 1)


@pytest.mark.parametrize("looked", [False, True])
async def test_an_answer_without_evidence_is_labelled_or_refused(
    tmp_path: Path, looked: bool
) -> None:
    """Defect: a fallback without grounds was presented as an improvement."""

    def models() -> Colleagues:  # an empty result is no evidence either
        steps = {"executor": [command("Nobody")], "verifier": [STOP]} if looked else {}
        return Colleagues(planner_main=[plan("Nobody") if looked else NONE], **steps)  # type: ignore[arg-type]

    labelled, _ = await tried(tmp_path / "a", models())
    assert (labelled.answer, labelled.metrics["grounded"]) == ("#### Orle", 0.0)
    refused, _ = await tried(tmp_path / "b", models(), refuse_ungrounded=True)
    assert (refused.answer, refused.status) == ("", "truncated")
    silent = models()
    silent.of["generator"] = answering(Completion("", finish="content_filter"))
    failed, _ = await tried(tmp_path / "c", silent, refuse_ungrounded=True)
    assert failed.status == "failed"  # by the endpoint, and not for want of evidence


async def test_images_are_seen_and_ids_are_those_of_a_whole_reply_alone() -> None:
    model, asked = answering(NONE, NONE), Message("user", "?", images=("a.png",))
    for text in ("short", "so " * 5_000):  # the ids of one that is cut say more than its text
        said = Message("assistant", text, token_ids=(7,))
        messages = (asked, said, Message("user", "?", speaker="planner_main"))
        await TeamPolicy(model, "planner_main").complete(messages, Sampling())
    found = [(request[0].images, request[1].token_ids) for request in model.requests]
    assert found == [(("a.png",), (7,)), (("a.png",), ())]


async def test_each_turn_of_the_planner_keeps_its_own_prompt_and_no_other_role_is_trained(
    tmp_path: Path,
) -> None:
    """Defect: of several turns only the first prompt was kept."""

    def sampled(text: str, *ids: int) -> Completion:
        told = (-0.1,) * 2
        return Completion(text, token_ids=ids, logprobs=told, prompt_ids=(ids[0] - 1,))

    models = Colleagues(
        planner_main=[sampled(plan("Ada"), 11, 12), sampled(NONE, 21, 22)],
        executor=[Completion(command("Ada"), token_ids=(5,), logprobs=(-1.0,), prompt_ids=(4,))],
        verifier=[GO_ON],
    )
    attempt, _ = await tried(tmp_path, models)
    assert [(turn.prompt_ids, turn.token_ids) for turn in attempt.turns] == [
        ((10,), (11, 12)),
        ((20,), (21, 22)),
    ]


async def test_a_planner_may_write_lines_and_reads_them(tmp_path: Path) -> None:
    PAGES["lines"] = "Kelden lies on the Orle.\nIt has a mill."
    models = Colleagues(
        planner_main=["look_up: Ada", "look_up: Kelden", "none"],
        executor=[command("Ada"), command("lines")],
        verifier=[GO_ON, GO_ON],
    )
    attempt, _ = await tried(tmp_path, models, form="lines")
    assert attempt.answer == "#### Orle"
    assert models.asked("planner_main") == (
        "What is 2 + 3?\nlook_up: Ada = Ada was born in Kelden.\n"
        "look_up: Kelden = Kelden lies on the Orle."
    )
    assert not models.of["planner_main"].samplings[0].json_object


async def test_a_prompt_keeps_to_its_budget_by_leaving_out_the_oldest_results(
    tmp_path: Path,
) -> None:
    PAGES["long"] = "word " * 300  # about 375 tokens
    models = Colleagues(
        planner_main=[plan("one"), plan("two"), NONE],
        executor=[command("long"), command("Kelden")],
        verifier=[GO_ON, GO_ON],
    )
    await tried(tmp_path, models, context=620)
    assert "(left out to save room: 1,500 characters)" in models.asked("planner_main")
    assert "Kelden lies on the Orle." in models.asked("planner_main")
    models = Colleagues(planner_main=[plan("one"), NONE], executor=[command("long")])
    models.of["verifier"] = answering(GO_ON)
    await tried(tmp_path / "one", models, context=500)  # of the last one a part is kept
    assert "| word word" in models.asked("planner_main")
    assert "(cut to save room)" in models.asked("planner_main")
    with pytest.raises(CallFailed, match=r"agent\.context_tokens"):
        models = Colleagues()
        await TeamPolicy(models.of["planner_fixed"], "planner_fixed", context_tokens=50).complete(
            (Message("user", "?"),), Sampling()
        )


async def test_a_member_who_cannot_stop_does_not_fill_the_prompts_of_the_others(
    tmp_path: Path,
) -> None:
    said = orjson.dumps({"concise_summary": "so " * 50_000}).decode()
    endless = dict.fromkeys(("context", "sub_goal"), "so " * 30_000)
    chosen = orjson.dumps({**endless, "tool_name": "look_up"})
    models = Colleagues(
        planner_fixed=["so " * 50_000, said],
        planner_main=[chosen.decode(), NONE],
        executor=[command("so " * 50_000)],
        verifier=[GO_ON],
    )
    attempt, _ = await tried(tmp_path, models, context=9_000)
    assert (attempt.answer, attempt.metrics["steps"]) == ("#### Orle", 1.0)


async def test_every_role_knows_the_talk_so_far(tmp_path: Path) -> None:
    models = two_steps()
    said = (Message("user", "Who is Ada?"), Message("assistant", "A weaver."))
    await tried(tmp_path, models, history=said)
    asked = [request[1:3] for model in models.of.values() for request in model.requests]
    assert asked == [said] * 8


async def test_a_try_that_is_made_again_asks_nobody_twice(tmp_path: Path) -> None:
    first, refs = await tried(tmp_path, two_steps())
    nobody = Colleagues(planner_fixed=[], generator=[])
    again, same = await tried(tmp_path, nobody)
    assert (again.messages, same) == (first.messages, refs)
    assert not any(model.requests for model in nobody.of.values())


async def test_calls_of_before_a_kill_are_told_to_a_tool_with_state(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    _, refs = await tried(tmp_path, two_steps(), seen=seen)
    assert seen == [[], []]
    path, last = tmp_path / refs[0].file, refs[6]  # the second command; its result is cut off
    path.write_bytes(path.read_bytes()[: last.offset + last.length])
    rest = Colleagues(planner_fixed=[], verifier=[STOP])
    attempt, _ = await tried(tmp_path, rest, seen=seen)
    assert attempt.status == "ok"
    assert seen[2:] == [['{"word": "Ada"}']]
