"""Replies of the model that could not be parsed: where one comes from, and its correction."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.core.errors import ConflictError, StudioError
from engines.core.frozen import frozen
from engines.core.state.run_state import RolloutHistory, StepHistory
from engines.core.types import (
    Lesson,
    Message,
    Names,
    Proposal,
    RecordRef,
    Reflection,
    UnparsedReply,
    group_id,
)
from engines.record.derived.run_state import read_step
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from engines.training_free.consolidation import Idea, ReplyOrigin, Resubmission, read_resubmission
from studio.secrets.sanitize import one_line, sanitize

if TYPE_CHECKING:  # it loads the rules of reviewers, which a screen waits for at its start
    from engines.pipeline.gate.gate import Gate


@frozen
class ReplySource:
    """What a reply answers: its place in the step, the prompt, the rollouts it is about."""

    origin: ReplyOrigin
    reply: str
    prompt: tuple[Message, ...]  # () where its record is gone
    rollouts: Names


async def resubmit_reply(
    run: RunDir, gate: "Gate", repair_id: str, text: str, reviewer: str
) -> Resubmission:
    """Parse a corrected reply; what it holds joins the queue where all of it is understood."""
    repair = gate.unparsed_reply(repair_id)
    # In a thread: it reads the journal, and the run must not stand still meanwhile.
    source = await asyncio.to_thread(find_reply_source, run, repair)
    found = await asyncio.to_thread(
        read_resubmission, repair, text, gate.draft(), source.origin, reviewer
    )
    if found.problems:
        return found
    operations = await gate.resubmit(repair_id, found.operations, reviewer, found.fates)
    return replace(found, operations=operations)


def find_reply_source(run: RunDir, repair: UnparsedReply) -> ReplySource:
    """Look up the prompt and the rollouts behind a reply.

    Raises ConflictError: the run's journal knows nothing of it.
    """
    step = read_step(run.journal, repair.step)
    evidence: dict[int, Names]
    if repair.kind == "extraction":
        position = int(repair.id.rpartition("p")[2])
        source: Reflection | Lesson | None = step.latest_reflections.get(position)
        evidence = {one.finished.index: (one.id,) for one in _usable_rollouts(step, position)}
    else:
        source = step.lesson
        evidence = {n: p.evidence for n, (_, p) in enumerate(_proposals(step), 1)}
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
        {one.id: step.problems[at] for (at, _), one in step.rollouts.items()},
        proposer,
        source.prompt_hash,
        _known_ideas(step, repair),
    )
    rollouts = tuple(dict.fromkeys(name for names in evidence.values() for name in names))
    return ReplySource(origin, replies[0], prompt, rollouts)


def _usable_rollouts(step: StepHistory, position: int) -> list[RolloutHistory]:
    """Rollouts of a group that the lesson was drawn from: those with a reward, if any has.

    Without a given truth none may have one; then all that did not fail count.
    """
    alive = [one for one in step.members(position) if one.finished.status != "failed"]
    return [one for one in alive if one.reward is not None] or alive


def _proposals(step: StepHistory) -> list[tuple[str, Proposal]]:
    """In the order in which the consolidation numbered them: that of the samples."""
    return [
        (group_id(step.step, at), proposal)
        for at, found in step.latest_reflections.items()
        for proposal in found.proposals
    ]


def _known_ideas(step: StepHistory, repair: UnparsedReply) -> dict[Idea, str]:
    """What the step holds already: its operations, and what the group has proposed."""
    found: dict[Idea, str] = {
        (p.kind, p.target, p.text): "it was understood the first time"
        for group, p in _proposals(step)
        if group == repair.id  # never for a consolidation, whose id is no group's
    }
    own = {event.operation.id for event in step.proposed}  # a person's, not the model's
    for op in step.operations:
        if op.id not in own:
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
