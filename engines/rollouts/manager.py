"""Makes rollouts: one concurrency limit, one deadline a task, every failure a fact."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from engines.core import errors, waiting
from engines.core.frozen import frozen
from engines.core.protocols import Agent, OnText, Policy, TryLedger, TryPolicy
from engines.core.text import citations, tool_text
from engines.core.types import (
    NO_USAGE,
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    RecordRef,
    Sampling,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
    Usage,
)
from engines.policies.limits import Slots, bind_to_job, with_slots

TRAJECTORY_CHARS = 4_000_000
"""Of all replies of one try together; more fails it. Four replies of the greatest length."""


@dataclass(slots=True)
class RecordedPolicy(TryPolicy):
    """Bound to one try: its calls are turns 0, 1, … of one key, in the ledger.

    `refs` are those of its replies and of what its tools said, in the order of the conversation.
    """

    inner: Policy
    ledger: TryLedger
    key: CallKey
    again: bool = False  # ask also for what is recorded, see `Ledger.ask`
    turn: int = 0
    refs: list[RecordRef] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)  # those that can be trained on
    usage: Usage = NO_USAGE
    chars: int = 0  # of all replies
    ran_tools: bool = False

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        reply = await self.complete_as(self.inner, messages, sampling, on_text)
        if reply.turn is not None:
            self.turns.append(reply.turn)
        return reply

    async def complete_as(
        self,
        policy: Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
    ) -> Completion:
        key = replace(self.key, turn=self.turn)
        shown = None if on_text is None else lambda text: on_text(tool_text.clean_text(text))
        reply, ref = await self._ask(key, policy, messages, sampling, shown)
        self.turn += 1
        self.refs.append(ref)
        self.chars += len(reply.text) + len(reply.reasoning)
        self.chars += sum(len(call.arguments) for call in reply.tool_calls)
        if self.chars > TRAJECTORY_CHARS:
            text = f"the replies of one try have more than {TRAJECTORY_CHARS:,} characters"
            raise errors.CallFailed("too long", text)
        return reply

    @property
    def conversation(self) -> tuple[RecordRef, ...]:
        """The records in order: that of a loop with tools, or that in which they were written.

        A program that asks several things at once may ask in another order after a resume, and
        each record tells what is new since the one before it.
        """
        if self.ran_tools:
            return tuple(self.refs)
        return tuple(sorted(self.refs, key=lambda ref: (ref.file, ref.offset)))

    async def run_tools(
        self,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> tuple[ToolResult, ...]:
        key, restored = replace(self.key, turn=self.turn - 1), set[str]()

        def restore(call: ToolCall) -> None:
            restored.add(call.id)
            on_restored(call)

        self.ran_tools = True
        found = await self.ledger.run_tools(key, calls, run, specs, restore)
        self.refs += (ref for _, ref in found)
        results = tuple(result for result, _ in found)
        for call, result in zip(calls, results, strict=True):
            if call.id in restored:  # what it asks now is counted as it is asked
                self.usage += result.usage
        return results

    async def ask(
        self, policy: Policy, messages: Sequence[Message], sampling: Sampling
    ) -> Completion:
        key = replace(self.key, purpose="tool", turn=self.turn - 1)
        return (await self._ask(key, policy, messages, sampling, None))[0]

    async def _ask(
        self,
        key: CallKey,
        policy: Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None,
    ) -> tuple[Completion, RecordRef]:
        again = self.again and policy is self.inner
        try:
            reply, ref = await self.ledger.ask(
                key, policy, messages, sampling, on_text, again=again
            )
        except errors.CallFailed as failed:
            self.usage += failed.usage
            raise
        except asyncio.CancelledError as cut:
            self.usage += errors.lost_usage(cut)
            raise
        self.usage += reply.usage
        return reply, ref


class _RunningRollout:
    """A rollout that can be killed. `cut` has no time limit: it expires when somebody says so."""

    def __init__(self) -> None:
        self.cut = asyncio.timeout(None)
        self.killed = ""

    def kill(self, reason: str) -> None:
        if not self.killed:
            self.killed = reason
            self.cut.reschedule(asyncio.get_running_loop().time())


@frozen
class RolloutManager:
    """Rolls jobs out. `task_timeout_s` counts from the moment a job holds its slot.

    Waiting for money, or for a slot again that an endpoint had too much of, is not in it. `cleared`
    is awaited in the slot, so that a pause also holds jobs that had queued. `attending` is entered
    round each try: a policy that decodes many at once waits until all who attend have asked.
    """

    agent: Agent
    policy: Policy
    ledger: TryLedger
    slots: Slots
    task_timeout_s: float
    cleared: Callable[[], Awaitable[None]] | None = None  # None: nothing ever pauses
    attending: Callable[[], AbstractContextManager[None]] | None = None  # None: nobody counts
    # By rollout, since two held-out sets may hold the same problem at the same place.
    _under_way: dict[_RunningRollout, CallKey] = field(default_factory=dict, init=False)

    def kill(self, step: int, position: int, index: int, reason: str) -> bool:
        """End one rollout that is under way as a failed one; its group goes on.

        `reason` is what its error says: `KILLED` and who did it. False where no such rollout is
        under way: it waits, or has ended.
        """
        for found, key in self._under_way.items():
            place = key.step, key.position, key.index
            if key.purpose == "rollout" and place == (step, position, index):
                found.kill(reason)
                return True
        return False

    async def roll_out(
        self, job: Job, on_text: OnText | None = None, on_start: Callable[[], None] | None = None
    ) -> tuple[Attempt, tuple[RecordRef, ...]]:
        """Make one try, whatever comes of it; `on_start` is called once it holds a slot."""
        # Reflections come first (priority 0): they free nothing, but they end groups.
        async with self.slots.acquire((1, job.key.position, job.key.index)):
            if self.cleared is not None:
                await self.cleared()
            if on_start is not None:
                on_start()
            policy = bind_to_job(with_slots(self.policy, self.slots), job)
            # Practice alone must come out as it was: held-out tries are known by their scores.
            again = self.attending is not None and job.key.purpose == "rollout"
            recorded = RecordedPolicy(policy, self.ledger, job.key, again)
            began, failure = time.monotonic(), ""
            under_way = _RunningRollout()
            self._under_way[under_way] = job.key
            try:
                with self.attending() if self.attending else nullcontext():
                    async with under_way.cut, waiting.deadline(self.task_timeout_s):
                        try:
                            attempt = await self.agent.attempt(job, recorded, on_text)
                        except errors.WorkerLost as lost:
                            if on_text is not None:
                                on_text(f"\n[{lost}; the try is made again]\n")
                            # What was asked until now is in the record, and found there.
                            recorded = RecordedPolicy(policy, self.ledger, job.key, again)
                            attempt = await self.agent.attempt(job, recorded, on_text)
            except errors.StudioError:
                raise
            except TimeoutError:
                failure = f"timeout: no answer within {self.task_timeout_s:g} s"
            except errors.CallFailed as error:
                failure = str(error)
            except Exception as error:  # an agent's own fault is a fact of this rollout
                failure = f"{type(error).__name__}: {error}"
            finally:
                del self._under_way[under_way]
            if under_way.killed:  # it may have ended in the same moment
                failure = under_way.killed
            if failure:
                attempt = _failed_attempt(failure, recorded.usage, began)
            if recorded.turns:
                attempt = replace(attempt, turns=tuple(recorded.turns))
            if attempt.answer is not None and job.guidance:
                judged = citations.without_citations(
                    attempt.answer, citations.guidance_ids(job.guidance)
                )
                attempt = replace(attempt, answer=judged)
            return attempt, recorded.conversation


def _failed_attempt(reason: str, usage: Usage, began: float) -> Attempt:
    return Attempt(
        messages=(),
        answer=None,
        status="failed",
        usage=usage,
        elapsed_s=round(time.monotonic() - began, 4),
        error=reason,
    )
