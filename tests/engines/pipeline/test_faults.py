"""Practice against an endpoint that fails one request in five, in every way there is."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import CallFailed
from engines.core.state.fold import fold_events
from engines.core.types import Completion, Proposal, Reflection, Sampling, Usage
from engines.policies.limits import Priority, Slots
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.settings import TrainingFreeSettings
from engines.verifiers.judge import JudgeContext, JudgeSettings, JudgeVerifier
from tests.support.builders import a_group, a_library, a_problem, a_rollout, answering
from tests.support.faulty_endpoint import KINDS, LASTING, NEVER_ANSWERED, faulty_endpoint
from tests.support.harness import practised

TIMEOUT_S = 1.5
SLACK_S = 20.0
"""For a loaded machine; a call that held its slot for good would hold it for ever."""


def settings(base_url: str) -> tuple[str, ...]:
    return (
        "policy.model=openai:rehearsal",
        f"policy.base_url={base_url}",
        f"policy.timeout_s={TIMEOUT_S}",
        "policy.max_retries=2",
        "practice.batch_size=32",
        "practice.group_size=4",
        "practice.epochs=1",
        "practice.concurrency=32",
        "data.truncate=32",
    )


async def test_a_run_ends_by_itself_and_every_group_and_every_loss_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_s: list[float] = []
    acquire = Slots.acquire

    @asynccontextmanager
    async def timed(self: Slots, priority: Priority = ()) -> AsyncIterator[None]:
        async with acquire(self, priority):
            began = time.monotonic()
            try:
                yield
            finally:
                held_s.append(time.monotonic() - began)

    # What every slot is held for, whoever holds it, is nobody's business but this test's.
    monkeypatch.setattr(Slots, "acquire", timed)
    async with faulty_endpoint(0.2, seed=3) as faulty:
        async with asyncio.timeout(120):
            made = await practised(tmp_path, *settings(faulty.base_url), "practice.epochs=2")
    served = faulty.served
    # Which requests fail how follows from their bytes: another prompt may spare a kind or two.
    assert len(set(KINDS) - set(served)) <= 2
    assert max(held_s) < TIMEOUT_S + SLACK_S
    state = made.state
    assert state.status == "finished"
    steps = state.steps.values()
    groups = sum((step.groups for step in steps), Counter[str]())
    assert set(groups) <= {"used", "critique", "all-right", "all-wrong", "failed", "unjudged"}
    assert sum(groups.values()) == 2 * 32
    assert groups["used"] > 10
    rollouts = [e.event for e in made.run.entries() if isinstance(e.event, ev.RolloutFinished)]
    assert len(rollouts) == 2 * 32 * 4
    failed = [done for done in rollouts if done.status == "failed"]
    assert state.lost["rollout"] == len(failed) > 0
    kinds = {(done.error or "").partition(":")[0] for done in failed}
    assert len(kinds & {"timeout", "filtered", "empty", "status"}) >= 3
    verdicts = [e.event for e in made.run.entries() if isinstance(e.event, ev.RolloutJudged)]
    where = {(done.step, done.position, done.index) for done in failed}
    # An outage is never a wrong answer.
    assert not [
        e
        for e in verdicts
        if (e.step, e.position, e.index) in where and e.verdict.reward is not None
    ]
    # Only what stays broken is lost: a passing fault costs a try, never a rollout.
    # Nor is what a loaded machine is too late with, which is lost like what never comes.
    answered = [done for done in failed if not (done.error or "").startswith("timeout")]
    assert len(answered) <= sum(served[kind] for kind in LASTING if kind not in NEVER_ANSWERED)


async def test_two_runs_against_the_same_faults_learn_the_same(tmp_path: Path) -> None:
    made = []
    async with faulty_endpoint(0.2, seed=5, kinds=[k for k in KINDS if k != "drip"]) as faulty:
        for name in "ab":
            small = "data.truncate=10"
            made.append(await practised(tmp_path / name, *settings(faulty.base_url), small))
    one, other = made
    assert one.texts == other.texts != []
    assert one.decisions() == other.decisions()


@pytest.mark.nightly
async def test_the_real_program_ends_with_exit_4_and_says_what_was_lost(tmp_path: Path) -> None:
    async with faulty_endpoint(0.2, seed=7) as faulty:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-m", "studio", "--workspace", str(tmp_path)),
            *("headless", "rehearsal", "--json"),
            *settings(faulty.base_url),
            *("data.truncate=16", "evaluation.do_eval=false"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(child.communicate(), 120)
    assert child.returncode == 4, err.decode()
    endings = [line for line in map(json.loads, out.splitlines()) if line["kind"] == "RunEnded"]
    assert [line["how"] for line in endings] == ["finished"], endings
    assert err.decode().count("refuses some calls as too many") == 1
    (run,) = Workspace(tmp_path).runs()
    state = fold_events(entry.event for entry in run.entries())
    (step,) = state.steps.values()
    assert sum(step.groups.values()) == 16
    assert state.lost["rollout"] > 0


NOTHING = (
    Completion("", finish="content_filter", usage=Usage(9, 0, 1)),
    Completion('[{"operation": "ad', finish="content_filter", usage=Usage(9, 4, 1)),
    Completion("", "Hm, well.", usage=Usage(9, 3, 1)),
    Completion("", "Hm, well.", finish="length", usage=Usage(9, 3, 1)),
    Completion("", usage=Usage(9, 0, 1)),
)
no_reply = pytest.mark.parametrize(
    "reply", NOTHING, ids=["filtered", "filtered midway", "thought", "thought too long", "silence"]
)
TASK = TrainingFreeSettings("Solve sums.", "Be right more often.")


@no_reply
async def test_an_extraction_without_a_reply_loses_its_group_and_was_paid(
    reply: Completion, tmp_path: Path
) -> None:
    ledger = RecordLedger(tmp_path, 1)
    engine = TrainingFreeEngine(TASK, answering(reply, reply), ledger)
    made = await engine.reflect(a_group([1, 0]), a_library())
    await ledger.aclose()
    assert (made.outcome, made.proposals) == ("failed", ())
    assert made.losses and {loss.kind for loss in made.losses} == {"extraction"}
    assert made.usage.calls == 2


@no_reply
async def test_a_consolidation_without_a_reply_loses_the_step(
    reply: Completion, tmp_path: Path
) -> None:
    ledger = RecordLedger(tmp_path, 1)
    engine = TrainingFreeEngine(TASK, answering(reply, reply), ledger)
    found = Proposal("add", None, "Carry: add it.", "seen", ("s1p0r0",))
    reflection = Reflection(1, 0, "used", (found,))
    lesson = await engine.consolidate([a_group([1, 0])], [reflection], a_library())
    await ledger.aclose()
    assert lesson.operations == ()
    assert {loss.kind for loss in lesson.losses} == {"consolidation"}
    assert lesson.usage.calls == 2


@pytest.mark.parametrize("reply", [one for one in NOTHING if not one.text])
async def test_a_summary_without_a_reply_loses_its_attempt(
    reply: Completion, tmp_path: Path
) -> None:
    ledger = RecordLedger(tmp_path, 1)
    always = replace(TASK, read_chars=1, summarise_above_chars=0)
    engine = TrainingFreeEngine(always, answering(reply, reply), ledger)
    made = await engine.reflect(a_group([1, 0]), a_library())
    await ledger.aclose()
    assert made.outcome == "failed"
    assert [loss.kind for loss in made.losses] == ["summary", "summary", "extraction"]


@no_reply
async def test_a_judge_without_a_reply_leaves_the_answer_unjudged(
    reply: Completion, tmp_path: Path
) -> None:
    ledger = RecordLedger(tmp_path, 1)
    judging = JudgeContext(answering(reply, reply), Sampling(), ledger)
    (verdict,) = await JudgeVerifier(JudgeSettings(), judging).verify(a_problem(), [a_rollout("5")])
    await ledger.aclose()
    assert verdict.reward is None
    assert verdict.error
    assert verdict.usage.calls == 2


async def test_a_call_of_a_role_that_failed_is_charged_where_it_was_made(tmp_path: Path) -> None:
    spent = Usage(9, 4, 2)
    failed = CallFailed("cut", "in the middle", spent)
    ledger = RecordLedger(tmp_path, 1)
    engine = TrainingFreeEngine(TASK, answering(failed, failed), ledger)
    assert (await engine.reflect(a_group([1, 0]), a_library())).usage == spent
    found = Proposal("add", None, "Carry: add it.", "seen", ("s1p0r0",))
    reflection = Reflection(1, 0, "used", (found,))
    lesson = await engine.consolidate([a_group([1, 0])], [reflection], a_library())
    assert lesson.usage == spent
    judge = JudgeVerifier(JudgeSettings(), JudgeContext(answering(failed), Sampling(), ledger))
    (verdict,) = await judge.verify(a_problem(), [a_rollout("5")])
    await ledger.aclose()
    assert (verdict.reward, verdict.usage) == (None, spent)
