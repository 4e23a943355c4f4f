"""A worker lost anywhere in a try loses nothing of it, and nothing is paid or done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engines.agents.loops import ToolLoop
from engines.core.errors import StudioError, WorkerLost
from engines.core.protocols import OnText, ToolTry
from engines.core.types import (
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    Problem,
    RecordRef,
    Rollout,
    Sampling,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    Verdict,
)
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from engines.rollouts.remote.worker import RemoteLedger, RemoteModel
from engines.rollouts.remote.worker_pool import RunModels, WorkerPool
from engines.verifiers.judge import JudgeContext, JudgeSettings, JudgeVerifier
from tests.support.memory_cluster import on_cluster
from tests.support.tool_tries import a_toolbox
from tests.support.usage import read_usage

ANY_OBJECT = {"type": "object", "properties": {}}


@dataclass
class Counting:
    """Calls a tool twice, asks a model within one, then answers; counts who asked what."""

    name: str = "counting"
    asked: Counter[str] = field(default_factory=Counter)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        turns = sum(message.role == "assistant" for message in messages)
        self.asked[f"{turns} of {messages[-1].content[:40]}"] += 1
        if on_text is not None:
            on_text(f"turn {turns}. ")
        paid = Usage(10, 2, 1)
        if messages[-1].content.startswith("please"):
            return Completion("helped", usage=paid)
        if "correct" in messages[0].content:
            return Completion('{"reasoning": "as it must be", "correct": true}', usage=paid)
        if turns < 2:
            calls = tuple(ToolCall(f"c{turns}{n}", n, "{}") for n in ("note", "help"))
            return Completion(f"turn {turns}", tool_calls=calls, usage=paid)
        said = "; ".join(message.content for message in messages if message.role == "tool")
        return Completion(f"#### {said}", usage=paid)

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class Note:
    """A tool that counts its calls; one with an effect may not be called twice for one of them."""

    spec: ToolSpec
    made: list[int] = field(default_factory=list)

    async def check(self) -> None: ...

    async def call(self, arguments: Mapping[str, Any], within: ToolTry) -> ToolResult:
        self.made.append(within.job.key.index)
        return ToolResult("noted")

    async def aclose(self) -> None: ...


@dataclass
class Help:
    """A tool that asks a model of the run's process."""

    spec = ToolSpec("help", "", ANY_OBJECT)

    async def check(self) -> None: ...

    async def call(self, arguments: Mapping[str, Any], within: ToolTry) -> ToolResult:
        reply = await within.ask(
            RemoteModel(("model", 0), "counting"), [Message("user", "please")], Sampling()
        )
        return ToolResult(reply.text, usage=reply.usage)

    async def aclose(self) -> None: ...


class LateLedger:
    """The judge's ledger of whichever worker judges: known once there is one."""

    pool: WorkerPool

    async def ask(self, *asked: Any, **more: Any) -> tuple[Completion, RecordRef]:
        process = self.pool.cluster.processes[-1]  # type: ignore[attr-defined]
        return await RemoteLedger(process.worker.line).ask(*asked, **more)


@dataclass
class Tried:
    """What came of one try and its verdict, and what that took."""

    attempt: Attempt
    verdict: Verdict
    asked: Counter[str]
    noted: int
    paid: list[Any]  # as the records have it
    items: int


