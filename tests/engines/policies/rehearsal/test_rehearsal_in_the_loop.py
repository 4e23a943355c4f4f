"""The rehearsal model as the agent with tools asks it: by calls, and in fenced blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engines.agents.loops import ToolLoop
from engines.core.library import guidance_text
from engines.core.types import Attempt, Job, Problem, Sampling
from engines.policies.limits import Slots
from engines.policies.open import open_policy
from engines.policies.tool_use import Protocol, ToolUsePolicy
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from engines.training_free.reading import shown_attempts
from tests.engines.agents.test_tool_loop import Tools
from tests.engines.policies.rehearsal.test_rehearsal import an_extract_prompt, operations, rows
from tests.engines.policies.rehearsal.test_rehearsal_tools import LESSONS, SOURCES, run_code
from tests.support.builders import a_group, a_job

SEEDS = 30
PYTHON = Tools({"python": lambda given, _: run_code(given["code"])})


def a_problem(family: str) -> Problem:
    row = next(r for r in rows("math-tools-heldout.jsonl") if SOURCES[r["source"]] == family)
    return Problem(f"id-{family}", row["question"], row["answer"])


async def rolled_out(
    folder: Path, protocol: Protocol, problem: Problem, tools: Tools = PYTHON, guidance: str = ""
) -> list[Attempt]:
    """Tries of the studio's own loop with 30 seeds."""
    agent = ToolLoop("Solve the problem.", Sampling(0.7), tools, 4)
    policy = ToolUsePolicy(open_policy("rehearsal"), protocol, 24_000)
    job: Job = a_job(problem, guidance)
    attempts = []
    for seed in range(SEEDS):
        ledger = RecordLedger(folder / str(seed), seed)
        manager = RolloutManager(agent, policy, ledger, Slots(1), 60.0)
        attempts.append((await manager.roll_out(job))[0])
        await ledger.aclose()
    await policy.aclose()
    return attempts


def rewards(attempts: list[Attempt], problem: Problem) -> list[float]:
    finals = [(attempt.answer or "").rpartition("#### ")[2] for attempt in attempts]
    return [float(final == problem.answer) for final in finals]


@pytest.mark.parametrize("protocol", ["native", "text"])
@pytest.mark.parametrize("family", LESSONS)
async def test_a_lesson_drawn_from_the_loop_helps_in_the_loop(
    tmp_path: Path, protocol: Protocol, family: str
) -> None:
    problem = a_problem(family)
    before = await rolled_out(tmp_path / "before", protocol, problem)
    assert {(a.status, a.tool_calls) for a in before} == {("ok", 1)}
    known = rewards(before, problem)
    assert 0.1 < sum(known) / SEEDS < 0.6
    group = a_group(known)
    rollouts = tuple(
        replace(rollout, attempt=attempt)
        for rollout, attempt in zip(group.rollouts, before, strict=True)
    )
    shown = shown_attempts(replace(group, problem=problem, rollouts=rollouts), rewards_known=True)
    told = [(attempt.text, attempt.reward) for attempt in shown]
    (wish,) = operations(an_extract_prompt(problem.question, told))
    assert wish["experience"] == LESSONS[family]
    guidance = guidance_text([("E1", wish["experience"])])
    after = await rolled_out(tmp_path / "after", protocol, problem, guidance=guidance)
    assert sum(rewards(after, problem)) / SEEDS > 0.8


async def test_both_protocols_call_the_same_programs(tmp_path: Path) -> None:
    problem = a_problem("whole")
    programs = {}
    for protocol in ("native", "text"):
        attempts = await rolled_out(tmp_path / protocol, protocol, problem)
        calls = [call for a in attempts for m in a.messages for call in m.tool_calls]
        programs[protocol] = [json.loads(call.arguments)["code"] for call in calls]
    assert len(programs["text"]) == SEEDS and programs["text"] == programs["native"]


@pytest.mark.parametrize("protocol", ["native", "text"])
async def test_with_another_tool_nothing_is_called_and_nothing_is_right(
    tmp_path: Path, protocol: Protocol
) -> None:
    problem = a_problem("printed")
    guidance = guidance_text([("E1", LESSONS["printed"])])
    other = Tools({"calculator": lambda given, _: 0})
    attempts = await rolled_out(tmp_path, protocol, problem, other, guidance)
    assert {attempt.tool_calls for attempt in attempts} == {0}
    assert not any(rewards(attempts, problem))
