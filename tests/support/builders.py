"""Small ways to say what a test is about; everything not said is unremarkable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from engines.agents.open import AgentNeeds
from engines.core import events as ev
from engines.core.errors import CallFailed
from engines.core.library import Experience, Library
from engines.core.library_notes import Effect, NotesMark, PastDecision, interval_verdict
from engines.core.protocols import OnText
from engines.core.types import (
    Attempt,
    CallKey,
    Completion,
    Decision,
    DecisionAction,
    Group,
    Job,
    Lesson,
    Message,
    Operation,
    OperationKind,
    Problem,
    Rollout,
    Sampling,
    Usage,
    Verdict,
)


def a_problem(question: str = "What is 2 + 3?", answer: str | None = "5") -> Problem:
    return Problem(f"id-{question}", question, answer)


def a_rollout(
    text: str | None = "2 + 3 = 5", *, step: int = 1, position: int = 0, index: int = 0
) -> Rollout:
    """A rollout that said `text`; None makes one that failed."""
    if text is None:
        attempt = Attempt((), None, "failed", error="timeout: no answer within 1 s")
    else:
        said = (Message("user", "What is 2 + 3?"), Message("assistant", text))
        attempt = Attempt(said, text, usage=Usage(3, 4, 1))
    return Rollout(
        attempt=attempt,
        epoch=1,
        step=step,
        position=position,
        index=index,
        seed=7,
        policy_version=0,
        library_version=0,
    )


def a_group(
    rewards: Sequence[float | None],
    *,
    texts: Sequence[str | None] | None = None,
    problem: Problem | None = None,
    step: int = 1,
    position: int = 0,
) -> Group:
    """A group with these rewards; texts default to "attempt N", None is a failed rollout."""
    said = texts if texts is not None else [f"attempt {n}" for n in range(len(rewards))]
    return Group(
        problem=problem or a_problem(),
        epoch=1,
        step=step,
        position=position,
        rollouts=tuple(
            a_rollout(t, step=step, position=position, index=n) for n, t in enumerate(said)
        ),
        verdicts=tuple(
            Verdict(r, error=None if r is not None else "timeout: 2 s") for r in rewards
        ),
    )


def a_library(*texts: str, name: str = "lib", version: int = 0) -> Library:
    """A library whose experiences are E1, E2 and so on."""
    entries = tuple(Experience(f"E{n}", text) for n, text in enumerate(texts, 1))
    return Library(name, version, entries, len(texts) + 1)


def remembering(library: Library, *ideas: PastDecision) -> Library:
    """The library, of which reviewers made these decisions."""
    mark = NotesMark(decisions=len(ideas))
    return replace(library, notes=replace(library.notes, curated=ideas, mark=mark))


def an_effect(difference: float, low: float, high: float, **more: Any) -> Effect:
    """As 1,024 rollouts with random halves would give it."""
    facts = {"problems": 128, "rollouts": 1024, "method": "inclusion", "false_discovery": 0.01}
    verdict = interval_verdict(low, high)
    return Effect(difference=difference, low=low, high=high, verdict=verdict, **facts | more)


def an_operation(
    kind: OperationKind = "add",
    target: str | None = None,
    text: str = "",
    *,
    id: str = "op1.1",
    evidence: tuple[str, ...] = (),
) -> Operation:
    """An operation; additions and modifications without a text get one of their own."""
    wording = text or (f"Rule {id}: say {id}." if kind in ("add", "modify") else "")
    return Operation(
        id=id,
        kind=kind,
        target=target,
        text=wording,
        rationale="because",
        evidence=evidence,
        proposer="m",
        prompt_hash="hash",
    )


def a_decision(
    operation: Operation | str, action: DecisionAction = "approve", **more: Any
) -> Decision:
    name = operation if isinstance(operation, str) else operation.id
    return Decision(name, action, **{"reviewer": "person", **more})


def approved(*operations: Operation) -> tuple[tuple[Operation, Decision], ...]:
    return tuple((operation, a_decision(operation)) for operation in operations)


def a_lesson(*operations: Operation, step: int = 1, base_version: int = 0) -> Lesson:
    return Lesson(step, base_version, operations)


def a_run(**more: Any) -> ev.RunStarted:
    values: dict[str, Any] = {
        "run": "exp",
        "exp_id": "exp",
        "seed": 1,
        "epochs": 1,
        "steps_per_epoch": 2,
        "group_size": 2,
        "library": "lib",
        "library_version": 0,
        "reviewer": "wait",
        "rehearsal": False,
        "settings": {},
    }
    return ev.RunStarted(**{**values, **more})


def a_step(step: int = 1, *, epoch: int = 1, library_version: int = 0) -> ev.StepStarted:
    return ev.StepStarted(epoch, step, ("p0", "p1"), 0, library_version)


def a_rollout_finished(
    position: int = 0, index: int = 0, *, step: int = 1, error: str | None = None
) -> ev.RolloutFinished:
    usage = Usage(3, 4, 1)
    if error is not None:
        return ev.RolloutFinished(
            step=step,
            position=position,
            index=index,
            seed=1,
            status="failed",
            answer=None,
            error=error,
            usage=usage,
            elapsed_s=0.5,
        )
    return ev.RolloutFinished(
        step=step,
        position=position,
        index=index,
        seed=1,
        status="ok",
        answer=None,
        error=None,
        usage=usage,
        elapsed_s=0.5,
        tail="5",
    )


@dataclass
class FakePolicy:
    """A policy that answers from a queue, and remembers what it was asked.

    A reply is a text, a whole `Completion`, or an exception to raise.
    """

    name: str = "fake:m"
    replies: deque[Completion | Exception] = field(default_factory=deque)
    requests: list[tuple[Message, ...]] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)

    def enqueue(self, replies: Iterable[str | Completion | Exception]) -> FakePolicy:
        for reply in replies:
            if isinstance(reply, str):
                reply = Completion(reply, usage=Usage(10, 5, 1), model="m")
            self.replies.append(reply)
        return self

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.requests.append(tuple(messages))
        self.samplings.append(sampling)
        if not self.replies:
            raise AssertionError(f"a call more than was expected: {messages[-1].content[-300:]}")
        reply = self.replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    async def ping(self) -> None:
        """It is there."""

    async def aclose(self) -> None:
        """It holds nothing."""


def answering(*replies: str | Completion | Exception) -> FakePolicy:
    return FakePolicy().enqueue(replies)


def a_timeout(text: str = "no answer within 1 s") -> CallFailed:
    return CallFailed("timeout", text)


def agent_needs(instructions: str, sampling: Sampling, max_turns: int = 2) -> AgentNeeds:
    settings = SimpleNamespace(instructions=instructions, max_turns=max_turns)
    return AgentNeeds(settings=settings, sampling=sampling)


def a_job(problem: Problem | None = None, guidance: str = "") -> Job:
    return Job(problem or a_problem(), guidance, CallKey("rollout", 1, 1, 0, 0), 0, 0)