async def try_once(folder: Path, lives: Sequence[int | None], *, repeatable: bool = False) -> Tried:
    note = Note(ToolSpec("note", "", ANY_OBJECT, repeatable=repeatable))
    policy, late = Counting(), LateLedger()
    ledger = RecordLedger(folder, 1)

    async def judge(
        key: CallKey, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[Completion, RecordRef]:
        return await ledger.ask(key, policy, messages, sampling)

    models = RunModels(lambda ref: policy, (), judge)
    judging = JudgeContext(RemoteModel(("judge", 0), "counting"), Sampling(), late)  # type: ignore[arg-type]
    verifier = JudgeVerifier(JudgeSettings(), judging)
    toolbox = a_toolbox(note, Help())

    def make_agent(sampling: Sampling) -> ToolLoop:
        return ToolLoop("Solve it.", sampling, toolbox, max_turns=4)

    async with on_cluster(make_agent, verifier, models, lives=lives) as pool:
        late.pool = pool
        agent = pool.agent(Sampling(0.5))
        manager = RolloutManager(agent, policy, ledger, Slots(4), 60.0)
        job = Job(Problem("p", "q", "a"), "Mind it.", CallKey("rollout", 1, 1, 0, 0), 0, 0)
        attempt, refs = await manager.roll_out(job, on_text=lambda text: None)
        assert len({(ref.file, ref.offset) for ref in refs}) == len(refs)
        rollout = Rollout.from_job(job, attempt, 0)
        (verdict,) = await pool.verifier().verify(job.problem, [rollout])
        passed = sum(process.passed for process in pool.cluster.processes)  # type: ignore[attr-defined]
    await ledger.aclose()
    paid = list(read_usage(folder))
    return Tried(attempt, verdict, policy.asked, len(note.made), paid, passed)


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_worker_that_is_lost_at_any_item_changes_nothing(
    tmp_path: Path, repeatable: bool
) -> None:
    whole = await try_once(tmp_path / "whole", (), repeatable=repeatable)
    assert whole.attempt.answer == "#### noted; helped; noted; helped"
    assert (whole.verdict.reward, whole.noted) == (1.0, 2)
    interrupted = 0
    for lives in range(1, whole.items + 1):
        cut = await try_once(tmp_path / str(lives), [lives], repeatable=repeatable)
        assert (cut.asked, cut.paid) == (whole.asked, whole.paid), lives
        assert cut.noted in ((2, 3) if repeatable else (1, 2)), lives
        assert (cut.attempt.usage, cut.verdict.reward) == (whole.attempt.usage, 1.0), lives
        if cut.attempt.messages != whole.attempt.messages:  # it may have had its effect by then
            assert "interrupted" in (cut.attempt.answer or ""), lives
            interrupted += 1
    assert (interrupted == 0) is repeatable


async def test_a_try_whose_second_worker_is_lost_too_is_a_failed_one(tmp_path: Path) -> None:
    tried = await try_once(tmp_path, [3, 3, 3, 3, None])
    assert tried.attempt.status == "failed"
    assert tried.attempt.error == "WorkerLost: node n1 was lost: it was killed"


async def test_a_try_is_not_given_the_worker_again_that_it_was_lost_with() -> None:
    async with on_cluster(lambda _: ToolLoop("", Sampling(), a_toolbox()), workers=2) as pool:
        cluster: Any = pool.cluster
        while len(pool.nodes) < 2:
            await asyncio.sleep(0)
        # Others have the turn just then, as the many do that wait for a worker with room.
        async with pool.lend() as worker, pool._changed:
            cluster.processes[0].kill()
            with pytest.raises(WorkerLost, match="node n0 was lost"):
                await worker.line.ask("attempt")
            assert pool.nodes == ("n1",)


async def test_it_is_told_which_worker_was_lost_and_at_the_end_none_is() -> None:
    told: list[tuple[tuple[str, ...], str]] = []
    async with on_cluster(lambda _: ToolLoop("", Sampling(), a_toolbox())) as pool:
        pool.on_nodes = lambda nodes, lost: told.append((nodes, lost))
        cluster: Any = pool.cluster
        cluster.processes[0].kill()
        while len(told) < 2:
            await asyncio.sleep(0)
    assert told[:2] == [((), "node n0 was lost: it was killed"), (("n1",), "")]
    assert [lost for _, lost in told[2:]] == [""]


async def test_work_that_no_worker_survives_stays_unjudged() -> None:
    class Never:
        async def check(self) -> None: ...

        async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict]:
            raise AssertionError

        async def aclose(self) -> None: ...

    job = Job(Problem("p", "q", "a"), "", CallKey("rollout", 1, 1, 0, 0), 0, 0)
    rollout = Rollout.from_job(job, Attempt((), "a"), 0)

    def make_agent(sampling: Sampling) -> Any:
        raise AssertionError

    async with on_cluster(make_agent, Never(), lives=[1, 1, None]) as pool:
        (verdict,) = await pool.verifier().verify(job.problem, [rollout])
    assert (verdict.reward, verdict.error) == (None, "failed: node n1 was lost: it was killed")


async def test_whoever_waits_for_a_worker_is_told_that_none_comes_any_more() -> None:
    async with on_cluster(lambda _: ToolLoop("", Sampling(), a_toolbox())) as pool:
        cluster: Any = pool.cluster

        async def refuse() -> Any:
            raise WorkerLost("n9", "there is no such node")

        cluster.add_worker = refuse
        async with pool.lend():
            cluster.processes[0].kill()
        with pytest.raises(StudioError, match=r"no worker could be started .*no such node"):
            for _ in range(50):  # the first may still be given the one that is lost
                async with pool.lend():
                    await asyncio.sleep(0)
