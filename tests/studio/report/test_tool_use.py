"""Turns and tool calls: counted in the journal, told by the reports where there are any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.protocols import OnText, Policy
from engines.core.text.tool_text import call_mark, result_mark
from engines.core.types import (
    Attempt,
    Completion,
    Job,
    Message,
    Sampling,
    ToolCall,
    ToolResult,
    Usage,
)
from engines.pipeline.context import RunContext
from engines.record.derived.run_state import read_history
from engines.record.run_dir import Workspace
from studio.evaluation.try_problem import print_piece
from studio.facts.run import load_run_facts
from studio.facts.step import rollout_facts
from studio.render.evaluation_lines import finished_text
from studio.render.run_lines import rollout_text, run_text
from studio.render.words import try_acts_text
from tests.support.harness import practised

SMALL = (
    "practice.epochs=1",
    "practice.batch_size=2",
    "practice.group_size=2",
    "data.truncate=2",
    "evaluation.do_eval=false",
)
CALL = ToolCall("c", "python", json.dumps({"code": "print(6 * 7)\nprint(1)"}))


class Caller:
    """Calls a tool in its first reply, and answers in the second."""

    name = "caller"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        calls = () if messages[-1].role == "tool" else (CALL,)
        return Completion("#### 42", usage=Usage(1, 1, 1), tool_calls=calls)

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class Acting:
    """An agent whose only tool fails on the first problem; on the second it fails itself."""

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages: tuple[Message, ...] = (Message("user", job.problem.question),)
        reply = await policy.complete(messages, Sampling(), on_text)
        result = "42" if job.key.index else "error: no such file"
        messages = (*messages, reply.as_message(), Message("tool", result, tool_call_id="c"))
        if job.key.position:
            raise ValueError("the agent is broken")
        reply = await policy.complete(messages, Sampling(), on_text)
        return Attempt((*messages, reply.as_message()), reply.text, usage=Usage(2, 2, 2))


def acting(practice: RunContext) -> RunContext:
    rollouts = replace(practice.rollouts, policy=Caller(), agent=Acting())  # type: ignore[arg-type]
    return replace(practice, rollouts=rollouts)


def test_a_run_counts_turns_and_calls_those_of_failed_tries_too(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    run = asyncio.run(practised(tmp_path, *SMALL, change=acting)).run
    found = {
        rollout.id: (done.turns, done.tool_calls, done.failed_calls)
        for rollout in read_history(run.journal).rollouts
        for done in [rollout.finished]
    }
    whole = {"s1p0r0": (2, 1, 1), "s1p0r1": (2, 1, 0)}
    assert found == whole | {f"s1p1r{index}": (1, 1, 0) for index in (0, 1)}
    facts = load_run_facts(run, workspace, alive=False)
    assert (facts.steps[0].turns, facts.steps[0].failed_calls) == (6, 1)
    text = run_text(facts)
    assert "tools    1.5 turns and 1.0 tool calls a try (n=4), 1 call failed" in text
    assert "TURNS/TRY  TOOLS/TRY" in text
    one = rollout_facts(run, "s1p0r0")
    assert (one.finished.turns, one.finished.tool_calls, one.finished.failed_calls) == (2, 1, 1)
    assert "2 turns, 1 tool call (1 failed)" in rollout_text(one)
    assert "[calls python]\nprint(6 * 7)\nprint(1)\n" in rollout_text(one)


def test_of_agents_that_give_one_reply_nothing_is_told(tmp_path: Path) -> None:
    run = asyncio.run(practised(tmp_path, *SMALL)).run
    facts = load_run_facts(run, Workspace(tmp_path), alive=False)
    assert facts.steps[0].turns == facts.steps[0].rollouts_done == 4
    assert "turn" not in run_text(facts).lower() and "tools" not in run_text(facts).lower()
    assert "turn" not in rollout_text(rollout_facts(run, "s1p0r0"))


def test_counts_in_words() -> None:
    assert try_acts_text(1, 0, 0) == try_acts_text(0, 0, 0) == ""
    assert try_acts_text(1, 1, 0) == "1 turn, 1 tool call"
    measured = ev.EvaluationFinished(
        step=0,
        data="held",
        policy_version=0,
        library_version=0,
        k=1,
        n=2,
        unjudged=0,
        mean=0.5,
        usage=Usage(),
    )
    assert finished_text(replace(measured, tool_calls=5)).endswith("(n=2), 2.5 tool calls a try")
    assert "tool" not in finished_text(measured)


def test_a_try_prints_calls_and_results_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    for piece in ("I run it.", call_mark(CALL), result_mark(CALL, ToolResult("42\x1b[2J\n"))):
        print_piece(piece)
    assert capsys.readouterr().out == (
        "I run it.\n[calls python]\nprint(6 * 7)\nprint(1)\n\n[python: ok]\n42\\u001b[2J\n\n"
    )
