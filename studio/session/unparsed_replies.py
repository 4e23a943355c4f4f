"""Replies of the model that could not be parsed: where one comes from, and its correction.

Finds the step, the prompt and the records behind a reply, and hands a corrected one to the gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engines.core import events as ev
from engines.core.errors import ConflictError, StudioError
from engines.core.types import (
    Lesson,
    Message,
    Operation,
    Proposal,
    RecordRef,
    Reflection,
    UnparsedReply,
    group_id,
    rollout_id,
)
from engines.pipeline.gate.gate import Gate
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from engines.training_free.resubmit import Idea, ReplyOrigin, Resubmission, read_resubmission
from studio.secrets.sanitize import one_line, sanitize


@dataclass(frozen=True, slots=True)
class ReplySource:
    """What a reply answers: its place in the step, the prompt, the rollouts it is about."""

    origin: ReplyOrigin
    reply: str
    prompt: tuple[Message, ...]  # () where its record is gone
    rollouts: tuple[str, ...]


async def resubmit_reply(
    run: RunDir, gate: Gate, repair_id: str, text: str, reviewer: str
) -> Resubmission:
    """Parse a corrected reply, and put what it holds into the queue where all of it is understood.

    Raises:
        ConflictError: no such reply waits.
    """
    repair = gate.queue.unparsed_reply(repair_id)
    # In a thread: it reads the journal, and the run must not stand still meanwhile.
    source = await asyncio.to_thread(find_reply_source, run, repair)
    found = await asyncio.to_thread(
        read_resubmission, repair, text, gate.draft(), source.origin, reviewer
    )
    if found.problems:
        return found
    return replace(
        found, operations=await gate.queue.resubmit(repair_id, found.operations, reviewer)
    )


def find_reply_source(run: RunDir, repair: UnparsedReply) -> ReplySource:
    """Look up the prompt and the rollouts behind a reply.

    Raises:
        ConflictError: the run's journal knows nothing of it.
    """
    step = _StepLessons(run, repair.step)
    evidence: dict[int, tuple[str, ...]]
    if repair.kind == "extraction":
        position = int(repair.id.rpartition("p")[2])
        source: Reflection | Lesson | None = step.reflections.get(position)
        evidence = {index: (name,) for index, name in step.usable_attempts(position)}
        prompt_hash = source.prompt_hash if source else ""
    else:
        source = step.lesson
        evidence = {n: p.evidence for n, (_, p) in enumerate(step.proposals(), 1)}
        prompt_hash = source.prompt_hash if source else ""
    replies = [loss.reply for loss in source.losses if loss.reply] if source else []
    if source is None or not replies:
        raise ConflictError(
            f"run {run.run}, reply {repair.id}",
            "its journal holds no such reply.",
            f"See `studio runs show {run.run}`.",
        )
    proposer, prompt = _read_request(run, repair.kind, source.refs)
    origin = ReplyOrigin(
        evidence,
        {name: step.problems[at] for name, at in step.position_of.items()},
        proposer,
        prompt_hash,
        step.known_ideas(repair),
    )
    rollouts = tuple(dict.fromkeys(name for names in evidence.values() for name in names))
    return ReplySource(origin, replies[0], prompt, rollouts)


class _StepLessons:
    """What the journal holds of one step and its lessons."""

    def __init__(self, run: RunDir, step: int) -> None:
        self.problems: tuple[str, ...] = ()
        self.reflections: dict[int, Reflection] = {}
        self.lesson: Lesson | None = None
        self.position_of: dict[str, int] = {}  # rollout id → position
        self._mended: list[Operation] = []
        self._rollouts: dict[tuple[int, int], ev.RolloutFinished] = {}
        self._judged: dict[tuple[int, int], float | None] = {}
        self._own = tuple(f"op{step}{mark}" for mark in (".p", ".m"))
        for entry in run.entries():
            event = entry.event
            if isinstance(event, ev.ReplyMended):  # perhaps in a later step
                self._mended += [op for op in event.operations if op.id.startswith(self._own)]
            elif getattr(event, "step", None) == step:
                self._apply_event(event)

    def _apply_event(self, event: ev.DurableEvent) -> None:
        match event:
            case ev.StepStarted():
                self.problems = event.problems
            case ev.RolloutFinished():
                self._rollouts[event.position, event.index] = event
                name = rollout_id(event.step, event.position, event.index)
                self.position_of[name] = event.position
            case ev.RolloutJudged():
                self._judged[event.position, event.index] = event.verdict.reward
            case ev.GroupReflected():
                self.reflections[event.position] = event.reflection
            case ev.LessonProposed():
                self.lesson = event.lesson

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.lesson.operations if self.lesson else ()

    def usable_attempts(self, position: int) -> list[tuple[int, str]]:
        """Attempts of a group that the lesson was drawn from: those with a reward, if any has.

        Without a given truth none may have one; then all that did not fail count.
        """
        members = sorted(at for at in self._rollouts if at[0] == position)
        alive = [at for at in members if self._rollouts[at].status != "failed"]
        rewarded = [at for at in alive if self._judged.get(at) is not None]
        step = self._rollouts[members[0]].step if members else 0
        return [(at[1], rollout_id(step, *at)) for at in rewarded or alive]

    def proposals(self) -> list[tuple[str, Proposal]]:
        """In the order in which the consolidation numbered them: that of the samples."""
        return [
            (group_id(found.step, at), proposal)
            for at, found in sorted(self.reflections.items())
            for proposal in found.proposals
        ]

    def known_ideas(self, repair: UnparsedReply) -> dict[Idea, str]:
        """What the step holds already: its operations, and what the group has proposed."""
        found: dict[Idea, str] = {}
        if repair.kind == "extraction":
            for group, p in self.proposals():
                if group == repair.id:
                    found[p.kind, p.target, p.text] = "it was understood the first time"
        for op in (*self.operations, *self._mended):
            found[op.kind, op.target, op.text] = f"{op.id} says the same"
        return found


def _read_request(
    run: RunDir, purpose: str, refs: Sequence[RecordRef]
) -> tuple[str, tuple[Message, ...]]:
    """Who wrote the reply, and the first request. Neither is known where a record is lost."""
    model = ""
    prompt: tuple[Message, ...] = ()
    for ref in refs:
        try:
            record = read_record(run.records, ref)
        except StudioError:
            continue
        if record.key.purpose == purpose:
            model = record.reply.model or record.policy
            prompt = prompt or record.messages
    return model, prompt


COMMENT = "#: "
"""Begins the lines above a reply in the editor; no JSON begins so."""


def with_comments(text: str, reasons: Sequence[str]) -> str:
    """A reply as it is opened in an editor: above it what is wrong, line by line."""
    notes = ["This reply could not be understood. Mend it, save, and leave the editor."]
    notes += [f"wrong: {one_line(reason, 400)}" for reason in reasons]
    notes.append("Lines that begin with `#:` are taken out again.")
    # An escape that `sanitize` puts in is JSON's own: within a string it means the same.
    return "\n".join([*(COMMENT + note for note in notes), sanitize(text.replace("\r\n", "\n"))])


def without_comments(text: str) -> str:
    """The corrected text without the comments at its top."""
    lines = text.split("\n")
    while lines and lines[0].startswith(COMMENT.strip()):
        lines.pop(0)
    return "\n".join(lines)
